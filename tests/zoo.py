"""Models with one planted leak each, and where an audit must say that it is; plain torch, nothing of octlm.

Most are a small transformer of which one part was replaced or wrapped. A leak's name is the claim: what was done wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, LENGTH, DIM, HEADS = 29, 12, 24, 4
RARE, LARGE = 213, 401  # a token, and a vocabulary in which few random rows hold it
Build = Callable[[], Any]


class Leak(NamedTuple):
    """One leak, and what must name it: `part` of the audit and the dotted `module`; `alone`: no other part sees it."""

    build: Build
    part: str
    module: str
    alone: bool = False
    vocab_size: int = VOCAB
    length: int = LENGTH


# ---- the transformer that leaks are planted into


def causal(scores: Tensor) -> Tensor:
    """The right weights: softmax over the keys up to the query."""
    return seen(lambda q, k, length: k <= q)(scores)


def seen(rule: Callable[[Tensor, Tensor, int], Tensor], hidden: float = -math.inf) -> Callable[[Tensor], Tensor]:
    """Weights (B, H, T, T) of the keys that a rule on positions shows; the others' scores become `hidden`."""

    def weigh(scores: Tensor) -> Tensor:
        place = torch.arange(scores.shape[-1])
        return scores.masked_fill(~rule(place[:, None], place, len(place)), hidden).softmax(-1)

    return weigh


class Attention(nn.Module):
    """Multi-head attention whose weights are a function of the scores (B, H, T, T)."""

    def __init__(self, weigh: Callable[[Tensor], Tensor] = causal, weights: nn.Module | None = None) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.weigh, self.weights = weigh, weights

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        weights = self.weigh(q @ k.mT / math.sqrt(q.shape[-1]))
        if self.weights is not None:
            weights = self.weights(weights)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(DIM), Attention()
        self.norm2, self.mlp = nn.LayerNorm(DIM), nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Embedding, two blocks, head: ids (B, T) -> logits (B, T, V)."""

    def __init__(self, vocab_size: int = VOCAB, where: Callable[[int], Tensor] = torch.arange) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab_size, DIM), nn.Embedding(2 * LENGTH, DIM)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, vocab_size)
        self.where = where

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions(self.where(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made(model: nn.Module) -> nn.Module:
    """Randomise all parameters, so that nothing that leaks is too small to see."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def planted(place: str, part: Callable[[], nn.Module], vocab_size: int = VOCAB) -> Build:
    """A transformer with another module at this place."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = Transformer(vocab_size)
        model.set_submodule(place, part())
        return made(model)

    return build


class After(nn.Module):
    """A right module and what a leak adds to its output: inner(x) + strength * f(inner(x))."""

    def __init__(self, inner: nn.Module, f: Callable[[Tensor], Tensor], strength: float = 1.0) -> None:
        super().__init__()
        self.inner, self.f, self.strength = inner, f, strength

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return x + self.strength * self.f(x)


def after(place: str, f: Callable[[Tensor], Tensor], strength: float = 1.0) -> Build:
    """A transformer in which f of what the module at this place gives is added to it."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = Transformer()
        model.set_submodule(place, After(model.get_submodule(place), f, strength))
        return made(model)

    return build


def attending(weigh: Callable[[Tensor], Tensor]) -> Leak:
    """A leak in the first block's attention weights, seen when later tokens change."""
    return Leak(planted("blocks.0.attention", lambda: Attention(weigh)), "suffix", "blocks.0.attention.out")


def mixing(f: Callable[[Tensor], Tensor], part: str = "suffix", alone: bool = False) -> Leak:
    """A leak in what the first block's MLP gives, (B, T, C)."""
    return Leak(after("blocks.0.mlp", f), part, "blocks.0.mlp", alone)


# ---- what leaks do to (B, T, C)


def later(x: Tensor) -> Tensor:
    """What stands one position on."""
    return F.pad(x[:, 1:], (0, 0, 0, 1))


def squeeze_excite(x: Tensor) -> Tensor:
    return x * x.mean(dim=1, keepdim=True).sigmoid()


def quantised(x: Tensor) -> Tensor:
    """Eight bits with one scale for the whole tensor."""
    unit = x.detach().abs().max() / 127
    return (x / unit).round() * unit


