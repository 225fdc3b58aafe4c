"""Which module is guilty? The first, in the order in which modules finish, that gives out what it must not."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from octlm.audit.gradients import cotangent, embedded_logits, gradient_by_token
from octlm.audit.subject import WHOLE, Key, NotJudged, Subject, floats, scale


@torch.no_grad()
def first_changed(subject: Subject, ids: Tensor, changed: Tensor, kept: Tensor, tolerance: float = 0.0) -> str | None:
    """Name the first module that gives out something else where two inputs agree: kept (B, T); None: no module does.

    tolerance is in units of the module's largest number, or of 1.
    """
    layout = by_position(subject, ids)
    a, b = subject.trace(ids), subject.trace(changed)
    for key, old in a.items():
        new = b.get(key)
        if new is None or new.shape != old.shape:  # a part of the tokens, chosen by the model
            continue
        before, after = layout(key, old), layout(key, new)
        if before is not None and after is not None:
            moved = apart(before, after).amax(dim=-1).masked_fill(~kept.to(before.device), 0)
            if bool((moved > tolerance * scale(old)).any()):
                return key[0]
    return None


@torch.no_grad()
def first_by_length(subject: Subject, ids: Tensor, length: int, tolerance: float) -> str:
    """Name the first module that gives a prefix of this length something else than the same inside all of ids.

    tolerance is in units of the module's largest number, or of 1.
    """
    steady = steady_outputs(subject, ids)
    a, b = subject.trace(ids), subject.trace(ids[:, :length])
    rows, total = ids.shape
    for key, new in b.items():
        old = a.get(key)
        if old is None or key not in steady:
            continue
        long = laid_out(old, new.shape, rows, total, length)
        short = laid_out(new, old.shape, rows, length, total)
        if long is None or short is None or long.shape[2] != short.shape[2]:
            continue
        if not difference(long[:, :length], short) <= tolerance * scale(old):
            return key[0]
    return WHOLE


def first_reader(subject: Subject, embed: nn.Module | None, ids: Tensor, kept: Tensor) -> str:
    """Name the first module whose kept positions (B, T) have a gradient to a token that is not kept."""
    layout = by_position(subject, ids)
    outputs: list[tuple[Key, Tensor]] = []

    def keep(name: str, module: nn.Module, args: Any, output: Any) -> None:
        outputs.extend(((name, i), tensor) for i, tensor in enumerate(floats(output)))

    with subject.watch(keep):
        _, calls = embedded_logits(subject, embed, ids)
    generator = torch.Generator().manual_seed(0)
    for key, tensor in outputs:
        output = layout(key, tensor) if tensor.requires_grad else None
        if output is not None:
            here = kept.to(output.device)
            gradient = gradient_by_token(output, cotangent(output, here, generator), calls, ids)
            if bool(gradient.masked_fill(here, 0).any()):
                return key[0]
    return WHOLE


def by_position(subject: Subject, ids: Tensor) -> Callable[[Key, Tensor], Tensor | None]:
    """Give the function that lays out what a module gave for ids, by what it gives for an input one token shorter."""
    rows, length = ids.shape
    steady = steady_outputs(subject, ids)
    try:
        shapes = {key: tensor.shape for key, tensor in subject.trace(ids[:, :-1]).items()}
    except NotJudged:
        shapes = {}
    return lambda key, tensor: laid_out(tensor, shapes.get(key), rows, length, length - 1) if key in steady else None


def steady_outputs(subject: Subject, ids: Tensor) -> set[Key]:
    """Give the outputs whose shape does not depend on which tokens these are, as that of an expert's tokens does."""
    shapes = [
        {key: tensor.shape for key, tensor in subject.trace(content.contiguous()).items()}
        for content in (ids, ids.flip(1), ids[:, :1].expand_as(ids), ids[:, -1:].expand_as(ids), ids.roll(1, 1))
    ]
    return {key for key, shape in shapes[0].items() if all(other.get(key) == shape for other in shapes)}


def laid_out(tensor: Tensor, other: torch.Size | None, rows: int, length: int, other_length: int) -> Tensor | None:
    """Give a tensor as (rows, length, rest), from any layout; None where it has no axis of positions.

    `other` is its shape for an input of another length: the axis that follows the length is the one of positions (the
    first, in a square of queries and keys). Without it, the first axis of the right size after the batch's is taken.
    """
    if other is not None and len(other) == tensor.dim():
        sizes = list(zip(tensor.shape, other, strict=True))
        axes = [i for i, pair in enumerate(sizes) if pair == (length, other_length)]
        flat = [i for i, pair in enumerate(sizes) if pair == (rows * length, rows * other_length)]
    else:
        axes = sorted((i for i, n in enumerate(tensor.shape) if n == length), key=lambda i: (i == 0, i))
        flat = [i for i, n in enumerate(tensor.shape) if n == rows * length]
    if axes:
        tensor = tensor.movedim(axes[0], 0)  # (T, ...)
        batch = next((i for i, n in enumerate(tensor.shape) if i > 0 and n % rows == 0), None)
        if batch is None:  # the same for every row, as positions are
            return tensor.reshape(1, length, -1).expand(rows, -1, -1)
        tensor = tensor.unflatten(batch, (rows, -1)).movedim(batch, 0)  # (B, T, ...)
    elif flat:
        tensor = tensor.movedim(flat[0], 0).unflatten(0, (rows, length))
    else:
        return None
    return tensor.reshape(rows, length, -1)


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Give |a - b|, zero where both are the same infinity."""
    return torch.where(a == b, torch.zeros_like(a), (a - b).abs())


def difference(a: Tensor, b: Tensor) -> float:
    """Give the largest |a - b|; NaN counts as equal to NaN, and as infinitely far from a number."""
    distance = torch.where(a.isnan() & b.isnan(), torch.zeros_like(a), apart(a, b))
    return float(distance.nan_to_num(nan=float("inf"), posinf=float("inf")).max()) if a.numel() else 0.0
