"""Models that are right and not octlm's, in many layouts: no audit may accuse them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import DIM, HEADS, VOCAB, After, Attention, Normed, Transformer, causal, made, planted, seen


class Foreign(nn.Module):
    """Embedding, one layer over (B, T, C), head."""

    def __init__(self, layer: nn.Module, give: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(VOCAB, DIM), layer, nn.Linear(DIM, VOCAB)
        self.give = give

    def forward(self, ids: Tensor) -> Any:
        x = self.layer(self.embed(ids))
        return self.give(self.head(x[0] if isinstance(x, tuple) else x))


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


class TimeFirst(nn.Module):
    """A recurrent net of torch over (T, B, C)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.transpose(0, 1))[0].transpose(0, 1)


class Encoder(nn.Module):
    """torch's own encoder with its causal mask."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=True, norm_first=norm_first)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.net(x, mask=mask, is_causal=True)


class CausalConv(nn.Module):
    """A depthwise convolution over (B, C, T), padded on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3, padding=2, groups=DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT)[..., :-2].mT


class Experts(nn.Module):
    """Token-choice mixture of the best two of four experts, gathered expert by expert."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(DIM, 4), nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = flat.clone()
        for i, expert in enumerate(self.experts):
            token, slot = (chosen == i).nonzero(as_tuple=True)
            out.index_add_(0, token, expert(flat[token]) * weights[token, slot, None])
        return out.view_as(x)


class Capacity(nn.Module):
    """Top-1 of two experts with room for three tokens of a row, in the order of the row."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = F.one_hot((x[..., 0] > 0).long(), 2)
        return x * ((chosen.cumsum(1) * chosen).sum(-1, keepdim=True) <= 3)


class LinearAttention(Attention):
    """Keys and values in a state that goes from token to token."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        state = torch.zeros_like(k[:, :, 0, :, None] @ v[:, :, 0, None])
        out = []
        for t in range(x.shape[1]):
            state = 0.9 * state + k[:, :, t, :, None] @ v[:, :, t, None]
            out.append((q[:, :, t, None] @ state)[:, :, 0])
        return self.out(torch.stack(out, dim=2).transpose(1, 2).flatten(2))


class Fused(Attention):
    """Attention by torch's fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Rotary(Attention):
    """Queries and keys turned by their positions."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        half = q.shape[-1] // 2
        angle = torch.arange(x.shape[1])[:, None] * 0.1 ** torch.arange(half, dtype=x.dtype)
        turn = torch.polar(torch.ones_like(angle), angle)
        q, k = (torch.view_as_real(torch.complex(t[..., :half], t[..., half:]) * turn).flatten(-2) for t in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Keeps(Attention):
    """Attention that stores its weights, and tables of positions for one length, as old code does."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        if getattr(self, "length", 0) != x.shape[1]:
            self.length = x.shape[1]
            self.table = (torch.arange(self.length)[:, None] * 0.1).sin().to(x)
        self.last = causal((q + self.table) @ k.mT)
        return self.out((self.last @ v).transpose(1, 2).flatten(2))


class EmbedsTimeFirst(Foreign):
    """A recurrent net that looks its tokens up as (T, B)."""

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.layer(self.embed(ids.T))[0].transpose(0, 1))


class EmbedsInPieces(Foreign):
    """A convolution whose tokens are looked up five at a time."""

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.layer(torch.cat([self.embed(piece) for piece in ids.split(5, dim=1)], dim=1)))


class TokenShift(nn.Module):
    """Each token mixed with the one before, and a running weighted mean (RWKV)."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value, self.receive = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        mixed = 0.6 * x + 0.4 * F.pad(x[:, :-1], (0, 0, 1, 0))
        weight = self.key(mixed).clamp(max=10).exp()
        return self.receive(mixed).sigmoid() * (weight * self.value(mixed)).cumsum(1) / weight.cumsum(1)


class Selective(nn.Module):
    """A state space with gates of the token, one step at a time over unbound rows (Mamba)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        state, out = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            keep = self.gate(token).sigmoid()
            state = keep * state + (1 - keep) * token
            out.append(self.out(state))
        return torch.stack(out, dim=1)


class RawTable(nn.Module):
    """Bigrams of a parameter that is indexed, without any other module."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCAB, VOCAB))

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]


class OneHot(nn.Module):
    """An embedding by a product with one-hot rows: there is no lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(VOCAB, DIM, bias=False), nn.Linear(DIM, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(F.one_hot(ids, VOCAB).to(self.embed.weight.dtype)).cumsum(1))


class Stepwise(nn.Module):
    """A GRU cell over one column of ids at a time, each embedded on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(VOCAB, DIM), nn.GRUCell(DIM, DIM), nn.Linear(DIM, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        state, out = None, []
        for column in ids.unbind(1):
            state = self.cell(self.embed(column), state)
            out.append(self.head(state))
        return torch.stack(out, dim=1)


class InPlace(Transformer):
    """Adds the positions to the embeddings in place."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x += self.positions(self.where(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Tied(Transformer):
    """Reads the embedding's matrix again as the head, and scales it."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * DIM**0.5
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embed.weight.T


def alibi(scores: Tensor) -> Tensor:
    """A bias by the distance to the *last* key: softmax takes the difference off again."""
    place = torch.arange(scores.shape[-1])
    bias = (place - place[-1]) * 0.5 ** torch.arange(1, HEADS + 1)[:, None, None]
    return seen(lambda q, k, length: k <= q)(scores + bias.to(scores))


def fresh(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Build with a fixed seed and randomise."""

    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return made(build())

    return seeded