def expert_choice(x: Tensor) -> Tensor:
    """Each of two experts, here signs, takes the four tokens of a row that score highest."""
    kept = torch.zeros_like(x)
    for sign in (1.0, -1.0):
        best = (sign * x[..., 0]).topk(min(4, x.shape[1]), dim=1).indices
        kept = kept + torch.zeros_like(x[..., :1]).scatter(1, best[..., None], sign) * x
    return kept


def capacity(x: Tensor, room: int = 6) -> Tensor:
    """Tokens go to the best of four experts while there is room, in the order of the flattened batch."""
    flat = x.flatten(0, 1)
    chosen = F.one_hot(flat[:, :4].argmax(dim=-1), 4)
    fits = (chosen.cumsum(0) * chosen).sum(1, keepdim=True) <= room
    return (flat * fits).view_as(x)


def linear_attention(x: Tensor) -> Tensor:
    """Keys and values summed over the whole sequence, as is right for an encoder."""
    return x @ (x.sigmoid().mT @ x) / 10


def early_exit(x: Tensor) -> Tensor:
    """A row goes on where its mean, over all positions, is positive."""
    return x * (x.mean(dim=(1, 2), keepdim=True) > 0)


def fourier(x: Tensor) -> Tensor:
    """A long convolution by FFT, without the zeros that keep the end from wrapping round to the start."""
    kernel = 0.5 ** torch.arange(x.shape[1], dtype=x.dtype)[:, None]
    return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(kernel, dim=0), n=x.shape[1], dim=1)


# ---- attention weights that leak


def one_head(scores: Tensor) -> Tensor:
    return torch.cat((causal(scores[:, :1]), scores[:, 1:2].softmax(-1), causal(scores[:, 2:])), dim=1)


def up_to_eight(scores: Tensor) -> Tensor:
    """The mask that was stored is 8 wide, and only the first columns of longer rows get it."""
    length = scores.shape[-1]
    mask = F.pad(torch.ones(8, 8).tril() > 0, (0, max(0, length - 8), 0, max(0, length - 8)), value=True)
    return scores.masked_fill(~mask[:length, :length], -math.inf).softmax(-1)


def tril(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=scores.dtype).tril()


# ---- modules of their own


class Conv(nn.Module):
    """A convolution over time of padding p, cut to the input's length at this offset."""

    def __init__(self, padding: int, begin: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3, padding=padding, dilation=dilation)
        self.begin = begin

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT)[..., self.begin : self.begin + x.shape[1]].mT


