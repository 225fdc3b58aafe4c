"""A row's text depends on neither the other rows nor the cache, ends where it says, and leaves no trace."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from octlm.command import RunFailed
from octlm.config import ModelConfig
from octlm.model import Decoder
from octlm.sampling import StopText, generate, stream

V = 64
INF = math.inf


def uncached(model: Any, prompts: Any, max_new_tokens: Any, **settings: Any) -> list[list[int]]:
    return generate(model, prompts, max_new_tokens=max_new_tokens, use_cache=False, **settings)


def counting(ids: Tensor) -> Tensor:
    """The most likely next id is id + 1."""
    return nn.functional.one_hot((ids + 1) % V, V) * 9.0


class Stateful(nn.Module):
    """A model whose cache is a list: logits at a position are a sum over the ids it can see, by position."""

    def __init__(self, vocab_size: int = V, context_length: int = 64, leak: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        sizes = (context_length, vocab_size, vocab_size)
        self.table = torch.randn(sizes, generator=generator, dtype=torch.float64)
        self.config = SimpleNamespace(vocab_size=vocab_size, context_length=context_length)
        self.leak, self.calls = leak, 0
        self.sizes: list[tuple[int, int]] = []

    def new_cache(self, batch_size: int, max_length: int) -> SimpleNamespace:
        self.sizes.append((batch_size, max_length))
        return SimpleNamespace(
            ids=torch.zeros(batch_size, 0, dtype=torch.int64),
            positions=torch.zeros(batch_size, 0, dtype=torch.int64),
            max_length=max_length,
        )

    def forward(self, ids: Tensor, cache: Any = None, *, positions: Tensor | None = None) -> Tensor:
        self.calls += 1
        before = 0 if cache is None else cache.ids.shape[1]
        if positions is None:
            positions = (torch.arange(ids.shape[1]) + before).expand_as(ids)
        keys, places = ids, positions
        if cache is not None:
            keys = cache.ids = torch.cat([cache.ids, ids], 1)
            places = cache.positions = torch.cat([cache.positions, positions], 1)
            assert keys.shape[1] <= cache.max_length
        visible = places[:, None] <= positions[..., None]
        if not self.leak:
            visible &= places[:, None] >= 0
        seen = self.table[places, keys] * (2 + places)[..., None] ** -0.5  # (B, S, V)
        return torch.where(visible[..., None], seen[:, None], 0.0).sum(2)


def decoder(**settings: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "context_length": 16, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
    model = Decoder(ModelConfig(**{**sizes, **settings}))
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


# rows, batches, caches


MODELS = {
    "stateful": Stateful,
    "learned": decoder,
    "rope, sdpa": lambda: decoder(positions="rope", attention="sdpa", norm="rmsnorm", mlp="swiglu", context_length=32),
    "window and stride": lambda: decoder(positions="rope", window=5, stride=4, context_length=64),
    "two kinds of layer": lambda: decoder(positions="none", window=[3, 0], stride=0, attention="sdpa"),
}
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [0, 1])
def test_b6_ragged_rows_equal_single_rows_with_and_without_cache(name: str, temperature: float) -> None:
    model = MODELS[name]()
    room = model.config.context_length

    def rows(prompts: list[list[int]], first_row: int = 0, use_cache: bool = True) -> list[list[int]]:
        return generate(
            model,
            prompts,
            max_new_tokens=15,
            temperature=temperature,
            seed=8,
            first_row=first_row,
            use_cache=use_cache,
        )

    single = [rows([prompt], first_row=i)[0] for i, prompt in enumerate(PROMPTS)]
    assert [len(new) for new in single] == [min(15, room - len(prompt)) for prompt in PROMPTS]
    assert len({tuple(new[:4]) for new in single}) == 3  # or equality would prove nothing
    assert rows(PROMPTS) == single
    assert rows(PROMPTS, use_cache=False) == single
    assert rows([*PROMPTS, [7] * 9])[:3] == single
    if temperature == 0:
        assert rows(PROMPTS[::-1]) == single[::-1]


def test_b6_a_leaking_pad_would_be_seen() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "stateful", lambda: Stateful(leak=True))
        with pytest.raises(AssertionError):
            test_b6_ragged_rows_equal_single_rows_with_and_without_cache("stateful", 0)


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_b2_b11_every_prompt_length_ends_at_the_context_limit(positions: str) -> None:
    model = decoder(positions=positions, window=[6, 0], stride=4)
    for length in range(1, 17):
        prompt = [(7 * i + length) % V for i in range(length)]
        cached, whole = (list(stream(model, [prompt], max_new_tokens=20, use_cache=use)) for use in (True, False))
        assert cached == whole
        assert len([token for _, token, _ in whole if token is not None]) == 16 - length
        assert [reason for *_, reason in whole if reason] == ["context"]
        assert whole[-1][2] == "context"
    for use in (True, False):
        with pytest.raises(ValueError, match=r"prompts\[0\] has 17 tokens, but the model's context holds 16"):
            generate(model, [[1] * 17], max_new_tokens=1, use_cache=use)


@pytest.mark.parametrize("use_cache", [True, False])
def test_b2_one_token_of_room_in_a_batch_with_a_full_and_a_short_row(use_cache: bool) -> None:
    model = decoder()
    events = list(stream(model, [[1] * 15, [2] * 16, [3]], max_new_tokens=5, use_cache=use_cache))
    assert events[0] == (1, None, "context")
    assert [(r, reason) for r, _, reason in events[1:3]] == [(0, "context"), (2, None)]
    assert [len(new) for new in generate(model, [[1] * 15, [2] * 16, [3]], max_new_tokens=5)] == [1, 0, 5]


def test_the_unmasked_path_stays_open_to_rows_of_one_length() -> None:
    given = []

    class Spy(Stateful):
        def forward(self, ids: Tensor, cache: Any = None, *, positions: Tensor | None = None) -> Tensor:
            given.append((ids.shape, positions))
            return super().forward(ids, cache, positions=positions)

    model = Spy()
    generate(model, [[1, 2], [3, 4]], max_new_tokens=3)
    assert model.sizes == [(2, 4)]  # no slot for the last token, which is never fed
    assert given == [((2, 2), None), ((2, 1), None), ((2, 1), None)]


def test_the_slow_path_wants_nothing_but_ids_to_logits() -> None:
    assert uncached(counting, [[1], [7, 8]], 3, temperature=0) == [[2, 3, 4], [9, 10, 11]]
    with pytest.raises(ValueError, match="no new_cache"):
        generate(counting, [[1]], max_new_tokens=3)


# ends


@pytest.mark.parametrize("use_cache", [True, False])
def test_c7_every_row_ends_at_its_own_stop_id(use_cache: bool) -> None:
    class Scripted(Stateful):
        def forward(self, ids: Tensor, cache: Any = None, *, positions: Tensor | None = None) -> Tensor:
            super().forward(ids, cache, positions=positions)
            return counting(ids)

    model = Scripted()
    prompts = [[7, 7, 7], [4, 4, 4]]
    options: dict[str, Any] = {
        "max_new_tokens": 50,
        "temperature": 0,
        "stop_ids": [10],
        "use_cache": use_cache,
    }
    assert generate(model, prompts, **options) == [[8, 9], [5, 6, 7, 8, 9]]
    assert model.calls == 6
    events = list(stream(model, prompts, **options))
    assert [event for event in events if event[2]] == [(0, None, "stop"), (1, None, "stop")]
    assert events[-1] == (1, None, "stop")


def test_c8_finish_reasons_and_the_order_of_events() -> None:
    options: dict[str, Any] = {"temperature": 0, "use_cache": False}
    assert list(stream(counting, [[1], [8]], max_new_tokens=2, stop_ids=[10], **options)) == [
        (0, 2, None),
        (1, 9, None),
        (0, 3, "length"),
        (1, None, "stop"),
    ]
    ends = [(0, None, "length"), (1, None, "length")]
    assert list(stream(counting, [[1], [2]], max_new_tokens=0, **options)) == ends
    assert generate(counting, [[1], [2]], max_new_tokens=0, **options) == [[], []]
    assert generate(counting, [], max_new_tokens=3, **options) == []
    full = list(stream(decoder(context_length=2), [[1, 2]], max_new_tokens=0))
    assert full == [(0, None, "length")]


def test_tokens_come_one_by_one() -> None:
    model = Stateful()
    events = stream(model, [[1]], max_new_tokens=10)
    assert model.calls == 0
    next(events)
    assert model.calls == 1


# the model's own state


def test_d11_modes_are_restored_and_dropout_is_off() -> None:
    model = decoder(dropout=0.5)
    model.train()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    assert generate(model, [[1]], max_new_tokens=6) == generate(model, [[1]], max_new_tokens=6)
    events = stream(model, [[1]], max_new_tokens=9)
    next(events)
    assert not model.training
    events.close()
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RuntimeError, match="in the middle"):
        uncached(_Broken(), [[1]], 3)
    assert _Broken.last is not None and _Broken.last.training


def test_a_module_with_a_train_method_of_its_own_is_told() -> None:
    told = []

    class Merging(nn.Module):
        def train(self, mode: bool = True) -> Merging:
            told.append(mode)
            return super().train(mode)

        def forward(self, ids: Tensor) -> Tensor:
            return counting(ids)

    uncached(Merging(), [[1]], 2)
    assert told == [False, True]


class _Broken(nn.Module):
    last: _Broken | None = None

    def forward(self, ids: Tensor) -> Tensor:
        _Broken.last = self
        raise RuntimeError("in the middle")


def test_gradients_are_off_inside_and_as_before_outside() -> None:
    recorded = []

    class Module(nn.Linear):
        def forward(self, ids: Tensor) -> Tensor:
            recorded.append(torch.is_grad_enabled())
            return super().forward(nn.functional.one_hot(ids, 4).float())

    for _ in stream(Module(4, 4), [[1]], max_new_tokens=2, use_cache=False):
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert recorded == [False, False]


def test_a_module_that_keeps_a_table_trains_after_sampling() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.table = nn.Parameter(torch.ones(V)), None

        def forward(self, ids: Tensor) -> Tensor:
            if self.table is None:
                self.table = torch.linspace(0, 1, V)
            return (self.scale * self.table).expand(*ids.shape, V)

    model = Lazy()
    uncached(model, [[1]], 2)
    model(torch.tensor([[1]])).sum().backward()  # under inference_mode this would raise
    assert model.scale.grad is not None


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "none"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_decoder_trains_after_sampling(positions: str, use_cache: bool) -> None:
    model = decoder(positions=positions, window=4)
    generate(model, [[1, 2], [3]], max_new_tokens=12, use_cache=use_cache)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert model.embed.weight.grad is not None


def test_f6_ids_without_a_token_are_never_drawn() -> None:
    model = decoder()
    model.embed.weight.data[8:] *= 3
    model.unused_ids = tuple(range(8, 64))
    for temperature in (0, 1, INF):
        new = generate(model, [[1], [2]], max_new_tokens=15, temperature=temperature)
        assert max(map(max, new)) < 8
    model.unused_ids = tuple(range(64))
    with pytest.raises(RunFailed, match="step 1, row 0"):
        generate(model, [[1]], max_new_tokens=1)


def test_global_random_state_is_untouched() -> None:
    torch.manual_seed(11)
    np.random.seed(11)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    generate(decoder(dropout=0.5), [[1], [2, 3]], max_new_tokens=5)
    torch.manual_seed(11)
    uncached(counting, [[1]], 5)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_c4_a_poisoned_weight_is_found_through_greedy_decoding() -> None:
    model = decoder()
    model.layers[0].mlp.down_proj.weight.data[0, 0] = math.nan
    with pytest.raises(RunFailed, match="non-finite logits at step 1, row 0"):
        generate(model, [[1]], max_new_tokens=3, temperature=0)


# stop strings


def pieces(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(at)]


def shown(stops: list[str], parts: list[str], kind: type[StopText] = StopText) -> str:
    stop = kind(stops)
    return "".join([*(stop.push(part) for part in parts), stop.flush()])


def test_c9_text_that_might_have_begun_a_stop_string_is_not_lost() -> None:
    assert shown(["XY"], ["a", "b", "X"]) == "abX"
    assert shown(["XY"], ["aX", "Yb"]) == "a"
    assert shown(["aab"], ["a", "a", "a", "b"]) == "a"
    assert shown([], ["x", "y"]) == "xy"
    assert shown(["ab", "xabc"], ["xabc"]) == shown(["ab", "xabc"], list("xabc")) == "x"
    stop = StopText(["XY"])
    pushed = [stop.push(text) for text in ("abX", "Z", "X", "Y!", "more")]
    assert [*pushed, stop.flush()] == ["ab", "XZ", "", "", "", ""]
    with pytest.raises(ValueError, match="empty"):
        StopText(["a", ""])


def test_c9_mutant_a_flush_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopText, "flush", lambda self: "")
    with pytest.raises(AssertionError):
        test_c9_text_that_might_have_begun_a_stop_string_is_not_lost()


@given(
    st.text("abc", max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 20), max_size=8),
)
def test_stop_strings_do_not_depend_on_how_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert shown(stops, pieces(text, cuts)) == expected
    assert shown(stops, list(text)) == expected
