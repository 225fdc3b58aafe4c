"""Can a model see the future, or anything else that it must not?

Five parts, since each is blind where another sees:

suffix    every token after t is replaced, and the logits up to t compared bit for bit. Every id of the vocabulary (or a
          sample) stands both as the last kept and as the first replacing token, so a leak gated by a rare token shows
gradient  d logits[<= t] / d embedding[> t] is exactly zero, under a random cotangent, since a plain sum can cancel: it
          sees leaks too small to move a rounded logit. One that all but vanishes in float64 is a rounding (of a Fourier
          transform, say) and no leak
length    a prefix alone has the logits that it has inside a longer input, in float64, since float32 kernels regroup:
          positions counted from the end, division by the length, statistics over the sequence
rows      the other rows' content changes nothing: batch statistics, expert capacity, packed rows
state     the same call gives the same twice, after all the others, and in a copy of the model with another past

Where kernels regroup rows (expert routing), float32 differs by roundings: a difference of at most ROUNDING is judged
again in float64. A part that cannot be tested is a failure that says "not judged".
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from octlm.audit.blame import apart, difference, first_by_length, first_changed, first_reader
from octlm.audit.finding import Finding, Measure
from octlm.audit.gradients import cotangent, embedded_logits, gradient_by_token
from octlm.audit.subject import LOGITS, WHOLE, Key, NotJudged, Subject, eval_mode, in_float64, scale

CLAIM = "no logit depends on a later token, another row or an earlier call"
EXACT = 1e-9  # in float64, of the largest logit or of 1
SHRINKS = 1e-7  # what float64 leaves of a rounding of float32: 2^-29 and some; a leak stays as it is
ROUNDING = 1e-4  # what regrouped float32 sums may differ by, of the largest logit or of 1
COVER_LENGTH, COVER_TOKENS = 16, 1 << 16  # of the rows that cover the vocabulary: of each at least, of all about
SMALL, SAMPLE = 4096, 1024  # a vocabulary of which every id is tried, and how many of a larger one
CHUNK = 1 << 25  # logits held at once
ROWS = 3


class Pair(NamedTuple):
    """Two inputs (B, T) that agree wherever `kept`: there the logits must agree, too."""

    ids: Tensor
    changed: Tensor
    kept: Tensor  # (B, T) bool


def causality(
    model: Callable[..., Any],
    vocab_size: int,
    length: int,
    *,
    embed: nn.Module | None = None,
    device: torch.device | str | None = None,
    cuts: int = 128,
    ids: int | None = None,
    seed: int = 0,
) -> Finding:
    """Test a model from ids (B, T <= length) to logits (B, T, V) in eval mode; its own modes come back afterwards.

    embed is the module that embeds the tokens (None: every lookup of the ids in a table is taken); cuts, at how many
    places a future is changed, evenly spread, the ends included (at most length - 1: all); ids, how many of the
    vocabulary stand at a cut (None: every one of a small vocabulary). What it can miss: a leak between two cuts, behind
    a gate on a pair of tokens, in training mode, beyond `length`, or below ROUNDING in short floats alone. And a model
    whose earlier positions hardly influence later ones hides its leaks: audit randomised or trained weights.
    Raises ValueError for a length or vocabulary below 2, or cuts below 1.
    """
    if length < 2 or vocab_size < 2 or cuts < 1:
        raise ValueError(f"causality: length={length}, vocab_size={vocab_size}, cuts={cuts}: need 2, 2 and 1 or more")
    subject = Subject(model, device)
    audit = Audit(subject, embed, vocab_size, length, cuts, ids, torch.Generator().manual_seed(seed))
    with eval_mode(model):
        leaks = audit.run()
    worst = max(leaks, key=lambda leak: leak.worst, default=Measure(0.0, 0.0, ""))
    claim = f"{CLAIM}, at {length} tokens"
    return Finding(claim, not leaks, worst.worst, worst.tolerance, "; ".join(leak.what for leak in leaks), audit.cases)


class Audit:
    """One audit of one model: what is drawn, and how many comparisons were made."""

    def __init__(
        self,
        subject: Subject,
        embed: nn.Module | None,
        vocab_size: int,
        length: int,
        cuts: int,
        ids: int | None,
        generator: torch.Generator,
    ) -> None:
        self.subject, self.embed = subject, embed
        self.vocab_size, self.length, self.generator = vocab_size, length, generator
        ids = (vocab_size if vocab_size <= SMALL else SAMPLE) if ids is None else ids
        self.n_ids = max(2, min(ids, vocab_size))
        self.cuts = torch.linspace(0, length - 2, min(cuts, length - 1)).long().unique()
        self.same = self.draw(2, length)
        self.before: dict[Key, Tensor] | None = None
        self.cases = 0

    def run(self) -> list[Measure]:
        """Go through the parts; give what leaks, or cannot be judged, in their order."""
        with suppress(NotJudged):
            self.twin  # noqa: B018  made before the first call, which may leave tables of its dtype behind
        leaks = self.part("state", self.state)
        if leaks:
            return leaks  # no two calls can be compared
        leaks = self.part("suffix", self.suffix) + self.part("gradient", self.gradient)
        leaks += self.part("length", self.prefixes) + self.part("rows", self.rows)
        return leaks + self.part("state", self.state)

    def part(self, name: str, test: Callable[[], Measure | None]) -> list[Measure]:
        """Run one part and put its name before what it found."""
        try:
            leak = test()
        except NotJudged as reason:
            leak = Measure(float("inf"), 0.0, f"not judged: {reason}")
        return [leak._replace(what=f"{name}: {leak.what}")] if leak else []

    @cached_property
    def twin(self) -> Subject:
        """Give the float64 copy, made when it is first asked for."""
        return in_float64(self.subject)

    @torch.no_grad()
    def state(self) -> Measure | None:
        """Call twice with the same ids; compare with the first such call, and with a copy that had another past."""
        copied = self.subject.copied() if self.before is None else None  # before the first call, or it had this past
        first, second = self.subject.trace(self.same), self.subject.trace(self.same)
        self.before = first if self.before is None else self.before
        pairs = [(self.before, first, 0.0), (first, second, 0.0)]
        if copied:
            copied(self.other(self.same))
            pairs.append((first, copied.trace(self.same), ROUNDING))  # a copy lies at other addresses
        for earlier, again, tolerance in pairs:
            self.cases += 1
            logits = earlier[LOGITS]
            worst = difference(logits, again[LOGITS])
            if worst > tolerance * scale(logits):
                moved = (k for k, a in earlier.items() if k not in again or differs(a, again[k], tolerance))
                what = f"{next(moved)[0]}: the same ids in another call change the logits by {worst:.3g}"
                return Measure(worst, tolerance * scale(logits), what)
        return None

    def suffix(self) -> Measure | None:
        """Replace every later token."""
        return self.compare_all(self.pairs(), "tokens after {} change")

    def rows(self) -> Measure | None:
        """Replace every other row."""
        return self.compare_all(self.row_pairs(), "the other rows change")

    def gradient(self) -> Measure | None:
        """Ask for d logits[<= t] / d embedding[> t]."""
        for pair in self.pairs():
            self.cases += len(pair.ids)
            leak, seed = self.leak_to_later(self.subject, self.embed, pair, None)
            worst, place = leak.flatten().max(dim=0)
            if not bool(worst == 0) and not self.shrinks(float(worst), pair, seed):
                row, token = divmod(int(place), pair.ids.shape[1])
                name = first_reader(self.subject, self.embed, pair.ids, pair.kept)
                what = f"{name}: logits up to {last_kept(pair, row)} have a gradient to token {token}"
                return Measure(float(worst), 0.0, what)
        return None

    def leak_to_later(
        self, subject: Subject, embed: nn.Module | None, pair: Pair, drawn: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Give each later token's gradient (B, T), of what is kept under a random cotangent, and the cotangent."""
        logits, calls = embedded_logits(subject, embed, pair.ids)
        kept = pair.kept.to(logits.device)
        drawn = cotangent(logits, kept, self.generator) if drawn is None else drawn.to(logits)
        return gradient_by_token(logits, drawn, calls, pair.ids).masked_fill(kept, 0), drawn

    def shrinks(self, worst: float, pair: Pair, drawn: Tensor) -> bool:
        """Say whether a gradient is a rounding, as a Fourier transform's is: in float64 next to nothing is left."""
        try:
            name = next((n for n, m in self.subject.modules.items() if m is self.embed), None)
            leak, _ = self.leak_to_later(self.twin, self.twin.modules[name] if name else None, pair, drawn)
        except NotJudged:
            return False
        return float(leak.max()) <= SHRINKS * worst

    @torch.no_grad()
    def prefixes(self) -> Measure | None:
        """Compare a prefix alone with the same inside a longer input, in float64."""
        ids = self.draw(2, self.length)
        try:
            twin = self.twin
            full = twin(ids)
        except NotJudged as reason:
            raise NotJudged(f"it cannot run in float64: {reason}") from None
        tolerance = EXACT * scale(full)
        for cut in self.cuts.tolist():
            self.cases += 1
            try:
                alone = twin(ids[:, : cut + 1])
            except NotJudged as reason:
                raise NotJudged(f"a fixed length? With {cut + 1} of {self.length} tokens {reason}") from None
            worst = difference(full[:, : cut + 1], alone)
            if not worst <= tolerance:
                name = first_by_length(twin, ids, cut + 1, EXACT)
                what = f"{name}: logits up to {cut} change by {worst:.3g} when {self.length} tokens are there"
                return Measure(worst, tolerance, what)
        return None

    # -- inputs

    def draw(self, rows: int, length: int) -> Tensor:
        """Draw ids (rows, length)."""
        return torch.randint(self.vocab_size, (rows, length), generator=self.generator)

    def other(self, ids: Tensor) -> Tensor:
        """Draw ids that differ from these everywhere."""
        return (ids + torch.randint(1, self.vocab_size, ids.shape, generator=self.generator)) % self.vocab_size

    def pairs(self) -> Iterator[Pair]:
        """Give pairs that agree up to a cut: one row, all cuts at the full length, then shorter rows for every id."""
        for last in {(self.length - 2) // 2, 0, self.length - 2}:
            yield self.suffix_pair(self.draw(1, self.length), torch.tensor([last]))
        for _ in range(2):  # two replacements
            yield from self.portions(self.suffix_pair(self.draw(len(self.cuts), self.length), self.cuts))
        length = max(COVER_LENGTH, COVER_TOKENS // self.vocab_size) if self.takes_shorter() else self.length
        length = min(length, self.length)
        kept, new = self.covering(), self.covering()
        cut = torch.arange(self.n_ids) % (length - 1)
        ids = self.draw(self.n_ids, length).scatter(1, cut[:, None], kept[:, None])
        changed = self.other(ids).scatter(1, cut[:, None] + 1, new[:, None])
        ids = torch.where(ids == changed, (ids + 1) % self.vocab_size, ids)  # only at cut + 1: elsewhere they differ
        later = torch.arange(length) > cut[:, None]
        yield from self.portions(Pair(ids, torch.where(later, changed, ids), ~later))

    def portions(self, pair: Pair) -> Iterator[Pair]:
        """Cut a pair into rows of which the logits can be held at once."""
        size = max(1, CHUNK // (pair.ids.shape[1] * self.vocab_size))
        yield from map(Pair._make, zip(*(tensor.split(size) for tensor in pair), strict=True))

    def suffix_pair(self, ids: Tensor, cut: Tensor) -> Pair:
        """Replace what stands after each row's cut."""
        later = torch.arange(ids.shape[1]) > cut[:, None]
        return Pair(ids, torch.where(later, self.other(ids), ids), ~later)

    def covering(self) -> Tensor:
        """Give n_ids different ids in a random order; always the first and the last, where special tokens stand."""
        inner = torch.randperm(self.vocab_size - 2, generator=self.generator)[: self.n_ids - 2] + 1
        ids = torch.cat((torch.tensor([0, self.vocab_size - 1]), inner))
        return ids[torch.randperm(len(ids), generator=self.generator)]

    def takes_shorter(self) -> bool:
        """Say whether the model accepts an input of less than the full length."""
        try:
            with torch.no_grad():
                self.subject(self.draw(1, min(self.length - 1, COVER_LENGTH)))
        except NotJudged:
            return False
        return True

    def row_pairs(self) -> Iterator[Pair]:
        """Give pairs that agree in one row."""
        for row in list(range(ROWS)) * 3:
            ids = self.draw(ROWS, self.length)
            kept = (torch.arange(ROWS) == row)[:, None].expand_as(ids)
            yield Pair(ids, torch.where(kept, ids, self.other(ids)), kept)

    # -- comparisons

    @torch.no_grad()
    def compare_all(self, pairs: Iterator[Pair], change: str) -> Measure | None:
        """Compare the logits of pairs where they are kept; give the first leak."""
        for pair in pairs:
            self.cases += len(pair.ids)
            a, b = self.subject(pair.ids), self.subject(pair.changed)
            kept = pair.kept.to(a.device)
            distance = apart(a, b).amax(dim=-1).masked_fill(~kept, 0)  # (B, T)
            worst, place = distance.flatten().max(dim=0)
            if bool(worst == 0) or self.is_rounding(pair, float(worst), scale(a)):
                continue
            row, position = divmod(int(place), pair.ids.shape[1])
            what = f"logits[{position}] change by {float(worst):.3g} when " + change.format(last_kept(pair, row))
            return Measure(float(worst), 0.0, f"{self.guilty(pair)}: {what}")
        return None

    def guilty(self, pair: Pair) -> str:
        """Name a module, in float64 if that shows the leak, too: roundings of regrouped rows are no leak."""
        try:
            name = first_changed(self.twin, *pair, tolerance=EXACT)
        except NotJudged:
            name = None
        return name or first_changed(self.subject, *pair) or WHOLE

    def is_rounding(self, pair: Pair, worst: float, size: float) -> bool:
        """Say whether a difference is that of regrouped sums: small, and gone in float64."""
        if not worst <= ROUNDING * size:
            return False
        try:
            a, b = self.twin(pair.ids), self.twin(pair.changed)
        except NotJudged as reason:
            doubt = f"{self.guilty(pair)}: logits differ by {worst:.3g}, which may be rounding, and in float64"
            raise NotJudged(f"{doubt} {reason}") from None
        return difference(a[pair.kept.to(a.device)], b[pair.kept.to(b.device)]) <= EXACT * scale(a)


def differs(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Say whether two outputs of a module differ, the tolerance in units of its largest number, or of 1."""
    return a.shape != b.shape or difference(a, b) > tolerance * scale(a)


def last_kept(pair: Pair, row: int) -> int:
    """Give the last position of a row at which the inputs agree."""
    return int(pair.kept[row].nonzero().max()) if bool(pair.kept[row].any()) else -1
