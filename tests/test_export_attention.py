"""The tensors that the web page is held to are those of the layer, and export again to the same bytes."""

import hashlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from octlm import CausalSelfAttention, ModelConfig
from octlm.command import RunFailed
from scripts.export import main

ROOT = Path(__file__).parent.parent
DATA = ROOT / "web" / "public" / "data"


def export(*arguments: str, threads: int = 1) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": str(threads), "HOME": "/nonexistent"}
    return subprocess.run(
        [sys.executable, "scripts/export.py", "attention", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_two_exports_are_the_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    for name, threads in (("one", 1), ("two", 2)):
        assert export("--out", str(tmp_path / name), threads=threads).returncode == 0
    for file in ("attention.safetensors", "attention.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_committed_files_are_what_the_script_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["attention", "--check"])
    assert "identical, byte for byte" in (said := capsys.readouterr().out) or "equal within" in said
    main(["attention", "--out", str(tmp_path)])
    committed, fresh = load_file(DATA / "attention.safetensors"), load_file(tmp_path / "attention.safetensors")
    drawn = [name for name in fresh if name.endswith(".weight") or name in ("x", "edited.direction")]
    assert len(drawn) == 6
    for name in drawn:  # what is drawn and not computed is the same on every machine
        assert torch.equal(committed[name], fresh[name]), name
    recorded, now = (json.loads((folder / "attention.json").read_text("utf-8")) for folder in (DATA, tmp_path))
    assert {**recorded, "torch": 0, "sha256": 0} == {**now, "torch": 0, "sha256": 0}


def test_the_manifest_describes_the_file() -> None:
    manifest = json.loads((DATA / "attention.json").read_text("utf-8"))
    blob = (DATA / "attention.safetensors").read_bytes()
    assert manifest["sha256"] == hashlib.sha256(blob).hexdigest() and manifest["bytes"] == len(blob)
    tensors = load_file(DATA / "attention.safetensors")
    assert manifest["tensors"] == {name: list(tensor.shape) for name, tensor in tensors.items()}
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


def test_the_tensors_are_those_of_the_layer() -> None:
    """Built again by hand from seed 0, and its steps from the formulas in float64."""
    tensors = load_file(DATA / "attention.safetensors")
    torch.manual_seed(0)
    layer = CausalSelfAttention(ModelConfig(dim=16, n_heads=2, context_length=8, positions="none"))
    x = torch.randn(1, 8, 16)
    assert torch.equal(tensors["x"], x[0])
    for name, weight in layer.named_parameters():
        assert torch.equal(tensors[name], weight), name
    assert torch.allclose(layer(x)[0], tensors["causal.output"], rtol=0, atol=1e-6)

    wide = {name: tensor.double() for name, tensor in tensors.items()}
    for mask in ("causal", "none"):
        heads = []
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            q, k, v = (wide["x"] @ wide[f"{name}_proj.weight"][part].T for name in "qkv")
            raw = q @ k.T
            scaled = raw / math.sqrt(8)
            masked = scaled.clone()
            if mask == "causal":
                for t in range(8):
                    masked[t, t + 1 :] = -math.inf
            weights = masked.exp() / masked.exp().sum(dim=1, keepdim=True)
            heads.append({"q": q, "k": k, "v": v, "raw": raw, "scaled": scaled, "masked": masked,
                          "weights": weights, "values": weights @ v})  # fmt: skip
        joined = torch.cat([head["values"] for head in heads], dim=1)
        steps = {name: torch.stack([head[name] for head in heads]) for name in heads[0]}
        steps |= {"joined": joined, "output": joined @ wide["o_proj.weight"].T}
        for name, expected in steps.items():
            assert torch.allclose(wide[f"{mask}.{name}"], expected, rtol=0, atol=1e-6), f"{mask}.{name}"


def test_the_edited_input_moves_one_position_and_the_mask_keeps_it_from_the_past() -> None:
    tensors = load_file(DATA / "attention.safetensors")
    moved = (tensors["edited.x"] != tensors["x"]).any(dim=1).tolist()
    assert moved == [t == 5 for t in range(8)]
    assert torch.equal(tensors["edited.causal.output"][:5], tensors["causal.output"][:5])
    assert (tensors["edited.none.output"] - tensors["none.output"]).abs().amax(dim=1).min() > 1e-3


@pytest.mark.parametrize("fault", ["weight", "manifest", "missing", "tensor gone"])
def test_check_finds_a_planted_difference(tmp_path: Path, fault: str) -> None:
    shutil.copytree(DATA, tmp_path / "data")
    file, listing = tmp_path / "data" / "attention.safetensors", tmp_path / "data" / "attention.json"
    tensors = load_file(file)
    if fault == "missing":
        file.unlink()
    elif fault == "manifest":
        listing.write_text(listing.read_text("utf-8").replace('"sha256": "', '"sha256": "0'), "utf-8")
    else:
        if fault == "weight":
            tensors["q_proj.weight"][0, 0] += 0.01
        else:
            del tensors["none.raw"]
        save_file(tensors, file)
        manifest = json.loads(listing.read_text("utf-8"))
        listing.write_text(json.dumps({**manifest, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}), "utf-8")
    with pytest.raises(ValueError if fault == "missing" else RunFailed, match="attention"):
        main(["attention", "--check", "--out", str(tmp_path / "data")])
