"""Which keys may a query read?

One rule on absolute positions, shared by training, the cache, packed documents, padded batches and the audits:

    allowed = rule(query position, key position) and rule(query's order, key's order)
              and key position >= 0 and same document

and every query may read itself, since a softmax over nothing is NaN. Positions of -1 are padding. The order of the
tokens counts, too, since positions that start again in a row would show a query what comes after it; they alone
isolate nothing.
The rule is a sliding window with strided global columns (Child et al. 2019, arXiv 1904.10509; Beltagy et al. 2020,
arXiv 2004.05150); window 0 is plain causal attention. True always means "may attend".
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Mask(NamedTuple):
    """What the attention of one call may read: a dense mask, or none where `is_causal` says it all."""

    allowed: Tensor | None  # (B or 1, 1, T, S) bool; None: every key, or the plain square triangle
    is_causal: bool


def rule(query: Tensor, key: Tensor, window: int = 0, stride: int = 0) -> Tensor:
    """Say for broadcastable positions whether the query may read the key (bool).

    A window of W tokens counts the query itself; column 0, stride, 2 x stride, ... stay visible beyond it.
    """
    allowed = key <= query
    if window:
        near = query - key < window
        allowed = allowed & (near | (key % stride == 0) if stride else near)
    return allowed


def attention_mask(length: int, window: int = 0, stride: int = 0, device: torch.device | str | None = None) -> Tensor:
    """Build the (1, 1, T, T) bool mask of a plain sequence: True = may attend.

    Raises ValueError for a length below 1, or a negative window or stride.
    """
    if length < 1 or window < 0 or stride < 0:
        raise ValueError(f"attention_mask: length={length}, window={window}, stride={stride}: need >= 1, >= 0, >= 0")
    positions = torch.arange(length, device=device)
    return rule(positions[:, None], positions, window, stride)[None, None]


def visibility(
    query_positions: Tensor,
    key_positions: Tensor,
    window: int = 0,
    stride: int = 0,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
) -> Tensor:
    """Build the (B or 1, 1, T, S) bool mask for queries (B or 1, T) that are the last T of the keys (B or 1, S)."""
    query, key = query_positions.unsqueeze(-1), key_positions.unsqueeze(-2)  # (B, T, 1), (B, 1, S)
    n_queries, n_keys = query.shape[-2], key.shape[-1]
    order = torch.arange(n_keys, device=key.device)
    allowed = rule(query, key, window, stride) & rule(order[n_keys - n_queries :, None], order) & (key >= 0)
    if query_documents is not None and key_documents is not None:
        allowed = allowed & (query_documents.unsqueeze(-1) == key_documents.unsqueeze(-2))
    itself = torch.eye(n_queries, n_keys, dtype=torch.bool, device=key.device).roll(n_keys - n_queries, dims=-1)
    return (allowed | itself).unsqueeze(1)
