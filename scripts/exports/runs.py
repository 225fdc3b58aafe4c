"""The losses of runs, as training wrote them down, small enough for a page: their extremes over stretches of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.exports.files import Files, to_json

SCHEMA = "octlm-web-runs/1"
MOST_BUCKETS = 500  # points of a training curve


def runs(paths: list[str]) -> Files:
    """Give runs.json; raises ValueError for a run without a checkpoint, or without a loss."""
    names = [Path(path).resolve().name for path in paths]
    if again := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{again[0]}: two runs of this name; the page tells runs apart by their names")
    return {"runs.json": to_json({"schema": SCHEMA, "runs": [losses_of(path) for path in paths]})}


def losses_of(path: str) -> dict[str, Any]:
    """Describe one run directory and its losses: nats a token, and bits a byte where they were validated."""
    import torch

    from octlm import load_run
    from octlm.metrics import read_records

    run, records = load_run(path), read_records(Path(path))
    finite = [record for record in records if record["kind"] in ("train", "eval") and record["loss"] is not None]
    if not finite:
        raise ValueError(f"{path}: no loss in its metrics.jsonl")
    train = [record for record in finite if record["kind"] == "train"]
    val = [record for record in finite if record["kind"] == "eval"]
    floors = [record["oracle_bits_per_byte"] for record in val if record.get("oracle_bits_per_byte") is not None]
    return {
        "name": Path(path).resolve().name,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "tokenizer": run.config.data.tokenizer,
        "data": run.config.data.source,
        "torch": torch.__version__.split("+")[0],
        "steps": run.step,
        "train": buckets([(record["step"], record["loss"]) for record in train]),
        "val": [[record["step"], record["loss"], record["bits_per_byte"]] for record in val],
        "floor_bits_per_byte": floors[-1] if floors else None,
    }


def buckets(losses: list[tuple[int, float]], most: int = MOST_BUCKETS) -> list[list[float]]:
    """Give [last step, lowest, highest] of at most `most` stretches of equal count: no peak is lost, as in a mean."""
    width = -(-len(losses) // most) or 1
    stretches = [losses[start : start + width] for start in range(0, len(losses), width)]
    return [[part[-1][0], min(loss for _, loss in part), max(loss for _, loss in part)] for part in stretches]
