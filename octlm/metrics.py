"""What happened in a run, step by step?

`metrics.jsonl` holds one object a line: `kind`, `step`, `tokens` (trained on so far), `seconds` (of the run
so far) and the fields of the kind. TensorBoard is a second sink for the same dict, through the table TAGS.
A number that is not finite is null in the file, since JSON has no NaN, and is left out of TensorBoard.

A resumed run goes on as if nothing had come after its checkpoint: later lines are cut, and TensorBoard's
reader is told to drop later events.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octlm.files import naming, replace

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FILE = "metrics.jsonl"
KINDS = ("run_start", "train", "eval", "sample", "audit", "probe", "checkpoint", "run_end")
NUMBER = (float, int, type(None))  # None: not finite
NEEDED: dict[str, dict[str, tuple[type, ...]]] = {  # fields that a resumed run reads
    "train": dict.fromkeys(("loss", "learning_rate", "gradient_norm", "tokens_per_second"), NUMBER),
    "eval": dict.fromkeys(("loss", "bits_per_byte"), NUMBER),
    "run_end": {"reason": (str,)},
}
FIELDS = {"kind", "step", "tokens", "seconds"}  # of every record

# (kind, field) -> TensorBoard tag; a string goes to the text page, a number to a curve
TAGS = {
    ("train", "loss"): "train/loss",
    ("train", "learning_rate"): "train/learning_rate",
    ("train", "gradient_norm"): "train/gradient_norm",
    ("train", "tokens_per_second"): "train/tokens_per_second",
    ("eval", "loss"): "eval/loss",
    ("eval", "bits_per_byte"): "eval/bits_per_byte",
    ("eval", "oracle_bits_per_byte"): "eval/oracle_bits_per_byte",
    ("eval", "excess_bits_per_byte"): "eval/excess_bits_per_byte",
    ("sample", "text"): "sample",
}

CHART = ("eval/bits_per_byte", "eval/oracle_bits_per_byte")  # one chart of both: the floor is the level line

Record = dict[str, Any]


class Metrics:
    """The records of the run in `run_dir`, an existing directory.

    `resume_step` is the step of the checkpoint to go on from: lines past it are cut; None cuts all of them.
    Raises ValueError for a damaged metrics.jsonl; a last line torn by a kill is dropped.
    """

    records: list[Record]  # what is in the file, in its order

    def __init__(self, run_dir: Path, resume_step: int | None) -> None:
        self._run_dir = Path(run_dir)
        self._purge_step = 0 if resume_step is None else resume_step + 1
        self.records = [record for record in read_records(run_dir) if record["step"] < self._purge_step]
        path = self._run_dir / FILE
        if path.exists():
            replace(path, "".join(map(_line, self.records)).encode(errors="backslashreplace"))
        self._file = open(path, "a", encoding="utf-8", errors="backslashreplace", newline="")  # noqa: SIM115
        self._writer: SummaryWriter | None = None

    def log(self, kind: str, step: int, **fields: Any) -> None:
        """Append one record and flush it; `tokens` and `seconds` are among the fields.

        Values are plain numbers, strings, lists and dicts. A tensor is refused: one that is stored keeps its
        whole autograd graph alive.
        """
        assert kind in KINDS and type(step) is int and step >= 0, (kind, step)
        record = {"kind": kind, "step": step}
        record |= {name: _plain(value, f"{kind}.{name}") for name, value in fields.items()}
        assert record.keys() >= FIELDS, f"{kind}: no {FIELDS - record.keys()}"
        with naming(self._run_dir / FILE):
            self._file.write(_line(record))
            self._file.flush()
        charted = any("oracle_bits_per_byte" in earlier for earlier in self.records)
        self.records.append(record)
        tagged = {TAGS[kind, name]: value for name, value in record.items() if (kind, name) in TAGS}
        with naming(self._run_dir):
            if CHART[1] in tagged and not charted:
                self._tensorboard().add_custom_scalars_multilinechart(list(CHART), "eval", "bits_per_byte")
            for tag, value in tagged.items():
                if isinstance(value, str):
                    # Four blanks make a line of Markdown literal: underscores and line ends of code stay.
                    self._tensorboard().add_text(tag, "    " + value.replace("\n", "\n    "), step)
                elif value is not None:
                    self._tensorboard().add_scalar(tag, value, step)
            if tagged:
                self._tensorboard().flush()  # else a kill loses two minutes of curves

    def image(self, tag: str, step: int, picture: Any) -> None:
        """Show an array (height, width) or (height, width, 3), uint8 or 0..1 in floats; TensorBoard only."""
        layout = {2: "HW", 3: "HWC"}[picture.ndim]
        with naming(self._run_dir):
            self._tensorboard().add_image(tag, picture, step, dataformats=layout)
            self._tensorboard().flush()

    def recorded(self, kind: str, step: int) -> bool:
        """Tell whether there is a record of this kind at this step."""
        return any(record["kind"] == kind and record["step"] == step for record in self.records)

    def close(self) -> None:
        """Close both sinks."""
        with naming(self._run_dir / FILE):
            self._file.close()
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _tensorboard(self) -> SummaryWriter:
        """Open the event file at the first use: the import takes as long as a small model's first steps."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            earlier = sorted(self._run_dir.glob("events.out.tfevents.[0-9]*"))
            for path in earlier:
                _cut_events(path, self._purge_step)
            _wait_for_a_later_name(earlier)
            self._writer = SummaryWriter(str(self._run_dir), purge_step=self._purge_step)
        return self._writer


