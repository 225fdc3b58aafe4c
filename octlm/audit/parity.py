"""Do two implementations compute the same?"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from octlm.audit.finding import Finding
from octlm.audit.subject import logits_of

CLAIM = "two implementations agree"


@torch.no_grad()
def parity(a: Callable[..., Any], b: Callable[..., Any], inputs: Iterable[Any], atol: float, rtol: float) -> Finding:
    """Compare a(x) with b(x) for every x of inputs (a tuple is several arguments): |a - b| <= atol + rtol |b|.

    Every tensor of the output counts (of an object with logits, these). worst is the largest |a - b| - rtol |b|, to be
    held against atol.
    """
    if not (atol >= 0 and rtol >= 0):
        raise ValueError(f"parity: atol={atol}, rtol={rtol}: need numbers from 0 on")
    worst, where, cases = 0.0, "", 0
    for number, x in enumerate(inputs):
        arguments = x if isinstance(x, tuple) else (x,)
        mine, theirs = list(tensors(a(*arguments))), list(tensors(b(*arguments)))
        shapes = [[tuple(t.shape) for t in side] for side in (mine, theirs)]
        if shapes[0] != shapes[1] or not shapes[0]:
            return Finding(
                CLAIM, False, float("inf"), atol, f"input {number}: shapes {shapes[0]} and {shapes[1]}", cases
            )
        for i, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            cases += left.numel() > 0
            wide = torch.complex128 if left.is_complex() or right.is_complex() else torch.float64
            left, right = left.to(wide), right.to(left.device, wide)
            excess = torch.where(left == right, 0.0, (left - right).abs() - rtol * right.abs())
            excess = excess.nan_to_num(nan=float("inf"), posinf=float("inf"))
            if excess.numel() and float(excess.max()) > worst:
                worst = float(excess.max())
                place = [int(k) for k in torch.unravel_index(excess.argmax(), excess.shape)]
                pair = f"{left[tuple(place)]:.9g} and {right[tuple(place)]:.9g}"
                where = f"input {number}, output {i}, element {place}: {pair}"
    ok = cases > 0 and worst <= atol
    return Finding(CLAIM, ok, worst, atol, "" if ok else where or "no inputs", cases)


def tensors(output: Any) -> Iterator[Tensor]:
    """Give every tensor of an output; of one with logits, these."""
    if hasattr(output, "logits") or (isinstance(output, Mapping) and "logits" in output):
        output = logits_of(output)
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, tuple | list | Mapping):
        for item in output.values() if isinstance(output, Mapping) else output:
            yield from tensors(item)
