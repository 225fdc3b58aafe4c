"""Which tokens does an output depend on? The gradient to their embeddings says it exactly, however small."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from octlm.audit.subject import NotJudged, Subject

LOOKUPS = ("embedding", "__getitem__", "index_select")

Call = tuple[Tensor, Tensor]  # the ids that an embedding was called with, and what it gave


class Lookups(TorchFunctionMode):
    """Catch each lookup of these ids in a table, and hand on a leaf whose gradient can be asked for."""

    def __init__(self, ids: Tensor) -> None:
        super().__init__()
        self.ids = ids
        self.calls: list[Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if getattr(func, "__name__", "") in LOOKUPS and isinstance(output, Tensor) and output.is_floating_point():
            with torch._C.DisableTorchFunction():
                for index in indices(args, kwargs):
                    if way_of(index, self.ids):
                        self.calls.append((index, output.detach().requires_grad_()))
                        return self.calls[-1][1].clone()  # the model may write into it
        return output


def indices(args: Any, kwargs: Any) -> list[Tensor]:
    """List the tensors of whole numbers among a call's arguments."""
    return [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_floating_point()]


def way_of(index: Tensor, ids: Tensor) -> str:
    """Say how an index holds the ids (B, T): flat or in their shape, time first, or not."""
    if index.numel() == ids.numel() and torch.equal(index.reshape(ids.shape), ids):
        return "rows"
    return "time" if index.shape == ids.T.shape and torch.equal(index, ids.T) else ""


def embedded_logits(subject: Subject, embed: nn.Module | None, ids: Tensor) -> tuple[Tensor, list[Call]]:
    """Give the logits (B, T, V), with a graph, and each call of the embedding: its ids, and what it gave, as a leaf.

    Without `embed` every lookup of exactly these ids counts. Raises NotJudged where there was none, or where the ids of
    the calls are not those of the input, whole or in pieces one after the other.
    """
    calls: list[Call] = []

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        found = indices(args, kwargs) or ([ids] if output.shape[:2] == ids.shape else [])  # one-hot rows, say
        calls.extend((index.detach(), output.detach().requires_grad_()) for index in found[:1])
        return calls[-1][1].clone() if found else output

    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        ids = ids.to(subject.device).clone()  # one made in inference mode cannot be saved for a gradient
        if embed is None:
            calls = stack.enter_context(Lookups(ids)).calls
        else:
            stack.callback(embed.register_forward_hook(keep, with_kwargs=True).remove)
        logits = subject(ids)
    if not calls:
        unseen = "no token embedding was looked up; name it with embed=" if embed is None else "embed was not called"
        raise NotJudged(unseen)
    pieces = [
        index.reshape(len(ids), -1) for index, _ in calls if not way_of(index, ids) and not index.numel() % len(ids)
    ]
    whole = sum(bool(way_of(index, ids)) for index, _ in calls)
    if whole + len(pieces) < len(calls) or (pieces and not torch.equal(torch.cat(pieces, dim=1), ids)):
        raise NotJudged("the embedding was called on something else than the ids")
    if not logits.requires_grad:
        raise NotJudged("no gradient passes through it")
    return logits, calls


def gradient_by_token(output: Tensor, cotangent: Tensor, calls: list[Call], ids: Tensor) -> Tensor:
    """Give max |d (cotangent . output) / d embedding| for each token: (B, T); raises NotJudged where it has none."""
    try:
        leaves = [leaf for _, leaf in calls]
        gradients = torch.autograd.grad(output, leaves, cotangent, allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        raise NotJudged(f"its backward pass raises: {str(error).splitlines()[0]}") from error
    ids = ids.to(output.device)
    whole, pieces = [torch.zeros(ids.shape, device=output.device)], []
    for (index, leaf), gradient in zip(calls, gradients, strict=True):
        largest = (torch.zeros_like(leaf) if gradient is None else gradient).abs()
        largest = largest.reshape(*index.shape, -1).amax(dim=-1).to(output.device)
        way = way_of(index.to(output.device), ids)
        if way:
            whole.append(largest.T if way == "time" else largest.reshape(ids.shape))
        else:
            pieces.append(largest.reshape(len(ids), -1))
    found = torch.stack([*(w.double() for w in whole), *([torch.cat(pieces, dim=1).double()] if pieces else [])])
    if bool(found.isnan().any()):
        raise NotJudged("its gradients hold NaN")
    return found.amax(dim=0)


def cotangent(output: Tensor, kept: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a cotangent for an output (B, T, V), zero where it is not kept (B, T); on the CPU, then moved.

    The product of one number for each (b, t) and one for each v: as general, for what it shall not miss, as V numbers.
    """
    weights = torch.randn(output.shape[2:], generator=generator).to(output)
    return kept[..., None] * torch.randn(*kept.shape, 1, generator=generator).to(output) * weights
