"""Hold what the records promise: strict lines, a clean cut on resume, and the same curves in TensorBoard."""

import gc
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octlm import loop
from octlm import metrics as module
from octlm.metrics import Metrics, read_records
from tests.runs import run, tiny

AT = {"tokens": 64, "seconds": 0.5}
FLOOR = {"oracle_bits_per_byte": 0.75, "excess_bits_per_byte": 0.5}


def lines(run_dir: Path) -> list[Any]:
    """Parse the file as strictly as JSON can be parsed."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = (run_dir / "metrics.jsonl").read_bytes().decode()
    assert text.endswith("\n") or not text
    return [json.loads(line, parse_constant=refuse) for line in text.split("\n")[:-1]]


# ---- the file ------------------------------------------------------------------------------------


def test_each_record_is_one_strict_line_that_is_there_at_once(tmp_path: Path) -> None:
    hostile = 'two\nlines \u2028 \\ " é 🎉 \x00 \udc80'
    with Metrics(tmp_path, None) as metrics:
        metrics.log("probe", 1, **AT, text=hostile, where={"a": (1, None)}, ok=True)
        assert lines(tmp_path) == metrics.records == read_records(tmp_path)
        metrics.log("probe", 2, **AT, bad=[math.nan, math.inf, -math.inf], wide=np.float64(0.1))
        metrics.log("run_end", 2, **AT)
    first, second, third = lines(tmp_path)
    assert first == {"kind": "probe", "step": 1, **AT, "text": hostile, "where": {"a": [1, None]}, "ok": True}
    assert second == {"kind": "probe", "step": 2, **AT, "bad": [None, None, None], "wide": 0.1}
    assert list(third) == ["kind", "step", "tokens", "seconds"]
    assert (metrics.recorded("probe", 2), metrics.recorded("probe", 3), metrics.recorded("eval", 2)) == (
        True, False, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [torch.ones(()), torch.ones((), requires_grad=True) * 2, [torch.ones(())], {"a": (torch.ones(1),)},
     np.float32(1), np.ones(1), object(), b"bytes", {1.5}],
)  # fmt: skip
def test_j1_a_tensor_is_refused_and_nothing_is_kept(value: Any, tmp_path: Path) -> None:
    with Metrics(tmp_path, None) as metrics:
        with pytest.raises(AssertionError, match=r"probe\.loss"):
            metrics.log("probe", 1, **AT, loss=value)
        assert metrics.records == [] and lines(tmp_path) == []


TINY = (
    "data.tokenizer=char", "model.vocab_size=64", "model.dropout=0.0", "train.save_every=0", "train.sample_every=0",
    "train.eval_every=0", "train.preflight=false", "train.tokens_per_step=64",
)  # fmt: skip


def watched(tmp_path: Path, steps: int, see: Callable[[], int]) -> list[int]:
    """Train TINY for `steps` steps; return what `see` gave before each update."""
    seen: list[int] = []
    real = loop.update

    def update(*arguments: Any) -> None:
        seen.append(see())
        real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "update", update)
        records = run(tiny(tmp_path, *TINY, f"train.steps={steps}"), tmp_path / "run")
    assert len(seen) == steps and sum(record["kind"] == "train" for record in records) == steps
    return seen


def graphs() -> int:
    """Count the tensors of this process that hold an autograd graph."""
    return sum(issubclass(type(held), torch.Tensor) and held.grad_fn is not None for held in gc.get_objects())


def test_j1_no_graph_outlives_its_step(tmp_path: Path) -> None:
    gc.collect()
    assert len(set(watched(tmp_path, 6, graphs))) == 1


def test_j1_catches_a_loop_that_keeps_its_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    real = loop.loss_sum

    def keeping(*arguments: Any) -> torch.Tensor:
        kept.append(real(*arguments))
        return kept[-1]

    monkeypatch.setattr(loop, "loss_sum", keeping)
    gc.collect()
    seen = watched(tmp_path, 6, graphs)
    assert [later - earlier for earlier, later in pairwise(seen)] == [1] * 5


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_j1_memory_stays_from_step_50_to_step_500(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    seen = watched(tmp_path, 500, resident)
    assert seen[49] > 0 and seen[499] - seen[49] < 20 << 20


def test_a_record_without_its_four_fields_is_refused(tmp_path: Path) -> None:
    calls: list[tuple[Any, Any, dict[str, Any]]] = [
        ("probe", 1, {"tokens": 1}), ("probe", 1, {"seconds": 1.0}), ("trian", 1, AT), ("probe", -1, AT),
        ("probe", True, AT), ("probe", 1.0, AT),
    ]  # fmt: skip
    with Metrics(tmp_path, None) as metrics:
        for kind, step, fields in calls:
            with pytest.raises(AssertionError):
                metrics.log(kind, step, **fields)
        assert lines(tmp_path) == []


def written(run_dir: Path, *steps: int, tail: bytes = b"") -> None:
    """Write a file of probe records by hand, a torn end after them."""
    rows = [json.dumps({"kind": "probe", "step": step, **AT}) + "\n" for step in steps]
    (run_dir / "metrics.jsonl").write_bytes("".join(rows).encode() + tail)


def test_a_resume_cuts_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    with Metrics(tmp_path, None) as metrics:
        for kind, step in [("run_start", 0), ("probe", 5), ("checkpoint", 5), ("probe", 6),
                           ("checkpoint", 10), ("probe", 10), ("run_start", 5), ("probe", 11)]:  # fmt: skip
            metrics.log(kind, step, **AT)
    whole = lines(tmp_path)
    with Metrics(tmp_path, 10) as metrics:
        assert metrics.records == whole[:-1] == lines(tmp_path)
        assert metrics.recorded("checkpoint", 10) and not metrics.recorded("probe", 11)
    with Metrics(tmp_path, 5) as metrics:
        assert [(r["kind"], r["step"]) for r in metrics.records] == [
            ("run_start", 0), ("probe", 5), ("checkpoint", 5), ("run_start", 5),
        ]  # fmt: skip
        metrics.log("probe", 6, **AT)
    assert [r["step"] for r in lines(tmp_path)] == [0, 5, 5, 5, 6]
    with Metrics(tmp_path, 0) as metrics:
        assert [r["step"] for r in metrics.records] == [0]
    with Metrics(tmp_path, None) as metrics:  # no checkpoint: from the start
        assert metrics.records == [] == lines(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("tail", [b"{", b'{"kind": "probe", "step": 3, "t', b'{"kind": "\xc3', b"\0\0", b'"'])
def test_a_torn_last_line_is_dropped(tail: bytes, tmp_path: Path) -> None:
    written(tmp_path, 1, 2, tail=tail)
    assert [r["step"] for r in read_records(tmp_path)] == [1, 2]
    with Metrics(tmp_path, 9) as metrics:
        metrics.log("probe", 3, **AT)
    assert [r["step"] for r in lines(tmp_path)] == [1, 2, 3]


def test_a_record_that_lacks_only_its_line_end_is_kept(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with Metrics(tmp_path, 9) as metrics:
        metrics.log("probe", 3, **AT)
    assert [r["step"] for r in lines(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"[]", b"7", b"\xff", b"[" * 99_999, b'{"kind": "probe"}', b'{"kind": "x", "step": 1}',
     b'{"kind": "probe", "step": NaN, "tokens": 1, "seconds": 1}',
     b'{"kind": "probe", "step": 1, "tokens": 1, "seconds": 1e999}',
     b'{"kind": "probe", "step": "1", "tokens": 1, "seconds": 1}',
     b'{"kind": ["probe"], "step": 1, "tokens": 1, "seconds": 1}'],
)  # fmt: skip
def test_a_damaged_line_is_refused_with_its_number(bad: bytes, tmp_path: Path) -> None:
    written(tmp_path, 1, tail=bad + b"\n" + b'{"kind": "probe", "step": 2, "tokens": 1, "seconds": 1}\n')
    before = (tmp_path / "metrics.jsonl").read_bytes()
    for read in (lambda: read_records(tmp_path), lambda: Metrics(tmp_path, 9)):
        with pytest.raises(ValueError, match=r"metrics\.jsonl:2: [^\n]*$"):
            read()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_the_cut_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 1, 2, 3)
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def dying(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", dying)
        with pytest.raises(KeyboardInterrupt):
            Metrics(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    Metrics(tmp_path, 1).close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, None)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            metrics.log("probe", 1, **AT, text="x" * 200)
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            metrics.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert read_records(tmp_path) == [] == metrics.records


# ---- TensorBoard ---------------------------------------------------------------------------------


def train_line(metrics: Metrics, step: int) -> None:
    fields = {"loss": 5.0 - step, "learning_rate": 0.1, "gradient_norm": 1.0, "tokens_per_second": 9.0}
    metrics.log("train", step, **AT, **fields)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train 1..6 and stop; go on from 4 to 8 and be killed; go on from 6 to 9."""
    path = tmp_path_factory.mktemp("run")
    with Metrics(path, None) as metrics:
        for step in range(1, 7):
            train_line(metrics, step)
        metrics.log("eval", 3, **AT, loss=2.5, bits_per_byte=1.25, **FLOOR)
        metrics.image("attention", 3, torch.eye(4))
    killed = Metrics(path, 4)  # every line and event is flushed: what a kill leaves is what lies there now
    for step in range(5, 9):
        train_line(killed, step)
    killed.log("eval", 6, **AT, loss=math.nan, bits_per_byte=1.0, **FLOOR)
    for step in (6, 8):
        killed.log("sample", step, **AT, text="def __init__(self):\n    <b>pass")
        killed.image("attention", step, np.full((2, 3, 3), 255, np.uint8))
    with open(max(path.glob("events*")), "ab") as file:
        file.write(b"\x18\0\0\0\0\0\0\0torn")
    metrics = Metrics(path, 6)
    for step in range(7, 10):
        train_line(metrics, step)
    metrics.log("sample", 8, **AT, text="second try")
    metrics.close()
    killed.close()
    return path


