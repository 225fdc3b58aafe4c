"""The cache is append-only, bounded by the window, refuses what it cannot hold, and steps back exactly."""

import pytest
import torch

from octlm.config import ModelConfig
from octlm.model import KVCache
from octlm.model.cache import SLACK
from tests.claims import close
from tests.variants import build, some_ids

LONG = {
    "vocab_size": 31, "context_length": 400, "dim": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2,
    "positions": "rope", "attention": "sdpa", "window": (10, 0, 7), "stride": (0, 0, 16),
}  # fmt: skip


@pytest.fixture
def ids() -> torch.Tensor:
    return some_ids(2, 300)


@pytest.mark.parametrize("chunk", [1, 3, 31, 32, 33, 50, 123, 299, 300])
def test_a_ring_equals_the_full_pass_long_after_it_turned_over(chunk: int, ids: torch.Tensor) -> None:
    model = build(LONG)
    with torch.no_grad():
        cache = model.new_cache(2, 300)
        cached = torch.cat([model(part, cache) for part in ids.split(chunk, dim=1)], dim=1)
        close(cached, model(ids), 1e-5, f"chunks of {chunk}")


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_a6_cached_windows_equal_full_at_the_lengths_around_them(attention: str, n_layers: int) -> None:
    for window in (1, 3):
        model = build({**LONG, "window": window, "stride": 0, "attention": attention, "n_layers": n_layers})
        for length in (2, 3, 4, 9):
            ids = some_ids(1, length)
            for prompt in range(1, length + 1):
                with torch.no_grad():
                    cache = model.new_cache(1, length)
                    sizes = [prompt, *[1] * (length - prompt)]
                    cached = torch.cat([model(part, cache) for part in ids.split(sizes, dim=1)], dim=1)
                    close(cached, model(ids), 1e-5, f"length {length}, prompt {prompt}")


def test_memory_of_a_windowed_layer_is_bounded_by_window_and_columns(ids: torch.Tensor) -> None:
    config = ModelConfig(**{**LONG, "n_layers": 1, "window": 10, "stride": 0})
    sizes = [KVCache(config, 1, length).nbytes for length in (100, 1000, 100_000)]
    assert sizes[0] == sizes[1] == sizes[2]
    strided = [KVCache(config.model_copy(update={"stride": 16}), 1, n).slots[10, 16].capacity for n in (160, 1600)]
    assert strided == [10 + 10 + 2 * SLACK, 10 + 100 + 2 * SLACK]
    model = build({**LONG, "n_layers": 1, "window": 10, "stride": 16})
    cache = model.new_cache(2, 300)
    before = cache.nbytes
    with torch.no_grad():
        for part in ids.split([250, *[1] * 50], dim=1):
            model(part, cache)
    assert cache.nbytes == before, "the ring must not grow"


def test_truncate_steps_back_exactly(ids: torch.Tensor) -> None:
    model = build(LONG)
    with torch.no_grad():
        full = model(ids)
        for length in (300 - SLACK, 299, 300):
            cache = model.new_cache(2, 300)
            for part in ids.split(7, dim=1):
                model(part, cache)
            oldest = max(slots.oldest for slots in cache.slots.values())
            back = max(length, oldest)
            wrong = (ids[:, back:] + 1) % 31
            cache.truncate(back)
            if wrong.shape[1]:
                model(wrong, cache)
                cache.truncate(back)
                close(model(ids[:, back:], cache), full[:, back:], 1e-5, f"back to {back}")
            assert cache.length == 300


def test_truncate_refuses_what_was_evicted_and_changes_nothing(ids: torch.Tensor) -> None:
    model = build(LONG)
    with torch.no_grad():
        cache = model.new_cache(2, 300)
        model(ids[:, :299], cache)
        with pytest.raises(ValueError, match="evicted"):
            cache.truncate(100)
        assert cache.length == 299
        close(model(ids[:, 299:], cache), model(ids)[:, 299:], 1e-5, "after the refusal")
        cache.truncate(0)
        close(model(ids, cache), model(ids), 1e-6, "after truncate(0)")
    for length in (-1, 301):
        with pytest.raises(ValueError, match=str(length)):
            cache.truncate(length)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("window", [0, 3, (3, 0, 5)])
def test_b4_appending_past_max_length_names_both_numbers_and_changes_nothing(
    attention: str, window: int | tuple[int, ...]
) -> None:
    model = build({**LONG, "window": window, "stride": 0, "attention": attention})
    ids = some_ids(1, 9)
    with torch.no_grad():
        cache = model.new_cache(1, 8)
        with pytest.raises(ValueError, match="9 tokens exceed max_length 8"):
            model(ids, cache)
        assert cache.length == 0
        model(ids[:, :8], cache)
        held = [*cache.keys, *cache.values, *(slots.facts for slots in cache.slots.values())]
        before = [t.clone() for t in held]
        with pytest.raises(ValueError, match=r"8 \+ 1 = 9 tokens exceed max_length 8"):
            model(ids[:, 8:], cache)
        assert cache.length == 8
        assert all(torch.equal(a, b) for a, b in zip(before, held, strict=True))
        cache.truncate(7)
        close(model(ids[:, 7:8], cache), model(ids[:, :8])[:, 7:], 1e-5, "after the refusal")


