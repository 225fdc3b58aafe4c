"""Measurements say what they hold for, and keep out of each other's way."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.bench import main
from scripts.benches import attention, machine
from scripts.exports.memory import memory

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "LISTEN", 0.01)


def test_a_second_measurement_waits_for_the_end_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "other_load", lambda seconds: 0.0)
    with machine.the_only_one() as found:
        assert found["other_load"] == 0 and found["torch"] in torch.__version__
        command = [sys.executable, "scripts/bench.py", "attention"]
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert second.returncode == 2 and "another measurement is running" in second.stderr
        assert len(second.stderr.splitlines()) == 1
    with machine.the_only_one():
        pass


def test_a_loaded_machine_is_refused_or_the_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "other_load", lambda seconds: 1.26)
    with pytest.raises(ValueError, match=r"others keep 1\.3 cores busy"), machine.the_only_one():
        pass
    with machine.the_only_one(loaded=True) as found:
        assert found["other_load"] == 1.26


def spin(seconds: float) -> None:
    import time

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="reads /proc")
def test_a_busy_process_is_heard() -> None:
    busy = multiprocessing.get_context("fork").Process(target=spin, args=(20.0,))
    busy.start()
    try:
        assert machine.other_load(1.0) > 0.5
    finally:
        busy.terminate()
        busy.join()


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads /proc")
def test_the_peak_is_found_although_the_memory_is_given_back() -> None:
    growth = attention.peak_growth(lambda: torch.ones(25 * 2**20).sum())  # 100 MiB, held for a moment
    assert 95 * 2**20 < growth < 120 * 2**20
    assert attention.peak_growth(lambda: None) < 2**20


def test_the_page_s_measurements_are_those_of_the_experiment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention, "TOKENS", (128, 256))
    monkeypatch.setattr(machine, "other_load", lambda seconds: 0.0)
    (tmp_path / "runs").mkdir()
    main(["attention", "--out", str(tmp_path / attention.RECORDS)])
    records = [json.loads(line) for line in (tmp_path / attention.RECORDS).read_text("utf-8").splitlines()]
    assert [(r["backend"], r["dtype"], r["tokens"]) for r in records] == [
        (backend, dtype, tokens) for backend in ("math", "fused") for dtype in ("fp32", "bf16") for tokens in (128, 256)
    ]
    assert all(r["seconds"] > 0 and r["growth_bytes"] >= 0 and r["experiment"] == "EXP-014" for r in records)
    file = json.loads(memory(tmp_path)["memory.json"])
    assert file["schema"] == "octlm-web-memory/1" and file["torch"] in torch.__version__
    for point, record in zip(file["points"], records, strict=True):
        assert point == {key: record[key] for key in point}


def test_the_committed_experiment_shows_the_square() -> None:
    """EXP-014: the math backend holds the square of scores, the fused one does not."""
    lines = (ROOT / attention.RECORDS).read_text("utf-8").splitlines()
    growth = {(r["backend"], r["dtype"], r["tokens"]): r["growth_bytes"] for r in map(json.loads, lines)}
    for dtype in ("fp32", "bf16"):
        assert growth["math", dtype, 8192] >= 40 * growth["math", dtype, 1024]
        assert growth["fused", dtype, 8192] < 100 * 2**20
    assert json.loads(memory(ROOT)["memory.json"]) == json.loads(
        (ROOT / "web" / "public" / "data" / "memory.json").read_text("utf-8")
    )


def test_records_of_two_measurements_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file; measure it with"):
        memory(tmp_path)
    (tmp_path / "runs").mkdir()
    lines = (ROOT / attention.RECORDS).read_text("utf-8").splitlines()
    other = json.dumps(json.loads(lines[0]) | {"commit": "another"})
    (tmp_path / attention.RECORDS).write_text("\n".join([*lines, other]), "utf-8")
    with pytest.raises(ValueError, match="not the records of one measurement"):
        memory(tmp_path)
