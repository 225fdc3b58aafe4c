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
    """NaN in every slot beyond the valid ones changes no logit: from the start, in decoding, after stepping back."""
    ids = some_ids()
    positions = torch.arange(16) - torch.tensor([[0], [2], [4]])
    for given in (None, positions.clamp(min=-1)):
        logits = []
        for junk in (0.0, float("nan")):
            cache = KVCache(model.config, 3, 16, dtype=model.embed.weight.dtype)
            found = []
            for begin, end in ((0, 5), (5, 6), (6, 7), (7, 8), (8, 9), (6, 9), (9, 16)):
                cache.truncate(begin)
                for kind, keys, values in zip(cache.kinds, cache.keys, cache.values, strict=True):
                    keys[:, :, cache.slots[kind].count :] = junk
                    values[:, :, cache.slots[kind].count :] = junk
                where = None if given is None else given[:, begin:end]
                found.append(model(ids[:, begin:end], cache, positions=where))
            logits.append(torch.cat(found, dim=1))
        close(logits[1], logits[0], 0.0, "unused slots")


def a_row_of_padding_is_finite(section: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """One row of padding alone, one that starts with it: outputs, loss and every gradient are finite."""
    model, ids = build(section, dtype), some_ids()
    positions = torch.stack((torch.arange(16), torch.full((16,), -1), (torch.arange(16) - 5).clamp(min=-1)))
    targets = torch.where(positions[:, 1:] > 0, ids[:, 1:], -1)
    assert (targets >= 0).sum(dim=1).tolist() == [15, 0, 10]
    logits = model(ids, positions=positions)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    assert torch.isfinite(logits).all() and torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    cache = KVCache(model.config, 3, 16, dtype=dtype)
    parts = zip(ids.split(5, dim=1), positions.split(5, dim=1), strict=True)
    assert all(torch.isfinite(model(part, cache, positions=where)).all() for part, where in parts)


@torch.no_grad()
def both_paths_agree(section: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """The hand-written attention and the fused kernel: lengths 1 to 16, with padding, documents and a cache."""
    naive = build({**section, "attention": "naive"}, dtype)
    fused = Decoder(ModelConfig(**{**section, "attention": "sdpa"})).to(dtype).eval()
    fused.load_state_dict(naive.state_dict())
    for length in (1, 2, 15, 16):
        ids = some_ids(3, length)
        padded = (torch.arange(length) - torch.tensor([[0], [1], [length]])).clamp(min=-1)
        documents = torch.arange(length).expand(3, length) // 4
        given: list[dict[str, Tensor]] = [{}, {"positions": padded}, {"documents": documents}]
        for extra in given:
            whole = [model(ids, **extra) for model in (naive, fused)]
            cached = []
            sizes = [min(7, length), *[1] * (length - 7)]
            for model in (naive, fused):
                cache = model.new_cache(3, length)
                parts = zip(*(value.split(sizes, dim=1) for value in (ids, *extra.values())), strict=True)
                steps = [model(part, cache, **dict(zip(extra, more, strict=True))) for part, *more in parts]
                cached.append(torch.cat(steps, dim=1))
            for a, b in (whole, cached):
                worst = (a - b).abs().max().item()
                bound = 1e-5 if dtype == torch.float32 else 0.03 * (a.max() - a.min()).item()
                assert a.abs().max() > 0.1 and worst <= bound, f"{list(extra)}, {length} tokens: {worst:.3g} > {bound}"


@torch.no_grad()
def a_window_of_three_sees_three(section: dict[str, Any]) -> None:
    """One layer, window 3: the logits at 7 change with token 5 and not with token 4, whole and through a cache."""
    model, ids = build({**section, "n_layers": 1, "window": 3}), some_ids(1)

    def logits(ids: Tensor, chunks: list[int]) -> Tensor:
        cache = model.new_cache(1, 16)
        return torch.cat([model(part, cache) for part in ids.split(chunks, dim=1)], dim=1)[0, 7]

    for run in (lambda x: model(x)[0, 7], *(lambda x, c=c: logits(x, c) for c in ([1] * 16, [7, *[1] * 9], [3, 13]))):
        for token, changes in ((5, True), (4, False)):
            other = ids.clone()
            other[0, token] = (ids[0, token] + 1) % 31
            assert torch.equal(run(other), run(ids)) != changes, f"token {token}"


@torch.no_grad()
def documents_are_isolated(section: dict[str, Any]) -> None:
    """Two documents of six tokens in a row: the first changes nothing in the second, which equals itself alone."""
    model, ids = build(section), some_ids(1, 12)
    documents = torch.tensor([[0] * 6 + [1] * 6])
    positions = torch.tensor([[*range(6), *range(6)]])
    packed = model(ids, positions=positions, documents=documents)
    other = ids.clone()
    other[0, :6] = (ids[0, :6] + 1) % 31
    changed = model(other, positions=positions, documents=documents)
    assert not torch.equal(changed[:, :6], packed[:, :6])
    assert torch.equal(changed[:, 6:], packed[:, 6:])
    close(packed[:, 6:], model(ids[:, 6:]), 1e-5, "alone")
    step_by_step = model.new_cache(1, 12)
    parts = zip(ids.split(5, 1), positions.split(5, 1), documents.split(5, 1), strict=True)
    cached = [model(i, step_by_step, positions=p, documents=d) for i, p, d in parts]
    close(torch.cat(cached, dim=1), packed, 1e-5, "cached")


@torch.no_grad()
def positions_that_restart_leak_nothing(section: dict[str, Any]) -> None:
    """Positions that start again in a row isolate nothing by themselves, and show no token a later one."""
    model, ids = build(section), some_ids(1, 12)
    for row in ([*range(6), *range(6)], [0] * 12, [*range(12)][::-1]):
        positions = torch.tensor([row])
        for start in (1, 6, 11):
            other = ids.clone()
            other[0, start:] = (ids[0, start:] + 1) % 31
            for chunk in (12, 5):
                found = []
                for given in (ids, other):
                    cache = model.new_cache(1, 12)
                    parts = zip(given.split(chunk, 1), positions.split(chunk, 1), strict=True)
                    found.append(torch.cat([model(i, cache, positions=p) for i, p in parts], dim=1))
                    found.append(model(given, positions=positions))
                for a, b in zip(found[:2], found[2:], strict=True):
                    assert torch.equal(a[:, :start], b[:, :start]) and not torch.equal(a, b), f"{row}, from {start}"


def huge_scores_do_not_beat_the_mask(section: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Queries and keys a thousand times as long: a later token still changes nothing, and has weight 0 exactly."""
    model = build(section, dtype)
    lowest: list[float] = []
    weights: list[Tensor] = []

    def look(module: Any, args: Any) -> None:
        q, k = args[0].float(), args[1].float().repeat_interleave(args[0].shape[1] // args[1].shape[1], dim=1)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        assert torch.isfinite(scores).all()
        lowest.append(scores.diagonal(dim1=-2, dim2=-1).min().item())

    with torch.no_grad():
        for block in model.layers:
            for part in (block.attention.q_proj, block.attention.k_proj):
                part.weight.mul_(1000)
            block.attention.attend.register_forward_pre_hook(look)
            if section["attention"] == "naive":
                block.attention.attend.weights.register_forward_hook(lambda m, args, out: weights.append(out))
    suffix_changes_nothing(model)
    assert min(lowest) < -1e5, "no visible key scores below a mask of -10,000"
    later = torch.ones(16, 16, dtype=torch.bool).triu(1)
    assert all(not w[..., later].any() for w in weights)
    assert len(weights) == (8 if section["attention"] == "naive" else 0)