def test_a_failed_pass_leaves_the_cache_as_it_was(ids: torch.Tensor) -> None:
    model = build(LONG)

    def fail(*args: object) -> None:
        raise RuntimeError("planted")

    with torch.no_grad():
        cache = model.new_cache(2, 300)
        model(ids[:, :200], cache)
        handle = model.layers[2].register_forward_hook(fail)
        for part in (ids[:, 200:203], ids[:, 200:290]):  # one fits the ring, one turns it over
            with pytest.raises(RuntimeError, match="planted"):
                model(part, cache)
        handle.remove()
        assert cache.length == 200
        close(model(ids[:, 200:], cache), model(ids)[:, 200:], 1e-5, "after the failure")


def test_two_callers_share_one_model(ids: torch.Tensor) -> None:
    model = build(LONG)
    with torch.no_grad():
        first, second = model.new_cache(2, 300), model.new_cache(2, 300)
        a, b = ids, (ids + 3) % 31
        out_a, out_b = [], []
        for part_a, part_b in zip(a.split(60, 1), b.split(60, 1), strict=True):
            out_a.append(model(part_a, first))
            out_b.append(model(part_b, second))
        close(torch.cat(out_a, 1), model(a), 1e-5, "first")
        close(torch.cat(out_b, 1), model(b), 1e-5, "second")


def test_right_padding_keeps_a_short_row_alive_in_a_ring(ids: torch.Tensor) -> None:
    model = build({**LONG, "window": 10, "stride": 0})
    positions = torch.arange(200).repeat(2, 1)
    positions[1, 5:] = -1  # row 1 has five tokens and 195 of padding behind them
    with torch.no_grad():
        cache = model.new_cache(2, 300)
        model(ids[:, :200], cache, positions=positions)
        step = model(ids[:, 200:201], cache, positions=torch.tensor([[200], [5]]))
        alone = model(torch.cat((ids[1:, :5], ids[1:, 200:201]), dim=1))
        close(step[1], alone[0, -1:], 1e-5, "row 1")
        close(step[:1], model(ids[:1, :201])[:, -1:], 1e-5, "row 0")


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [0, 4])
def test_b7_a_cache_of_another_dtype_is_converted(dtype: torch.dtype, window: int) -> None:
    model = build({**LONG, "window": window, "stride": 0}, dtype)
    ids = some_ids(2, 120)  # the ring of the window turns over
    with torch.no_grad():
        full = model(ids).float()
        for other in DTYPES:
            cache = KVCache(model.config, 2, 120, dtype=other)
            cached = torch.cat([model(part, cache) for part in ids.split([50, *[1] * 20, 50], dim=1)], dim=1)
            assert cached.dtype == dtype
            close(cached.float(), full, 1e-5 if dtype == other == torch.float32 else 0.03, f"{other} cache")


def test_this_calls_tokens_keep_their_gradient() -> None:
    model = build({**LONG, "window": 0, "stride": 0})
    ids = some_ids(1, 12)
    cache = model.new_cache(1, 12)
    model(ids, cache).square().mean().backward()
    through_cache = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model(ids).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(through_cache[name], parameter.grad, atol=1e-6), name
    assert not any(t.requires_grad for t in (*cache.keys, *cache.values))


def test_a_cache_of_another_model_is_refused() -> None:
    model = build(LONG)
    for other in (
        {"window": 0, "stride": 0},
        {"n_kv_heads": 1},
        {"dim": 64},
        {"n_layers": 1, "window": 10, "stride": 0},
    ):
        cache = KVCache(ModelConfig(**{**LONG, **other}), 1, 8)
        with pytest.raises(ValueError, match="the cache was made for"):
            model(some_ids(1, 4), cache)
        assert cache.length == 0


def test_wrong_batches_and_forgotten_documents_are_refused() -> None:
    model = build({**LONG, "window": 0, "stride": 0})
    cache = model.new_cache(2, 20)
    with pytest.raises(ValueError, match="3 rows given to a cache of 2"):
        model(some_ids(3, 4), cache)
    model(some_ids(2, 4), cache, documents=torch.ones(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="give documents"):
        model(some_ids(2, 4), cache)
    with pytest.raises(ValueError, match="at least 1"):
        KVCache(model.config, 0, 4)
