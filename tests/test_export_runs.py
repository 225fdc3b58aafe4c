"""The page's curves are the losses that training wrote down."""

import json
from pathlib import Path

import pytest

from octlm.metrics import read_records
from scripts.export import main
from scripts.exports.runs import MOST_BUCKETS, buckets, runs
from tests.runs import run, tiny

RUNS = Path(__file__).parent.parent / "web" / "public" / "data" / "runs.json"


def test_each_loss_of_a_run_is_in_the_file_and_nothing_else(tmp_path: Path) -> None:
    records = run(tiny(tmp_path), tmp_path / "first")
    (found,) = json.loads(runs([str(tmp_path / "first")])["runs.json"])["runs"]
    train = [[r["step"], r["loss"], r["loss"]] for r in records if r["kind"] == "train"]
    val = [[r["step"], r["loss"], r["bits_per_byte"]] for r in records if r["kind"] == "eval"]
    assert found["train"] == train and found["val"] == val
    assert found["name"] == "first" and found["steps"] == 20 and found["floor_bits_per_byte"] is None


def test_a_long_curve_keeps_its_extremes_and_its_last_step() -> None:
    losses = [(step, 0.001 * (step % 97)) for step in range(1, 3_002)]
    found = buckets(losses)
    assert len(found) <= MOST_BUCKETS and found[-1][0] == 3_001
    assert min(low for _, low, _ in found) == 0 and max(high for _, _, high in found) == pytest.approx(0.096)
    assert [step for step, _, _ in found] == sorted({step for step, _, _ in found})
    assert buckets([]) == [] and buckets([(7, 1.5)]) == [[7, 1.5, 1.5]]


def test_the_committed_curves_are_of_octlm_s_own_recipes() -> None:
    file = json.loads(RUNS.read_text("utf-8"))
    named = {found["name"]: found for found in file["runs"]}
    assert file["schema"] == "octlm-web-runs/1" and named.keys() == {"day1", "page"}
    assert all(found["val"] and found["train"] for found in named.values())
    assert min(bits for _, _, bits in named["page"]["val"]) > named["page"]["floor_bits_per_byte"] > 0


def test_a_loss_that_is_not_finite_is_left_out_and_a_run_without_one_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "first"
    run(tiny(tmp_path), directory)
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if json.loads(line)["kind"] == "train")
    lines[first] = json.dumps(json.loads(lines[first]) | {"loss": None})
    metrics.write_text("\n".join(lines) + "\n", "utf-8")
    assert read_records(directory)[first]["loss"] is None
    assert len(json.loads(runs([str(directory)])["runs.json"])["runs"][0]["train"]) == 19

    kept = [line for line in lines if json.loads(line)["kind"] not in ("train", "eval")]
    metrics.write_text("\n".join(kept) + "\n", "utf-8")
    with pytest.raises(ValueError, match=r"first: no loss in its metrics\.jsonl"):
        runs([str(directory)])


def test_what_is_no_run_or_has_another_s_name_is_refused(tmp_path: Path) -> None:
    for arguments, words in (
        (["runs", str(tmp_path / "none"), "--out", str(tmp_path)], "none"),
        (["runs", "a/day1", "b/day1", "--out", str(tmp_path)], "day1: two runs of this name"),
        (["runs", *"abcdefg"], "g: runs takes at most 6 RUN"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            main(arguments)
    assert not (tmp_path / "runs.json").exists()
