"""A run that was stopped anywhere, any number of times, ends bit for bit as the uninterrupted one."""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from octlm import loop
from octlm.checkpoint import best_checkpoint, latest_checkpoint, load_run, read_checkpoint
from octlm.config import Config
from octlm.metrics import read_records
from octlm.model import Decoder
from octlm.optim import learning_rate
from tests.runs import comparable, run, tiny, write_text

ROOT = Path(__file__).parent.parent


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, call: int) -> None:
    """Die in the call-th call of a function of the loop."""
    real, calls = getattr(loop, name), iter(range(1, 10**6))

    def dying(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(loop, name, dying)


def killed_run(monkeypatch: pytest.MonkeyPatch, config: Config, run_dir: Path, name: str, call: int) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, name, call)
        with pytest.raises(Killed):
            run(config, run_dir)


def weights(run_dir: Path) -> str:
    latest = latest_checkpoint(run_dir)
    assert latest is not None
    return hashlib.sha256((latest / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], str]:
    """The uninterrupted run: 2 slices a step, dropout, 28 windows an epoch, 8 rows a step: mid-epoch everywhere."""
    folder = tmp_path_factory.mktemp("whole")
    records = run(tiny(folder), folder / "run")
    assert {r["kind"] for r in records} >= {
        "run_start",
        "audit",
        "train",
        "eval",
        "sample",
        "checkpoint",
        "run_end",
    }
    return folder, comparable(records), weights(folder / "run")


