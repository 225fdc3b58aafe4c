"""Which token comes next, and when does a row of text end?

    penalty -> temperature -> top-k -> top-p -> min-p -> renormalise -> draw

Each filter takes logits (B, V) and returns logits (B, V) in which what it drops is -inf, so that the next one
sees a renormalised distribution; the most likely id survives all of them. Everything is float64 on the CPU.
A row's draws come from a generator of (seed, row) alone: one uniform number a token, through the inverse
cumulative distribution, so a row's text depends on neither the other rows nor the cache.

Top-k: Fan et al. 2018, arXiv 1805.04833. Top-p: Holtzman et al. 2019, arXiv 1904.09751. Min-p: Nguyen et al.
2024, arXiv 2407.01082. Repetition penalty: Keskar et al. 2019, arXiv 1909.05858.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octlm.command import RunFailed

Model = Callable[..., Tensor]
Event = tuple[int, int | None, str | None]
NEVER = float("-inf")
PAD_ID = 0  # any id would do: a padded slot has position -1, which nothing can see


def penalize_repeats(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make the ids marked in `seen` (B, V) less likely: positive logits / penalty, negative x penalty."""
    if penalty == 1:
        return logits
    limit = torch.finfo(logits.dtype).max
    punished = torch.where(logits > 0, logits / penalty, logits * penalty).clamp(-limit, limit)
    return torch.where(seen & ~logits.isneginf(), punished, logits)


def scale_by_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Move the largest logit to 0, then divide; 0 keeps the most likely id alone (the lowest of equals)."""
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, NEVER).scatter(-1, best, 0.0)
    shifted = logits - logits.amax(-1, keepdim=True)
    return torch.where(shifted.isneginf(), NEVER, shifted / temperature)  # -inf / inf would be NaN


def keep_top_k(logits: Tensor, top_k: int, ranking: Tensor) -> Tensor:
    """Keep exactly the k ids that rank highest, the lowest ids first among equals; 0 = off, k > V = V.

    `ranking` (B, V) are the logits before the temperature, which can round different ones to equals.
    """
    if top_k == 0 or top_k >= logits.shape[-1]:
        return logits
    smallest = ranking.topk(top_k, dim=-1).values[:, -1:]
    above, equal = ranking > smallest, ranking == smallest
    missing = top_k - above.sum(-1, keepdim=True)
    return torch.where(above | (equal & (equal.cumsum(-1) <= missing)), logits, NEVER)


def keep_top_p(logits: Tensor, top_p: float, ranking: Tensor) -> Tensor:
    """Keep the fewest ids, by rank, that hold at least p of the probability; `ranking` as in `keep_top_k`."""
    if top_p == 1:
        return logits
    order = ranking.sort(dim=-1, descending=True, stable=True).indices
    before = nn.functional.pad(logits.softmax(-1).gather(-1, order).cumsum(-1)[:, :-1], (1, 0))
    keep = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before < top_p)
    return torch.where(keep, logits, NEVER)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keep the ids at least min_p times as likely as the most likely one; 0 = off."""
    if min_p == 0:
        return logits
    probabilities = logits.softmax(-1)
    return torch.where(probabilities >= min_p * probabilities.amax(-1, keepdim=True), logits, NEVER)


def draw(probabilities: Tensor, uniform: Sequence[float]) -> list[int]:
    """Return an id for each row of (B, V): the first whose cumulative probability exceeds the row's number.

    The numbers are below 1. An id of probability 0 is never returned: the target is less than the total, since
    rounding leaves that near 1, and the sum grows at possible ids only.
    """
    cumulative = probabilities.cumsum(-1)
    target = torch.tensor(uniform, dtype=cumulative.dtype)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].tolist()


def uniforms(seed: int, row: int) -> Iterator[float]:
    """Yield the numbers in [0, 1) of one row, a function of (seed, row, how many came before)."""
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(row,)))
    while True:  # raw bits, which numpy keeps the same from version to version
        yield (int(bits.random_raw()) >> 11) * 2.0**-53


_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda x: x >= 0, "a number >= 0"),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1"),
    "min_p": (lambda x: 0 <= x <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda x: 0 < x < math.inf, "a finite number above 0"),
}


@dataclass(frozen=True)
class Filters:
    """The numbers that shape a distribution; a ValueError names the one that is out of range."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _integer("top_k", self.top_k, low=0)
        for name, (legal, words) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not legal(_float(value)):
                raise ValueError(f"{name} must be {words}; got {value!r}")
            object.__setattr__(self, name, _float(value))

    def probabilities(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Return the distribution (B, V) to draw from; `seen` (B, V) bool marks the ids that a row holds."""
        ranking = penalize_repeats(logits, seen, self.repetition_penalty)
        logits = scale_by_temperature(ranking, self.temperature)
        logits = keep_top_k(logits, self.top_k, ranking)
        logits = keep_top_p(logits, self.top_p, ranking)
        logits = keep_min_p(logits, self.min_p)
        return logits.softmax(-1)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return math.inf if value > 0 else -math.inf


