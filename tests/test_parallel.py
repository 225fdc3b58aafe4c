"""The device, the threads and the precision are those asked for, or refused in one line."""

import os
from pathlib import Path

import pytest
import torch

from octlm.parallel import choose_device, choose_precision, choose_threads, usable_cores


def test_device_auto_is_there_and_others_are_refused() -> None:
    assert choose_device("auto").type in ("cuda", "mps", "cpu")
    assert choose_device("cpu").type == "cpu"
    for name in ("tpu", "cuda:x", "meta", "cuda:99"):
        with pytest.raises(ValueError, match=r"train\.device"):
            choose_device(name)


def test_precision_auto_is_fp32_on_a_cpu() -> None:
    cpu = torch.device("cpu")
    assert choose_precision("auto", cpu) == choose_precision("fp32", cpu) == torch.float32
    assert choose_precision("bf16", cpu) == torch.bfloat16


def test_j3_threads_respect_affinity_quota_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cores(quota) == 8
    for text, cores in (
        ("max 100000", 8),
        ("150000 100000", 2),
        ("5000 100000", 1),
        ("3200000 100000", 8),
        ("junk", 8),
    ):
        quota.write_text(text)
        assert usable_cores(quota) == cores
    assert choose_threads(3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert choose_threads(None) == 5 and choose_threads(2) == 2
    for useless in ("0", "", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", useless)
        assert choose_threads(None) == usable_cores()
