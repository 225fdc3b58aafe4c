"""The device, the threads and the precision are those asked for, or refused in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from octlm.config import load_config
from octlm.parallel import choose_device, choose_precision, choose_threads, refuse_several_processes, usable_cores
from tests.runs import run, tiny

ROOT = Path(__file__).parent.parent


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


# Without the variables that a launcher or a careful user sets: the process finds out for itself.
BARE = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}


def on_one_core(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command as `taskset -c` does: on one of the cores that this process may use."""
    pinned = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); os.execv(sys.argv[2], sys.argv[2:])"
    core = str(min(os.sched_getaffinity(0)))
    return subprocess.run(
        [sys.executable, "-c", pinned, core, *command],
        cwd=ROOT, env=BARE | variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")


@LINUX
def test_j3_a_process_held_to_one_core_takes_one_thread() -> None:
    ask = "from octlm.parallel import choose_threads as c; import os; print(c(None), os.environ.get('OMP_NUM_THREADS'))"
    done = on_one_core(sys.executable, "-c", f"{ask}; os.environ['OMP_NUM_THREADS'] = '3'; print(c(None), c(2))")
    assert (done.stdout, done.stderr) == ("1 None\n3 2\n", "")


@pytest.mark.slow
@LINUX
def test_g5_j3_a_plain_run_needs_no_environment_and_prints_its_threads(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.threads=null", "train.steps=1")
    (tmp_path / "tiny.yaml").write_text(config.to_yaml(), encoding="utf-8")
    command = [sys.executable, "train.py", "--config", str(tmp_path / "tiny.yaml")]
    done = on_one_core(*command, "--run-dir", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "; cpu, float32, 1 threads, from step 0" in done.stdout
    assert json.loads((tmp_path / "run" / "env.json").read_text(encoding="utf-8"))["threads"] == 1


@pytest.mark.parametrize("name", ["LOCAL_RANK", "RANK", "MASTER_ADDR"])
def test_g5_a_variable_that_a_launcher_left_does_no_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    refuse_several_processes()


@pytest.mark.parametrize("size", ["2", "64", "0", "", "two"])
def test_g1_several_processes_are_refused_in_one_line(
    size: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They would train one model each and write it over the others'."""
    config = tiny(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ValueError, match=rf"^train\.strategy: single, but WORLD_SIZE is {size}: start one process"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"train\.strategy=ddp: must be 'single'"):
        load_config("base", ["train.strategy=ddp"])