def _integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    words = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be {words}; got {value!r}")
    return number


def _ids(name: str, values: Any, vocab_size: int | None) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of token ids; got {values!r}")
    high = None if vocab_size is None else vocab_size - 1
    return [_integer(f"{name}[{i}]", value, 0, high) for i, value in enumerate(values)]


class _Feeder:
    """Run the model on rows of ids and return the logits (n, V) that follow each, float64 on the CPU."""

    def __init__(self, model: Model, rows: dict[int, list[int]], cache: Any) -> None:
        self.model, self.rows, self.cache = model, rows, cache
        self.fed = dict.fromkeys(rows, 0)  # ids of each row that the cache holds
        tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
        self.device = tensors[0].device if tensors else torch.device("cpu")

    def after(self, live: list[int]) -> Tensor:
        return self._uncached(live) if self.cache is None else self._cached(live)

    def _uncached(self, live: list[int]) -> Tensor:
        """Whole rows every time, those of one length together: no padding, so any callable will do."""
        found: dict[int, Tensor] = {}
        for length in {len(self.rows[row]) for row in live}:
            members = [row for row in live if len(self.rows[row]) == length]
            logits = self._call([self.rows[row] for row in members])
            found.update(zip(members, logits, strict=True))
        return torch.stack([found[row] for row in live])

    def _cached(self, live: list[int]) -> Tensor:
        """Only what the cache lacks, padded on the left; a row that has ended is fed padding from then on."""
        new = {row: ids[self.fed[row] :] for row, ids in self.rows.items()}
        width = max(map(len, new.values()))
        ids = [[PAD_ID] * (width - len(tail)) + tail for tail in new.values()]
        positions = None  # the model's own count, which leaves its unmasked path open to it
        if len({(self.fed[row], len(tail)) for row, tail in new.items()}) > 1:
            places = [range(self.fed[row], self.fed[row] + len(tail)) for row, tail in new.items()]
            positions = [[-1] * (width - len(place)) + list(place) for place in places]
        logits = self._call(ids, positions)
        for row, tail in new.items():
            self.fed[row] += len(tail)
        return logits[[i for i, row in enumerate(self.rows) if row in live]]

    def _call(self, ids: list[list[int]], positions: list[list[int]] | None = None) -> Tensor:
        batch = torch.tensor(ids, device=self.device)  # (B, T)
        arguments = () if self.cache is None else (self.cache,)
        named = {} if positions is None else {"positions": torch.tensor(positions, device=self.device)}
        logits = self.model(batch, *arguments, **named)
        if not isinstance(logits, Tensor) or logits.shape[:-1] != batch.shape:
            found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"a model must return logits (B, T, V); got {found} for {tuple(batch.shape)}")
        return logits[:, -1].cpu().to(torch.float64)  # (B, V); to the CPU first: not every device has float64


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Switch dropout off, and give every submodule its own mode back afterwards."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, mode in modes:
            module.training = mode


def _checked(logits: Tensor, unused: list[int], step: int, rows: list[int]) -> Tensor:
    """Return the logits with the ids that have no token at -inf; RunFailed where nothing can be drawn."""
    masked = logits.index_fill(1, torch.tensor(unused, dtype=torch.int64), NEVER)
    bad = logits.isnan().any(-1) | logits.isposinf().any(-1) | masked.isneginf().all(-1)
    if bad.any():
        raise RunFailed(f"non-finite logits at step {step}, row {rows[int(bad.int().argmax())]}")
    return masked


