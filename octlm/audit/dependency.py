"""What does each position read?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from octlm.audit.gradients import cotangent, embedded_logits, gradient_by_token
from octlm.audit.subject import Subject, eval_mode


def dependency(model: Callable[..., Any], embed: nn.Module | None, ids: Tensor) -> Tensor:
    """Give the (T, T) bool matrix of what logits[t] reads of token j, in any row of ids (B, T), from gradients.

    For masked attention under residual streams it is the boolean product of the layers' masks. A gradient that
    underflows is read as none: use float64 and weights that are not tiny. Raises NotJudged, a ValueError, where the
    model raises or has no embedding to take gradients of.
    """
    if ids.dim() != 2 or 0 in ids.shape:
        raise ValueError(f"dependency: ids {tuple(ids.shape)}: need (B, T), neither 0")
    with eval_mode(model):
        logits, calls = embedded_logits(Subject(model), embed, ids)
    generator = torch.Generator().manual_seed(0)
    reads = []
    for t in range(ids.shape[1]):
        here = torch.zeros(ids.shape, dtype=torch.bool, device=logits.device)
        here[:, t] = True
        gradient = gradient_by_token(logits, cotangent(logits, here, generator), calls, ids)  # (B, T)
        reads.append((gradient != 0).any(dim=0))
    return torch.stack(reads).cpu()
