"""Texts and recipes that the tests of corpus and data share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octlm.config import Config, DataConfig, ModelConfig, TrainConfig
from octlm.corpus import Document, Source
from octlm.data import TokenFile


def texts(source: Source) -> list[str]:
    return ["".join(document) for document in source.documents()]


def of_documents(*documents: str) -> Source:
    def list_documents() -> Iterator[Document]:
        for text in documents:
            pieces = [text[i : i + 5] for i in range(0, len(text), 5)]
            yield iter(pieces)

    return Source("made", "none", list_documents, "made here")


def folder_of(path: Path, *documents: str | bytes) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(documents):
        (path / f"{number:03d}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def config(
    path: Path | None = None,
    cache: Path | None = None,
    *,
    length: int = 4,
    rows: int = 2,
    slices: int = 2,
    vocab_size: int = 512,
    seed: int = 0,
    overfit: bool = False,
    **data: Any,
) -> Config:
    """A recipe with `slices` slices of `rows` rows of `length` tokens a step."""
    return Config(
        model=ModelConfig(vocab_size=vocab_size, context_length=length),
        data=DataConfig(
            source="text",
            path=str(path or "/nowhere"),
            cache_dir=str(cache or "/nowhere"),
            **({"tokenizer": "byte"} | data),
        ),
        train=TrainConfig(
            tokens_per_step=length * rows * slices, micro_batch_size=rows, seed=seed, overfit_block=overfit
        ),
    )


def all_ids(file: TokenFile) -> list[int]:
    return file.read(0, len(file)).tolist()


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message
