"""The variants that every property is tested on, and the models that make faults visible."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch

from octlm.config import ModelConfig
from octlm.model import Decoder
from octlm.preflight import randomise

AXES: dict[str, list[Any]] = {
    "positions": ["learned", "sinusoidal", "rope", "none"],
    "norm": ["layernorm", "rmsnorm"],
    "norm_placement": ["pre", "post"],
    "mlp": ["gelu", "swiglu", "relu2"],
    "attention": ["naive", "sdpa"],
    "n_kv_heads": [4, 2, 1],
    ("window", "stride"): [(0, 0), (3, 0), (3, 4), ((5, 0), (2, 0))],
    "qk_norm": [False, True],
}
TINY = {"vocab_size": 31, "context_length": 16, "dim": 32, "n_layers": 2, "n_heads": 4}


def every() -> list[dict[str, Any]]:
    """All combinations of AXES."""
    return [settings(choice) for choice in itertools.product(*AXES.values())]


def pairwise() -> list[dict[str, Any]]:
    """A small set of combinations in which every pair of values of two axes stands at least once."""
    axes = list(AXES.values())
    order = random.Random(0)
    missing = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(axes)), 2)
        for a in range(len(axes[i]))
        for b in range(len(axes[j]))
    }
    chosen = []
    while missing:
        tries = [tuple(order.randrange(len(axis)) for axis in axes) for _ in range(200)]
        best = max(tries, key=lambda choice: len(missing & pairs(choice)))
        missing -= pairs(best)
        chosen.append(settings(tuple(axis[k] for axis, k in zip(axes, best, strict=True))))
    return chosen


def pairs(choice: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    """The pairs of values that one combination covers."""
    return {(i, choice[i], j, choice[j]) for i, j in itertools.combinations(range(len(choice)), 2)}


def settings(choice: tuple[Any, ...]) -> dict[str, Any]:
    """The model section of one combination."""
    section = dict(TINY)
    for key, value in zip(AXES, choice, strict=True):
        section |= dict(zip(key, value, strict=True)) if isinstance(key, tuple) else {key: value}
    return section


def name(section: dict[str, Any]) -> str:
    """A test id."""
    return "-".join(str(section[k]).replace(" ", "") for k in section if k not in TINY)


def build(section: dict[str, Any], dtype: torch.dtype = torch.float32) -> Decoder:
    """A model with randomised parameters: at an initialisation of 0.02 most faults are smaller than the bounds."""
    torch.manual_seed(0)
    model = Decoder(ModelConfig(**section))
    randomise(model)
    return model.to(dtype)


def some_ids(rows: int = 3, length: int = 16, vocab_size: int = 31, seed: int = 1) -> torch.Tensor:
    """Random ids (rows, length)."""
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def chunkings(length: int) -> Iterator[list[int]]:
    """Ways to cut a sequence: token by token, halves, ragged, prompt and then tokens, whole."""
    yield [1] * length
    yield [length // 2, length - length // 2]
    yield [3, 1, 5, length - 9]
    yield [length - 3, 1, 1, 1]
    yield [length]
