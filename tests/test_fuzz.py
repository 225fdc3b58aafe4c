"""Whatever comes in is right or refused in one line: random masks, chunks and schedules, damage, full disks, races."""

import json
import math
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octlm.checkpoint import latest_checkpoint, read_checkpoint
from octlm.config import CONFIGS, SECTIONS, Config, ModelConfig, OptimConfig, load_config
from octlm.metrics import read_records
from octlm.model import Decoder
from octlm.model.masks import visibility
from octlm.optim import learning_rate
from tests.runs import comparable, run, tiny
from tests.test_resume import weights
from tests.variants import build, some_ids

ROOT = Path(__file__).parent.parent
LENGTH = 16


def refused_in_one_line(call: Callable[[], Any]) -> bool:
    """Call; say whether it was refused, as a person can mend it: ValueError or OSError, on one line."""
    try:
        call()
    except (ValueError, OSError) as error:
        assert str(error) and "\n" not in str(error), repr(error)
        return True
    return False


# ---- masks, caches, schedules


@settings(max_examples=200)
@given(data=st.data())
def test_any_mask_is_what_a_loop_says(data: st.DataObject) -> None:
    n_keys = data.draw(st.integers(1, 12))
    n_queries = data.draw(st.integers(1, n_keys))
    window, stride = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 5))
    positions = data.draw(st.lists(st.integers(-1, 14), min_size=n_keys, max_size=n_keys))
    documents = data.draw(st.lists(st.integers(0, 2), min_size=n_keys, max_size=n_keys))
    key, where = torch.tensor([positions]), torch.tensor([documents])
    late = slice(n_keys - n_queries, None)
    allowed = visibility(key[:, late], key, window, stride, where[:, late], where)[0, 0]
    for i in range(n_queries):
        me = n_keys - n_queries + i
        for j in range(n_keys):
            q, k = positions[me], positions[j]
            near = window == 0 or q - k < window or (stride > 0 and k % stride == 0)
            expected = j == me or (j < me and 0 <= k <= q and near and documents[me] == documents[j])
            assert bool(allowed[i, j]) == expected, (me, j)


MODELS: dict[tuple[Any, ...], Decoder] = {}


@settings(max_examples=60)
@given(
    st.sampled_from([0, 1, 3, 5, (4, 0)]), st.sampled_from([0, 2, 4]), st.sampled_from(["rope", "learned", "none"]),
    st.lists(st.integers(1, 6), max_size=12), st.integers(1, LENGTH - 1),
)  # fmt: skip
@torch.no_grad()
def test_any_chunks_and_any_way_back_give_the_full_logits(
    window: Any, stride: int, positions: str, chunks: list[int], kept: int
) -> None:
    section = {"vocab_size": 31, "context_length": LENGTH, "dim": 32, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2}
    section |= {"positions": positions, "window": window, "stride": stride}
    key = (window, stride, positions)
    model = MODELS.setdefault(key, build(section, torch.float64))
    ids = some_ids(2, LENGTH)
    full, cache = model(ids), model.new_cache(2, LENGTH)
    sizes = [*chunks, LENGTH]
    while cache.length < LENGTH:
        begin = cache.length
        size = min(sizes.pop(0), LENGTH - begin)
        torch.testing.assert_close(model(ids[:, begin : begin + size], cache), full[:, begin : begin + size])
    try:
        cache.truncate(kept)
    except ValueError:  # what would come back was evicted: then nothing has changed
        assert cache.length == LENGTH
    else:
        torch.testing.assert_close(model(ids[:, kept:], cache), full[:, kept:])


@settings(max_examples=300)
@given(
    st.sampled_from(["cosine", "linear", "wsd", "constant"]), st.floats(1e-6, 10), st.floats(0, 1),
    st.integers(0, 30), st.integers(1, 40), st.floats(0.01, 1),
)  # fmt: skip
def test_any_schedule_starts_above_zero_and_stays_within_its_rates(
    schedule: str, rate: float, share: float, warmup: int, steps: int, decay: float
) -> None:
    optim = OptimConfig(
        schedule=schedule, learning_rate=rate, min_learning_rate=rate * share, warmup_steps=warmup, decay_fraction=decay
    )
    rates = [learning_rate(step, optim, steps) for step in range(steps + 5)]
    assert all(math.isfinite(r) and 0 <= r <= rate * (1 + 1e-12) for r in rates)
    assert rates[0] > 0 or share == 0
    warm, cold = rates[: min(warmup, steps)], rates[warmup:]
    assert warm == sorted(warm) and cold == sorted(cold, reverse=True)


