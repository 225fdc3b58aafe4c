"""Are the targets of a batch the tokens that come next?"""

import torch
from torch import Tensor

from octlm.audit.finding import Finding

CLAIM = "the target of each token is the one after it"


def targets(x: Tensor, y: Tensor, *, ignore: tuple[int, ...] = (-1, -100)) -> Finding:
    """Check that y[t] is x[t + 1], once, for ids x and targets y (B, T); targets in `ignore` do not count.

    Catches labels that a loss will shift again, or that were shifted twice or backwards. The last target of a row
    stands in no input and cannot be checked. Raises ValueError for different shapes.
    """
    if x.shape != y.shape or x.dim() not in (1, 2):
        raise ValueError(f"targets: x {tuple(x.shape)}, y {tuple(y.shape)}: need the same (B, T)")
    x, y = torch.atleast_2d(x), torch.atleast_2d(y)
    counted = torch.stack([torch.ones_like(y, dtype=torch.bool), *(y != i for i in ignore)]).all(dim=0)
    found = {shift: disagreements(x, y, counted, shift) for shift in (1, 0, 2, -1)}
    wrong, cases = found[1]
    where = ""
    if wrong or not cases:
        names = {0: "not shifted", 2: "shifted twice", -1: "shifted backwards"}
        named = [text for shift, text in names.items() if found[shift][0] == 0 < found[shift][1]]
        where = ", ".join(named) or (
            f"{wrong} targets are not the next token" if cases else "not judged: no target counts"
        )
    return Finding(CLAIM, not where, float(wrong), 0.0, where, cases)


def disagreements(x: Tensor, y: Tensor, counted: Tensor, shift: int) -> tuple[int, int]:
    """Count the targets that are not the token `shift` places on, and those that could be compared."""
    length = x.shape[1]
    here = torch.arange(max(0, -shift), max(0, -shift, min(length, length - shift)))
    wrong = (x[:, here + shift] != y[:, here]) & counted[:, here]
    return int(wrong.sum()), int(counted[:, here].sum())
