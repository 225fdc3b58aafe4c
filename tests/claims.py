"""The properties of a decoder as checks that raise AssertionError; the mutants must make them raise."""

from typing import Any

import torch
from torch import Tensor

from octlm.config import ModelConfig
from octlm.model import Decoder, KVCache
from tests.reference import reference_logits
from tests.variants import build, chunkings, some_ids

CACHE_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # of the largest logit


def close(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    """Compare with the largest logit of b as the unit, and name the worst element."""
    assert torch.isfinite(b).all() and b.abs().max() > 0.1, "a flat or broken reference hides faults"
    error = (a - b).abs()
    worst = error.max() / b.abs().max()
    assert worst <= tolerance, f"{what}: {worst:.3g} > {tolerance} at {divmod(int(error.argmax()), b.shape[-1])}"


@torch.no_grad()
def suffix_changes_nothing(model: Decoder) -> None:
    """Every token after t replaced: logits up to t are bit-identical, for every t, in train and eval mode."""
    ids = some_ids(1)
    length = ids.shape[1]
    rows = ids.repeat(length - 1, 1)
    later = torch.arange(length) > torch.arange(length - 1)[:, None]  # row t keeps tokens 0..t
    changed = torch.where(later, (rows + 1 + some_ids(length - 1, seed=2) % 30) % 31, rows)
    assert ((changed != rows) == later).all()
    for mode in (True, False):
        model.train(mode)
        difference = (model(rows) != model(changed)).any(dim=-1)
        assert not (difference & ~later).any(), f"a later token changed logits at {(difference & ~later).nonzero()[0]}"
        assert difference[later].any(), "the change had no effect at all"


def later_gradients_are_zero(model: Decoder) -> None:
    """d logits[t] / d embedding[j > t] is exactly zero, with a random cotangent, for every t."""
    ids = some_ids(1)
    kept: list[Tensor] = []

    def keep(module: Any, args: Any, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1]

    handle = model.embed.register_forward_hook(keep)
    logits = model(ids)[0]
    handle.remove()
    cotangent = torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(3), dtype=logits.dtype)
    for t in range(ids.shape[1]):
        (gradient,) = torch.autograd.grad(logits[t] @ cotangent, kept[0], retain_graph=True)
        assert gradient[0, t].any(), "a token must reach its own logits"
        assert not gradient[0, t + 1 :].any(), (
            f"logits[{t}] depend on {gradient[0, t + 1 :].abs().max():.3g} of later tokens"
        )


@torch.no_grad()
def cached_equals_full(model: Decoder) -> None:
    """Logits through the cache equal those of one full pass, for every chunking."""
    ids = some_ids()
    tolerance = CACHE_TOLERANCE[model.embed.weight.dtype]
    full = model(ids)
    for chunks in chunkings(ids.shape[1]):
        cache = model.new_cache(*ids.shape)
        cached = torch.cat([model(part, cache) for part in ids.split(chunks, dim=1)], dim=1)
        assert cache.length == ids.shape[1]
        close(cached, full, tolerance, f"chunks {chunks}")


@torch.no_grad()
def ragged_equals_single(model: Decoder) -> None:
    """A left-padded batch of 3, 7 and 12 tokens, decoded on, equals three single runs at every step."""
    tolerance = CACHE_TOLERANCE[model.embed.weight.dtype]
    ids, lengths, steps = some_ids(), (3, 7, 12), 4
    longest = max(lengths)
    positions = torch.stack([torch.arange(longest) - (longest - n) for n in lengths]).clamp(min=-1)
    batch = torch.stack([torch.cat((ids[r, :1].expand(longest - n), ids[r, :n])) for r, n in enumerate(lengths)])
    cache = model.new_cache(len(lengths), longest + steps)
    together = [model(batch, cache, positions=positions)[:, -1]]
    for step in range(steps):
        following = torch.stack([ids[r, n + step] for r, n in enumerate(lengths)])[:, None]
        together.append(model(following, cache, positions=torch.tensor(lengths)[:, None] + step)[:, -1])
    for row, n in enumerate(lengths):
        alone = model(ids[row : row + 1, : n + steps])[0, n - 1 :]
        close(torch.stack(together)[:, row], alone, tolerance, f"row {row} of {n} tokens")


@torch.no_grad()
def equals_reference(section: dict[str, Any]) -> None:
    """Both attention paths equal the reference of tests/reference.py, in float64."""
    ids = some_ids(1, 12)
    model = build(section, torch.float64)
    expected = reference_logits(model.state_dict(), section, ids[0].tolist())
    for path in ("naive", "sdpa"):
        other = Decoder(ModelConfig(**{**section, "attention": path})).double().eval()
        other.load_state_dict(model.state_dict())
        # rotary angles are fp32 by design: 1e-7 of an angle of up to 12
        tolerance = 1e-5 if section["positions"] in ("rope", "sinusoidal") else 1e-12
        close(other(ids)[0], expected, tolerance, path)


@torch.no_grad()
def naive_equals_fused(section: dict[str, Any], dtype: torch.dtype) -> None:
    """The hand-written attention and the fused kernel agree."""
    ids = some_ids()
    naive = build({**section, "attention": "naive"}, dtype)
    fused = Decoder(ModelConfig(**{**section, "attention": "sdpa"})).to(dtype).eval()
    fused.load_state_dict(naive.state_dict())
    close(fused(ids), naive(ids), CACHE_TOLERANCE[dtype], "fused")


@torch.no_grad()
def unused_slots_do_not_matter(model: Decoder) -> None:
    """NaN in slots beyond the cache's length changes no logit."""
    ids = some_ids()
    logits = []
    for junk in (0.0, float("nan")):
        cache = KVCache(model.config, 3, 16)
        for store in (*cache.keys, *cache.values):
            store.fill_(junk)
        logits.append(torch.cat([model(part, cache) for part in ids.split([5, 1, 1, 9], dim=1)], dim=1))
    assert torch.equal(logits[0], logits[1])