# ---- recipes


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_damaged_recipe_is_read_or_refused_in_one_line(tmp_path_factory: Any, draw: random.Random) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(damaged((CONFIGS / "base.yaml").read_bytes(), draw))
    refused_in_one_line(lambda: load_config(path))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Cut, change, double or insert at a few places."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        more = draw.choice(
            [b"\0", b"\t", b": ", b"- ", b"{", b"]", b"\xff", b"&a ", b"*a", b"!!x ", b"'", b'"', b"%", b"#"]
        )
        end = min(len(data), at + draw.randint(1, 30))
        data = draw.choice([data[:at], data[:at] + more + data[at:], data[:at] + data[end:], data[:end] + data[at:]])
    return data


KEYS = [f"{section}.{key}" for section, schema in SECTIONS.items() for key in schema.model_fields]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*KEYS, "model", "x.y", ""]),
    st.one_of(st.text(max_size=12), st.floats().map(str), st.integers().map(str)),
)
def test_any_override_is_taken_or_refused_in_one_line(key: str, value: str) -> None:
    refused_in_one_line(lambda: load_config("base", [f"{key}={value}"]))


# ---- files of a run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], str]:
    """A finished tiny run: its folder, its records and the hash of its last weights."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(tiny(folder), folder / "run"), weights(folder / "run")


@settings(max_examples=120, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_damaged_checkpoint_is_refused_in_one_line(
    finished: tuple[Path, list[dict[str, Any]], str], draw: random.Random
) -> None:
    latest = latest_checkpoint(finished[0] / "run")
    assert latest is not None
    copy = finished[0] / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(latest, copy)
    path = draw.choice(sorted(copy.iterdir()))
    before = path.read_bytes()
    path.write_bytes(damaged(before, draw))
    if path.read_bytes() != before:
        assert refused_in_one_line(lambda: read_checkpoint(copy)), path.name


@settings(max_examples=120, deadline=None)
@given(st.randoms(use_true_random=False))
def test_damaged_records_are_read_or_refused_in_one_line(
    finished: tuple[Path, list[dict[str, Any]], str], draw: random.Random
) -> None:
    copy = finished[0] / "records"
    copy.mkdir(exist_ok=True)
    (copy / "metrics.jsonl").write_bytes(damaged((finished[0] / "run" / "metrics.jsonl").read_bytes(), draw))
    refused_in_one_line(lambda: read_records(copy))


def test_a_clock_that_jumps_changes_no_record(
    finished: tuple[Path, list[dict[str, Any]], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: jumps.uniform(0, 4e9))
    records = run(tiny(finished[0]), tmp_path / "run")
    assert comparable(records) == comparable(finished[1]) and weights(tmp_path / "run") == finished[2]
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds) and seconds[-1] < 600


def command(config: Config, run_dir: Path, limit: int | None = None) -> "subprocess.Popen[str]":
    """Train by the real command, with at most `limit` bytes in any file."""
    recipe = run_dir.with_suffix(".yaml")
    recipe.write_text(config.to_yaml(), encoding="utf-8")
    words = [sys.executable, str(ROOT / "train.py"), "--config", str(recipe), "--run-dir", str(run_dir)]
    small = None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=small)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [500, 2_000, 4_000, 9_000, 60_000, 120_000, 250_000])
def test_a_full_disk_anywhere_is_one_line_and_loses_nothing(
    limit: int, finished: tuple[Path, list[dict[str, Any]], str], tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk: whichever write fails first names its file."""
    process = command(tiny(finished[0]), tmp_path / "run", limit)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1 and errors.count("\n") == 1 and str(tmp_path) in errors, errors
    assert "File too large" in errors
    process = command(tiny(finished[0]), tmp_path / "run")
    assert process.communicate(timeout=120)[1] == "" and process.returncode == 0
    assert weights(tmp_path / "run") == finished[2]
    assert comparable(read_records(tmp_path / "run")) == comparable(finished[1])


@pytest.mark.slow
def test_of_two_processes_in_one_directory_one_trains(
    finished: tuple[Path, list[dict[str, Any]], str], tmp_path: Path
) -> None:
    config = tiny(finished[0], "train.steps=300", "train.eval_every=0", "train.sample_every=0")
    pair = [command(config, tmp_path / "run") for _ in range(2)]
    errors = [process.communicate(timeout=240)[1] for process in pair]
    assert sorted(process.returncode for process in pair) == [0, 2], errors
    (message,) = filter(None, errors)
    assert "another process is training here" in message and message.count("\n") == 1
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] == 300


def test_the_smallest_models_work() -> None:
    for section in ({"dim": 1, "n_heads": 1}, {"dim": 2, "n_heads": 1, "positions": "rope"}, {"n_layers": 0}):
        model = Decoder(ModelConfig(**{"vocab_size": 1, "context_length": 1, "dim": 4, "n_heads": 2, **section}))
        assert model(torch.zeros(1, 1, dtype=torch.int64)).shape == (1, 1, 1)