@pytest.fixture(scope="module")
def events(run_dir: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_dir))
    found.Reload()
    return found


def test_the_reader_finds_every_tag_with_rising_steps(events: Any, run_dir: Path) -> None:
    assert len(list(run_dir.glob("events.out.tfevents.*"))) == 3, "one for each start, in the run directory"
    tags = events.Tags()
    assert sorted(tags["scalars"]) == [
        "eval/bits_per_byte", "eval/excess_bits_per_byte", "eval/loss", "eval/oracle_bits_per_byte",
        "train/gradient_norm", "train/learning_rate", "train/loss", "train/tokens_per_second",
    ]  # fmt: skip
    assert tags["images"] == ["attention"]
    assert sorted(tags["tensors"]) == ["custom_scalars__config__", "sample/text_summary"]
    assert len(events.Tensors("custom_scalars__config__")) == 1, "a resumed run draws its chart once"
    for tag in ("train/loss", "train/learning_rate", "train/gradient_norm", "train/tokens_per_second"):
        assert [event.step for event in events.Scalars(tag)] == list(range(1, 10)), tag
    assert [event.value for event in events.Scalars("train/loss")] == [5.0 - step for step in range(1, 10)]
    assert [event.step for event in events.Images("attention")] == [3, 6]


def test_a_reader_that_is_running_is_told_to_drop_later_events(run_dir: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    told = []
    for path in sorted(run_dir.glob("events*")):
        told += [event.step for event in EventFileLoader(str(path)).Load() if event.HasField("session_log")]
    assert told == [0, 5, 7]


def test_both_sinks_tell_the_same(events: Any, run_dir: Path) -> None:
    records = read_records(run_dir)
    for (kind, field), tag in module.TAGS.items():
        told = [(r["step"], r[field]) for r in records if r["kind"] == kind and r[field] is not None]
        if tag != "sample":
            shown = [(event.step, event.value) for event in events.Scalars(tag)]
            assert [step for step, _ in told] == [step for step, _ in shown]
            assert [value for _, value in told] == pytest.approx([value for _, value in shown], rel=1e-6)
    assert [(e.step, e.value) for e in events.Scalars("eval/loss")] == [(3, 2.5)]  # the NaN is no point


def test_a_sample_is_shown_as_it_is(events: Any) -> None:
    samples = events.Tensors("sample/text_summary")
    assert [event.step for event in samples] == [6, 8]
    texts = [event.tensor_proto.string_val[0].decode() for event in samples]
    assert texts == ["    def __init__(self):\n        <b>pass", "    second try"]


def test_a_picture_keeps_its_size(events: Any) -> None:
    assert [(e.width, e.height) for e in events.Images("attention")] == [(4, 4), (3, 2)]


def test_a_second_event_file_of_the_same_second_still_sorts_last(tmp_path: Path) -> None:
    now = int(time.time())
    (tmp_path / f"events.out.tfevents.{now}.zzz.99999.9").touch()
    (tmp_path / f"events.out.tfevents.{now - 5}.zzz.99999.9").touch()
    with Metrics(tmp_path, None) as metrics:
        train_line(metrics, 1)
    names = sorted(path.name for path in tmp_path.glob("events*"))
    assert len(names) == 3 and int(names[-1].split(".")[3]) > now


def test_tensorboard_waits_until_it_is_needed(tmp_path: Path) -> None:
    with Metrics(tmp_path, None) as metrics:
        metrics.log("run_start", 0, **AT)
        metrics.log("probe", 0, **AT, loss=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    code = "import sys, octlm.metrics; assert not {'torch', 'tensorboard'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


@pytest.mark.slow
def test_tensorboard_prints_nothing(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from octlm.metrics import Metrics\n"
        "m = Metrics(pathlib.Path(sys.argv[1]), None)\n"
        "m.log('train', 1, tokens=1, seconds=1.0, loss=2.0)\n"
        "m.close()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        capture_output=True, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
