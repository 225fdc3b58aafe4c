"""Do two implementations compute the same? And are the targets of a batch what they must be?"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from octlm.audit.finding import Finding
from octlm.audit.subject import logits_of

PARITY = "two implementations agree"
TARGETS = "the target of each token is the one after it"


@torch.no_grad()
def parity(a: Callable[..., Any], b: Callable[..., Any], inputs: Iterable[Any], atol: float, rtol: float) -> Finding:
    """Compare a(x) with b(x) for every x of inputs (a tuple is several arguments): |a - b| <= atol + rtol |b|.

    Every tensor of the output counts (of an object with logits, these). worst is the largest |a - b| - rtol |b|, to be
    held against atol.
    """
    worst, where, cases = 0.0, "", 0
    for number, x in enumerate(inputs):
        arguments = x if isinstance(x, tuple) else (x,)
        mine, theirs = list(tensors(a(*arguments))), list(tensors(b(*arguments)))
        shapes = [[tuple(t.shape) for t in side] for side in (mine, theirs)]
        if shapes[0] != shapes[1] or not shapes[0]:
            return Finding(
                PARITY, False, float("inf"), atol, f"input {number}: shapes {shapes[0]} and {shapes[1]}", cases
            )
        for i, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            cases += 1
            left, right = left.double(), right.double().to(left.device)
            excess = torch.where(left == right, 0.0, (left - right).abs() - rtol * right.abs()).nan_to_num(
                nan=float("inf")
            )
            if excess.numel() and float(excess.max()) > worst:
                worst = float(excess.max())
                place = [int(k) for k in torch.unravel_index(excess.argmax(), excess.shape)]
                pair = f"{left[tuple(place)]:.9g} and {right[tuple(place)]:.9g}"
                where = f"input {number}, output {i}, element {place}: {pair}"
    ok = cases > 0 and worst <= atol
    return Finding(PARITY, ok, worst, atol, "" if ok else where or "no inputs", cases)


def tensors(output: Any) -> Iterator[Tensor]:
    """Give every tensor of an output; of one with logits, these."""
    if hasattr(output, "logits") or (isinstance(output, Mapping) and "logits" in output):
        output = logits_of(output)
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, tuple | list | Mapping):
        for item in output.values() if isinstance(output, Mapping) else output:
            yield from tensors(item)


def targets(x: Tensor, y: Tensor, *, ignore: tuple[int, ...] = (-1, -100)) -> Finding:
    """Check that y[t] is x[t + 1], once, for ids x and targets y (B, T); targets in `ignore` do not count.

    Catches labels that a loss will shift again, or that were shifted twice or backwards. The last target of a row
    stands in no input and cannot be checked. Raises ValueError for different shapes.
    """
    if x.shape != y.shape or x.dim() not in (1, 2):
        raise ValueError(f"targets: x {tuple(x.shape)}, y {tuple(y.shape)}: need the same (B, T)")
    x, y = torch.atleast_2d(x), torch.atleast_2d(y)
    counted = torch.stack([y != i for i in ignore]).all(dim=0)
    shares = {shift: agreement(x, y, counted, shift) for shift in (1, 0, 2, -1)}
    wrong, cases = shares[1]
    where = ""
    if wrong or not cases:
        names = {0: "not shifted", 2: "shifted twice", -1: "shifted backwards"}
        named = [text for shift, text in names.items() if shares[shift] == (0, shares[shift][1]) and shares[shift][1]]
        where = ", ".join(named) or (
            f"{wrong} targets are not the next token" if cases else "not judged: no target counts"
        )
    return Finding(TARGETS, not where, float(wrong), 0.0, where, cases)


def agreement(x: Tensor, y: Tensor, counted: Tensor, shift: int) -> tuple[int, int]:
    """Count the targets that are not the token `shift` places on, and those that could be compared."""
    length = x.shape[1]
    here = torch.arange(max(0, -shift), min(length, length - shift))
    wrong = (x[:, here + shift] != y[:, here]) & counted[:, here]
    return int(wrong.sum()), int(counted[:, here].sum())