def read_records(run_dir: Path) -> list[Record]:
    """Read `metrics.jsonl`, none if there is no such file; a torn last line is left out.

    Raises ValueError that names file and line for anything else that is not a record.
    """
    path = Path(run_dir) / FILE
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line.decode())
            json.dumps(record, allow_nan=False)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # without its line end: torn, or nothing
                break
            raise ValueError(f"{path}:{number}: not a line of strict JSON") from error
        if not (isinstance(record, dict) and record.keys() >= FIELDS and record["kind"] in KINDS):
            raise ValueError(f"{path}:{number}: not a record with kind, step, tokens and seconds")
        if not all(type(record[name]) in (int, float) for name in FIELDS - {"kind"}):
            raise ValueError(f"{path}:{number}: step, tokens or seconds is not a number")
        if wrong := [
            name for name, kinds in NEEDED.get(record["kind"], {}).items() if type(record.get(name)) not in kinds
        ]:
            raise ValueError(f"{path}:{number}: no {wrong[0]}, or not of its kind")
        records.append(record)
    return records


def _plain(value: Any, name: str) -> Any:
    """Return `value` as strict JSON has it."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    assert value is None or isinstance(value, bool | int | str), f"{name}: a {type(value).__name__}"
    return value


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _cut_events(path: Path, purge_step: int) -> None:
    """Drop the summaries from `purge_step` on: TensorBoard's reader, told to, drops all of them but text."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader  # type: ignore[import-untyped]
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    found = [(data, Event.FromString(data)) for data in RawEventFileLoader(str(path)).Load()]
    kept = [data for data, event in found if event.step < purge_step or not event.HasField("summary")]
    if len(kept) < len(found):
        temporary = path.with_name(".events.tmp")  # a name with `tfevents` in it would be read
        with open(temporary, "wb") as file:
            writer = RecordWriter(file)
            for data in kept:
                writer.write(data)
        temporary.replace(path)


def _wait_for_a_later_name(earlier: Sequence[Path]) -> None:
    """Let the second pass in which the last of the event files was opened.

    TensorBoard reads event files in the order of their names, which start with that second. Another file of
    the same second could come first.
    """
    opened = [int(second) for path in earlier if (second := path.name.split(".")[3]).isdigit()]
    wait = max(opened, default=0) + 1 - time.time()
    time.sleep(min(max(wait, 0), 1))  # a name from the future is a clock that was set back: no wait mends it
