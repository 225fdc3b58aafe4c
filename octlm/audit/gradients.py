"""Which tokens does an output depend on? The gradient to their embeddings says it exactly, however small."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from octlm.audit.subject import NotJudged, Subject

LOOKUPS = ("embedding", "__getitem__", "index_select")


class Lookups(TorchFunctionMode):
    """Catch each lookup of these ids in a table, and hand on a leaf whose gradient can be asked for."""

    def __init__(self, ids: Tensor) -> None:
        super().__init__()
        self.ids = ids
        self.embedded: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in LOOKUPS and isinstance(output, Tensor) and output.is_floating_point():
            with torch._C.DisableTorchFunction():
                if any(same_ids(index, self.ids) for index in (*args, *kwargs.values())):
                    self.embedded.append(output.detach().requires_grad_())
                    output = self.embedded[-1].clone()  # the model may write into it
        return output


def same_ids(index: Any, ids: Tensor) -> bool:
    """Say whether an index is these ids, in whatever shape."""
    if not isinstance(index, Tensor) or index.is_floating_point() or index.numel() != ids.numel():
        return False
    return bool((index.reshape(ids.shape) == ids).all())


def embedded_logits(subject: Subject, embed: nn.Module | None, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Give the logits (B, T, V), with a graph, and the embeddings that they came from, each call's as a leaf.

    Without `embed` every lookup of exactly these ids counts. Raises NotJudged where there was none.
    """
    embedded: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1].clone()

    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        ids = ids.to(subject.device).clone()  # one made in inference mode cannot be saved for a gradient
        if embed is None:
            embedded = stack.enter_context(Lookups(ids)).embedded
        else:
            stack.callback(embed.register_forward_hook(keep).remove)
        logits = subject(ids)
    if not embedded:
        unseen = "no token embedding was looked up; name it with embed=" if embed is None else "embed was not called"
        raise NotJudged(unseen)
    if not logits.requires_grad:
        raise NotJudged("no gradient passes through it")
    return logits, embedded


def gradient_by_token(output: Tensor, cotangent: Tensor, embedded: list[Tensor], shape: torch.Size) -> Tensor:
    """Give max |d (cotangent . output) / d embedding| for each token: (B, T); raises NotJudged for odd calls."""
    gradients = torch.autograd.grad(output, embedded, cotangent, allow_unused=True, retain_graph=True)
    rows, length = shape
    found = [torch.zeros_like(e) if g is None else g for g, e in zip(gradients, embedded, strict=True)]
    if len(found) == length and all(g.shape[0] == rows and g.numel() // rows == g.shape[-1] for g in found):
        found = [torch.stack([g.reshape(rows, -1) for g in found], dim=1)]  # one call a position
    if any(g.numel() % (rows * length) for g in found):
        raise NotJudged(f"embeddings of shape {tuple(found[0].shape)} for ids {tuple(shape)}")
    return torch.stack([g.reshape(rows, length, -1).abs().amax(dim=-1) for g in found]).amax(dim=0)


def cotangent(output: Tensor, kept: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a cotangent for an output (B, T, V), zero where it is not kept (B, T); on the CPU, then moved.

    The product of one number for each (b, t) and one for each v: as general, for what it shall not miss, as V numbers.
    """
    weights = torch.randn(output.shape[2:], generator=generator).to(output)
    return kept[..., None] * torch.randn(*kept.shape, 1, generator=generator).to(output) * weights
