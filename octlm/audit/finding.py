"""What did an audit see?"""

from dataclasses import dataclass
from typing import NamedTuple


class Measure(NamedTuple):
    """What one part of an audit found: a fault where worst exceeds tolerance."""

    worst: float
    tolerance: float
    what: str


@dataclass(frozen=True)
class Finding:
    """One claim and the worst evidence against it."""

    claim: str
    ok: bool
    worst: float  # the largest deviation seen, in the unit of tolerance
    tolerance: float
    where: str  # the place of the worst deviation; empty when ok
    cases: int  # comparisons made

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "FAILED"
        place = f" at {self.where}" if self.where else ""
        bound = f"worst {self.worst:.3g}, tolerance {self.tolerance:.3g}"
        return f"{verdict} {self.claim}: {bound}, {self.cases} cases{place}"
