"""What is the next token? ids -> logits, and nothing else: loss, sampling and cache policy live outside.

    x = embed(ids) + positions
    x <- after(x + attention(before(x)))       pre-norm:  before = norm, after = identity
    x <- after(x + mlp(before(x)))             post-norm: before = identity, after = norm
    logits = head(norm(x))                     post-norm has no final norm

Pre-norm: Radford et al. 2019 (GPT-2); Xiong et al. 2020, arXiv 2002.04745. Post-norm: Vaswani et al. 2017.
The tied head: Press, Wolf 2017, arXiv 1608.05859. Softcap, cap * tanh(logits / cap): Gemma 2, 2024, arXiv 2408.00118.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from octlm.config import ModelConfig
from octlm.model.attention import ATTEND, CausalSelfAttention, View, without_cache
from octlm.model.cache import KVCache, layout
from octlm.model.masks import Mask, visibility
from octlm.model.mlp import MLPS
from octlm.model.norms import NORMS
from octlm.model.positions import POSITIONS, Rotate

INIT_STD = 0.02

# which of (before each branch, after each branch, before the head) are norms
PLACEMENTS = {"pre": (True, False, True), "post": (False, True, False)}


class Block(nn.Module):
    """One layer: attention, then MLP, each added to the residual stream (B, T, C) -> (B, T, C)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        before, after, _ = PLACEMENTS[config.norm_placement]
        self.before_attention = norm(config, before)
        self.attention = CausalSelfAttention(config, layer)
        self.after_attention = norm(config, after)
        self.before_mlp = norm(config, before)
        self.mlp = MLPS[config.mlp](config.dim, config.hidden_dim, config.bias)
        self.after_mlp = norm(config, after)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, view: View) -> Tensor:
        x = self.after_attention(x + self.dropout(self.attention(self.before_attention(x), view)))
        return self.after_mlp(x + self.dropout(self.mlp(self.before_mlp(x))))

    def residual_writers(self) -> tuple[nn.Linear, nn.Linear]:
        """The two layers whose output is added to the residual stream."""
        return self.attention.o_proj, self.mlp.down_proj


class UncachedPass:
    """One forward pass over a whole sequence: what each token may read."""

    def __init__(self, kinds: list[tuple[int, int]], ids: Tensor, positions: Tensor | None, documents: Tensor | None):
        self.plain = positions is None and documents is None
        self.positions = torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions
        self.documents, self.kinds = documents, kinds

    def view(self, rotate: Rotate, dense: bool) -> View:
        """Give the layers of this pass their masks; no cache stands behind them."""
        return View(rotate, {kind: self._mask(kind, dense) for kind in self.kinds}, without_cache)

    def _mask(self, kind: tuple[int, int], dense: bool) -> Mask:
        window, stride = kind
        if self.plain and not window and not dense:
            return Mask(None, is_causal=True)
        allowed = visibility(self.positions, self.positions, window, stride, self.documents, self.documents)
        return Mask(allowed, is_causal=False)

    def commit(self) -> None:
        """Nothing is remembered."""


