"""On which machine, and in which quiet, is something measured?"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: no lock
    fcntl = None  # type: ignore[assignment]

from octlm.config import DataConfig, cache_directory

ROOT = Path(__file__).resolve().parent.parent.parent
MOST_LOAD = 0.15  # cores that others may keep busy
LISTEN = 1.0  # seconds


@contextlib.contextmanager
def the_only_one(loaded: bool = False) -> Iterator[dict[str, Any]]:
    """Hold the lock of measurements and give the machine's description; raises ValueError where it is not quiet."""
    path = cache_directory(DataConfig()) / "bench.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{path}: another measurement is running; wait for its end") from error
        load = other_load(LISTEN)
        if load > MOST_LOAD and not loaded:
            raise ValueError(f"others keep {load:.1f} cores busy, so figures would be of both: stop them, or --loaded")
        yield {**describe(), "other_load": round(load, 2)}


def other_load(seconds: float) -> float:
    """Count the cores that are busy while this process sleeps; without /proc, the load average of a minute."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    def busy() -> int:
        first = stat.read_text(encoding="ascii").split("\n")[0]  # cpu user nice ..., of all cores together
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, first.split()[1:])
        return user + nice + system + irq + softirq

    before, began = busy(), time.perf_counter()
    time.sleep(seconds)
    return (busy() - before) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - began)


def describe() -> dict[str, Any]:
    """Say what a figure holds for: processor, cores, release of torch, commit."""
    import torch  # takes seconds, and --help needs none of it

    from octlm.parallel import usable_cores

    return {
        "processor": _processor(), "cores": usable_cores(), "system": platform.system(),
        "torch": torch.__version__.split("+")[0], "commit": _commit(),
    }  # fmt: skip


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text(encoding="utf-8")) if cpuinfo.is_file() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _commit() -> str:
    """Name the commit, with -dirty where files differ from it; empty outside a checkout."""
    said = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with contextlib.suppress(OSError):
        return subprocess.run(said, capture_output=True, text=True).stdout.strip()
    return ""
