"""What attention takes at each length, as `scripts/bench.py attention` measured it."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.benches.attention import EXPERIMENT, RECORDS
from scripts.exports.files import Files, to_json

SCHEMA = "octlm-web-memory/1"
OF_ALL = ("n_heads", "head_dim", "threads", "torch", "commit")  # the same in every record
OF_POINT = ("backend", "dtype", "tokens", "growth_bytes", "seconds")


def memory(root: Path) -> Files:
    """Give memory.json; raises ValueError where the records are not of one measurement."""
    path = root / RECORDS
    if not path.is_file():
        raise ValueError(f"{path}: no such file; measure it with `python scripts/bench.py attention`")
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    shared = {tuple(record[key] for key in OF_ALL) for record in records}
    if len(shared) != 1 or any(record["experiment"] != EXPERIMENT for record in records):
        raise ValueError(f"{path}: not the records of one measurement; measure again")
    first = records[0]
    device = f"{first['processor']}, {first['threads']} threads"
    points = [{key: record[key] for key in OF_POINT} for record in records]
    return {
        "memory.json": to_json(
            {
                "schema": SCHEMA,
                "device": device,
                **{key: first[key] for key in OF_ALL if key != "threads"},
                "points": points,
            }
        )
    }
