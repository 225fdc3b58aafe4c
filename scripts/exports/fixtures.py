"""What the page's tests need of PyTorch and octlm, beside its own model: every variant, and the small operations."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.exports.files import Files, pack, to_json
from scripts.exports.model import describe, forward, rebuild_model

if TYPE_CHECKING:
    from torch import Tensor

    from octlm.tokenizer import Tokenizer

SMALL = {"vocab_size": 32, "context_length": 16, "dim": 16, "n_layers": 2, "n_heads": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "gelu-learned-biases-untied": {"bias": True, "tie_head": False},
    "relu2-rope": {"mlp": "relu2", "norm": "rmsnorm", "positions": "rope"},
    "swiglu-rope-grouped": {"mlp": "swiglu", "norm": "rmsnorm", "positions": "rope", "n_kv_heads": 2},
    "multi-query-qk-norm-softcap": {"n_kv_heads": 1, "qk_norm": True, "logit_softcap": 3.0, "positions": "rope"},
    "post-norm": {"norm_placement": "post"},
    "sinusoidal": {"positions": "sinusoidal"},
    "no-positions": {"positions": "none"},
    "window-stride": {"positions": "rope", "window": (4, 0), "stride": (3, 0)},
    "rope-stretched": {"positions": "rope", "rope_scale": 2.0, "rope_theta": 500.0},
    "no-layers": {"n_layers": 0},
}
TOKENS, NOISE = 12, 0.2  # noise on every parameter: at 0.02 most faults would be smaller than the bound

TEXTS = [
    "", " ", "  ", "   a", "a   ", "a  b", "\t\tx", "\n", "\n\n\n", " \n", "\r\n", "a\r\nb\r\n", "a \n b", "\x0b\x0c",
    "\x1c\x1d\x1e\x1f", "a\x1cb", "a\x85b", "\x85", "\xa0", "a\xa0b", "\xa0\xa0b", "\u2003 x", "\u3000", "\ufeffabc",
    "a\ufeff", "\u200b", "\u200d", "\u2028x", "\x00", "a\x00b", "\x7f",
    "don't", "I'LL", "we've 'tis it's'", "x'y", "'", "''s", "O'Neill's",
    "0", "007", "3.14159", "1,234,567", "x1y2", "٣٤", "½²", "Ⅷ",
    "héllo", "he\u0301llo", "naïve café", "Straße", "ﬁ", "Ω≈ç√", "—“”…", "¿Qué?", "±¬¶§",
    "你好,世界", "日本語のテキスト", "한국어", "สวัสดี", "नमस्ते", "שלום", "مرحبا بالعالم", "Привет, мир!",
    "🦦", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇳🇱🇫🇷", "a🦊b", "🦦🦦", "\U0001f9e1\ufe0f", "𝕬𝖇", "\U0010ffff",
    "<|endoftext|>", "a<|endoftext|>b", "<|", "|>", "&amp;", "<b>x</b>", "\\n", "%20", "a_b-c", "#!/bin/sh",
    "def f(x):\n    return x  # two\n", "for (;;) {\n\ti++;\n}\n", "{\"a\": [1, 2]}", "==!=<=", "...", "?!?!", "***",
    "Hazel", " Hazel", "hazel", "HAZEL", "Hazel's", "Hazel.", "Hazelnut", "unhazel",
    "One", "one", " One", "Moral:", "Moral: a gift is never lost.", "\"Lend me the bell,\" said Otto sadly",
]  # fmt: skip
PARTS = ["wren", " wren", "Otto", "\n", "  ", " 7", "é", "🦦", "'s", ".", " the", "ing", "\t", "你"]
GRID = {"temperature": (0.0, 1e-3, 0.5, 1.0, 2.0), "top_k": (0, 1, 5, 20), "top_p": (1.0, 0.9, 0.5, 0.01)}
SEEDS, STREAMS, NUMBERS = (0, 1, 7, 42, 2**32 - 1), (0, 1, 2), 8


def fixtures(page_model: Path) -> Files:
    """Give variants.safetensors and ops.json; the tokenizer is the page's, from its model file."""
    if not page_model.is_file():
        raise ValueError(f"{page_model}: no such file; write it with `python scripts/export.py model`")
    _, tokenizer = rebuild_model(page_model.read_bytes())
    operations = {
        "tokenizer": tokenized(tokenizer),
        "sampling": sampled(),
        "uniforms": drawn(),
        "kv_bytes": cached(),
    }
    return {"variants.safetensors": variants(), "ops.json": to_json(operations)}


