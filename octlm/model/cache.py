"""What must be remembered so that a token is computed once?

The keys and values of every token so far, with each slot's own position and document, since rows may be padded,
packed or ragged. Append-only: slot order is the order of arrival, and visibility is decided by the same rule as in
training (masks.py), never by the slot's place.

A layer with a window needs little: its slots are a ring of the last `window` tokens and the strided columns, plus
SLACK tokens, kept so that `truncate` can step back and so that evicting costs one copy in SLACK steps. The layers of
one (window, stride) share their bookkeeping, `_Slots`. A forward pass works through a `CachedPass`, and nothing counts
until its `commit`, so a call that fails leaves the cache as it was.
"""

import torch
from torch import Tensor

from octlm.config import ModelConfig
from octlm.model.attention import View
from octlm.model.masks import Mask, visibility
from octlm.model.positions import Rotate

SLACK = 32  # tokens
EMPTY = -1  # the position of padding, and of a slot without a token


class _Slots:
    """The slots that the layers of one (window, stride) share: one row of slots a batch row."""

    def __init__(self, kind: tuple[int, int], batch_size: int, max_length: int, device: torch.device | str) -> None:
        self.window, self.stride = kind
        columns = -(-max_length // self.stride) if self.stride else 0
        self.capacity = min(max_length, self.window + columns + 2 * SLACK) if self.window else max_length
        self.count = 0
        self.oldest = 0  # the shortest length that truncate can still go back to (besides 0)
        shape = (3, batch_size, self.capacity)
        self.facts = torch.full(shape, EMPTY, device=device)  # position, document, order of arrival

    def truncate(self, length: int) -> None:
        """Forget the tokens that arrived at `length` or later."""
        position, _, arrival = self.facts
        position.masked_fill_(arrival >= length, EMPTY)
        in_use = (position >= 0).any(dim=0).nonzero()
        self.count = int(in_use[-1]) + 1 if len(in_use) else 0
        self.oldest = self.oldest if length else 0


class _Plan:
    """Where one call's T tokens go in one group of slots, worked out before any layer runs."""

    def __init__(self, slots: _Slots, facts: Tensor, length: int) -> None:
        self.slots, self.start, self.end = slots, slots.count, slots.count + facts.shape[2]
        self.facts = torch.cat((slots.facts[:, :, : self.start], facts), dim=2)  # (3, B, S)
        self.oldest = slots.oldest
        self.kept: Tensor | None = None  # (B, kept) slot numbers, when the ring turns over in this call
        self.facts_kept = self.facts  # what the next call finds
        if self.end > slots.capacity:
            self._evict(length)

    def _evict(self, length: int) -> None:
        """Keep what a later query, or one asked again up to SLACK tokens back, may read."""
        position, _, arrival = self.facts
        real = position >= 0
        last = arrival.masked_fill(~real, EMPTY).argmax(dim=1, keepdim=True)
        recent = position.masked_fill(~real | (arrival < length - SLACK), torch.iinfo(torch.int64).max)
        lowest = torch.minimum(recent.amin(dim=1, keepdim=True), position.gather(1, last) + 1)  # (B, 1)
        near = lowest - position < self.slots.window
        keep = real & (near | (position % self.slots.stride == 0) if self.slots.stride else near)
        if bool((real & ~keep).any()):
            self.oldest = length - SLACK
        n_kept = int(keep.sum(dim=1).max())
        self.kept = (~keep).int().argsort(dim=1, stable=True)[:, :n_kept]  # still in order of arrival
        self.facts_kept = self.facts.gather(2, self.kept.expand(3, -1, -1))
        self.facts_kept[0].masked_fill_(~keep.gather(1, self.kept), EMPTY)

    def join(self, store: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """Add new (B, K, T, D): give what the queries meet (B, K, S, D), and the store from the next call on.

        What is stored carries no gradient; this call's own tokens do.
        """
        if self.kept is None:
            store[:, :, self.start : self.end] = new.detach()
            if not new.requires_grad:
                return store[:, :, : self.end].to(new.dtype), store
        whole = torch.cat((store[:, :, : self.start].to(new.dtype), new), dim=2)
        if self.kept is None:
            return whole, store
        index = self.kept[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3])
        return whole, _pad(whole.detach().gather(2, index).to(store.dtype), 2, self.slots.capacity, 0)

    def commit(self) -> None:
        """Make the call's tokens part of the slots."""
        slots = self.slots
        slots.count, slots.oldest = self.facts_kept.shape[2], self.oldest
        slots.facts = _pad(self.facts_kept, 2, slots.capacity, EMPTY)
        slots.capacity = slots.facts.shape[2]


class CachedPass:
    """One forward pass over the cache: what its T tokens may read, and where they go."""

    def __init__(self, cache: "KVCache", positions: Tensor | None, documents: Tensor | None, n_tokens: int) -> None:
        arrival = torch.arange(cache.length, cache.length + n_tokens, device=cache.device)[None]
        self.cache, self.n_tokens = cache, n_tokens
        self.positions = arrival if positions is None else positions  # (B or 1, T)
        self.plain = cache.plain and positions is None and documents is None
        self.with_documents = cache.with_documents or documents is not None
        documents = torch.zeros_like(arrival) if documents is None else documents
        rows = (cache.batch_size, n_tokens)
        facts = torch.stack([fact.expand(rows) for fact in (self.positions, documents, arrival)])  # (3, B, T)
        self.plans = {kind: _Plan(slots, facts, cache.length + n_tokens) for kind, slots in cache.slots.items()}
        self.stores: dict[int, tuple[Tensor, Tensor]] = {}

    def view(self, rotate: Rotate, dense: bool) -> View:
        """Give the layers of this pass their masks and their way into the cache."""
        return View(rotate, {kind: self._mask(kind, dense) for kind in self.plans}, self._extend)

    def _mask(self, kind: tuple[int, int], dense: bool) -> Mask:
        plan, (window, stride) = self.plans[kind], kind
        if self.plain and not window and not dense and (plan.start == 0 or self.n_tokens == 1):
            return Mask(None, is_causal=not plan.start)
        position, document, _ = plan.facts[:, :1] if self.plain else plan.facts  # plain: all rows alike
        documents = (document[:, plan.start :], document) if self.with_documents else (None, None)
        return Mask(visibility(position[:, plan.start :], position, window, stride, *documents), is_causal=False)

    def _extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        plan = self.plans[self.cache.kinds[layer]]
        k, keys = plan.join(self.cache.keys[layer], k)
        v, values = plan.join(self.cache.values[layer], v)
        self.stores[layer] = keys, values
        return k, v

    def commit(self) -> None:
        """Make the pass part of the cache, after its last layer."""
        for plan in self.plans.values():
            plan.commit()
        for layer, store in self.stores.items():
            self.cache.keys[layer], self.cache.values[layer] = store
        self.cache.length += self.n_tokens
        self.cache.plain, self.cache.with_documents = self.plain, self.with_documents


def layout(config: ModelConfig) -> tuple[object, ...]:
    """Give what a model and its cache must have in common."""
    return config.n_kv_heads, config.head_dim, config.windows, config.strides


class KVCache:
    """Keys and values of up to `max_length` tokens for each of `batch_size` rows.

    `length` counts tokens appended so far, padding (position -1) included. Within a document of a row positions must
    grow from call to call: a ring evicts what a growing position can no longer see.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        max_length: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1 or max_length < 1:
            raise ValueError(f"KVCache: batch_size={batch_size}, max_length={max_length}: both must be at least 1")
        self.batch_size, self.max_length, self.device = batch_size, max_length, device
        self.layout = layout(config)
        self.kinds = list(zip(config.windows, config.strides, strict=True))  # of each layer
        self.slots = {kind: _Slots(kind, batch_size, max_length, device) for kind in dict.fromkeys(self.kinds)}
        shapes = [(batch_size, config.n_kv_heads, self.slots[kind].capacity, config.head_dim) for kind in self.kinds]
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]  # of each layer
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        self.length = 0
        self.plain = True  # no padding, no documents: every row is 0, 1, 2, ...
        self.with_documents = False

    @property
    def nbytes(self) -> int:
        """Bytes held: keys, values and bookkeeping."""
        return sum(t.nbytes for t in (*self.keys, *self.values, *(slots.facts for slots in self.slots.values())))

    def begin(self, ids: Tensor, positions: Tensor | None, documents: Tensor | None) -> CachedPass:
        """Start a pass of ids (B, T); nothing counts before its commit.

        Raises ValueError where B is not batch_size, max_length would be passed, or documents stop being given.
        """
        rows, n_tokens = ids.shape
        if rows != self.batch_size:
            raise ValueError(f"KVCache: {rows} rows given to a cache of {self.batch_size}")
        if self.length + n_tokens > self.max_length:
            total = self.length + n_tokens
            raise ValueError(
                f"KVCache: {self.length} + {n_tokens} = {total} tokens exceed max_length {self.max_length}"
            )
        if self.with_documents and documents is None:
            raise ValueError("KVCache: earlier tokens have documents: give documents for these too")
        return CachedPass(self, positions, documents, n_tokens)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens of every row.

        Raises ValueError where `length` is not in 0..self.length, or where a window's ring has already evicted what
        would be visible again.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"KVCache.truncate({length}): the cache holds {self.length} tokens")
        oldest = max((slots.oldest for slots in self.slots.values()), default=0)
        if 0 < length < oldest:
            raise ValueError(
                f"KVCache.truncate({length}): a window has evicted what lies before {oldest}; 0 is possible"
            )
        for slots in self.slots.values():
            slots.truncate(length)
        self.length = length
        self.plain, self.with_documents = self.plain or length == 0, self.with_documents and length > 0


def _pad(x: Tensor, dim: int, length: int, value: int) -> Tensor:
    """Lengthen x along dim to `length` (or a little more, if x is already longer) with `value`."""
    shape = list(x.shape)
    shape[dim] = max(length - x.shape[dim], SLACK if x.shape[dim] > length else 0)
    return torch.cat((x, x.new_full(shape, value)), dim=dim) if shape[dim] else x
