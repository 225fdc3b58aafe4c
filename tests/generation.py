"""The command line generate.py in this process, and a run for it: fixtures of the tests that use them."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import generate
from octlm import checkpoint
from octlm.command import run
from octlm.config import Config, DataConfig, ModelConfig, SampleConfig, TrainConfig
from octlm.model import Decoder
from octlm.tokenizer import Tokenizer, build_tokenizer

ROOT = Path(generate.__file__).parent
CONTEXT = 48


class Result(NamedTuple):
    code: int
    out: bytes
    err: str


Call = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Call]:
    """Run the command line in this process, through the table of exit codes."""

    def invoke(*argv: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["generate.py", *map(str, argv)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(generate.main)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(int(ended.value.code or 0), out, err.decode("utf-8"))

    before = signal.getsignal(signal.SIGTERM)
    yield invoke
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build_tokenizer("byte", list, 260, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Tokenizer) -> Path:
    """A run of an untrained byte model whose vocabulary is three larger than its tokenizer's."""
    torch.manual_seed(0)
    config = Config(
        model=ModelConfig(vocab_size=260, context_length=CONTEXT, dim=32, n_heads=4),
        data=DataConfig(tokenizer="byte"),
        train=TrainConfig(tokens_per_step=CONTEXT, micro_batch_size=1),
        sample=SampleConfig(prompt="def ", max_new_tokens=12, temperature=0.5, top_k=5, top_p=0.9),
    )
    model = Decoder(config.model)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.head.weight.data[257:] += 1.0  # ids without a token would be drawn if they could be
    path = tmp_path_factory.mktemp("runs") / "day0"
    checkpoint.save_checkpoint(
        path,
        1,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        state={},
        config=config,
        tokenizer=byte_tokenizer,
    )
    return path


def json_lines(result: Result) -> list[dict[str, Any]]:
    assert result.code == 0, result.err
    assert result.out.isascii()
    return [json.loads(line) for line in result.out.splitlines()]


def refused(result: Result, *words: str) -> None:
    assert result.code == 2, result
    assert result.err.count("\n") == 1 and result.err.endswith("\n"), result.err
    assert result.err.startswith("generate.py: error: ")
    assert all(word in result.err for word in words), result.err
    assert result.out == b""