@pytest.mark.parametrize("name,call", [("update", 1), ("update", 7), ("save_checkpoint", 2), ("prune", 2)])
def test_a_killed_run_resumes_bit_for_bit(
    whole: tuple[Path, list[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    folder, expected, digest = whole
    run_dir = folder / f"{name}-{call}"
    killed_run(monkeypatch, tiny(folder), run_dir, name, call)
    before = {p: p.stat().st_mtime_ns for p in run_dir.glob("checkpoints/step-*/*")}
    assert comparable(run(tiny(folder), run_dir)) == expected
    assert weights(run_dir) == digest
    assert before == {p: p.stat().st_mtime_ns for p in before}, "a checkpoint from before the kill was rewritten"


@pytest.mark.parametrize("name", ["validate", "write_best", "generate"])
def test_a_kill_after_the_save_loses_no_evaluation_and_no_sample(
    whole: tuple[Path, list[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder, expected, digest = whole
    run_dir = folder / f"late-{name}"
    killed_run(monkeypatch, tiny(folder), run_dir, name, 1)
    assert latest_checkpoint(run_dir) == run_dir / "checkpoints" / "step-000010"
    records = run(tiny(folder), run_dir)
    key = [(r["step"], r["kind"]) for r in comparable(records)]
    assert len(key) == len(set(key)) and sorted(key) == sorted((r["step"], r["kind"]) for r in expected)
    assert sorted(comparable(records), key=lambda r: (r["step"], r["kind"])) == sorted(
        expected, key=lambda r: (r["step"], r["kind"])
    )
    assert weights(run_dir) == digest
    best = best_checkpoint(run_dir)
    losses = {r["step"]: r["loss"] for r in expected if r["kind"] == "eval"}
    assert best is not None and read_checkpoint(best).step == min(losses, key=losses.__getitem__)


def test_d12_any_number_of_resumes(
    whole: tuple[Path, list[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected, digest = whole
    for number in (1, 2, 3):
        killed_run(monkeypatch, tiny(folder), folder / "often", "update", 7)  # five steps are kept, one is not
        kept = latest_checkpoint(folder / "often")
        assert kept is not None and read_checkpoint(kept).step == 5 * number
    assert comparable(run(tiny(folder), folder / "often")) == expected
    assert weights(folder / "often") == digest


def test_a_stop_while_sampling_saves_the_step_it_had_reached(
    whole: tuple[Path, list[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = whole[0]
    config = tiny(folder, "train.sample_every=7")
    expected = comparable(run(config, folder / "uninterrupted"))
    real = loop.generate

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "generate", interrupted)
        with pytest.raises(SystemExit) as end:
            run(config, folder / "sampling")
    assert end.value.code == 143
    latest = latest_checkpoint(folder / "sampling")
    assert latest is not None and read_checkpoint(latest).step == 7
    assert comparable(run(config, folder / "sampling")) == expected
    assert weights(folder / "sampling") == weights(folder / "uninterrupted")


@pytest.mark.parametrize(
    ("steps", "save_every", "call", "resumed_at"), [(12, 2, 4, 2), (20, 5, 11, 10)], ids=["warm-up", "decay"]
)
def test_d4_the_learning_rate_follows_the_step_through_a_resume(
    whole: tuple[Path, list[dict[str, Any]], str],
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    save_every: int,
    call: int,
    resumed_at: int,
) -> None:
    folder, _, _ = whole
    config = tiny(folder, f"train.save_every={save_every}", f"train.steps={steps}")
    killed_run(monkeypatch, config, folder / f"rate-{call}", "update", call)
    latest = latest_checkpoint(folder / f"rate-{call}")
    assert latest is not None and read_checkpoint(latest).step == resumed_at
    rates = [r["learning_rate"] for r in run(config, folder / f"rate-{call}") if r["kind"] == "train"]
    assert rates == [learning_rate(step, config.optim, steps) for step in range(steps)]
    assert rates[0] > 0 and max(rates) == rates[3] == 1e-2 > rates[4] and rates[-1] == 1e-3


def test_a_finished_run_says_so_and_a_longer_one_goes_on(
    whole: tuple[Path, list[dict[str, Any]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, digest = whole
    run_dir = folder / "longer"
    run(tiny(folder), run_dir)
    files = sorted(p.name for p in run_dir.iterdir())
    capsys.readouterr()
    run(tiny(folder), run_dir)
    assert "finished at step 20" in capsys.readouterr().out
    assert sorted(p.name for p in run_dir.iterdir()) == files and weights(run_dir) == digest
    records = run(tiny(folder, "train.steps=25", "train.log_every=5"), run_dir)
    assert records[-1]["kind"] == "run_end" and records[-1]["step"] == 25


def test_another_config_is_refused_with_the_keys_that_differ(
    whole: tuple[Path, list[dict[str, Any]], str],
) -> None:
    folder, _, digest = whole
    with pytest.raises(ValueError, match=r"model\.n_layers, optim\.learning_rate") as refusal:
        run(tiny(folder, "model.n_layers=3", "optim.learning_rate=2e-2"), folder / "run")
    assert "\n" not in str(refusal.value) and weights(folder / "run") == digest
    with pytest.raises(ValueError, match="not empty"):
        run(tiny(folder), folder / "run", resume="never")
    foreign = folder / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="not a run"):
        run(tiny(folder), foreign)
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]


def test_a_changed_corpus_is_refused_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_run(monkeypatch, tiny(tmp_path), tmp_path / "run", "update", 7)
    write_text(tmp_path / "text.txt", seed=1)
    with pytest.raises(ValueError, match="corpus"):
        run(tiny(tmp_path), tmp_path / "run")


def test_a_named_checkpoint_starts_a_new_directory(whole: tuple[Path, list[dict[str, Any]], str]) -> None:
    folder, expected, digest = whole
    start = folder / "run" / "checkpoints" / "step-000010"
    records = run(tiny(folder), folder / "branch", resume=str(start))
    assert comparable(records)[-12:] == expected[-12:] and weights(folder / "branch") == digest
    renamed = folder / "a copy"
    shutil.copytree(start, renamed)
    killed_run_dir = folder / "adopted"
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, "update", 1)
        with pytest.raises(Killed):
            run(tiny(folder), killed_run_dir, resume=str(renamed))
    assert comparable(run(tiny(folder), killed_run_dir))[-10:] == expected[-10:]
    with pytest.raises(ValueError, match="--init-from"):
        run(tiny(folder), folder / "both", resume=str(start), init_from=start)
    for source, message in (
        (start, "its latest checkpoint is .*step-000020"),
        (renamed, "holds another run"),
        (folder / "nowhere", "nowhere: not a complete checkpoint"),
        (folder / "run", "such as .*step-000020"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tiny(folder), folder / "run", resume=str(source))
    with pytest.raises(ValueError, match=r"such as .*step-000020"):
        run(tiny(folder), folder / "new", init_from=folder / "run")


def test_e10_init_from_takes_weights_only(whole: tuple[Path, list[dict[str, Any]], str]) -> None:
    folder, expected, _ = whole
    start = folder / "run" / "checkpoints" / "step-000020"
    records = comparable(run(tiny(folder, "train.steps=2"), folder / "tuned", init_from=start))
    assert [r["step"] for r in records if r["kind"] == "train"] == [1, 2]
    assert records[0]["learning_rate"] == expected[0]["learning_rate"]
    assert records[0]["loss"] < expected[0]["loss"] - 1
    words = ("data.tokenizer=bpe", "train.steps=2")
    with pytest.raises(ValueError, match=r"data\.tokenizer_file="):
        run(tiny(folder, *words), folder / "other", init_from=start)
    remedy = f"data.tokenizer_file={start / 'tokenizer.json'}"
    assert run(tiny(folder, *words, remedy), folder / "other", init_from=start)[-1]["kind"] == "run_end"
    with pytest.raises(ValueError, match=r"has 257 ids, more than the vocabulary of 200: set model\.vocab_size=257"):
        run(tiny(folder, remedy, "model.vocab_size=200"), folder / "small")


def test_d6_the_tie_survives_training_resuming_and_loading(
    whole: tuple[Path, list[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = whole[0]
    held: list[Decoder] = []
    update = loop.update

    def look(model: Decoder, *rest: Any) -> None:
        update(model, *rest)
        held.append(model)

    monkeypatch.setattr(loop, "update", look)
    start = folder / "run" / "checkpoints" / "step-000015"
    run(tiny(folder), folder / "tied", resume=str(start))
    run(tiny(folder, "train.steps=3"), folder / "tied anew", init_from=start)
    assert len(held) == 5 + 3
    for model in (*held, load_run(folder / "run").model, load_run(folder / "tied").model):
        assert model.head.weight is model.embed.weight
        assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()
        assert sum(p.numel() for p in model.parameters() if p.shape == (257, 32)) == 257 * 32
    with safe_open(start / "model.safetensors", "pt") as file:
        assert sum(file.get_slice(name).get_shape() == [257, 32] for name in file.keys()) == 1  # noqa: SIM118


def test_a_run_whose_checkpoints_are_damaged_is_refused_and_keeps_its_records(
    whole: tuple[Path, list[dict[str, Any]], str],
) -> None:
    folder, expected, _ = whole
    damaged = folder / "damaged"
    shutil.copytree(folder / "run", damaged)
    for manifest in damaged.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    with pytest.raises(ValueError, match="no checkpoint is complete"):
        run(tiny(folder), damaged)
    assert comparable(read_records(damaged)) == expected


def test_a_finished_run_that_lost_its_last_checkpoint_goes_on_from_the_one_before(
    whole: tuple[Path, list[dict[str, Any]], str],
) -> None:
    folder, expected, digest = whole
    shorter = folder / "shorter"
    shutil.copytree(folder / "run", shorter)
    shutil.rmtree(shorter / "checkpoints" / "step-000020")
    (shorter / "checkpoints" / "best.json").unlink()
    assert comparable(run(tiny(folder), shorter)) == expected and weights(shorter) == digest


LONG = ("train.steps=300", "train.log_every=5", "train.keep=2", "train.eval_every=100", "train.sample_every=100")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], str]:
    """An uninterrupted run that takes some seconds, and its recipe in a file."""
    folder = tmp_path_factory.mktemp("long")
    config = tiny(folder, *LONG)
    (folder / "long.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return folder, comparable(run(config, folder / "run")), weights(folder / "run")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGKILL, signal.SIGINT))]
)
def test_the_command_survives_a_signal_at_any_time(
    long: tuple[Path, list[dict[str, Any]], str], number: signal.Signals
) -> None:
    folder, expected, digest = long
    run_dir = folder / number.name
    command = [sys.executable, ROOT / "train.py", "--config", folder / "long.yaml", "--run-dir", run_dir]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while latest_checkpoint(run_dir) is None:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.02)
        time.sleep(random.Random().random() / 2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130}[number.name], errors
    latest = latest_checkpoint(run_dir)
    assert latest is not None
    before = {p: p.stat().st_mtime_ns for p in latest.iterdir()}
    if number != signal.SIGKILL:
        trained = [r["step"] for r in read_records(run_dir) if r["kind"] == "train"]
        assert read_checkpoint(latest).step >= trained[-1], "the last finished step must be in the checkpoint"
        assert errors == b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "prune", lambda run_dir, keep: None)
        records = run(tiny(folder, *LONG), run_dir)
    assert comparable(records) == expected
    assert weights(run_dir) == digest
    assert {p: p.stat().st_mtime_ns for p in before} == before, "the checkpoint from before was rewritten"
