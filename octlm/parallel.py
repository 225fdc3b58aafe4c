"""On what does this process compute: which device, how many threads, in which precision?

The only module that reads the process's surroundings (affinity, control group, environment); several processes are
for later, so a launch with more than one is refused rather than run as copies that overwrite each other.
"""

import contextlib
import math
import os
from pathlib import Path

import torch


def refuse_several_processes() -> None:
    """Raise ValueError where a launcher started more than this process."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1":
        raise ValueError(f"train.strategy: single, but WORLD_SIZE is {world_size}: start one process, without torchrun")


def choose_device(name: str) -> torch.device:
    """Give the device of this name; auto takes cuda, mps, cpu in this order.

    Raises ValueError for a name that torch does not know or a device that is not here.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, here in available.items() if here))
    kind = name.split(":")[0]
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"train.device: {name!r}: use auto, cpu, cuda, cuda:N or mps") from error
    if not available.get(kind, False) or (kind == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"train.device: {name} is not available here; use auto or cpu")
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Give the dtype that the matrix multiplications run in; auto is bf16 where a GPU has it, else fp32."""
    table = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return table.get(name, torch.bfloat16 if fast else torch.float32)


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    """Run the block's matrix multiplications in dtype; weights stay fp32."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def choose_threads(asked: int | None) -> int:
    """Give the number of CPU threads: what is asked, else OMP_NUM_THREADS, else the cores this process may use.

    torch counts all cores of the host; a container's share is what affinity and the control group's quota leave.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return asked or (int(wanted) if wanted.isdigit() and int(wanted) > 0 else usable_cores())


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Count the cores that affinity and the control group's quota allow, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no quota
        quota, period = quota_file.read_text(encoding="utf-8").split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores
