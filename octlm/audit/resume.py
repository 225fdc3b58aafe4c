"""Does a training that was interrupted end where an uninterrupted one ends, bit for bit?"""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from octlm.audit.finding import Finding

CLAIM = "a training that was interrupted equals one that was not, bit for bit"

Session = Callable[[Any, int], tuple[Any, Sequence[Any]]]


def resume(session: Session, n: int, k: int) -> Finding:
    """Compare n steps at once with k steps and then n - k more: the losses of every step and the last state.

    session(state, steps) -> (state, one loss a step) trains on from a state (None: from the start), which is anything
    of tensors, numbers, strings, sequences and mappings. The global random generators of torch and
    Python are moved between the sessions, so one that relies on them shows. Raises ValueError unless 0 < k < n.
    """
    if not 0 < k < n:
        raise ValueError(f"resume: n={n}, k={k}: need 0 < k < n")
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    try:
        disturb(1)
        middle, early = session(None, k)
        middle = copy.deepcopy(middle)  # as a file would hold it
        disturb(2)
        whole, losses = session(None, n)
        disturb(3)
        resumed, late = session(middle, n - k)
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
    if len(losses) != n or len(early) != k or len(late) != n - k:
        counts = f"{len(losses)}, {len(early)} and {len(late)} losses for {n}, {k} and {n - k} steps"
        return Finding(CLAIM, False, float("inf"), 0.0, counts, 0)
    found = list(differences(list(losses), [*early, *late], "losses"))
    found += differences(whole, resumed, "state")
    worst = max((d for _, d in found), default=0.0)
    where = ", ".join(place for place, _ in found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return Finding(CLAIM, not found, worst, 0.0, where, n)


def disturb(seed: int) -> None:
    """Move the generators that a session might lean on."""
    torch.manual_seed(seed)
    random.seed(seed)


def differences(a: Any, b: Any, place: str) -> list[tuple[str, float]]:
    """Give the places where two states differ, and by how much (inf: in kind)."""
    if hasattr(a, "__array__") and hasattr(b, "__array__"):  # numpy's
        a, b = torch.as_tensor(a), torch.as_tensor(b)
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype:
        if bool(((a == b) | (a != a) & (b != b)).all()):
            return []
        return [(place, float((a.double() - b.double()).abs().max()))]
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{place}[{key!r}]")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [found for i in range(len(a)) for found in differences(a[i], b[i], f"{place}[{i}]")]
    if isinstance(a, Tensor) or isinstance(b, Tensor) or type(a) is not type(b):
        return [(place, float("inf"))]
    if isinstance(a, float) and a == a:
        return [] if a == b else [(place, abs(a - b) if b == b else float("inf"))]
    return [] if a == b or (a != a and b != b) else [(place, float("inf"))]
