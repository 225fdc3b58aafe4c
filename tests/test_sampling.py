"""Sampling draws from the stated distribution, by (seed, row) alone, and refuses what it cannot do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from octlm import sampling
from octlm.command import RunFailed
from octlm.config import ModelConfig, load_config
from octlm.model import Decoder
from octlm.sampling import Filters, draw, generate, stream

V = 64
INF = math.inf


def row(*logits: float) -> Tensor:
    return torch.tensor([logits], dtype=torch.float64)


def uncached(model: Any, prompts: Any, max_new_tokens: Any, **settings: Any) -> list[list[int]]:
    return generate(model, prompts, max_new_tokens=max_new_tokens, use_cache=False, **settings)


def shaped(logits: Tensor, **settings: Any) -> Tensor:
    """The distribution that these settings make of logits (B, V), no id being repeated."""
    return Filters(**settings).probabilities(logits, torch.zeros_like(logits, dtype=torch.bool))


def constant(*logits: float) -> Callable[[Tensor], Tensor]:
    return lambda ids: torch.tensor(logits).expand(*ids.shape, len(logits))


def counting(ids: Tensor) -> Tensor:
    """The most likely next id is id + 1."""
    return nn.functional.one_hot((ids + 1) % V, V) * 9.0


# the filters


def test_renormalised_distribution_by_hand() -> None:
    logits = row(*(math.log(p) for p in (0.5, 0.3, 0.15, 0.05)))
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(shaped(logits), row(0.5, 0.3, 0.15, 0.05), **close)
    torch.testing.assert_close(shaped(logits, top_k=2), row(0.625, 0.375, 0, 0), **close)
    torch.testing.assert_close(shaped(logits, top_p=0.75), row(0.625, 0.375, 0, 0), **close)
    torch.testing.assert_close(shaped(logits, top_p=0.81), row(10 / 19, 6 / 19, 3 / 19, 0), **close)
    assert shaped(row(0, 0, 0, 0), top_p=0.5).tolist() == [[0.5, 0.5, 0, 0]]  # the fewest
    assert shaped(torch.zeros(1, V, dtype=torch.float64), top_p=0.25).nonzero()[:, 1].tolist() == [*range(16)]
    assert shaped(row(0, 1, 2, 3), top_p=0.25, temperature=INF).tolist() == [[0, 0, 0, 1]]
    torch.testing.assert_close(shaped(logits, min_p=0.29), row(10 / 19, 6 / 19, 3 / 19, 0), **close)
    torch.testing.assert_close(shaped(logits, min_p=1.0), row(1, 0, 0, 0), **close)
    squares = torch.tensor([[0.25, 0.09, 0.0225, 0.0025]], dtype=torch.float64)
    torch.testing.assert_close(shaped(logits, temperature=0.5), squares / squares.sum(), **close)
    torch.testing.assert_close(shaped(logits, temperature=INF), row(0.25, 0.25, 0.25, 0.25), **close)


def test_c1_top_k_beyond_the_vocabulary_is_the_whole_of_it() -> None:
    plain = uncached(counting, [[1]], 9)
    for k in (V, V + 1, 10**6):
        assert uncached(counting, [[1]], 9, top_k=k) == plain


def test_c2_top_k_of_ties_keeps_exactly_k_lowest_ids_first() -> None:
    kept = shaped(row(2, 1, 1, 1, 0), top_k=2) > 0
    assert kept.tolist() == [[True, True, False, False, False]]
    flat = shaped(torch.zeros(3, V, dtype=torch.float64), top_k=7)
    assert flat.nonzero()[:, 1].tolist() == [*range(7)] * 3
    assert torch.equal(shaped(row(2, 1, 1), top_k=0), shaped(row(2, 1, 1)))
    flat_model = constant(*[0.0] * V)
    assert uncached(flat_model, [[1]], 50, top_k=0) == uncached(flat_model, [[1]], 50)  # 0 is off, not "nothing"
    assert uncached(flat_model, [[1]], 50, top_k=1) == [[0] * 50]
    with pytest.raises(ValueError, match="top_k must be an integer >= 0; got -1"):
        uncached(counting, [[1]], 1, top_k=-1)
    with pytest.raises(ValueError, match=r"sample\.top_k=-1: must be greater than or equal to 0"):
        load_config("base", ["sample.top_k=-1"])


def test_c2_mutant_a_threshold_keeps_every_tie() -> None:
    logits = row(2, 1, 1, 1, 0)
    mutant = torch.where(logits < logits.topk(2).values[:, -1:], -INF, logits)
    assert int((mutant > -INF).sum()) == 4


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-40, 0.01, 1, 5, INF])
@pytest.mark.parametrize("top_p", [1e-300, 0.1, 0.8, 1])
def test_c3_top_k_1_is_argmax_under_every_other_filter(temperature: float, top_p: float) -> None:
    logits = torch.randn(50, V, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    probabilities = shaped(logits, top_k=1, top_p=top_p, temperature=temperature, min_p=0.5)
    assert probabilities.argmax(-1).tolist() == logits.argmax(-1).tolist()
    assert ((probabilities > 0).sum(-1) == 1).all()


def test_c3_top_p_acts_on_what_top_k_renormalised() -> None:
    logits = row(*(math.log(p) for p in (0.3, 0.25, 0.25, 0.2)))
    assert shaped(logits, top_k=2, top_p=0.5).tolist() == [[1, 0, 0, 0]]  # 0.3 / 0.55 > 0.5


def test_c3_mutant_top_p_without_renormalising(monkeypatch: pytest.MonkeyPatch) -> None:
    full = torch.tensor([[0.3, 0.25, 0.25, 0.2]], dtype=torch.float64)

    def mutant(logits: Tensor, top_p: float, ranking: Tensor) -> Tensor:
        return torch.where((full.cumsum(-1) - full < top_p) & ~logits.isneginf(), logits, -INF)

    monkeypatch.setattr(sampling, "keep_top_p", mutant)
    with pytest.raises(AssertionError):
        test_c3_top_p_acts_on_what_top_k_renormalised()


def test_c6_penalty_divides_positive_and_multiplies_negative_logits_once_an_id() -> None:
    seen = torch.tensor([[True, True, False]])
    penalized = sampling.penalize_repeats(row(2, -2, 1), seen, 1.5)
    torch.testing.assert_close(penalized, row(4 / 3, -3, 1), rtol=0, atol=1e-12)
    assert torch.equal(sampling.penalize_repeats(row(2, -2, 1), seen, 1.0), row(2, -2, 1))


def test_c6_history_is_prompt_and_text_each_id_once() -> None:
    given: list[Tensor] = []

    def spy(self: Filters, logits: Tensor, seen: Tensor) -> Tensor:
        given.append(seen.clone())
        return original(self, logits, seen)

    original = Filters.probabilities
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Filters, "probabilities", spy)
        uncached(counting, [[5, 5, 9]], 2, temperature=0, repetition_penalty=1.5)
    assert [seen[0].nonzero()[:, 0].tolist() for seen in given] == [[5, 9], [5, 9, 10]]
    # logit 2 / 1.5 > 1, so id 0 wins, unless each of its three occurrences divides
    model = constant(2.0, 1.0)
    assert uncached(model, [[0, 0, 0]], 1, temperature=0, repetition_penalty=1.5) == [[0]]
    assert uncached(model, [[0]], 1, temperature=0, repetition_penalty=3.0) == [[1]]


def test_c6_mutant_dividing_negative_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "penalize_repeats", lambda x, seen, r: torch.where(seen, x / r, x))
    with pytest.raises(AssertionError):
        test_c6_penalty_divides_positive_and_multiplies_negative_logits_once_an_id()


@pytest.mark.parametrize("penalty", [1e-320, 1e300])
def test_extreme_penalties_stay_finite(penalty: float) -> None:
    logits, seen = row(5, -5, 0, -INF), torch.tensor([[True, True, False, True]])
    probabilities = Filters(repetition_penalty=penalty).probabilities(logits, seen)
    assert probabilities.isfinite().all()
    assert probabilities[0, 3] == 0


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e-9])
def test_tiny_temperatures_equal_argmax(temperature: float) -> None:
    logits = torch.randn(200, V, generator=torch.Generator().manual_seed(3)).double() * 100
    assert torch.equal(shaped(logits, temperature=temperature), shaped(logits, temperature=0))
    assert shaped(logits, temperature=0).argmax(-1).tolist() == logits.argmax(-1).tolist()
    assert shaped(row(1, 3, 3, 2), temperature=0).tolist() == [[0, 1, 0, 0]]


def test_infinite_temperature_leaves_masked_ids_out() -> None:
    assert shaped(row(1, -INF, 3), temperature=INF).tolist() == [[0.5, 0, 0.5]]


settings = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.sampled_from([0.0, 1e-40, INF]), st.floats(0, 100)),
        "top_k": st.integers(0, 12),
        "top_p": st.floats(0, 1, exclude_min=True),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0, 10, exclude_min=True),
    }
)
finite = st.floats(-1e9, 1e9)
rows_of_logits = st.lists(st.one_of(finite, st.sampled_from([0.0, 1.0, -INF])), min_size=1, max_size=9)


@given(rows_of_logits.filter(lambda x: max(x) > -INF), settings, st.floats(0, 1, exclude_max=True))
def test_any_legal_settings_draw_a_possible_id(logits: list[float], legal: Any, uniform: float) -> None:
    x = row(*logits)
    seen = torch.arange(len(logits))[None] % 2 == 0
    probabilities = Filters(**legal).probabilities(x, seen)
    assert probabilities.isfinite().all()
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-12)
    best = int(sampling.penalize_repeats(x, seen, legal["repetition_penalty"]).argmax())
    assert probabilities[0, best] == probabilities.max()  # the most likely id survives
    assert not legal["top_k"] or int((probabilities > 0).sum()) <= legal["top_k"]
    assert probabilities[0, draw(probabilities, [uniform])[0]] > 0


# the draw


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 0.5, 1 - 2**-53])
def test_c5_no_uniform_number_draws_an_id_of_probability_zero(uniform: float) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(500, V, generator=generator, dtype=torch.float64)
    x[torch.rand(500, V, generator=generator) < 0.5] = -INF
    x[:, 0] = x[:, -1] = -INF
    x[:, 1] = 0
    probabilities = shaped(x, top_k=5)
    drawn = torch.tensor(draw(probabilities, [uniform] * 500))
    assert (probabilities.gather(1, drawn[:, None]) > 0).all()
    assert draw(row(0, 1, 0), [uniform]) == [1]


def test_c5_the_whole_path_with_a_stubbed_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    for uniform in (0.0, 0.9999999999999999):
        monkeypatch.setattr(sampling, "uniforms", lambda seed, row, u=uniform: iter([u] * 100))
        new = uncached(constant(-INF, 1.0, 1.0, 0.0, -INF), [[1]], 5, top_k=2)
        assert set(new[0]) == {1 if uniform == 0 else 2}


def test_c5_200_000_draws_of_top_2_stay_in_it() -> None:
    x = torch.randn(1, V, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    numbers = np.random.default_rng(0).random(200_000)
    drawn = draw(shaped(x, top_k=2).expand(len(numbers), V), numbers)  # type: ignore[arg-type]
    assert set(drawn) == set(x.topk(2).indices[0].tolist())


def test_frequencies_of_20_000_draws_match_the_softmax() -> None:
    logits = torch.randn(8, generator=torch.Generator().manual_seed(6))
    n = 20_000
    model = constant(*logits.tolist())
    rows = uncached(model, [[0]] * 200, n // 200, seed=7, temperature=0.7)
    counts = np.bincount(np.concatenate(rows), minlength=8)
    expected = n * (logits.double() / 0.7).softmax(0).numpy()
    assert counts.sum() == n and expected.min() > 5
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < 24.32  # chi-square, 7 degrees of freedom: exceeded once in 1,000
    at_temperature_1 = n * logits.double().softmax(0).numpy()  # and the test can tell
    assert float(((counts - at_temperature_1) ** 2 / at_temperature_1).sum()) > 24.32


def test_uniform_numbers_depend_on_seed_and_row_alone() -> None:
    def first(seed: int, number: int) -> list[float]:
        numbers = sampling.uniforms(seed, number)
        return [next(numbers) for _ in range(4)]

    pairs = [(seed, i) for seed in (0, 1, 2**32, 2**32 + 1, 2**64 - 1) for i in range(6)]
    assert len({tuple(first(*pair)) for pair in pairs}) == len(pairs)
    assert first(3, 5) == first(3, 5)
    logits = torch.linspace(0, 3, V)
    expected = draw(logits.double().softmax(0).expand(4, V), first(3, 5))
    rows = uncached(constant(*logits.tolist()), [[0]] * 6, 4, seed=3)
    assert rows[5] == expected == uncached(constant(*logits.tolist()), [[0]], 4, seed=3, first_row=5)[0]
    assert first(0, 0) == [0.9429375528828794, 0.3163371523854981, 0.7223425886498254, 0.12560308543269327]


# refusals


@pytest.mark.parametrize("poison", [math.nan, INF])
@pytest.mark.parametrize("temperature", [0, 1])
def test_c4_non_finite_logits_are_named_by_step_and_row(poison: float, temperature: float) -> None:
    def model(ids: Tensor) -> Tensor:
        logits = counting(ids)
        logits[ids == 12] = torch.tensor([0.0] * 63 + [poison])
        return logits

    with pytest.raises(RunFailed, match=r"^non-finite logits at step 3, row 1$"):
        uncached(model, [[50], [10]], 9, temperature=0 if temperature == 0 else 0.01)
    with pytest.raises(RunFailed, match=r"^non-finite logits at step 1, row 0$"):
        uncached(constant(-INF, -INF), [[0]], 1, temperature=temperature)
    assert uncached(constant(-INF, 0.0), [[0]], 1, temperature=temperature) == [[1]]


ILLEGAL: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": None}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": True}, "top_k"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_p": math.nan}, "top_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": math.nan}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -2}, "repetition_penalty"),
    ({"repetition_penalty": INF}, "repetition_penalty"),
    ({"repetition_penalty": 10**400}, "repetition_penalty"),
    ({"max_new_tokens": -1}, "max_new_tokens"),
    ({"max_new_tokens": 2.0}, "max_new_tokens"),
    ({"max_new_tokens": True}, "max_new_tokens"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.0}, "seed"),
    ({"seed": None}, "seed"),
    ({"stop_ids": 3}, "stop_ids"),
    ({"stop_ids": [-1]}, "stop_ids"),
    ({"stop_ids": [V]}, "stop_ids"),
    ({"stop_ids": ["x"]}, "stop_ids"),
    ({"prompts": [[]]}, "prompts"),
    ({"prompts": [[1], []]}, "prompts"),
    ({"prompts": [1, 2]}, "prompts"),
    ({"prompts": "abc"}, "prompts"),
    ({"prompts": ["abc"]}, "prompts"),
    ({"prompts": 7}, "prompts"),
    ({"prompts": [[1.0]]}, "prompts"),
    ({"prompts": [[True]]}, "prompts"),
    ({"prompts": [[-1]]}, "prompts"),
    ({"prompts": [[1, V]]}, "prompts"),
    ({"prompts": [["1"]]}, "prompts"),
]


@pytest.mark.parametrize(("arguments", "named"), ILLEGAL, ids=lambda value: str(value)[:50])
def test_illegal_arguments_are_refused_at_once_in_one_line(arguments: dict[str, Any], named: str) -> None:
    model = Decoder(ModelConfig(vocab_size=V, dim=8, n_heads=2))
    legal: dict[str, Any] = {"prompts": [[1]], "max_new_tokens": 2}
    with pytest.raises(ValueError, match=named) as refusal:
        stream(model, **{**legal, **arguments})  # not even begun
    assert "\n" not in str(refusal.value)


def test_integers_of_other_libraries_are_ids() -> None:
    expected = uncached(counting, [[1, 2]], 3)
    assert uncached(counting, [np.array([1, 2])], np.int64(3)) == expected  # type: ignore
    assert uncached(counting, torch.tensor([[1, 2]]), 3) == expected  # type: ignore
    assert uncached(counting, [[1, 2]], 3, temperature=np.float32(1)) == expected


def test_a_model_that_does_not_return_logits_is_refused() -> None:
    for answer, words in ((("logits",), "got tuple"), (torch.zeros(1, V), r"got shape \(1, 64\)")):
        with pytest.raises(ValueError, match=words):
            uncached(lambda ids, answer=answer: answer, [[1]], 1)  # type: ignore
    with pytest.raises(ValueError, match=r"prompts\[0\]\[1\] must be an integer from 0 to 1; got 2"):
        uncached(constant(0.0, 0.0), [[1, 2]], 1)
