"""Write what the web page computes again: the layer's weights, its input and each intermediate, from PyTorch.

python scripts/export.py attention           # into web/public/data/
python scripts/export.py attention --check   # compare with what is there, write nothing

`attention` is CausalSelfAttention alone (16-dim vectors, 2 heads, 8 positions, random input), drawn from seed 0.
attention.safetensors holds the float32 tensors, attention.json their shapes and the sha256 of that file.
Exit 1 when --check finds a difference above 1e-6.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to run from a checkout that is not installed

from octlm.command import Parser, RunFailed, run

if TYPE_CHECKING:
    from torch import Tensor

DATA = Path(__file__).resolve().parent.parent / "web" / "public" / "data"
SCHEMA = "octlm-web/1"
SEED = 0
DIM, HEADS, LENGTH = 16, 2, 8
EDITED, AMOUNT = 5, 1.5  # the position that the edited input moves, and how far along `edited.direction`
TOLERANCE = 1e-6  # another processor adds in another order


def main(arguments: list[str]) -> None:
    parser = Parser(prog="export.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["attention"], help="attention: one untrained layer with all intermediates")
    parser.add_argument("--out", type=Path, default=DATA, metavar="DIR", help="default: web/public/data")
    parser.add_argument("--check", action="store_true", help="compare with the files in DIR and write nothing")
    options = parser.parse_args(arguments)

    tensors, manifest = attention()  # loads torch: --help is to be instant
    blob = pack(tensors, manifest)
    listing = describe(tensors, manifest, blob)
    if options.check:
        print(compare(options.out, tensors, blob, listing))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "attention.safetensors").write_bytes(blob)
    (options.out / "attention.json").write_bytes(listing)
    print(f"{options.out}: attention.safetensors ({len(blob):,} bytes, {len(tensors)} tensors) and attention.json")


def attention() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Build the layer and give its tensors by name, and what it was built from.

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
    manifest = {
        "schema": SCHEMA, "seed": SEED, "torch": torch.__version__.split("+")[0], "dim": DIM, "n_heads": HEADS,
        "head_dim": DIM // HEADS, "context_length": LENGTH, "edited_position": EDITED, "edited_amount": AMOUNT,
    }  # fmt: skip
    return {name: tensors[name].clone().contiguous() for name in sorted(tensors)}, manifest


def pack(tensors: dict[str, Tensor], manifest: dict[str, Any]) -> bytes:
    """Serialise as safetensors; one key of metadata, since the library writes several in a random order."""
    from safetensors.torch import save

    return save(tensors, metadata={"octlm": json.dumps(manifest)})


def describe(tensors: dict[str, Tensor], manifest: dict[str, Any], blob: bytes) -> bytes:
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    listing = {**manifest, "sha256": hashlib.sha256(blob).hexdigest(), "bytes": len(blob), "tensors": shapes}
    text = json.dumps(listing, indent=1)
    return (text.replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]") + "\n").encode()


def compare(folder: Path, tensors: dict[str, Tensor], blob: bytes, listing: bytes) -> str:
    """Hold the files of a folder to fresh tensors; raises RunFailed when they differ by more than TOLERANCE."""
    from safetensors.torch import load

    paths = [folder / "attention.safetensors", folder / "attention.json"]
    if missing := [path for path in paths if not path.is_file()]:
        raise ValueError(f"{missing[0]}: no such file; write it with `python scripts/export.py attention`")
    there = paths[0].read_bytes()
    if (there, paths[1].read_bytes()) == (blob, listing):
        return f"{folder}: identical, byte for byte"
    recorded = json.loads(paths[1].read_bytes())
    if recorded.get("sha256") != hashlib.sha256(there).hexdigest():
        raise RunFailed(f"{paths[1]}: its sha256 is not that of {paths[0].name}; export both again")
    old = load(there)
    if {name: tensor.shape for name, tensor in old.items()} != {name: tensor.shape for name, tensor in tensors.items()}:
        raise RunFailed(f"{paths[0]}: other tensors than scripts/export.py makes; export again")
    worst, where = max(_difference(old[name], tensors[name], name) for name in tensors)
    if not worst <= TOLERANCE:
        raise RunFailed(f"{paths[0]}: {where} differs by {worst:.1e}, more than {TOLERANCE:.0e}; export again")
    return f"{folder}: equal within {worst:.1e}, at most {TOLERANCE:.0e} (not byte for byte: another machine or torch)"


def _difference(a: Tensor, b: Tensor, name: str) -> tuple[float, str]:
    """Give the largest |a - b| and the name; equal infinities do not differ."""
    import torch

    gap = torch.where(a == b, 0.0, (a - b).abs())
    return (math.inf if bool(gap.isnan().any()) else float(gap.max()), name)


if __name__ == "__main__":
    run(main)