def layer(build: Callable[[], nn.Module], give: Callable[[Tensor], Any] = lambda logits: logits) -> Any:
    """A Foreign model of this layer."""
    return fresh(lambda: Foreign(build(), give))


def cumulative_mean(x: Tensor) -> Tensor:
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


def fourier(x: Tensor) -> Tensor:
    """A causal convolution by Fourier transforms (Hyena, S4), whose roundings reach everywhere."""
    n = 2 * x.shape[1]  # zeros as long as the input: nothing wraps around
    decay = 0.8 ** torch.arange(x.shape[1], device=x.device).to(x)
    return torch.fft.irfft(torch.fft.rfft(x, n, dim=1) * torch.fft.rfft(decay, n)[:, None], n, dim=1)[:, : x.shape[1]]


def renormalised(scores: Tensor) -> Tensor:
    """The mask after the softmax, and the rows summed to 1 again: right, but for roundings."""
    weights = scores.softmax(-1).tril()
    return weights / weights.sum(-1, keepdim=True)


def attention(weigh: Callable[[Tensor], Tensor]) -> Any:
    """The zoo's transformer with right weights of another kind."""
    return planted("blocks.0.attention", lambda: Attention(weigh))


CLEAN: dict[str, Callable[[], nn.Module]] = {
    "transformer": fresh(Transformer),
    "transformer in place": fresh(InPlace),
    "transformer with a tied head": fresh(Tied),
    "LSTM": layer(lambda: nn.LSTM(DIM, DIM, 2, batch_first=True)),
    "LSTM, time first": layer(lambda: TimeFirst(nn.LSTM(DIM, DIM))),
    "GRU": layer(lambda: nn.GRU(DIM, DIM, batch_first=True)),
    "GRU cell": fresh(Stepwise),
    "RNN": layer(lambda: nn.RNN(DIM, DIM, batch_first=True)),
    "TransformerEncoder, post-norm": layer(lambda: Encoder(False)),
    "TransformerEncoder, pre-norm": layer(lambda: Encoder(True)),
    "causal depthwise convolution": layer(CausalConv),
    "cumulative mean": layer(lambda: Apply(cumulative_mean)),
    "cumulative maximum": layer(lambda: Apply(lambda x: x.cummax(1).values)),
    "convolution by Fourier transforms": layer(lambda: Apply(fourier)),
    "weights masked after the softmax, then renormalised": attention(renormalised),
    "attention that stores its weights, and tables for one length": layer(Keeps),
    "tokens looked up time first": fresh(lambda: EmbedsTimeFirst(nn.LSTM(DIM, DIM))),
    "tokens looked up in pieces": fresh(lambda: EmbedsInPieces(CausalConv())),
    "bigram": layer(nn.Identity),
    "mixture of experts, top 2 of 4": layer(Experts),
    "mixture of experts with room for three tokens of a row": layer(Capacity),
    "linear attention": layer(LinearAttention),
    "fused attention": layer(Fused),
    "rotary positions": layer(Rotary),
    "token shift": layer(TokenShift),
    "selective state space": layer(Selective),
    "ALiBi, from the last key": attention(alibi),
    "sliding window": attention(seen(lambda q, k, length: (k <= q) & (q - k < 3))),
    "masked scores finite, but zero after the softmax": attention(seen(lambda q, k, length: k <= q, -1e9)),
    "a shift to the right": fresh(lambda: Foreign(After(nn.Identity(), lambda x: F.pad(x[:, :-1], (0, 0, 1, 0))))),
    "gives a tuple": layer(CausalConv, lambda logits: (logits, None)),
    "gives an object": layer(CausalConv, lambda logits: SimpleNamespace(logits=logits, loss=None)),
    "gives a mapping": layer(CausalConv, lambda logits: {"loss": None, "logits": logits}),
    "a raw table": fresh(RawTable),
    "dropout and batch norm": layer(lambda: nn.Sequential(CausalConv(), nn.Dropout(0.5), Normed(nn.BatchNorm1d(DIM)))),
    "one-hot rows": fresh(OneHot),
}
EMBED = {
    "GRU cell": "embed",
    "one-hot rows": "embed",
    "tokens looked up in pieces": "embed",
}  # where no lookup of all ids can be found


# ---- Hugging Face, from configurations alone

SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "GPT2": {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "Llama": LLAMA,
    "Qwen2": LLAMA,
    "Qwen3": {**LLAMA, "head_dim": 8},
    "Mistral": {**LLAMA, "sliding_window": 4},
    "Mixtral": {**LLAMA, "num_local_experts": 4, "experts_implementation": "eager"},  # the other knows no float64
    "Gemma": {**LLAMA, "head_dim": 8},
    "Gemma2": {**LLAMA, "head_dim": 8, "sliding_window": 4},
    "Gemma3": {**LLAMA, "head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2},
    "Olmo2": LLAMA,
    "Phi": LLAMA,
    "Phi3": LLAMA,
    "GPTNeoX": {**SIZES, "intermediate_size": 48, "max_position_embeddings": 64},
    "OPT": {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "Bloom": {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Falcon": {**SIZES, "alibi": True},
    "Mpt": {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "Bert": {**SIZES, "intermediate_size": 48, "max_position_embeddings": 64, "is_decoder": True},
    "Mamba": {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}


ODD_NAMES = {"GPT2": "GPT2LMHeadModel", "Bert": "BertLMHeadModel"}


def hugging_face(name: str, **more: Any) -> Any:
    """A tiny model of this family with random weights, large enough that a leak would show; nothing is fetched."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")
    model = getattr(transformers, ODD_NAMES.get(name, f"{name}ForCausalLM"))
    return made(model(config(**{**SPECIAL, **HUGGING_FACE[name], **more})))
