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
from octlm.model import Decoder, attention, attention_mask, cache, causal_attention, decoder, masks
from octlm.model import positions as positions_module
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


def ten_thousand(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~allowed, -1e4).softmax(dim=-1)


def zeroed_too_late(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    added = torch.zeros_like(scores).masked_fill(~allowed, -math.inf)
    return (scores + added).softmax(dim=-1).masked_fill(~allowed, 0.0)  # finite, but its gradient is not


def without_scale(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).masked_fill(~allowed, -math.inf).softmax(dim=-1)


masks_rule, visibility = masks.rule, masks.visibility
NAIVE = {**TINY, "positions": "rope", "norm": "layernorm", "norm_placement": "pre", "mlp": "gelu"}
NAIVE |= {"attention": "naive", "n_kv_heads": 2, "window": 0, "stride": 0, "qk_norm": False}
WINDOWED = {**NAIVE, "window": 3}
FUSED = {**NAIVE, "attention": "sdpa"}


def causal(section: dict[str, Any]) -> None:
    claims.suffix_changes_nothing(build(section))


def gradient(section: dict[str, Any]) -> None:
    claims.later_gradients_are_zero(build(section))


def cached(section: dict[str, Any]) -> None:
    claims.cached_equals_full(build(section))


def huge_scores(section: dict[str, Any]) -> None:
    claims.huge_scores_do_not_beat_the_mask(section)


def unused(section: dict[str, Any]) -> None:
    claims.unused_slots_do_not_matter(build(section))


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


def whole_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meet every slot, and leave the unused ones to the mask."""
    init = cache._Plan.__init__

    def with_unused(self: Any, slots: Any, facts: Tensor, length: int) -> None:
        init(self, slots, facts, length)
        self.begin, after = self.start, torch.full_like(slots.facts[:, :, self.end :], cache.EMPTY)
        self.facts = torch.cat((self.facts[:, :, : self.begin], after, facts), dim=2)
        self.start = self.facts.shape[2] - facts.shape[2]

    def join(self: Any, store: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        store[:, :, self.begin : self.end] = new
        return torch.cat((store[:, :, : self.begin], store[:, :, self.end :], new), dim=2), store

    monkeypatch.setattr(cache._Plan, "__init__", with_unused)
    monkeypatch.setattr(cache._Plan, "join", join)


def see(change: Callable[..., Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant another `visibility`, made from the right one and its arguments."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (cache, decoder):
            monkeypatch.setattr(module, "visibility", lambda *args: change(visibility(*args), *args))

    return plant


def without_order(right: Tensor, query: Tensor, key: Tensor, window: int, stride: int, *documents: Any) -> Tensor:
    query, key = query.unsqueeze(-1), key.unsqueeze(-2)
    return right | (masks_rule(query, key, window, stride) & (key >= 0)).unsqueeze(1)


def nothing_for_padding(right: Tensor, query: Tensor, key: Tensor, *rest: Any) -> Tensor:
    return right & (query >= 0)[:, None, :, None]


def empty_rows_zeroed_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    see(nothing_for_padding)(monkeypatch)
    monkeypatch.setattr(attention, "masked_weights", zeroed_too_late)


def unmasked_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.nn.functional.scaled_dot_product_attention
    plain = {"is_causal": True, "attn_mask": None}
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda *args, **kw: real(*args, **{**kw, **plain}))


def angles_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    right = positions_module.angles
    monkeypatch.setattr(positions_module, "angles", lambda p, *rest: right(p.to(torch.bfloat16), *rest))


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
    "mask of -10,000": (
        replaced(attention, "masked_weights", ten_thousand),
        NAIVE,
        claims.huge_scores_do_not_beat_the_mask,
    ),
    "fused path without its mask": (unmasked_fused, WINDOWED, claims.both_paths_agree),
    "a row that sees nothing": (see(nothing_for_padding), NAIVE, claims.a_row_of_padding_is_finite),
    "a row zeroed after the softmax": (empty_rows_zeroed_too_late, NAIVE, claims.a_row_of_padding_is_finite),
    "unused slots met": (whole_buffer, NAIVE, unused),
    "window of four": (replaced(masks, "rule", window_of_one_more), NAIVE, claims.a_window_of_three_sees_three),
    "documents forgotten": (see(lambda right, *args: visibility(*args[:4])), NAIVE, claims.documents_are_isolated),
    "order forgotten": (see(without_order), FUSED, claims.positions_that_restart_leak_nothing),
    "heads tiled": (tiled_heads, NAIVE, lambda section: grouped_equals_duplicated(section)),
    "angles in bf16": (angles_in_bf16, NAIVE, lambda section: angles_stay_exact(section, torch.bfloat16)),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a1_huge_scores_do_not_beat_the_mask(dtype: torch.dtype) -> None:
    for section in (NAIVE, FUSED, {**NAIVE, "n_kv_heads": 1, "positions": "learned"}):
        claims.huge_scores_do_not_beat_the_mask(section, dtype)


def test_a2_both_attention_paths_agree_with_padding_documents_and_a_cache() -> None:
    for section in (NAIVE, WINDOWED, {**WINDOWED, "stride": 4, "n_kv_heads": 1}, {**NAIVE, "positions": "learned"}):
        claims.both_paths_agree(section)
    claims.both_paths_agree(NAIVE, torch.bfloat16)


def test_a3_true_means_may_attend_and_there_is_no_other_mask() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 8, dtype=torch.float64) for _ in range(3))
    allowed = attention_mask(9)
    added = torch.zeros(9, 9, dtype=torch.float64).masked_fill(~allowed[0, 0], -math.inf)
    for mask in (allowed, added):  # the polarity of scaled_dot_product_attention, as bool and as float
        torch.testing.assert_close(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), causal_attention(q, k, v)
        )
    assert not allowed[0, 0, 3, 4] and allowed[0, 0, 4, 3]
    model, ids = build(NAIVE), some_ids()
    for word in ("mask", "attention_mask", "attn_mask", "key_padding_mask", "is_causal"):
        with pytest.raises(TypeError, match=word):
            model(ids, **{word: torch.ones(3, 16, dtype=torch.bool)})
    for word in ("positions", "documents"):  # a mask given in their place is no mask
        with pytest.raises(ValueError, match=f"{word}: need .* int64"):
            model(ids, **{word: torch.ones(3, 16, dtype=torch.bool)})


@torch.no_grad()
def test_a3_what_keeps_everything_equals_nothing_and_a_dropped_token_is_not_read() -> None:
    ids, other = some_ids(), some_ids()
    other[:, 5] = (ids[:, 5] + 1) % 31
    everything = {"positions": torch.arange(16).repeat(3, 1), "documents": torch.full((3, 16), 7)}
    dropped = everything["positions"].clone()
    dropped[:, 5] = -1
    seen = torch.arange(16) != 5
    for section in (NAIVE, FUSED, WINDOWED, {**WINDOWED, "attention": "sdpa", "stride": 5}):
        model = build(section)
        for given in (everything, {"documents": everything["documents"]}, {"positions": everything["positions"]}):
            claims.close(model(ids, **given), model(ids), 1e-5, "everything kept")
        assert not torch.equal(model(other)[:, seen], model(ids)[:, seen])
        assert torch.equal(model(other, positions=dropped)[:, seen], model(ids, positions=dropped)[:, seen])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a5_nan_in_unused_cache_slots_changes_nothing(dtype: torch.dtype) -> None:
    for section in (NAIVE, FUSED, WINDOWED, {**WINDOWED, "attention": "sdpa", "stride": 4}):
        claims.unused_slots_do_not_matter(build(section, dtype))


def test_a4_a_row_of_padding_is_finite_forward_and_backward() -> None:
    for section in PAIRWISE:
        claims.a_row_of_padding_is_finite(section)
    for section in (NAIVE, FUSED):
        claims.a_row_of_padding_is_finite(section, torch.bfloat16)


def test_a7_a_packed_document_equals_the_document_alone() -> None:
    for section in PAIRWISE:
        claims.documents_are_isolated(section)


def test_a7_positions_that_restart_leak_nothing_and_isolate_nothing() -> None:
    for section in (NAIVE, FUSED, WINDOWED, {**WINDOWED, "stride": 4}):
        claims.positions_that_restart_leak_nothing(section)
    model, ids = build(NAIVE), some_ids(1, 12)
    positions = torch.tensor([[*range(6), *range(6)]])
    alone = model(ids[:, 6:])
    assert (model(ids, positions=positions)[:, 6:] - alone).abs().max() > 0.1 * alone.abs().max()


def test_a6_a_window_of_three_sees_three() -> None:
    for section in (NAIVE, FUSED, {**NAIVE, "positions": "learned", "n_kv_heads": 4}):
        claims.a_window_of_three_sees_three(section)


def test_a_stride_beside_a_full_window_adds_nothing() -> None:
    plain, strided = build(NAIVE), build({**NAIVE, "stride": 4})
    with torch.no_grad():
        assert torch.equal(plain(some_ids()), strided(some_ids()))
    claims.cached_equals_full(strided)


def grouped_equals_duplicated(section: dict[str, Any]) -> None:
    grouped = build(section)
    n_kv_heads = section["n_kv_heads"]
    full = Decoder(grouped.config.model_copy(update={"n_kv_heads": 4})).eval()
    state = grouped.state_dict()
    for key in [k for k in state if k.endswith(("k_proj.weight", "v_proj.weight"))]:
        heads = [0, 0, 1, 1] if n_kv_heads == 2 else [0, 0, 0, 0]
        state[key] = state[key].view(n_kv_heads, 8, 32)[heads].reshape(32, 32)
    full.load_state_dict(state)
    with torch.no_grad():
        expected = full(some_ids())
        claims.close(grouped(some_ids()), expected, 1e-6, "grouped")
        kept = grouped.new_cache(3, 16)
        cached = torch.cat([grouped(part, kept) for part in some_ids().split([6, *[1] * 10], dim=1)], dim=1)
        claims.close(cached, expected, 1e-5, "grouped, cached")


def test_a9_grouped_heads_equal_duplicated_weights() -> None:
    for section in (NAIVE, FUSED, {**NAIVE, "n_kv_heads": 1}, {**FUSED, "n_kv_heads": 1, "window": 3}):
        grouped_equals_duplicated(section)
    with pytest.raises(ValueError, match=r"n_heads=4 .*n_kv_heads=3"):
        build({**NAIVE, "n_kv_heads": 3})


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


def angles_stay_exact(section: dict[str, Any], dtype: torch.dtype) -> None:
    places = torch.arange(1024)
    exact = places[:, None].double() * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    turned = build(section, dtype).rotation(places[None])(torch.ones(1, 1, 1024, 8, dtype=dtype))[0, 0]
    assert turned.dtype == dtype
    expected = torch.cat((exact.cos() - exact.sin(), exact.cos() + exact.sin()), dim=-1)
    assert (turned.double() - expected).abs().max() < 4e-3 + torch.finfo(dtype).eps
    assert not torch.equal(turned[256], turned[257])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_b9_rotary_angles_stay_exact_in_bf16(dtype: torch.dtype) -> None:
    from octlm.model.positions import angles

    table = angles(torch.arange(1024)[None], 16, 10000.0)[0]
    exact = torch.arange(1024, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    assert table.dtype == torch.float32
    assert (table.cos() - exact.cos()).abs().max() < 4e-3 and (table.sin() - exact.sin()).abs().max() < 4e-3
    angles_stay_exact(NAIVE, dtype)
    with torch.autocast("cpu", torch.bfloat16):
        angles_stay_exact(NAIVE, dtype)
    waves = build({**NAIVE, "positions": "sinusoidal"}, dtype).positions.add
    added = waves(torch.zeros(1, 1024, 32, dtype=dtype), torch.arange(1024)[None])[0]
    assert not torch.equal(added[256], added[257])


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