def variants() -> bytes:
    """Every kind of decoder, tiny and random, with its logits and attention."""
    import torch

    from octlm import Decoder, ModelConfig

    tensors: dict[str, Tensor] = {}
    configs = {}
    with torch.random.fork_rng(devices=[]):
        for name, changes in VARIANTS.items():
            torch.manual_seed(1)
            config = ModelConfig(**{**SMALL, **changes})
            decoder = Decoder(config).eval()
            with torch.no_grad():
                for parameter in decoder.parameters():
                    parameter.add_(NOISE * torch.randn_like(parameter))
            ids = torch.randint(0, config.vocab_size, (TOKENS,)).tolist()
            logits, attention = forward(copy.deepcopy(decoder).double(), ids)  # float32 depends on the processor
            tensors |= {f"{name}.weights.{key}": weight.detach().clone() for key, weight in decoder.named_parameters()}
            tensors |= {f"{name}.attention.{layer}": read.float().contiguous() for layer, read in enumerate(attention)}
            tensors |= {f"{name}.ids": torch.tensor(ids, dtype=torch.int32), f"{name}.logits": logits.float()}
            configs[name] = describe(config)
    return pack(dict(sorted(tensors.items())), {"schema": "octlm-web-variants/1", "variants": configs})


def tokenized(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    texts = [*TEXTS, *(a + b for a, b in itertools.product(PARTS, PARTS) if a != b)][:200]
    return [{"text": text, "ids": tokenizer.encode(text)} for text in texts]


def sampled() -> list[dict[str, Any]]:
    """Distributions over 20 ids at every setting of the grid, and what is drawn from them."""
    import torch

    from octlm.sampling import Filters, draw

    generator = torch.Generator().manual_seed(3)
    plain = 2 * torch.randn(20, generator=generator)
    tied = plain.clone()
    tied[3:7] = tied.max()
    cases = []
    for setting in itertools.product(*GRID.values()):
        for logits in (plain, tied):
            chosen = dict(zip(GRID, setting, strict=True))
            rows = logits[None].double()
            found = Filters(**chosen).probabilities(rows, torch.zeros_like(rows, dtype=torch.bool))  # type: ignore[arg-type]
            places = (0.0, 0.1, 0.5, 0.9, 1 - 2**-53)
            draws = [{"u": u, "id": draw(found, [u])[0]} for u in places]
            cases.append({"logits": logits.tolist(), **chosen, "probabilities": found[0].tolist(), "draws": draws})
    return cases


def drawn() -> list[dict[str, Any]]:
    from octlm.sampling import uniforms

    return [
        {"seed": seed, "row": row, "values": list(itertools.islice(uniforms(seed, row), NUMBERS))}
        for seed, row in itertools.product(SEEDS, STREAMS)
    ]


def cached() -> list[dict[str, Any]]:
    """Bytes of keys and values in caches without windows, which keep every token."""
    from octlm import KVCache, ModelConfig

    shapes: list[dict[str, Any]] = [SMALL, {**SMALL, "n_kv_heads": 2}, {"dim": 128, "n_layers": 4, "n_kv_heads": 1}]
    cases = []
    for config, length in itertools.product([ModelConfig(**shape) for shape in shapes], (1, 16, 100)):
        cache = KVCache(config, 1, length)
        held = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
        cases.append({"config": describe(config), "length": length, "bytes": held})
    return cases
