"""No logit sees a later token; cached equals full; ragged equals single; both attention paths equal a reference.

Every variant: pairwise here, all combinations with `make test-all`. Each check fails on planted bugs: see the mutants.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from octlm.audit import causality
from octlm.model import Decoder, attention, cache, masks
from tests import claims
from tests.variants import AXES, TINY, build, every, name, pairs, pairwise, some_ids

PAIRWISE = pairwise()
REST = [section for section in every() if section not in PAIRWISE]


def over(rest: list[dict[str, Any]]) -> pytest.MarkDecorator:
    """Run a test on the pairwise set, and on the rest with `make test-all`."""
    quick = [pytest.param(s, id=name(s)) for s in PAIRWISE]
    return pytest.mark.parametrize(
        "section", quick + [pytest.param(s, id=name(s), marks=pytest.mark.slow) for s in rest]
    )


@over(REST)
def test_every_variant_keeps_every_property(section: dict[str, Any]) -> None:
    model = build(section)
    claims.suffix_changes_nothing(model)
    claims.later_gradients_are_zero(model)
    assert causality(model, 31, 16, embed=model.embed).ok
    for dtype in (torch.float32, torch.float64):
        model = build(section, dtype)
        claims.cached_equals_full(model)
        claims.ragged_equals_single(model)
        claims.naive_equals_fused(section, dtype)


@over([section for section in REST if section["attention"] == "naive"])  # the check takes both paths itself
def test_both_attention_paths_equal_an_independent_reference(section: dict[str, Any]) -> None:
    claims.equals_reference(section)


def test_pairwise_covers_every_pair() -> None:
    axes = list(AXES.values())
    keys = [k if isinstance(k, tuple) else (k,) for k in AXES]
    seen = set()
    for section in PAIRWISE:
        values = [tuple(section[k] for k in key) if len(key) > 1 else section[key[0]] for key in keys]
        seen |= pairs(tuple(axis.index(v) for axis, v in zip(axes, values, strict=True)))
    total = sum(len(a) * len(b) for i, a in enumerate(axes) for b in axes[i + 1 :])
    assert len(seen) == total


def off_by_one(query: Tensor, key: Tensor, window: int = 0, stride: int = 0) -> Tensor:
    return masks_rule(query, key - 1, window, stride)


def inverted(query: Tensor, key: Tensor, window: int = 0, stride: int = 0) -> Tensor:
    return ~masks_rule(query, key, window, stride)


def window_of_one_more(query: Tensor, key: Tensor, window: int = 0, stride: int = 0) -> Tensor:
    return masks_rule(query, key, window + 1 if window else 0, stride)


def after_the_softmax(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1) * allowed


def finite_mask(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~allowed, -4.0).softmax(dim=-1)


def without_scale(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).masked_fill(~allowed, -math.inf).softmax(dim=-1)


masks_rule = masks.rule
NAIVE = {**TINY, "positions": "rope", "norm": "layernorm", "norm_placement": "pre", "mlp": "gelu"}
NAIVE |= {"attention": "naive", "n_kv_heads": 2, "window": 0, "stride": 0, "qk_norm": False}
WINDOWED = {**NAIVE, "window": 3}


def causal(section: dict[str, Any]) -> None:
    claims.suffix_changes_nothing(build(section))


def gradient(section: dict[str, Any]) -> None:
    claims.later_gradients_are_zero(build(section))


def cached(section: dict[str, Any]) -> None:
    claims.cached_equals_full(build(section))


def ragged(section: dict[str, Any]) -> None:
    claims.ragged_equals_single(build(section))


def audit(section: dict[str, Any]) -> None:
    model = build(section)
    assert causality(model, 31, 16, embed=model.embed).ok


def tiled_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "repeat_interleave", lambda x, n, dim: x.repeat(1, n, 1, 1))


def unmasked_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(*args: Any, **kwargs: Any) -> Tensor:
        return torch.ones_like(masks.visibility(*args, **kwargs))

    monkeypatch.setattr(cache, "visibility", everything)


def restarting_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = cache.KVCache.begin

    def restarted(self: cache.KVCache, ids: Tensor, positions: Tensor | None, documents: Tensor | None) -> Any:
        return begin(self, ids, torch.arange(ids.shape[1]).expand(ids.shape), documents)

    monkeypatch.setattr(cache.KVCache, "begin", restarted)


def padding_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = cache.KVCache.begin

    def shown(self: cache.KVCache, ids: Tensor, positions: Tensor | None, documents: Tensor | None) -> Any:
        return begin(self, ids, None if positions is None else positions.clamp(min=0), documents)

    monkeypatch.setattr(cache.KVCache, "begin", shown)


def ring_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    init = cache._Slots.__init__

    def short(self: Any, kind: tuple[int, int], *rest: Any) -> None:
        init(self, kind, *rest)
        self.window = max(1, kind[0] - 2) if kind[0] else 0
        self.capacity = min(self.capacity, 5)

    monkeypatch.setattr(cache._Slots, "__init__", short)
    monkeypatch.setattr(cache, "SLACK", 0)


def replaced(module: Any, attribute: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(module, attribute, value)


MUTANTS = {
    "mask off by one": (replaced(masks, "rule", off_by_one), NAIVE, causal),
    "mask off by one, by gradient": (replaced(masks, "rule", off_by_one), NAIVE, gradient),
    "mask off by one, by the audit": (replaced(masks, "rule", off_by_one), NAIVE, audit),
    "mask inverted": (replaced(masks, "rule", inverted), NAIVE, causal),
    "window of one more": (replaced(masks, "rule", window_of_one_more), WINDOWED, claims.equals_reference),
    "mask after the softmax": (replaced(attention, "masked_weights", after_the_softmax), NAIVE, causal),
    "mask finite": (replaced(attention, "masked_weights", finite_mask), NAIVE, causal),
    "scale forgotten": (replaced(attention, "masked_weights", without_scale), NAIVE, claims.equals_reference),
    "kv heads tiled": (tiled_heads, NAIVE, claims.equals_reference),
    "prefill unmasked": (unmasked_prefill, NAIVE, cached),
    "positions restart per chunk": (restarting_positions, NAIVE, cached),
    "padding forgotten": (padding_forgotten, NAIVE, ragged),
    "ring too small": (ring_too_small, WINDOWED, cached),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bugs_are_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, section, check = MUTANTS[mutant]
    check(section)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(section)


def test_a_leak_of_a_millionth_is_seen_by_the_gradient_alone() -> None:
    model = build({**NAIVE, "positions": "none"})

    class Leaky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.embed = model, model.embed

        def forward(self, ids: Tensor) -> Tensor:
            logits = self.inner(ids)
            return logits + 1e-12 * self.embed(ids).sum(dim=(1, 2), keepdim=True)

    leaky = Leaky()
    finding = causality(leaky, 31, 16, embed=model.embed)
    assert not finding.ok and finding.where.startswith("gradient")


def test_a1_huge_scores_do_not_beat_the_mask() -> None:
    for path in ("naive", "sdpa"):
        model = build({**NAIVE, "attention": path})
        with torch.no_grad():
            for block in model.layers:
                block.attention.q_proj.weight.mul_(1000)
                block.attention.k_proj.weight.mul_(1000)
        claims.suffix_changes_nothing(model)


def test_a5_nan_in_unused_cache_slots_changes_nothing() -> None:
    for section in (NAIVE, {**NAIVE, "attention": "sdpa"}, WINDOWED):
        claims.unused_slots_do_not_matter(build(section))


def test_a4_a_row_of_padding_is_finite_forward_and_backward() -> None:
    for path in ("naive", "sdpa"):
        model = build({**NAIVE, "attention": path})
        positions = torch.arange(16).repeat(3, 1)
        positions[1] = -1
        logits = model(some_ids(), positions=positions)
        logits.square().mean().backward()
        assert torch.isfinite(logits).all()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_a7_a_packed_document_equals_the_document_alone() -> None:
    ids = some_ids(1, 12)
    documents = torch.tensor([[0] * 6 + [1] * 6])
    positions = torch.tensor([[*range(6), *range(6)]])
    for section in PAIRWISE:
        model = build(section)
        with torch.no_grad():
            packed = model(ids, positions=positions, documents=documents)
            other = ids.clone()
            other[0, :6] = (ids[0, :6] + 1) % 31
            assert torch.equal(model(other, positions=positions, documents=documents)[:, 6:], packed[:, 6:])
            claims.close(packed[:, 6:], model(ids[:, 6:]), 1e-5, name(section))
            step_by_step = model.new_cache(1, 12)
            parts = zip(ids.split(5, 1), positions.split(5, 1), documents.split(5, 1), strict=True)
            cached = [model(i, step_by_step, positions=p, documents=d) for i, p, d in parts]
            claims.close(torch.cat(cached, dim=1), packed, 1e-5, name(section))


def test_a6_a_window_of_three_sees_three() -> None:
    model = build({**WINDOWED, "n_layers": 1})
    ids = some_ids(1)
    with torch.no_grad():
        full = model(ids)
        for token, changes in ((5, True), (4, False)):
            other = ids.clone()
            other[0, token] = (ids[0, token] + 1) % 31
            assert torch.equal(model(other)[0, 7], full[0, 7]) != changes


def test_a_stride_beside_a_full_window_adds_nothing() -> None:
    plain, strided = build(NAIVE), build({**NAIVE, "stride": 4})
    with torch.no_grad():
        assert torch.equal(plain(some_ids()), strided(some_ids()))
    claims.cached_equals_full(strided)


def test_a9_grouped_heads_equal_duplicated_weights() -> None:
    grouped = build(NAIVE)
    full = Decoder(grouped.config.model_copy(update={"n_kv_heads": 4})).eval()
    state = grouped.state_dict()
    for key in [k for k in state if k.endswith(("k_proj.weight", "v_proj.weight"))]:
        state[key] = state[key].view(2, 8, 32)[[0, 0, 1, 1]].reshape(32, 32)
    full.load_state_dict(state)
    claims.close(grouped(some_ids()), full(some_ids()), 1e-6, "grouped")


def test_extrapolation_is_allowed_except_with_learned_positions() -> None:
    ids = some_ids(1, 20)
    for positions in ("rope", "sinusoidal", "none"):
        assert build({**NAIVE, "positions": positions})(ids).shape == (1, 20, 31)
    learned = build({**NAIVE, "positions": "learned"})
    with pytest.raises(ValueError, match=r"19.*16"):
        learned(ids)
    with pytest.raises(ValueError, match="16"):
        learned(ids[:, :4], positions=torch.tensor([[13, 14, 15, 16]]))
    kept = learned.new_cache(1, 20)
    learned(ids[:, :14], kept)
    with pytest.raises(ValueError, match="16"):
        learned(ids[:, :3], kept)
    assert kept.length == 14


@pytest.mark.parametrize(
    "ids",
    [
        torch.zeros(4, dtype=torch.int64),
        torch.zeros(1, 4),
        torch.zeros(1, 0, dtype=torch.int64),
        torch.zeros(1, 4, dtype=torch.int32),
    ],
    ids=["rank 1", "float", "empty", "int32"],
)
def test_wrong_ids_are_refused_with_their_shape(ids: Tensor) -> None:
    with pytest.raises(ValueError, match="ids: need"):
        build(NAIVE)(ids)


def test_wrong_positions_are_refused() -> None:
    model = build(NAIVE)
    with pytest.raises(ValueError, match="positions: need"):
        model(some_ids(), positions=torch.arange(16))
    with pytest.raises(ValueError, match="documents: need"):
        model(some_ids(), documents=torch.zeros(3, 16))


def test_b9_rotary_angles_stay_exact_in_bf16() -> None:
    from octlm.model.positions import angles

    table = angles(torch.arange(1024)[None], 16, 10000.0)[0]
    exact = torch.arange(1024, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    assert table.dtype == torch.float32
    assert (table.cos() - exact.cos()).abs().max() < 4e-3
    rotate = build(NAIVE, torch.bfloat16).rotation(torch.arange(1024)[None])
    turned = rotate(torch.ones(1, 1, 1024, 8, dtype=torch.bfloat16))[0, 0]
    assert turned.dtype == torch.bfloat16
    assert not torch.equal(turned[256], turned[257])


def test_dropout_acts_in_training_only_and_follows_the_seed() -> None:
    for path in ("naive", "sdpa"):
        model = build({**NAIVE, "attention": path, "dropout": 0.5})
        ids = some_ids()
        assert torch.equal(model(ids), model(ids))
        model.train()
        torch.manual_seed(1)
        first = model(ids)
        assert not torch.equal(first, model(ids))
        torch.manual_seed(1)
        assert torch.equal(first, model(ids))


def test_attention_weights_leave_through_a_hook() -> None:
    from octlm.probes import attention_weights

    model = build({**WINDOWED, "attention": "sdpa"})
    weights = attention_weights(model, some_ids(1))
    assert weights.shape == (2, 4, 16, 16)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 16), atol=1e-6)
    assert not weights[..., ~masks.attention_mask(16, 3)[0, 0]].any()