class Recurrent(nn.Module):
    """An LSTM over (T, B, C) that may also run backwards, or a GRU that runs only backwards."""

    def __init__(self, backwards_only: bool = False) -> None:
        super().__init__()
        self.only = backwards_only
        self.net = nn.GRU(DIM, DIM) if backwards_only else nn.LSTM(DIM, DIM // 2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return (self.net(x.flip(0))[0].flip(0) if self.only else self.net(x)[0]).transpose(0, 1)


class Normed(nn.Module):
    """A norm of (B, C, T) by a module of torch."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mT).mT


class Training(nn.BatchNorm1d):
    """A batch norm that is never told that training is over."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


class TorchAttention(nn.Module):
    """torch's own attention, told with its mask the wrong way round (True hides a key there)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hide = torch.ones(x.shape[1], x.shape[1]).tril(-1) > 0
        return self.net(x, x, x, attn_mask=hide, need_weights=False)[0]


class Rows(Attention):
    """Attention along the batch: it was written for (T, B, C) and is given (B, T, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Packed(Attention):
    """Rows laid end to end and attended to as one sequence, without a mask between documents."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(1, -1, DIM)).view_as(x)


class Switched(Attention):
    """Attention that is masked only under some condition."""

    def __init__(self, masked: Callable[[nn.Module, Tensor], bool]) -> None:
        super().__init__()
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        self.weigh = causal if self.masked(self, x) else seen(lambda q, k, length: k > -1)
        return super().forward(x)


class Mixer(nn.Module):
    """A linear layer across time, as an MLP-Mixer has."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(LENGTH, LENGTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.mT).mT


class Padded(Attention):
    """Attention that first pads on the left to a multiple of eight and forgets to mask the padding."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 0, -x.shape[1] % 8, 0)))[:, -x.shape[1] :]


class TokenLeak(nn.Module):
    """An embedding to which something of the ids is added."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor], vocab_size: int = VOCAB) -> None:
        super().__init__()
        self.table, self.f = nn.Embedding(vocab_size, DIM), f

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return x + self.f(ids, x)


def embedding(f: Callable[[Tensor, Tensor], Tensor], part: str, alone: bool = False, vocab_size: int = VOCAB) -> Leak:
    """A leak in the embedding, from the ids and their vectors."""
    return Leak(planted("embed", lambda: TokenLeak(f, vocab_size), vocab_size), part, "embed", alone, vocab_size)


def padding_mask(ids: Tensor, x: Tensor) -> Tensor:
    """Attention in which only the padding, token 0, is hidden."""
    return (x @ x.mT).masked_fill((ids == 0)[:, None], -1e4).softmax(-1) @ x


def seeded_dropout(ids: Tensor, x: Tensor) -> Tensor:
    """A dropout mask that is reproducible, since its seed comes from the data."""
    generator = torch.Generator().manual_seed(int(ids.sum()))
    return -x * (torch.rand(x.shape, generator=generator) < 0.2)


class Remembering(nn.Module):
    """A linear layer that keeps something from call to call: f(self, x, number of the call) is added."""

    def __init__(self, f: Callable[[Any, Tensor, int], Tensor | float]) -> None:
        super().__init__()
        self.linear, self.f, self.calls = nn.Linear(DIM, DIM), f, 0
        self.register_buffer("memory", torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) + self.f(self, x, self.calls)


def remembering(f: Callable[[Any, Tensor, int], Tensor | float], part: str = "state") -> Leak:
    """A leak through what the second block's MLP remembers."""
    return Leak(planted("blocks.1.mlp", lambda: Remembering(f)), part, "blocks.1.mlp")


def first(module: Any, x: Tensor, call: int) -> Tensor:
    """A cache of one entry that is never asked what it holds."""
    if call == 1:
        module.memory = x.detach().mean(dim=(0, 1))
    return module.memory.to(x)


class Kept(nn.Module):
    """A linear layer whose result is kept for every shape of input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)
        self.kept: dict[torch.Size, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.kept.setdefault(x.shape, self.linear(x).detach()).to(x)


def averaged(module: Any, x: Tensor, call: int) -> Tensor:
    """A moving average that is updated in eval mode, too."""
    module.memory = 0.9 * module.memory + 0.1 * x.detach().mean(dim=(0, 1))
    return module.memory


def previous(module: Any, x: Tensor, call: int) -> Tensor:
    """What the call before left."""
    before, module.memory = module.memory, x.detach().mean(dim=(0, 1))
    return before


class Head(nn.Linear):
    """A head that adds something of the next position, whose sum over the vocabulary is zero."""

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__(DIM, VOCAB)
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        more = later(x) @ self.weight.mT
        return super().forward(x) + self.strength * (more - more.mean(dim=-1, keepdim=True))


class Between(Transformer):
    """Adds the next position between the modules, in its own forward: before the blocks, or after the head."""

    def __init__(self, at_the_end: bool) -> None:
        super().__init__()
        self.at_the_end = at_the_end

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        if not self.at_the_end:
            x[:, :-1] += 0.1 * x[:, 1:].clone()
        logits = self.head(self.norm(self.blocks[1](self.blocks[0](x))))
        return {"logits": logits + 0.1 * later(logits) if self.at_the_end else logits}


def between(at_the_end: bool) -> Build:
    """A model of the above."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return made(Between(at_the_end))

    return build


def function() -> Callable[[Tensor], Tensor]:
    """No module at all: a table and a mean over the row."""
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
    return lambda ids: table.to(torch.get_default_dtype())[ids] + table[ids].mean(dim=1, keepdim=True)


def placed(where: Callable[[int], Tensor]) -> Build:
    """A transformer with its own numbering of the positions."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return made(Transformer(where=where))

    return build


def replaced(
    place: str, part: Callable[[], nn.Module], named: str, finder: str = "suffix", alone: bool = False
) -> Leak:
    """A leak in a module of its own at this place."""
    return Leak(planted(place, part), finder, named, alone)


ATTENTION, MLP = "blocks.0.attention", "blocks.0.mlp"
OUT = "blocks.0.attention.out"

LEAKS: dict[str, Leak] = {
    # masks
    "no mask": attending(lambda s: s.softmax(-1)),
    "mask applied after the softmax": attending(lambda s: s.softmax(-1) * tril(s)),
    "mask off by one": attending(seen(lambda q, k, n: k <= q + 1)),
    "mask inverted": attending(seen(lambda q, k, n: k >= q)),
    "mask of zeros multiplied with the scores": attending(lambda s: (s * tril(s)).softmax(-1)),
    "masked scores finite": attending(seen(lambda q, k, n: k <= q, -5.0)),
    "masked scores finite, below the rounding of float32": attending(seen(lambda q, k, n: k <= q, -35.0))._replace(
        part="gradient", alone=True
    ),
    "one head without a mask": attending(one_head),
    "softmax over the queries": attending(lambda s: s.masked_fill(tril(s) == 0, -math.inf).softmax(-2)),
    "sliding window centred": attending(seen(lambda q, k, n: (q - k).abs() <= 2)),
    "mask of whole blocks": attending(seen(lambda q, k, n: k // 4 <= q // 4)),
    "prefix seen by all": attending(seen(lambda q, k, n: (k <= q) | (k < 4))),
    "attention sink at the last token": attending(seen(lambda q, k, n: (k <= q) | (k == n - 1))),
    "mask as wide as the shorter inputs": attending(up_to_eight),
    "no mask, seen in the weights of a module": replaced(
        ATTENTION, lambda: Attention(lambda s: s.softmax(-1), nn.Identity()), "blocks.0.attention.weights"
    ),
    "mask of torch's attention the wrong way round": replaced(ATTENTION, TorchAttention, "blocks.0.attention.net"),
    "mask only in training": replaced(ATTENTION, lambda: Switched(lambda m, x: m.training), OUT),
    "mask only up to 8 tokens": replaced(ATTENTION, lambda: Switched(lambda m, x: x.shape[1] <= 8), OUT),
    "mask only for a single row": replaced(ATTENTION, lambda: Switched(lambda m, x: len(x) == 1), OUT),
    "mask only for several rows": replaced(ATTENTION, lambda: Switched(lambda m, x: len(x) > 1), OUT),
    "mask only without gradients": replaced(
        ATTENTION, lambda: Switched(lambda m, x: not x.requires_grad), OUT, "gradient", True
    ),
    "mask forgotten in a fast path for float32 without gradients": replaced(
        ATTENTION, lambda: Switched(lambda m, x: x.requires_grad or x.dtype != torch.float32), OUT, alone=True
    ),
    "no mask in the last block": Leak(
        planted("blocks.1.attention", lambda: Attention(lambda s: s.softmax(-1))), "gradient", "blocks.1.attention.out"
    ),
    "padding mask instead of a causal one": embedding(padding_mask, "suffix"),
    # convolution, recurrence, shifts
    "convolution centred": replaced(ATTENTION, lambda: Conv(1, 0), "blocks.0.attention.conv"),
    "convolution dilated and centred": replaced(ATTENTION, lambda: Conv(2, 0, 2), "blocks.0.attention.conv"),
    "convolution cut at the wrong end": replaced(ATTENTION, lambda: Conv(2, 2), ATTENTION),
    "convolution by FFT wraps round": mixing(fourier),
    "recurrence in both directions": replaced(ATTENTION, Recurrent, "blocks.0.attention.net"),
    "recurrence from the end": replaced(ATTENTION, lambda: Recurrent(True), "blocks.0.attention.net"),
    "positions reversed": mixing(lambda x: x.flip(1)),
    "roll instead of a shift": mixing(lambda x: x.roll(1, dims=1)),
    "shift in the wrong direction": mixing(later, "gradient"),
    "linear layer across time": replaced(MLP, Mixer, "blocks.0.mlp.mix"),
    # statistics over time
    "maximum over time": mixing(lambda x: x.amax(dim=1, keepdim=True)),
    "cumulative sum from the right": mixing(lambda x: x.flip(1).cumsum(1).flip(1) / 4, "gradient"),
    "global average pooling": mixing(lambda x: x.mean(dim=1, keepdim=True), "length"),
    "squeeze and excite": mixing(squeeze_excite),
    "linear attention over the whole row": mixing(linear_attention),
    "tokens sorted": mixing(lambda x: x.sort(dim=1).values),
    "instance norm over time": replaced(MLP, lambda: Normed(nn.InstanceNorm1d(DIM)), "blocks.0.mlp.norm"),
    "group norm over time": replaced(MLP, lambda: Normed(nn.GroupNorm(4, DIM)), "blocks.0.mlp.norm"),
    "layer norm over time, too": mixing(lambda x: F.layer_norm(x, x.shape[1:])),
    "unit vectors over time": mixing(lambda x: F.normalize(x, dim=1)),
    "early exit decided by the mean of the row": mixing(early_exit),
    "eight bits with one scale for the tensor": mixing(quantised),
    # the length
    "positions counted from the end": Leak(
        placed(lambda n: torch.arange(n).flip(0)), "length", "positions", alone=True
    ),
    "positions stretched to the trained length": Leak(
        placed(lambda n: torch.arange(n) * 2 * LENGTH // n), "length", "positions", alone=True
    ),
    "sum divided by the whole length": mixing(lambda x: x.cumsum(1) / x.shape[1], "length", True),
    "scores scaled by the length": attending(lambda s: causal(s * math.log(s.shape[-1])))._replace(
        part="length", alone=True
    ),
    "padding on the left to a multiple of eight": replaced(ATTENTION, Padded, ATTENTION, "length", True),
    # other rows
    "mean of the batch taken off": mixing(lambda x: -x.mean(dim=0, keepdim=True), "rows"),
    "batch norm in training mode": replaced(MLP, lambda: Normed(Training(DIM)), "blocks.0.mlp.norm", "rows"),
    "first token of the first row given to all": mixing(lambda x: x[:1, :1].expand_as(x), "rows", True),
    "attention along the batch": replaced(ATTENTION, Rows, OUT, "rows"),
    "documents packed without a mask between them": replaced(ATTENTION, Packed, OUT, "rows"),
    "shift over the end of a row": mixing(lambda x: x.flatten(0, 1).roll(1, 0).view_as(x), "rows"),
    "experts choose tokens": mixing(expert_choice),
    "expert capacity over the batch": mixing(capacity, "rows"),
    # calls
    "dropout in eval mode": mixing(lambda x: F.dropout(x, 0.2), "state", True),
    "dropout mask seeded from the ids": embedding(seeded_dropout, "suffix"),
    "moving average updated in eval mode": remembering(averaged),
    "something left from the call before": remembering(previous),
    "cache keyed by nothing": remembering(first),
    "cache keyed by the shape": replaced("blocks.1.mlp", Kept, "blocks.1.mlp", "state"),
    "only in the second call": remembering(lambda m, x, call: later(x) if call == 2 else 0.0),
    "only from the ninth call": remembering(lambda m, x, call: later(x) if call > 8 else 0.0, "gradient"),
    # small, hidden, rare
    "times 1e-6": Leak(after("blocks.0.mlp", later, 1e-6), "suffix", MLP),
    "times 1e-6 in the last block": Leak(after("blocks.1.mlp", later, 1e-6), "suffix", "blocks.1.mlp"),
    "times 1e-12": Leak(after("blocks.0.norm1", later, 1e-12), "gradient", "blocks.0.norm1", alone=True),
    "detached": mixing(lambda x: later(x).detach()),
    "cancels in the sum of the logits": replaced("head", Head, "head", "gradient"),
    "cancels in the sum of the logits, times 1e-12": replaced("head", lambda: Head(1e-12), "head", "gradient", True),
    "in the head": Leak(after("head", later, 0.1), "gradient", "head"),
    "only at one position": embedding(lambda ids, x: (torch.arange(ids.shape[1]) == 7)[:, None] * later(x), "suffix"),
    "times 1e-12, among the roundings of a Fourier transform": mixing(
        lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), x.shape[1], dim=1) + 1e-12 * later(x), "gradient"
    ),
    "only where a rare token is kept": embedding(
        lambda ids, x: (ids == RARE)[..., None] * later(x), "gradient", vocab_size=LARGE
    ),
    "only where a rare token comes next": embedding(
        lambda ids, x: (F.pad(ids[:, 1:], (0, 1)) == RARE)[..., None] * x, "suffix", vocab_size=LARGE
    ),
    "only where a rare token comes anywhere": embedding(
        lambda ids, x: (ids == RARE).any(dim=1)[:, None, None] * x, "suffix", vocab_size=LARGE
    ),
    "between two modules": Leak(between(False), "suffix", "blocks.0.norm1"),
    "after the last module": Leak(between(True), "gradient", "<model>"),
    "in a function": Leak(function, "suffix", "<model>"),
}


# ---- generation with a cache


class Cached:
    """The transformer's step with keys and values kept, and one fault: step(new, state) -> (logits, state)."""

    def __init__(self, model: Any, fault: str) -> None:
        self.model, self.fault = model, fault
        self.shared: list[Any] = [None, None]

    def __call__(self, new: Tensor, state: Any) -> tuple[Tensor, Any]:
        fault, model, length = self.fault, self.model, new.shape[1]
        memory: list[Any] = list(state or [None, None])
        if fault == "one state for all callers":
            memory = self.shared
        begin = 0 if memory[0] is None else memory[0][0].shape[2]
        at = begin
        if begin and fault in FIRST:
            at = {"positions restart in every chunk": 0, "positions one too far on": begin + 1}.get(fault, begin)
        x = model.embed(new) + model.positions(torch.arange(at, at + length) % (2 * LENGTH))
        for i, block in enumerate(model.blocks):
            q, k, v = block.attention.heads(block.norm1(x))
            if memory[i] is not None:
                old_k, old_v = memory[i] if fault != "keys of the first layer for all" else (memory[0][0], memory[i][1])
                old_k = old_k[:, :, : memory[i][1].shape[2]]
                k, v = torch.cat((old_k, k), 2), torch.cat((old_v, v), 2)
            keys = torch.arange(k.shape[2])
            visible = keys <= torch.arange(begin, begin + length)[:, None]
            if fault == "no mask inside a chunk":
                visible = torch.ones_like(visible)
            if fault == "mask aligned to the top left" and length > 1:
                visible = keys <= torch.arange(length)[:, None]
            if fault == "mask forgotten after the first chunk" and begin:
                visible = torch.ones_like(visible)
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
            if fault == "the oldest key forgotten" and begin > 2:
                scores[..., 0] = -math.inf
            out = block.attention.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            x = x + out
            x = x + block.mlp(block.norm2(x))
            if fault == "keys appended twice" and begin:
                k, v = torch.cat((k, k[:, :, begin:]), 2), torch.cat((v, v[:, :, begin:]), 2)
            if fault == "only the last chunk kept":
                k, v = k[:, :, -length:], v[:, :, -length:]
            memory[i] = (k, v)
        if fault == "final norm left out of single steps" and length == 1:
            return model.head(x), memory
        return model.head(model.norm(x)), memory


FIRST = ("positions restart in every chunk", "positions one too far on")
CACHE_LEAKS = (
    *FIRST,
    "one state for all callers",
    "keys of the first layer for all",
    "no mask inside a chunk",
    "mask aligned to the top left",
    "mask forgotten after the first chunk",
    "the oldest key forgotten",
    "keys appended twice",
    "only the last chunk kept",
    "final norm left out of single steps",
)


# ---- targets of a text (B, T): what is given to the model, and what it is asked for


def target_leaks(text: Tensor) -> Iterator[tuple[str, Tensor, Tensor, str]]:
    """Give a name, inputs, targets and the word that must name the fault."""
    x = text[:, :-1]
    yield "labels equal the inputs", x, x, "not shifted"
    yield "shifted twice", text[:, :-2], text[:, 2:], "shifted twice"
    yield "shifted the wrong way", text[:, 1:], text[:, :-1], "backwards"
    yield "rolled twice, so that the start comes back", text, text.roll(-2, 1), "shifted twice"
    yield "rows in another order", x, text[:, 1:].flip(0), "not the next token"
    wrong = text[:, 1:].clone()
    wrong[1, 3] = (wrong[1, 3] + 1) % VOCAB
    yield "one target wrong", x, wrong, "1 targets"
