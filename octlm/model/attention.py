"""How does a position read the ones before it?

    weights = softmax(q k^T / sqrt(D) + mask)        output = weights v

with the mask at -inf *before* the softmax: a masked key gets weight 0 and its share is not lost, as it would be if
weights were zeroed afterwards. Query head h reads key-value head h // (H / K): K = H is multi-head attention
(Vaswani et al. 2017, arXiv 1706.03762), K = 1 multi-query (Shazeer 2019, arXiv 1911.02150), between them grouped
(Ainslie et al. 2023, arXiv 2305.13245).

naive   these formulas, written out; its weights pass through a module that a hook can read
sdpa    torch's fused kernel, which never holds the (T, S) square     Dao et al. 2022, arXiv 2205.14135
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from octlm.config import ModelConfig
from octlm.model.masks import Mask, attention_mask, rule
from octlm.model.norms import NORMS
from octlm.model.positions import POSITIONS, Rotate

Extend = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


class View(NamedTuple):
    """What one forward pass gives every attention layer."""

    rotate: Rotate  # turns queries and keys by their positions
    masks: dict[tuple[int, int], Mask]  # by (window, stride)
    extend: Extend  # (layer, new k, new v) -> all k, v that the queries meet


def causal_attention(q: Tensor, k: Tensor, v: Tensor, *, offset: int = 0) -> Tensor:
    """Attend from q (B, H, Tq, D) to k, v (B, H, Tk, D), query i standing at position offset + i: (B, H, Tq, D).

    The reference operation: each query reads the keys at or before its own position. Raises ValueError unless all
    three have rank 4, agree in B, H and D, offset >= 0, Tq >= 1 and offset + Tq == Tk.
    """
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, offset {offset}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"causal_attention: {shapes}: need rank 4 (B, H, T, D)")
    if k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"causal_attention: {shapes}: B, H and D must agree, and k and v in T")
    if offset < 0 or q.shape[2] < 1 or offset + q.shape[2] != k.shape[2]:
        raise ValueError(f"causal_attention: {shapes}: need offset >= 0, Tq >= 1 and offset + Tq == Tk")
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        raise ValueError(f"causal_attention: {shapes}: dtypes and devices must agree")
    positions = torch.arange(k.shape[2], device=q.device)
    allowed = rule(positions[offset:, None], positions)  # (Tq, Tk)
    return masked_weights(q, k, allowed) @ v


def masked_weights(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    """Give the attention weights (B, H, T, S) of q (B, H, T, D) on k (B, H, S, D); rows sum to 1."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, S)
    return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)


class NaiveAttention(nn.Module):
    """The formula written out: q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D)."""

    dense_mask = True

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.weights = nn.Identity()  # (B, H, T, S), for hooks
        self.dropout = nn.Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        assert mask.allowed is not None
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # (B, H, S, D)
        weights = self.weights(masked_weights(q, k, mask.allowed))
        return self.dropout(weights) @ v


class FusedAttention(nn.Module):
    """torch's kernel: q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D)."""

    dense_mask = False

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask.allowed,
            is_causal=mask.is_causal,
            dropout_p=self.dropout * self.training,
            enable_gqa=True,
        )


ATTEND: dict[str, type[NaiveAttention] | type[FusedAttention]] = {
    "naive": NaiveAttention,
    "sdpa": FusedAttention,
}


class CausalSelfAttention(nn.Module):
    """One attention layer, (B, T, C) -> (B, T, C), with nn.Linear's default initialisation.

    Inside a Decoder it gets a View; alone it sees a plain sequence that starts at position 0.
    """

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__()
        self.layer = layer
        self.n_heads, self.n_kv_heads, self.head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        self.window, self.stride = config.windows[layer], config.strides[layer]
        self.q_proj = nn.Linear(config.dim, config.n_heads * config.head_dim, bias=config.bias)
        self.k_proj = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=config.bias)
        self.v_proj = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=config.bias)
        self.o_proj = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=config.bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.qk_norm:  # Henry et al. 2020, arXiv 2010.04245
            self.q_norm = NORMS["rmsnorm"](config.head_dim, eps=config.norm_eps)
            self.k_norm = NORMS["rmsnorm"](config.head_dim, eps=config.norm_eps)
        self.attend = ATTEND[config.attention](config.dropout)
        self.alone = plain_view(config, self.window, self.stride)

    def forward(self, x: Tensor, view: View | None = None) -> Tensor:
        view = view or self.alone(x)
        n_rows, n_tokens, _ = x.shape
        q = self.q_proj(x).view(n_rows, n_tokens, self.n_heads, self.head_dim).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(n_rows, n_tokens, self.n_kv_heads, self.head_dim).transpose(1, 2)  # (B, K, T, D)
        v = self.v_proj(x).view(n_rows, n_tokens, self.n_kv_heads, self.head_dim).transpose(1, 2)  # (B, K, T, D)
        q, k = view.rotate(self.q_norm(q)), view.rotate(self.k_norm(k))
        k, v = view.extend(self.layer, k, v)  # (B, K, S, D)
        y = self.attend(q, k, v, view.masks[self.window, self.stride])  # (B, H, T, D)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # (B, T, C)


def without_cache(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Let the queries meet the keys and values of this call only."""
    return k, v


def plain_view(config: ModelConfig, window: int, stride: int) -> Callable[[Tensor], View]:
    """Give the View of a layer that is used alone, as a function of its input (B, T, C)."""
    rotation = POSITIONS[config.positions].rotation(config)

    def view(x: Tensor) -> View:
        n_tokens = x.shape[1]
        mask = Mask(attention_mask(n_tokens, window, stride, x.device), is_causal=False)
        return View(rotation(torch.arange(n_tokens, device=x.device)[None]), {(window, stride): mask}, without_cache)

    return view