class Decoder(nn.Module):
    """A decoder-only language model: ids (B, T) int64 -> logits (B, T, V).

    `unused_ids` are ids that the tokenizer does not have; whoever joins model and tokenizer sets them, and sampling
    never draws them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.unused_ids: tuple[int, ...] = ()
        self.layout = layout(config)
        self.kinds = list(dict.fromkeys(zip(config.windows, config.strides, strict=True)))
        self.dense_mask = ATTEND[config.attention].dense_mask
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.positions = POSITIONS[config.positions](config)
        self.rotation = POSITIONS[config.positions].rotation(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.norm = norm(config, PLACEMENTS[config.norm_placement][2])
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self._tie()
        # a load that assigns, like a move from the meta device, would make two parameters of one
        self.register_load_state_dict_post_hook(lambda decoder, keys: decoder._tie())
        self.cap = softcap(config.logit_softcap)
        self.initialise()

    def _tie(self) -> None:
        if self.config.tie_head:
            self.head.weight = self.embed.weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Decoder":
        super()._apply(fn, recurse)
        self._tie()
        return self

    def initialise(self) -> None:
        """Draw all parameters anew from torch's global generator.

        Matrices are normal with standard deviation 0.02, biases 0; the 2 x n_layers matrices that write to the
        residual stream are scaled by 1 / sqrt(2 x n_layers), so that its variance does not grow with depth
        (Radford et al. 2019). Post-norm takes the same numbers: it normalises each sum, so the scale does not matter to
        it, and what it needs instead is the schedule's warm-up (Xiong et al. 2020).
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.layers:
            assert isinstance(block, Block)
            for writer in block.residual_writers():
                writer.weight.data.mul_(1 / math.sqrt(2 * len(self.layers)))

    def forward(
        self,
        ids: Tensor,
        cache: KVCache | None = None,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Give the logits (B, T, V) of ids (B, T) int64.

        With a cache, ids follow what it holds, and are added to it. positions (B, T) int64, -1 = padding, default to
        0, 1, ... after the cache's length; documents (B, T) int64 isolate: a token reads only its own document, which
        positions that start again do not achieve.
        Raises ValueError on wrong shapes or dtypes, and where a position has no encoding (learned positions).
        """
        self._check(ids, positions, documents)
        if cache is not None and cache.layout != self.layout:
            raise ValueError(
                f"the cache was made for {cache.layout} (kv heads, head width, windows, strides), not {self.layout}"
            )
        self._check_positions(positions, ids.shape[1] + (0 if cache is None else cache.length))
        begin = partial(UncachedPass, self.kinds) if cache is None else cache.begin
        run = begin(ids, positions, documents)
        view = run.view(self.rotation(run.positions), self.dense_mask)
        x = self.dropout(self.positions.add(self.embed(ids), run.positions))  # (B, T, C)
        for layer in self.layers:
            x = layer(x, view)
        logits = self.cap(self.head(self.norm(x)))  # (B, T, V)
        run.commit()
        return logits

    def new_cache(self, batch_size: int, max_length: int) -> KVCache:
        """Make an empty cache of this model's dtype and device."""
        weight = self.embed.weight
        return KVCache(self.config, batch_size, max_length, dtype=weight.dtype, device=weight.device)

    def flops_per_token(self) -> int:
        """Count the floating-point operations of one training token at full context, forward and backward.

        6 x (parameters of the matrices that multiply, the head included) + 12 x n_layers x dim x context_length
        (Chowdhery et al. 2022, arXiv 2204.02311, appendix B: the attention square counted whole).
        """
        matrices = sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))
        return 6 * matrices + 12 * self.config.n_layers * self.config.dim * self.config.context_length

    def _check(self, ids: Tensor, positions: Tensor | None, documents: Tensor | None) -> None:
        if ids.dim() != 2 or ids.dtype != torch.int64 or 0 in ids.shape:
            raise ValueError(f"ids: need (B, T) int64, neither 0; got {tuple(ids.shape)} {ids.dtype}")
        for name, value in (("positions", positions), ("documents", documents)):
            if value is not None and (value.shape != ids.shape or value.dtype != torch.int64):
                raise ValueError(f"{name}: need {tuple(ids.shape)} int64; got {tuple(value.shape)} {value.dtype}")

    def _check_positions(self, positions: Tensor | None, length: int) -> None:
        limit = self.positions.limit
        if limit is None:
            return
        needed = length if positions is None else int(positions.max()) + 1
        if needed > limit:
            raise ValueError(f"positions up to {needed - 1} asked of learned positions: context_length is {limit}")


def norm(config: ModelConfig, here: bool) -> nn.Module:
    """Build the configured norm, or nothing."""
    return NORMS[config.norm](config.dim, eps=config.norm_eps) if here else nn.Identity()


def softcap(cap: float) -> Callable[[Tensor], Tensor]:
    """Give the function that keeps logits within +-cap; 0 = off."""
    return (lambda logits: cap * torch.tanh(logits / cap)) if cap else (lambda logits: logits)
