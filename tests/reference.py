"""A decoder written a second time, token by token and head by head, from the formulas and not from octlm's code.

It shares nothing with octlm but the names of the weights, and computes in float64 with Python loops.
"""

import math
from typing import Any

import torch
from torch import Tensor


def reference_logits(weights: dict[str, Tensor], section: dict[str, Any], ids: list[int]) -> Tensor:
    """Logits (T, V) of one row of ids."""
    w = {name: value.double() for name, value in weights.items()}
    dim, heads = section["dim"], section["n_heads"]
    kv, width, eps = section.get("n_kv_heads", heads), dim // heads, 1e-5
    x = [w["embed.weight"][i] for i in ids]
    if section["positions"] == "learned":
        x = [e + w["positions.table.weight"][p] for p, e in enumerate(x)]
    if section["positions"] == "sinusoidal":
        x = [e * dim**0.5 + wave(p, dim) for p, e in enumerate(x)]

    def normed(vector: Tensor, name: str, apply: bool) -> Tensor:
        if not apply:
            return vector
        if section["norm"] == "rmsnorm":
            return vector / torch.sqrt((vector**2).mean() + eps) * w[f"{name}.weight"]
        centred = vector - vector.mean()
        return centred / torch.sqrt((centred**2).mean() + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    pre = section["norm_placement"] == "pre"
    for layer in range(section["n_layers"]):
        at = f"layers.{layer}."
        h = [normed(v, at + "before_attention", pre) for v in x]
        y = attend(w, at + "attention.", section, layer, h, heads, kv, width, eps)
        x = [normed(a + b, at + "after_attention", not pre) for a, b in zip(x, y, strict=True)]
        h = [normed(v, at + "before_mlp", pre) for v in x]
        y = [mlp(w, at + "mlp.", section["mlp"], v) for v in h]
        x = [normed(a + b, at + "after_mlp", not pre) for a, b in zip(x, y, strict=True)]
    return torch.stack([w["head.weight"] @ normed(v, "norm", pre) for v in x])


def attend(w, at, section, layer, h, heads, kv, width, eps):  # type: ignore[no-untyped-def]
    """One attention layer, as multi-head attention with the key-value heads duplicated [0, 0, 1, 1]."""

    def per_head(name: str, head: int, vector: Tensor) -> Tensor:
        return w[f"{at}{name}_proj.weight"][head * width : (head + 1) * width] @ vector

    def prepared(name: str, head: int, position: int) -> Tensor:
        vector = per_head(name, head, h[position])
        if section["qk_norm"]:
            vector = vector / torch.sqrt((vector**2).mean() + eps) * w[f"{at}{name}_norm.weight"]
        return turned(vector, position) if section["positions"] == "rope" else vector

    windows, strides = pattern(section["window"]), pattern(section["stride"])
    window, stride = windows[layer % len(windows)], strides[layer % len(strides)]
    duplicated = [head for head in range(kv) for _ in range(heads // kv)]
    out = []
    for t in range(len(h)):
        pieces = []
        for head in range(heads):
            visible = [s for s in range(t + 1) if not window or t - s < window or (stride and s % stride == 0)]
            q = prepared("q", head, t)
            scores = torch.stack([q @ prepared("k", duplicated[head], s) / math.sqrt(width) for s in visible])
            shares = torch.exp(scores - scores.max())
            shares = shares / shares.sum()
            pieces.append(sum(a * per_head("v", duplicated[head], h[s]) for a, s in zip(shares, visible, strict=True)))
        out.append(w[f"{at}o_proj.weight"] @ torch.cat(pieces))
    return out


def pattern(value: int | tuple[int, ...]) -> tuple[int, ...]:
    """What is tiled over the layers."""
    return value if isinstance(value, tuple) else (value,)


def mlp(w: dict[str, Tensor], at: str, kind: str, vector: Tensor) -> Tensor:
    """One MLP."""
    up = w[f"{at}up_proj.weight"] @ vector
    if kind == "gelu":
        up = up * 0.5 * (1 + torch.erf(up / 2**0.5))
    if kind == "relu2":
        up = torch.where(up > 0, up, 0) ** 2
    if kind == "swiglu":
        gate = w[f"{at}gate_proj.weight"] @ vector
        up = gate / (1 + torch.exp(-gate)) * up
    return w[f"{at}down_proj.weight"] @ up


def turned(vector: Tensor, position: int) -> Tensor:
    """Rotary positions by complex multiplication: element i pairs with element i + D/2."""
    half = len(vector) // 2
    z = torch.complex(vector[:half], vector[half:])
    angle = torch.tensor([position * 10000.0 ** (-2 * i / len(vector)) for i in range(half)], dtype=torch.float64)
    z = z * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag])


def wave(position: int, dim: int) -> Tensor:
    """The sinusoidal encoding."""
    values = []
    for i in range(dim // 2):
        angle = position / 10000.0 ** (2 * i / dim)
        values += [math.sin(angle), math.cos(angle)]
    return torch.tensor(values, dtype=torch.float64)
