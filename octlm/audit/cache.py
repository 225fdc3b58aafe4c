"""Does generation with a cache compute what one full pass computes?

The tokens are cut into chunks in several ways, and two sequences are decoded in turns, since a cache that belongs to
the model and not to the caller mixes them up.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from octlm.audit.blame import difference
from octlm.audit.finding import Finding
from octlm.audit.subject import NotJudged, Subject, scale

CLAIM = "cached logits equal those of one full pass, however the tokens are cut"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}  # of the largest logit or of 1; shorter floats: SHORT
SHORT = 2e-2

Step = Callable[[Tensor, Any], tuple[Any, Any]]


@torch.no_grad()
def cache(full: Callable[..., Any], step: Step, ids: Tensor, *, tolerance: float | None = None) -> Finding:
    """Compare full(ids) -> logits with step(new ids, state) -> (their logits, state), state None at the start.

    Both in eval mode. `tolerance` is in units of the largest logit, or of 1. Raises ValueError unless ids are (B, T)
    with T of at least 2.
    """
    if ids.dim() != 2 or ids.shape[0] < 1 or ids.shape[1] < 2:
        raise ValueError(f"cache: ids {tuple(ids.shape)}: need (B, T) with B >= 1 and T >= 2")
    others = ids.flip(1)  # another sequence of the same shape
    try:
        logits, other_logits = Subject(full)(ids), Subject(full)(others)
        unit = scale(logits)
        bound = unit * (TOLERANCE.get(logits.dtype, SHORT) if tolerance is None else tolerance)
        worst, where, cases = 0.0, "", 0
        for sizes in chunkings(ids.shape[1]):
            turns = list(zip(decode(step, ids, sizes), decode(step, others, sizes), strict=True))
            for turn, expected in ((0, logits), (1, other_logits)):
                cases += 1
                found = torch.cat([chunks[turn] for chunks in turns], dim=1)
                if found.shape != expected.shape:
                    raise NotJudged(f"the steps give {tuple(found.shape)}, the full pass {tuple(expected.shape)}")
                apart = difference(found, expected)
                if apart > worst:
                    worst = apart
                    place = (found - expected).abs().amax(dim=-1).flatten().argmax()
                    row, position = divmod(int(place), ids.shape[1])
                    where = f"chunks of {sizes}, two callers in turns: row {row}, logits[{position}]"
    except NotJudged as reason:
        return Finding(CLAIM, False, float("inf"), 0.0, f"not judged: {reason}", 0)
    return Finding(CLAIM, worst <= bound, worst, bound, where if worst > bound else "", cases)


def chunkings(length: int) -> list[list[int]]:
    """List ways to cut a sequence: whole, token by token, halves, a prompt and then tokens, ragged."""
    ways = [[length], [1] * length, [length // 2, length - length // 2], [length - 1, 1]]
    if length > 4:
        ways += [[length - 3, 1, 1, 1], [1, 3, length - 4]]
    return [way for i, way in enumerate(ways) if way not in ways[:i]]


def decode(step: Step, ids: Tensor, sizes: list[int]) -> Iterator[Tensor]:
    """Yield the logits of each chunk; raises NotJudged where a step does."""
    state: Any = None

    def one(new: Tensor) -> Any:
        nonlocal state
        logits, state = step(new, state)
        return logits

    yield from map(Subject(one), ids.split(sizes, dim=1))
