"""The files of an export: how they are written, and how those on disk are held to fresh ones."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octlm.command import RunFailed

if TYPE_CHECKING:
    from torch import Tensor

Files = dict[str, bytes]  # name -> what stands in it

TOLERANCE = 1e-6  # another processor adds in another order


def pack(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    """Serialise as safetensors; one key of metadata, since the library writes several in a random order."""
    from safetensors.torch import save

    return save(tensors, metadata={"octlm": json.dumps(about)})


def about(blob: bytes) -> dict[str, Any]:
    """Give what `pack` wrote beside the tensors."""
    header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    found: dict[str, Any] = json.loads(header["__metadata__"]["octlm"])
    return found


def sha256(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def to_json(document: Any) -> bytes:
    """Write JSON, a key a line and a list a line."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return (text.replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]") + "\n").encode()


def compare(paths: dict[str, Path], fresh: Files) -> str:
    """Hold files to fresh ones; raises RunFailed where a number differs by more than TOLERANCE, or anything else."""
    if missing := [path for path in paths.values() if not path.is_file()]:
        raise ValueError(f"{missing[0]}: no such file; write it with scripts/export.py")
    there = {name: path.read_bytes() for name, path in paths.items()}
    if there == fresh:
        return "identical, byte for byte"
    worst = 0.0
    for name, path in paths.items():
        if name.endswith(".safetensors"):
            worst = max(worst, _distance(path, there[name], fresh[name]))
            continue
        worst = max(worst, _change(path, _lasting(there[name]), _lasting(fresh[name])))
        if json.loads(there[name]).get("sha256") not in (None, sha256(there.get(_listed(name), b""))):
            raise RunFailed(f"{path}: its sha256 is not that of {_listed(name)}; export again")
    return f"equal within {worst:.1e}, at most {TOLERANCE:.0e} (not byte for byte: another machine or torch)"


def _listed(name: str) -> str:
    """Name the file that a listing describes."""
    return name.replace(".json", ".safetensors")


def _lasting(listing: bytes) -> Any:
    """A JSON document without what another machine or release of torch changes."""
    document = json.loads(listing)
    return {key: value for key, value in document.items() if key not in ("sha256", "torch")}


def _change(path: Path, old: Any, new: Any) -> float:
    """Give the largest |difference| of the numbers of two JSON documents that are alike in everything else."""
    if isinstance(old, float) and isinstance(new, float) and abs(old - new) <= TOLERANCE:
        return abs(old - new)
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        old, new = list(old.values()), list(new.values())
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max((_change(path, a, b) for a, b in zip(old, new, strict=True)), default=0.0)
    if old != new:
        raise RunFailed(f"{path}: not what scripts/export.py writes; export again")
    return 0.0


def _distance(path: Path, there: bytes, fresh: bytes) -> float:
    """Give the largest |difference| of the tensors of two files."""
    from safetensors.torch import load

    old, new = load(there), load(fresh)
    if {name: tensor.shape for name, tensor in old.items()} != {name: tensor.shape for name, tensor in new.items()}:
        raise RunFailed(f"{path}: other tensors than scripts/export.py makes; export again")
    worst, where = max((_difference(old[name].double(), new[name].double()), name) for name in new)
    if not worst <= TOLERANCE:
        raise RunFailed(f"{path}: {where} differs by {worst:.1e}, more than {TOLERANCE:.0e}; export again")
    return worst


def _difference(a: Tensor, b: Tensor) -> float:
    """Give the largest |a - b|; equal infinities do not differ, and NaN differs from everything."""
    import torch

    gap = torch.where(a == b, 0.0, (a - b).abs())
    return math.inf if bool(gap.isnan().any()) else float(gap.max()) if gap.numel() else 0.0
