"""Memory and time of one attention forward pass: PyTorch's math backend against the fused one (EXP-014).

Each measurement has a process of its own: what an earlier one left to the allocator would hide what the next one takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octlm.files import replace

EXPERIMENT = "EXP-014"
RECORDS = Path("runs/day2-exp014-sdpa.jsonl")
BATCH, HEADS, HEAD_DIM = 1, 8, 32
BACKENDS, DTYPES, TOKENS = ("math", "fused"), ("fp32", "bf16"), (1024, 1536, 2048, 3072, 4096, 6144, 8192)
WARM_UP = 64  # tokens: loads the libraries and starts the threads
ROUNDS = 5  # timed, after the one whose memory is measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=RECORDS, help=f"default: {RECORDS}")


def measure(options: argparse.Namespace, machine: dict[str, Any]) -> None:
    """Measure every combination, print each, and write them all at the end."""
    from octlm.parallel import choose_threads  # takes torch, and --help needs none of it

    threads = choose_threads(None)
    shape = {"batch": BATCH, "n_heads": HEADS, "head_dim": HEAD_DIM, "causal": True, "threads": threads}
    records = []
    print(f"{'backend':8}{'dtype':6}{'tokens':>7}{'growth, MiB':>13}{'time, ms':>10}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        for backend, dtype, tokens in itertools.product(BACKENDS, DTYPES, TOKENS):
            figures = processes.apply(forward_pass, (backend, dtype, tokens, threads))
            point = {"backend": backend, "dtype": dtype, "tokens": tokens, **figures}
            records.append({"experiment": EXPERIMENT, **point, **shape, **machine})
            growth, seconds = point["growth_bytes"] / 2**20, point["seconds"] * 1e3
            print(f"{backend:8}{dtype:6}{tokens:7,}{growth:13,.1f}{seconds:10,.1f}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    replace(options.out, "".join(json.dumps(record) + "\n" for record in records).encode())
    print(f"{options.out}: {len(records)} records")


def forward_pass(backend: str, dtype: str, tokens: int, threads: int) -> dict[str, Any]:
    """Give peak growth of the resident memory in bytes (first pass) and time in seconds (median of ROUNDS more)."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(threads)
    kernel = {"math": SDPBackend.MATH, "fused": SDPBackend.FLASH_ATTENTION}[backend]
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]

    def attend(length: int) -> Callable[[], torch.Tensor]:
        torch.manual_seed(0)
        query, key, value = (torch.randn(BATCH, HEADS, length, HEAD_DIM).to(kind) for _ in range(3))
        return lambda: scaled_dot_product_attention(query, key, value, is_causal=True)

    with torch.inference_mode(), sdpa_kernel(kernel):
        attend(WARM_UP)()
        action = attend(tokens)
        growth = peak_growth(action)
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - began)
    return {"growth_bytes": growth, "seconds": statistics.median(seconds)}


def peak_growth(action: Callable[[], object]) -> int:
    """Call action; give by how many bytes resident memory was larger at its peak. Raises ValueError without /proc."""
    status = Path("/proc/self/status")
    if not status.is_file():
        raise ValueError("the peak of resident memory is read from /proc, which is not here: measure on Linux")

    def resident(field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", status.read_text(encoding="ascii"))
        assert found, field
        return int(found[1]) * 1024

    Path("/proc/self/clear_refs").write_bytes(b"5")  # the peak starts anew at what is resident now
    before = resident("VmRSS")
    action()
    return max(0, resident("VmHWM") - before)
