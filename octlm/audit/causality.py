"""Can a model see the future?

Two tests, since each is blind where the other sees. The suffix test replaces every token after t and compares the
logits up to t bit for bit: it sees leaks through rounding, data-dependent branches and whatever gradients miss. The
gradient test asks whether d logits[t] / d embedding[j > t] is exactly zero, with a random cotangent, since a plain
sum can cancel: it sees leaks too small to move a rounded logit.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from octlm.audit.finding import Finding

CLAIM = "no logit depends on a later token"


def causality(
    model: Callable[[Tensor], Tensor],
    vocab_size: int,
    length: int,
    *,
    embed: nn.Module | None = None,
    device: torch.device | str | None = None,
    cuts: int = 8,
    seed: int = 0,
) -> Finding:
    """Test ids (B, length) -> logits (B, length, V) for leaks at up to `cuts` places, evenly spread, ends included.

    embed is the module whose output stands for the tokens; without one the gradient test is left out. The model runs
    in the mode it is in; dropout must be off, since it differs from call to call. A model whose earlier positions
    hardly influence later ones hides its leaks: audit randomised or trained weights.
    Raises ValueError for a length below 2.
    """
    if length < 2 or vocab_size < 2:
        raise ValueError(f"causality: length={length}, vocab_size={vocab_size}: nothing to test below 2")
    generator = torch.Generator().manual_seed(seed)
    cut = torch.linspace(0, length - 2, min(cuts, length - 1)).long().unique()  # (B,) the last kept token of each row
    ids = torch.randint(vocab_size, (1, length), generator=generator).expand(len(cut), -1)  # (B, T)
    shift = torch.randint(1, vocab_size, ids.shape, generator=generator)  # never 0: each later token changes
    later = torch.arange(length) > cut[:, None]
    changed = torch.where(later, (ids + shift) % vocab_size, ids)
    ids, changed, later = (x.to(device).contiguous() for x in (ids, changed, later))
    with torch.no_grad():
        difference = (model(ids) - model(changed)).abs().amax(dim=-1).masked_fill(later, 0)  # (B, T)
    worst, place = difference.flatten().max(dim=0)
    row, position = divmod(int(place), length)
    if not bool(worst == 0):  # NaN is a failure too
        where = f"suffix: logits[{position}] when tokens after {int(cut[row])} change"
        return Finding(CLAIM, False, float(worst), 0.0, where, len(cut))
    if embed is None:
        return Finding(CLAIM, True, 0.0, 0.0, "", len(cut))
    return _gradient(model, embed, ids, cut, later, generator)


def _gradient(
    model: Callable[[Tensor], Tensor],
    embed: nn.Module,
    ids: Tensor,
    cut: Tensor,
    later: Tensor,
    generator: torch.Generator,
) -> Finding:
    embedded: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = embed.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits = model(ids)  # (B, T, V)
    finally:
        handle.remove()
    kept = logits[torch.arange(len(cut)), cut.to(logits.device)]  # (B, V), each row's logits at its cut
    cotangent = torch.randn(kept.shape, generator=generator).to(kept)
    gradients = torch.autograd.grad(kept, embedded, cotangent)
    leak = torch.stack([g.abs().amax(dim=-1) for g in gradients]).amax(dim=0)  # (B, T)
    worst, place = leak.masked_fill(~later, 0).flatten().max(dim=0)
    row, position = divmod(int(place), ids.shape[1])
    where = "" if bool(worst == 0) else f"gradient: d logits[{int(cut[row])}] / d embedding[{position}]"
    return Finding(CLAIM, not where, float(worst), 0.0, where, 2 * len(cut))
