"""Where does a run live, and may this config go on with what is there?

    runs/<name>/{config.yaml, env.json, metrics.jsonl, TensorBoard files, checkpoints/, samples/}

One process at a time holds the directory, by a lock that the system releases when the process dies.
"""

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from octlm.checkpoint import TEMPORARY_NAME, Checkpoint, clean, latest_checkpoint, read_checkpoint, step_name
from octlm.config import RESUMABLE, Config, differing_keys
from octlm.files import replace

try:
    import fcntl
except ImportError:  # Windows: two processes in one directory are the user's to avoid
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def open_run(run_dir: Path, config: Config, resume: str) -> Iterator[Checkpoint | None]:
    """Hold a run directory, made if need be, and give the checkpoint to go on from; None starts at step 0.

    resume is auto (go on with an unfinished run of the same config), never (a new or empty directory), or the path
    of a checkpoint. Raises ValueError for a directory that is not such a run, and names the keys that differ.
    """
    source = choose_start(run_dir, resume)
    checkpoint = read_checkpoint(source) if source else None
    if checkpoint is not None:
        refuse_difference(config, checkpoint.config, checkpoint.path)
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / LOCK, "wb") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{run_dir}: another process is training here") from error
        clean(run_dir)
        replace(run_dir / "config.yaml", config.to_yaml().encode())
        yield adopt(run_dir, checkpoint) if checkpoint else None


def adopt(run_dir: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Give the run a copy of a checkpoint that lies elsewhere, so that latest and best can name it."""
    path = run_dir / "checkpoints" / step_name(checkpoint.step)
    if path.exists():
        return checkpoint
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    shutil.copytree(checkpoint.path, temporary)
    temporary.rename(path)
    return read_checkpoint(path)


def choose_start(run_dir: Path, resume: str) -> Path | None:
    """Choose the checkpoint directory that open_run goes on from, without changing anything."""
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"{run_dir}: not a directory")
    if not str(run_dir).isprintable():  # TensorBoard writes the name as UTF-8
        raise ValueError(f"{str(run_dir)!a}: --run-dir is not printable text in UTF-8")
    found = [p.name for p in run_dir.iterdir()] if run_dir.exists() else []
    present = [name for name in found if name != LOCK and not TEMPORARY_NAME.fullmatch(name)]  # not what a kill left
    latest = latest_checkpoint(run_dir) if present else None
    if resume not in ("auto", "never"):
        source = read_checkpoint(Path(resume)).path  # a wrong path is told first
        if present and (latest is None or latest.resolve() != source.resolve()):
            own = source.resolve().parent == (run_dir / "checkpoints").resolve()
            held = f"its latest checkpoint is {latest}" if own else "holds another run"
            raise ValueError(f"{run_dir}: {held}; give --run-dir a new directory to go on from {source}")
        return source
    if present and resume == "never":
        raise ValueError(f"{run_dir}: not empty; give --run-dir a new directory, or use --resume auto")
    if present and "config.yaml" not in present:
        raise ValueError(f"{run_dir}: not empty and not a run (no config.yaml); give --run-dir a new directory")
    if latest is None and any((run_dir / "checkpoints").glob("step-*")):
        raise ValueError(f"{run_dir / 'checkpoints'}: no checkpoint is complete; remove them, or use a new --run-dir")
    return latest  # a run without a checkpoint has nothing to lose: it starts over, with any config


def refuse_difference(config: Config, earlier: Config, path: Path) -> None:
    """Raise ValueError where the config differs from the earlier one in more than the length and the cadences."""
    keys = [key for key in differing_keys(config, earlier) if key not in RESUMABLE]
    if keys:
        raise ValueError(f"{path}: was started with another {', '.join(keys)}; use the same, or a new --run-dir")


def write_environment(run_dir: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Record what the run computes on, in env.json."""
    facts = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
    replace(run_dir / "env.json", (json.dumps(facts, indent=2) + "\n").encode())
