"""One attention layer, its weights and every intermediate: CausalSelfAttention alone, drawn from seed 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scripts.exports.files import Files, pack, sha256, to_json

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = "octlm-web/1"
SEED = 0
DIM, HEADS, LENGTH = 16, 2, 8
EDITED, AMOUNT = 5, 1.5  # the position that the edited input moves, and how far along `edited.direction`


def attention() -> Files:
    """Build the layer and give its tensors by name, and a listing of them.

    causal.* is the layer's own forward pass; none.* the same layer where every position may read every other;
    edited.* the outputs after position EDITED has moved.
    """
    import torch

    from octlm import CausalSelfAttention, ModelConfig
    from octlm.model.attention import View
    from octlm.model.masks import Mask, attention_mask

    config = ModelConfig(dim=DIM, n_heads=HEADS, context_length=LENGTH, positions="none")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        layer = CausalSelfAttention(config).eval()
        x = torch.randn(1, LENGTH, DIM)  # (B, T, C)
        direction = torch.randn(DIM)
        moved = x.clone()
        moved[0, EDITED] += AMOUNT * direction

        seen: dict[str, Tensor] = {}
        for name in ("q_proj", "k_proj", "v_proj", "attend.weights", "attend", "o_proj"):
            layer.get_submodule(name).register_forward_hook(
                lambda _, inputs, output, name=name: seen.update({name: output, f"{name}.input": inputs[0]})
            )

        def trace(causal: bool, rows: Tensor) -> dict[str, Tensor]:
            """Run the layer and give each step's tensor without the batch; what it computes inside is held to it."""
            allowed = attention_mask(LENGTH) if causal else torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
            view = View(lambda vectors: vectors, {(0, 0): Mask(allowed, is_causal=False)}, lambda _, k, v: (k, v))
            output = layer(rows, view)
            if causal:
                assert torch.equal(output, layer(rows))
            flat = (seen[name] for name in ("q_proj", "k_proj", "v_proj"))  # (B, T, C)
            q, k, v = (each.view(1, LENGTH, HEADS, DIM // HEADS).transpose(1, 2) for each in flat)  # (B, H, T, D)
            raw = q @ k.transpose(-2, -1)  # (B, H, T, S)
            scaled = raw / math.sqrt(DIM // HEADS)
            masked = scaled.masked_fill(~allowed, -math.inf)
            assert torch.equal(masked.softmax(dim=-1), seen["attend.weights"])
            steps = {
                "q": q, "k": k, "v": v, "raw": raw, "scaled": scaled, "masked": masked,
                "weights": seen["attend.weights"], "values": seen["attend"], "joined": seen["o_proj.input"],
                "output": output,
            }  # fmt: skip
            return {step: tensor[0].clone().contiguous() for step, tensor in steps.items()}

        tensors = {"x": x[0], "edited.x": moved[0], "edited.direction": direction}
        tensors |= {name: weight.detach() for name, weight in layer.named_parameters()}
        for mask in ("causal", "none"):
            plain, edited = trace(mask == "causal", x), trace(mask == "causal", moved)
            tensors |= {f"{mask}.{step}": tensor for step, tensor in plain.items()}
            tensors |= {f"edited.{mask}.{step}": edited[step] for step in ("weights", "output")}
    about = {
        "schema": SCHEMA, "seed": SEED, "torch": torch.__version__.split("+")[0], "dim": DIM, "n_heads": HEADS,
        "head_dim": DIM // HEADS, "context_length": LENGTH, "edited_position": EDITED, "edited_amount": AMOUNT,
    }  # fmt: skip
    tensors = {name: tensors[name].clone().contiguous() for name in sorted(tensors)}
    blob = pack(tensors, about)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    listing = {**about, "sha256": sha256(blob), "bytes": len(blob), "tensors": shapes}
    return {"attention.safetensors": blob, "attention.json": to_json(listing)}