def stream(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop_ids: Iterable[int] = (),
    seed: int = 0,
    use_cache: bool = True,
    first_row: int = 0,
) -> Generator[Event, None, None]:
    """Yield (row, id, finish_reason) for every new token as it is drawn, the rows in turn.

    finish_reason is None until the last item of a row, which has "stop" (a stop id was drawn; it is not given
    out, id is None), "length" (max_new_tokens) or "context" (the row, prompt included, fills the model's
    config.context_length); id is also None where a row ends before its first token. The penalty counts the
    ids of prompt and text alike. Row i draws from the generator of (seed, first_row + i).
    ValueError, at once, for arguments out of range; RunFailed, with the step (from 1) and the row, for logits
    from which nothing can be drawn: NaN, +inf, or all -inf.
    """
    filters = Filters(temperature, top_k, top_p, min_p, repetition_penalty)
    limit = _integer("max_new_tokens", max_new_tokens, low=0)
    seed = _integer("seed", seed, low=0, high=2**64 - 1)
    first_row = _integer("first_row", first_row, low=0)
    config = getattr(model, "config", None)
    vocab_size, context = getattr(config, "vocab_size", None), getattr(config, "context_length", None)
    stops = frozenset(_ids("stop_ids", stop_ids, vocab_size))
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a list of lists of token ids; got {prompts!r}")
    rows = {row: _ids(f"prompts[{row}]", prompt, vocab_size) for row, prompt in enumerate(prompts)}
    for row, ids in rows.items():
        if not ids:
            raise ValueError(f"prompts[{row}] is empty; a row starts from one token at least")
        if context is not None and len(ids) > context:
            raise ValueError(f"prompts[{row}] has {len(ids)} tokens, but the model's context holds {context}")
    if use_cache and not hasattr(model, "new_cache"):
        raise ValueError("this model has no new_cache(batch_size, max_length); pass use_cache=False")
    room = {row: limit if context is None else min(limit, context - len(ids)) for row, ids in rows.items()}
    reason = {row: "length" if room[row] == limit else "context" for row in rows}
    draws = {row: uniforms(seed, first_row + row) for row in rows}

    def events() -> Generator[Event, None, None]:
        yield from ((row, None, reason[row]) for row in rows if room[row] == 0)
        begun = {row: ids for row, ids in rows.items() if room[row] > 0}
        if not begun:
            return
        live, step = list(begun), 0
        slots = max(map(len, begun.values())) + max(room[row] for row in begun) - 1  # the last token is never fed
        unused = list(getattr(model, "unused_ids", ()))
        # Inference mode is faster, but a table that a module made in it and kept could not be trained with later;
        # a model with a cache was made for this, any other may keep such a table.
        without_gradients = torch.inference_mode if use_cache else torch.no_grad
        with _evaluating(model):
            cache = model.new_cache(len(begun), slots) if use_cache else None  # type: ignore[attr-defined]
            feeder = _Feeder(model, begun, cache)
            while live:
                step += 1
                with without_gradients():  # not around the yield, where the caller's code runs
                    logits = _checked(feeder.after(live), unused, step, live)
                    seen = torch.zeros_like(logits, dtype=torch.bool)
                    for i, row in enumerate(live):
                        if step == 1:  # the first moment at which a model without a config tells V
                            _ids(f"prompts[{row}]", rows[row], logits.shape[-1])
                        seen[i, rows[row]] = True
                    drawn = draw(filters.probabilities(logits, seen), [next(draws[row]) for row in live])
                for row, token in zip(tuple(live), drawn, strict=True):
                    if token in stops:
                        live.remove(row)
                        yield row, None, "stop"
                        continue
                    rows[row].append(token)
                    room[row] -= 1
                    if room[row] == 0:
                        live.remove(row)
                    yield row, token, None if room[row] else reason[row]

    return events()


def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop_ids: Iterable[int] = (),
    seed: int = 0,
    use_cache: bool = True,
    first_row: int = 0,
) -> list[list[int]]:
    """Return the new ids of every row, without the stop id; the arguments and errors of `stream`."""
    new: dict[int, list[int]] = {}
    events = stream(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop_ids=stop_ids,
        seed=seed,
        use_cache=use_cache,
        first_row=first_row,
    )
    for row, token, _ in events:
        new.setdefault(row, []).extend([] if token is None else [token])
    return [new[row] for row in sorted(new)]


class StopText:
    """Cut a stream of text at the first stop string to be completed, whatever the pieces it comes in."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self.stops, self.held, self.stopped = tuple(stops), "", False

    def push(self, text: str) -> str:
        """Return what may be shown now: nothing that could still begin a stop string, nothing after one."""
        if self.stopped:
            return ""
        self.held += text
        found = [(at + len(stop), at) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        self.stopped = bool(found)
        # The earliest end, then the earliest start: the same answer for every way to cut the text.
        show = min(found)[1] if found else len(self.held) - self._possible_start()
        shown, self.held = self.held[:show], "" if found else self.held[show:]
        return shown

    def flush(self) -> str:
        """Return the text held back, at the end of the stream."""
        shown, self.held = self.held, ""
        return shown

    def _possible_start(self) -> int:
        longest = min(len(self.held), max(map(len, self.stops), default=1) - 1)
        sizes = range(longest, 0, -1)
        return next((n for n in sizes if any(stop.startswith(self.held[-n:]) for stop in self.stops)), 0)
