"""Hold causal_attention equal to PyTorch's operation in values and gradients, and blind to the future.

Every check is a function of the operation, and is also run on wrong operations that it must find.
"""

from __future__ import annotations

import contextlib
import io
import math
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import attention  # first, for it makes octlm importable
import torch
from attention import TOLERANCE, D, compare, inputs, reference
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octlm import causal_attention

Attend = Callable[..., Tensor]  # (q, k, v, *, offset) -> output

SQUARE = [(1, 0), (2, 0), (7, 0), (32, 0)]  # (Tq, offset); Tk = offset + Tq
CACHED = [(1, 1), (1, 8), (2, 3), (5, 1), (5, 12), (32, 32)]


def masked_after_softmax(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
    """Zero the future's weights when it has already taken its share of each row."""
    weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
    return weights.tril(diagonal=offset) @ v


def filled_with_a_large_number(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
    """Give the future a score of -10000 in place of -inf."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones_like(scores).triu(diagonal=offset + 1).bool()
    return scores.masked_fill(future, -1e4).softmax(dim=-1) @ v


def aligned_top_left(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
    """Let PyTorch make the mask: it counts the queries from position 0, whatever the offset."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def one_key_ahead(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
    """Read the next key, too."""
    return reference(q, k, v, offset + 1)


def itself_unread(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
    """Read only the keys before a query's own position (the first key where there is none)."""
    return torch.cat([reference(row, k, v, max(offset + i - 1, 0)) for i, row in enumerate(q.split(1, dim=2))], dim=2)


def not_scaled(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
    """Forget the division by sqrt(D)."""
    return causal_attention(q * math.sqrt(D), k, v, offset=offset)


def without_gradient(name: str) -> Attend:
    """Compute the right values and no gradient of one input."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
        q, k, v = (x.detach() if name == which else x for which, x in zip("qkv", (q, k, v), strict=True))
        return causal_attention(q, k, v, offset=offset)

    return attend


def difference(attend: Attend, n_queries: int, offset: int) -> dict[str, float]:
    """Measure the largest difference from PyTorch in the values, and in the gradients of one scalar objective."""
    found = []
    for operation in (attend, reference):
        q, k, v = (x.requires_grad_() for x in inputs(n_queries, offset))
        values = operation(q, k, v, offset=offset)
        cotangent = torch.randn(values.shape, dtype=values.dtype, generator=torch.Generator().manual_seed(1))
        objective = (values * cotangent).sum()
        found.append([values, *torch.autograd.grad(objective, (q, k, v), materialize_grads=True)])
    gaps = [(ours - theirs).abs().max().item() for ours, theirs in zip(*found, strict=True)]
    return dict(zip(("values", "dq", "dk", "dv"), gaps, strict=True))


def misread(attend: Attend, n_queries: int, offset: int) -> Iterator[str]:
    """Make all keys and values after each query huge, and name what changes that must not, or must and does not."""
    q, k, v = inputs(n_queries, offset)
    before = attend(q, k, v, offset=offset)
    noise = torch.Generator().manual_seed(2)
    for i in range(n_queries - 1):
        future = offset + i + 1  # the first key that queries 0 .. i must not read
        changed = [x.clone() for x in (k, v)]
        for x in changed:
            x[:, :, future:] += 1e6 * torch.randn(x[:, :, future:].shape, dtype=x.dtype, generator=noise)
        after = attend(q, *changed, offset=offset)
        if not torch.equal(after[:, :, : i + 1], before[:, :, : i + 1]):
            yield f"queries 0 .. {i} read a key at or after {future}"
        if (after == before)[:, :, i + 1 :].all(dim=-1).any():
            yield f"a query after {i} does not read the keys from {future}"


class TheScript(unittest.TestCase):
    def test_its_record_is_within_the_tolerance(self) -> None:
        record = compare()
        self.assertEqual((record.device, record.shape), ("cpu", (2, 4, 32, 16)))
        self.assertLessEqual(record.largest_error, TOLERANCE)
        self.assertEqual(record, compare())

    def test_it_prints_the_record_from_any_folder(self) -> None:
        with tempfile.TemporaryDirectory() as elsewhere:
            command = [sys.executable, str(Path(attention.__file__).resolve())]
            result = subprocess.run(command, cwd=elsewhere, capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        first, *lines = result.stdout.splitlines()
        self.assertIn("a correctness record, not a performance claim", first)
        self.assertEqual(lines[:2], ["device: cpu", "output shape: (2, 4, 32, 16)"])
        label, _, error = lines[2].partition(": ")
        self.assertEqual((len(lines), label), (3, "largest absolute error against scaled_dot_product_attention"))
        self.assertLessEqual(float(error), TOLERANCE)

    def test_it_fails_where_the_operation_is_wrong_or_gives_nan(self) -> None:
        def nan(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
            return q * math.nan

        for operation, code in ((causal_attention, 0), (masked_after_softmax, 1), (nan, 1)):
            out = io.StringIO()
            with mock.patch.object(attention, "causal_attention", operation), contextlib.redirect_stdout(out):
                self.assertEqual(attention.main([]), code, out.getvalue())

    def test_it_refuses_arguments_in_one_line(self) -> None:
        err = io.StringIO()
        with self.assertRaises(SystemExit) as stop, contextlib.redirect_stderr(err):
            attention.main(["fast"])
        self.assertEqual((stop.exception.code, err.getvalue().count("\n")), (2, 1))


class ValuesAndGradients(unittest.TestCase):
    def assert_equal(self, shapes: list[tuple[int, int]]) -> None:
        for n_queries, offset in shapes:
            for name, gap in difference(causal_attention, n_queries, offset).items():
                with self.subTest(n_queries=n_queries, offset=offset, name=name):
                    self.assertLessEqual(gap, TOLERANCE)

    def test_square_shapes_equal_pytorch(self) -> None:
        self.assert_equal(SQUARE)

    def test_cached_shapes_equal_pytorch(self) -> None:
        self.assert_equal(CACHED)

    def test_equal_scores_give_the_mean_of_the_values_so_far(self) -> None:
        zeros = torch.zeros(1, 1, 4, 1, dtype=torch.float64)
        v = torch.tensor([2.0, 4.0, 9.0, 1.0], dtype=torch.float64).view(1, 1, 4, 1)
        means = torch.tensor([2.0, 3.0, 5.0, 4.0], dtype=torch.float64).view(1, 1, 4, 1)
        for offset in range(4):
            output = causal_attention(zeros[:, :, offset:], zeros, v, offset=offset)
            self.assertLessEqual((output - means[:, :, offset:]).abs().max().item(), TOLERANCE)

    def test_wrong_values_are_found(self) -> None:
        for wrong in (masked_after_softmax, one_key_ahead, itself_unread, not_scaled):
            for n_queries, offset in ((7, 0), (5, 12)):
                with self.subTest(wrong=wrong.__name__, offset=offset):
                    self.assertGreater(difference(wrong, n_queries, offset)["values"], 1e-3)

    def test_a_missing_gradient_is_found_where_all_values_are_right(self) -> None:
        for name in "qkv":
            for n_queries, offset in ((7, 0), (5, 12)):
                with self.subTest(name=name, offset=offset):
                    gaps = difference(without_gradient(name), n_queries, offset)
                    self.assertEqual({key for key, gap in gaps.items() if gap > TOLERANCE}, {f"d{name}"})
                    self.assertGreater(gaps[f"d{name}"], 1e-3)


class Masking(unittest.TestCase):
    def test_masking_after_the_softmax_is_different(self) -> None:
        ones = torch.ones(1, 1, 4, 1, dtype=torch.float64)
        self.assertLessEqual((causal_attention(ones, ones, ones) - 1).abs().max().item(), TOLERANCE)
        # the rows no longer sum to 1: the first query keeps a quarter, the share of the only key that it may read
        shares = torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64).view(1, 1, 4, 1)
        self.assertLessEqual((masked_after_softmax(ones, ones, ones) - shares).abs().max().item(), TOLERANCE)

    def test_the_mask_is_minus_infinity_and_not_a_large_number(self) -> None:
        self.assertLessEqual(max(difference(filled_with_a_large_number, 7, 0).values()), TOLERANCE)
        q, k, v = inputs()
        q[:, :, 0], k[:, :, 0] = 1e6, -1e6  # the first query scores its only key far lower than the number
        self.assertTrue(torch.equal(causal_attention(q, k, v)[:, :, 0], v[:, :, 0]))
        self.assertGreater((filled_with_a_large_number(q, k, v) - v)[:, :, 0].abs().max().item(), 1e-3)

    def test_is_causal_is_right_for_a_square_and_wrong_for_a_cache(self) -> None:
        for n_queries, offset in SQUARE:
            with self.subTest(n_queries=n_queries, offset=offset):
                self.assertLessEqual(max(difference(aligned_top_left, n_queries, offset).values()), TOLERANCE)
        for n_queries, offset in CACHED:
            with self.subTest(n_queries=n_queries, offset=offset):
                self.assertGreater(min(difference(aligned_top_left, n_queries, offset).values()), 1e-3)

    def test_is_causal_shows_a_new_token_the_first_key_only(self) -> None:
        q, k, v = inputs(1, 8)
        self.assertLessEqual((aligned_top_left(q, k, v) - v[:, :, :1]).abs().max().item(), TOLERANCE)


class TheFuture(unittest.TestCase):
    def test_earlier_outputs_do_not_change_in_one_bit(self) -> None:
        for n_queries, offset in [*SQUARE, *CACHED]:
            if n_queries == 1:
                continue  # no key is later than the last query
            with self.subTest(n_queries=n_queries, offset=offset):
                self.assertEqual(list(misread(causal_attention, n_queries, offset)), [])

    def test_a_leak_is_found_at_every_position(self) -> None:
        for wrong in (masked_after_softmax, one_key_ahead):
            for n_queries, offset in ((7, 0), (5, 12)):
                with self.subTest(wrong=wrong.__name__, offset=offset):
                    self.assertEqual(len(list(misread(wrong, n_queries, offset))), n_queries - 1)

    def test_a_query_that_misses_its_own_key_is_found(self) -> None:
        for wrong in (itself_unread, aligned_top_left):
            with self.subTest(wrong=wrong.__name__):
                self.assertIn("a query after 0 does not read the keys from 13", list(misread(wrong, 5, 12)))


class Errors(unittest.TestCase):
    def assert_refused(self, message: str, calls: list[tuple[Tensor, Tensor, Tensor, int]]) -> None:
        for q, k, v, offset in calls:
            stated = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, offset {offset}"
            with self.subTest(stated), self.assertRaises(ValueError) as refusal:
                causal_attention(q, k, v, offset=offset)
            self.assertIn(stated, str(refusal.exception))
            self.assertIn(message, str(refusal.exception))

    def setUp(self) -> None:
        self.q, self.k, self.v = inputs(4, 5)
        causal_attention(self.q, self.k, self.v, offset=5)  # what is refused below is one step from this

    def test_ranks(self) -> None:
        q, k, v = self.q, self.k, self.v
        self.assert_refused(
            "rank 4", [(q[0], k, v, 5), (q, k[0], v, 5), (q, k, v[0], 5), (q[0], k[0], v[0], 5), (q[None], k, v, 5)]
        )

    def test_shapes(self) -> None:
        q, k, v = self.q, self.k, self.v
        rows = [(q[:1], k, v, 5), (q, k[:1], v[:1], 5), (q, k, v[:1], 5)]  # B = 1 would broadcast
        heads = [(q[:, :1], k, v, 5), (q, k[:, :1], v[:, :1], 5), (q, k, v[:, :1], 5)]  # and so would H = 1
        widths = [(q[..., :1], k, v, 5), (q, k[..., :1], v[..., :1], 5), (q, k, v[..., :1], 5)]
        keys = [(q, k[:, :, :8], v, 5), (q, k, v[:, :, :8], 5), (q, k, v[:, :, :1], 5)]
        self.assert_refused("must agree", rows + heads + widths + keys)

    def test_offsets(self) -> None:
        q, k, v = self.q, self.k, self.v
        wrong = [(q, k, v, offset) for offset in (-1, 0, 4, 6, 9)]
        empty = [(q[:, :, :0], k, v, 9), (q[:, :, :0], k[:, :, :0], v[:, :, :0], 0)]
        negative = [(q, k[:, :, :3], v[:, :, :3], -1)]  # -1 + 4 == 3, and still no position
        self.assert_refused("need offset >= 0, Tq >= 1 and offset + Tq == Tk", wrong + empty + negative)

    def test_the_offset_is_0_unless_it_is_given(self) -> None:
        with self.assertRaisesRegex(ValueError, "offset 0"):
            causal_attention(self.q, self.k, self.v)

    def test_dtypes(self) -> None:
        q, k, v = self.q, self.k, self.v
        self.assert_refused("dtypes", [(q.float(), k, v, 5), (q, k.float(), v, 5), (q, k, v.float(), 5)])


if __name__ == "__main__":
    unittest.main()
