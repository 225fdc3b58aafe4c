"""A trained model says the same with and without a cache: in every dtype, past its context, compiled, or set back.

The logits of a random model are too flat for many a fault to change what is said; so this one has learnt a cycle.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from octlm.config import ModelConfig, load_config
from octlm.model import Decoder, KVCache
from octlm.sampling import generate
from tests.variants import build

V, CONTEXT = 64, 64
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPE = {"vocab_size": V, "context_length": CONTEXT, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
KINDS = {
    "rope": {"positions": "rope"},
    "learned, fused": {"attention": "sdpa"},
    "window": {"positions": "rope", "window": 5, "stride": 8, "attention": "sdpa"},
}


def train(**section: Any) -> Decoder:
    """Teach a model the cycle 0, 1, ..., 63, 0 in 100 steps."""
    torch.manual_seed(0)
    model = Decoder(ModelConfig(**{**SHAPE, **section}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(100):
        begin = torch.randint(V, (4, 1), generator=torch.Generator().manual_seed(step))
        ids = (begin + torch.arange(CONTEXT + 1)) % V
        nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture(scope="module", params=["rope", "learned, fused", pytest.param("window", marks=pytest.mark.slow)])
def trained(request: pytest.FixtureRequest) -> Decoder:
    model = train(**KINDS[request.param])
    assert generate(model, [[3]], max_new_tokens=40, temperature=0) == [list(range(4, 44))]
    return model


@torch.no_grad()
def say(
    model: Callable[..., Tensor], prompt: list[int], n: int, cache: KVCache | None, forced: list[int] | None = None
) -> tuple[list[int], Tensor]:
    """Go on greedily for n tokens, or along the `forced` ones; give what was most likely, and the logits (n, V)."""
    ids, new, best, logits = list(prompt), list(prompt), [], []
    for i in range(n):
        logits.append(model(torch.tensor([ids if cache is None else new]), *([] if cache is None else [cache]))[0, -1])
        best.append(int(logits[-1].argmax()))
        new = [best[-1] if forced is None else forced[i]]
        ids += new
    return best, torch.stack(logits).float()


def spread(logits: Tensor) -> float:
    return float(logits.max() - logits.min())


def cached_equals_uncached(model: Decoder) -> None:
    """40 greedy tokens: the same ids, logits within 1e-4 in fp32; in bf16 and fp16 within 3% of their range."""
    prompt = [5, 6, 7]
    exact, logits = say(model, prompt, 40, None)
    assert exact == list(range(8, 48)) and spread(logits) > 5
    best, cached = say(model, prompt, 40, model.new_cache(1, 42))
    assert best == exact
    assert (cached - logits).abs().max() <= 1e-4
    first, second = logits.topk(2).values.T
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(model).to(dtype)
        for cache in (None, half.new_cache(1, 42)):
            best, low = say(half, prompt, 40, cache, forced=exact)
            bound = 0.03 * spread(logits)
            assert (low - logits).abs().max() <= bound, dtype
            sure = (first - second) > bound
            assert sure.any()
            assert all(a == b for a, b, told in zip(best, exact, sure.tolist(), strict=True) if told)


def test_b1_cached_equals_uncached_in_every_dtype(trained: Decoder) -> None:
    cached_equals_uncached(trained)


def test_b1_mutant_positions_one_too_low_after_the_prompt(trained: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = KVCache.begin

    def late(self: KVCache, ids: Tensor, positions: Any, documents: Any) -> Any:
        shifted = torch.full(ids.shape, self.length - 1) if self.length else positions
        return begin(self, ids, shifted, documents)

    monkeypatch.setattr(KVCache, "begin", late)
    with pytest.raises(AssertionError):
        cached_equals_uncached(trained)


def test_b7_a_cache_of_another_dtype_says_the_same(trained: Decoder) -> None:
    for dtype in DTYPES:
        model = copy.deepcopy(trained).to(dtype)
        expected = say(model, [5, 6, 7], 40, KVCache(model.config, 1, 42, dtype=dtype))
        assert expected[0] == list(range(8, 48))
        for other in DTYPES:
            best, logits = say(model, [5, 6, 7], 40, KVCache(model.config, 1, 42, dtype=other))
            assert best == expected[0], (dtype, other)
            assert (logits - expected[1]).abs().max() <= 0.03 * spread(expected[1])


def test_b5_a_cache_set_back_or_copied_holds_its_valid_tokens_and_no_more(trained: Decoder) -> None:
    """Nothing saves a cache; a copy of one, or one cut back to a short prefix, is what people keep for a prompt."""
    expected = say(trained, [5, 6, 7], 8, trained.new_cache(1, 16))
    with torch.no_grad():
        short, long = trained.new_cache(1, 16), trained.new_cache(1, 16)
        trained(torch.tensor([[5, 6]]), short)
        trained(torch.tensor([[5, 6, *range(40, 54)]]), long)
        long.truncate(2)
    kept = copy.deepcopy(short)
    assert (short.length, long.length, kept.length) == (2, 2, 2)
    for cache in (kept, long, short):
        best, logits = say(trained, [7], 8, cache)
        assert best == expected[0]
        assert (logits - expected[1]).abs().max() <= 1e-5


def test_b5_mutant_a_truncate_that_keeps_what_it_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from octlm.model.cache import _Slots

    model = build({**SHAPE, **KINDS["rope"]})
    monkeypatch.setattr(_Slots, "truncate", lambda self, length: None)
    with pytest.raises(AssertionError):
        test_b5_a_cache_set_back_or_copied_holds_its_valid_tokens_and_no_more(model)


@pytest.mark.parametrize("section", [KINDS["rope"], KINDS["window"]], ids=str)
def test_b2_b10_rotary_positions_have_no_table_and_no_threshold(section: dict[str, Any]) -> None:
    """The prompt ends before the context does, generation far behind it: the keys from before stay right."""
    for scale in (1.0, 4.0):
        model = build({**SHAPE, **section, "context_length": 16, "rope_scale": scale})
        forced = [(7 * i + i * i) % V for i in range(40)]
        exact, logits = say(model, [1, 2, 3], 40, None, forced)
        best, cached = say(model, [1, 2, 3], 40, model.new_cache(1, 42), forced)
        assert best == exact and len(set(exact)) > 3
        assert (cached - logits).abs().max() <= 1e-5 * logits.abs().max()
        assert (logits[1:] - logits[:-1]).abs().amax(dim=-1).min() > 0.1


@pytest.mark.parametrize("key", ["rope_scaling", "rope_type", "rope_original_context", "yarn", "dynamic_ntk"])
def test_b10_a_rope_that_changes_with_the_length_is_refused_by_name(key: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.{key}: unknown key; did you mean"):
        load_config("day2", [f"model.{key}=dynamic"])
    with pytest.raises(ValueError, match=key):
        ModelConfig(**{"positions": "rope", key: "dynamic"})


@pytest.mark.slow
def test_b11_every_prompt_length_around_the_ring_of_a_window() -> None:
    model = build({**SHAPE, **KINDS["window"], "context_length": 160})
    for length in range(60, 150):  # the ring of 5 + 20 columns + 2 x 32 tokens turns over in here
        prompt = [(7 * i + length) % V for i in range(length)]
        said = [generate(model, [prompt], max_new_tokens=10, use_cache=cached) for cached in (True, False)]
        assert said[0] == said[1] and len(said[0][0]) == 10


@pytest.fixture
def compiler() -> Iterator[Any]:
    """Give torch's counters of compiled frames, and leave none behind."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


def compiled_equals_eager(model: Decoder, backend: str, compiler: Any) -> None:
    expected, logits = say(model, [5, 6, 7], 32, model.new_cache(1, 34))
    assert expected == list(range(8, 40))
    best, compiled = say(torch.compile(model, backend=backend), [5, 6, 7], 32, model.new_cache(1, 34))
    assert best == expected
    assert (compiled - logits).abs().max() <= 1e-5 * logits.abs().max()
    assert not compiler["graph_break"] and not compiler["unimplemented"]
    assert 2 <= compiler["frames"]["total"] <= 1 + 3, "recompiled more than three times in 32 tokens"


@pytest.mark.slow
def test_b8_captured_decoding_equals_eager_decoding_with_few_recompilations(trained: Decoder, compiler: Any) -> None:
    compiled_equals_eager(trained, "eager", compiler)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
@pytest.mark.skipif(" " in torch.__file__, reason="torch's compiler cannot link from a folder with a blank in its name")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler about itself
def test_b8_compiled_decoding_equals_eager_decoding(compiler: Any) -> None:
    compiled_equals_eager(train(**KINDS["learned, fused"]), "inductor", compiler)
