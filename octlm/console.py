"""What does a person see of a training, and how do they stop it?"""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from tqdm import tqdm

from octlm.metrics import Record

SIGPIPE = 13  # Windows has no name for it


class StopSignal:
    """Remember a SIGINT or SIGTERM instead of dying of it; a second one kills as usual."""

    def __init__(self) -> None:
        self.signal = 0
        self.before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.signal != 0

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.remember) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Note the signal, and give the next one its old effect."""
        self.signal = number
        self.restore()

    def restore(self) -> None:
        """Put the former handlers back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


class Clock:
    """Seconds of the run, over all its resumes, and the speed of its updates alone."""

    def __init__(self, earlier: float) -> None:
        self.begun = time.perf_counter() - earlier
        self.step_begun = self.training = 0.0
        self.steps = 0

    def seconds(self) -> float:
        """Give the seconds since the run began, those between two sessions left out."""
        return time.perf_counter() - self.begun

    def start(self) -> None:
        """Begin an update."""
        self.step_begun = time.perf_counter()

    def stop(self) -> None:
        """End an update."""
        self.training += time.perf_counter() - self.step_begun
        self.steps += 1

    def rate(self, tokens_per_step: int) -> float:
        """Give the tokens per second since the last call."""
        speed = self.steps * tokens_per_step / max(self.training, 1e-9)
        self.steps, self.training = 0, 0.0
        return speed


class Console:
    """What a person sees: a bar on a terminal, else plain lines, at most two for each logged step."""

    COLUMNS = (
        ("train", "loss", "loss {:.4f}"),
        ("eval", "loss", "val loss {:.4f}"),
        ("eval", "bits_per_byte", "bits/byte {:.4f}"),
        ("eval", "oracle_bits_per_byte", "floor {:.4f}"),
        ("eval", "excess_bits_per_byte", "excess {:+.4f}"),
        ("train", "learning_rate", "lr {:.2e}"),
        ("train", "gradient_norm", "norm {:.3f}"),
        ("train", "tokens_per_second", "{:,.0f} tokens/s"),
    )

    def __init__(self, steps: int, step: int, stop: StopSignal) -> None:
        self.steps, self.stop = steps, stop
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self.bar = tqdm(total=steps, initial=step, unit="step", disable=not terminal, dynamic_ncols=True)

    def __enter__(self) -> "Console":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one; a reader that has gone stops the run, which is saved first."""
        try:
            tqdm.write(text) if not self.bar.disable else print(text, flush=True)
        except BrokenPipeError:
            self.stop.signal = SIGPIPE

    def report(self, step: int, records: Sequence[Record]) -> None:
        """Print one step's figures, if there are any."""
        found = {record["kind"]: record for record in records}
        figures = [
            form.format(found[kind][key])
            for kind, key, form in self.COLUMNS
            if found.get(kind, {}).get(key) is not None
        ]
        if (found.get("eval", {}).get("excess_bits_per_byte") or 0) < 0:
            figures.append("BELOW THE FLOOR: does it see the answer? scripts/audit.py --only floor tells")
        if figures:
            self.say("  ".join([f"step {step}/{self.steps}", *figures]))

    def show(self, text: str) -> None:
        """Print a sample: as it is on a terminal, else escaped on one line."""
        self.say(f"sample:\n{text}" if not self.bar.disable else f"sample: {text!a}")

    def advance(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(step - self.bar.n)
