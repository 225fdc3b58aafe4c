"""Rows depend on (seed, step, slice) alone; each window is seen once an epoch, each held-out token once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octlm import data as data_module
from octlm.config import DataConfig
from octlm.data import Batch, Dataset, TokenFile, document_layout, permutation, prepare
from octlm.tokenizer import build_tokenizer
from tests.corpora import all_ids, config, folder_of
from tests.variants import build

Folder = Callable[..., Path]


def write_dataset(folder: Path, train: list[int], val: list[int], shard_tokens: int = 5) -> Path:
    """Write token files as they stand in the cache, from ids, with the byte tokenizer."""
    tokenizer = build_tokenizer("byte", list, 512, folder)
    tokenizer.save(folder / "tokenizer.json")
    splits = {
        name: {
            "shards": write_shards(folder, name, ids, shard_tokens),
            "bytes": sum(i < 256 for i in ids),
            "highest_id": max(ids),
        }
        for name, ids in (("train", train), ("val", val))
    }
    manifest = {"dtype": "uint16", "splits": splits, "tokenizer": {"name": "byte", "size": tokenizer.size}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def write_shards(folder: Path, name: str, ids: list[int], shard_tokens: int) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = []
    for start in range(0, len(ids), shard_tokens):
        part = ids[start : start + shard_tokens]
        shards.append({"file": f"{name}-{len(shards)}.bin", "tokens": len(part)})
        np.array(part, "<u2").tofile(folder / shards[-1]["file"])
    return shards


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Give a data set's folder for two lists of ids."""

    def make(train: list[int], val: list[int] | None = None, **more: int) -> Path:
        return write_dataset(tmp_path_factory.mktemp("tokens"), train, val or [1] * 64, **more)

    return make


def windows_of(batch: Batch, length: int) -> list[int]:
    """Say which windows a batch of tokens 0, 1, 2, ... holds."""
    ids, targets = batch.ids, batch.targets
    assert ids.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, ids + 1)  # exactly one shift
    assert torch.equal(ids - ids[:, :1], torch.arange(length).expand_as(ids))
    assert not (ids[:, 0] % length).any()
    return (ids[:, 0] // length).tolist()


def same(a: Batch, b: Batch) -> bool:
    return all(x is y or torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ---- batch(step, slice)


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 90))
def test_every_window_is_seen_once_an_epoch(
    tokens: Folder, length: int, rows: int, slices: int, seed: int, more: int
) -> None:
    n = length + 1 + more
    asked = config(length=length, rows=rows, slices=slices, seed=seed)
    dataset = Dataset(tokens(list(range(n))), asked, "here")
    windows = dataset.windows
    assert windows == (n - 1) // length
    steps = -(-3 * windows // (rows * slices))  # at least three epochs, and the borders between them
    seen = []
    for step in range(steps):
        assert dataset.epoch(step) == len(seen) // windows
        for slice in range(slices):
            seen += windows_of(dataset.batch(step, slice), length)
    for epoch in range(len(seen) // windows):
        assert sorted(seen[epoch * windows : (epoch + 1) * windows]) == list(range(windows))


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(0, 2**40), st.integers(30, 200))
def test_a_step_holds_the_same_rows_however_it_is_sliced(tokens: Folder, step: int, seed: int, n: int) -> None:
    folder = tokens(list(range(n)))
    steps = []
    for rows in (1, 2, 3, 4, 6, 12):
        dataset = Dataset(folder, config(rows=rows, slices=12 // rows, seed=seed), "here")
        steps.append(torch.cat([dataset.batch(step, slice).ids for slice in range(12 // rows)]))
    assert all(torch.equal(steps[0], other) for other in steps)


def test_a_batch_depends_on_its_arguments_alone(tokens: Folder) -> None:
    folder = tokens(list(range(400)))
    first, second = Dataset(folder, config(), "here"), Dataset(folder, config(), "here")
    forward = {(step, slice): first.batch(step, slice) for step in range(60) for slice in range(2)}
    for step, slice in sorted(forward, reverse=True):
        assert same(second.batch(step, slice), forward[step, slice])
    other = Dataset(folder, config(seed=1), "here")
    assert not all(same(other.batch(*key), batch) for key, batch in forward.items())
    assert first.epoch(0) == 0
    assert first.epoch(59) == 2  # 99 windows, 4 rows a step
    orders = [permutation(0, epoch, 99).tolist() for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_the_permutation_never_changes() -> None:
    """A resumed run, perhaps with another numpy, must see the same rows: so these are numbers."""
    assert permutation(0, 0, 8).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert permutation(7, 3, 8).tolist() == [7, 1, 6, 0, 4, 2, 3, 5]


def test_the_permutation_is_computed_once_an_epoch(tokens: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(seed: int, epoch: int, n: int) -> Any:
        calls.append(epoch)
        return permutation(seed, epoch, n)

    monkeypatch.setattr(data_module, "permutation", counted)
    dataset = Dataset(tokens(list(range(42))), config(), "here")  # 10 windows, 4 rows a step: steps cross epochs
    for step in range(10):
        dataset.batch(step, 0)
        dataset.batch(step, 1)
    assert calls == [0, 1, 2, 3]


def test_overfit_block_serves_the_first_window_only(tokens: Folder) -> None:
    dataset = Dataset(tokens(list(range(400))), config(overfit=True), "here")
    for step in (0, 1, 77):
        assert windows_of(dataset.batch(step, 1), 4) == [0, 0]


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_reading_across_shard_borders_is_slicing(
    tmp_path_factory: pytest.TempPathFactory, n: int, shard_tokens: int, draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    ids = [(37 * i + 11) % 257 for i in range(n)]
    file = TokenFile(folder, write_shards(folder, "x", ids, shard_tokens), "uint16")
    start = draw.draw(st.integers(0, n - 1))
    count = draw.draw(st.integers(1, n - start))
    assert len(file) == n
    assert file.read(start, count).tolist() == ids[start : start + count]


# ---- validation


@settings(max_examples=40)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 60))
def test_validation_scores_every_token_exactly_once(tokens: Folder, length: int, rows: int, more: int) -> None:
    ids = [i % 257 for i in range(3, 3 + length + more)]
    dataset = Dataset(tokens(list(range(20)), ids), config(length=length, rows=1, slices=1), "here")
    batches = list(dataset.validation(rows))
    assert all(batch.ids.shape == batch.targets.shape and len(batch.ids) <= rows for batch in batches)
    x, y = (torch.cat([batch[i] for batch in batches]).flatten() for i in (0, 1))
    assert y[y >= 0].tolist() == ids
    assert y[: len(ids)].tolist() == ids  # the tail is padding only
    assert x[: len(ids)].tolist() == [256, *ids[:-1]]  # EOT stands before the first
    assert len(y) - len(ids) < length
    assert dataset.val_bytes == dataset.tokenizer.byte_lengths()[ids].sum() == sum(i < 256 for i in ids)
    assert all(same(a, b) for a, b in zip(batches, dataset.validation(rows), strict=True))


def padding_alone_is_no_target(folder: Path) -> None:
    dataset = Dataset(folder, config(length=4), "here")
    (batch,) = dataset.validation(8)
    assert batch.ids.tolist() == [[256, 5, 6, 256], [7, 256, 256, 256]]
    assert batch.targets.tolist() == [[5, 6, 256, 7], [256, -1, -1, -1]]


def test_d7_a_real_end_of_text_is_a_target_and_padding_is_not(tokens: Folder) -> None:
    padding_alone_is_no_target(tokens(list(range(20)), [5, 6, 256, 7, 256]))
    dataset = Dataset(tokens([5, 6, 256] * 20), config(length=5, isolate_documents=True), "here")
    for batch in (dataset.batch(0, 0), dataset.batch(3, 1)):  # training has no padding: every end is a target
        assert (batch.targets == 256).any() and batch.targets.min() >= 0
        assert torch.equal(batch.targets[:, :-1], batch.ids[:, 1:])


def test_d7_mutant_masking_by_value(tokens: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Dataset._batch

    def by_value(self: Dataset, ids: Any, targets: Any) -> Batch:
        return right(self, ids, np.where(targets == self.tokenizer.eot_id, -1, targets))

    monkeypatch.setattr(Dataset, "_batch", by_value)
    with pytest.raises(AssertionError):
        padding_alone_is_no_target(tokens(list(range(20)), [5, 6, 256, 7, 256]))


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_d7_prepared_data_has_one_end_of_text_a_document(tmp_path: Path, tokenizer: str) -> None:
    documents = [f"document {i}\n" * (1 + i % 3) for i in range(20)]
    asked = config(folder_of(tmp_path / "text", *documents), tmp_path / "cache", length=8, tokenizer=tokenizer)
    dataset = prepare(asked)
    eot = dataset.tokenizer.eot_id
    pieces: list[str] = []
    for file in (dataset.train, dataset.val):
        ids = all_ids(file)
        ends = [i for i, token in enumerate(ids) if token == eot]
        assert ends[-1] == len(ids) - 1
        begins = [0, *(end + 1 for end in ends[:-1])]
        pieces += [dataset.tokenizer.decode(ids[i:j]) for i, j in zip(begins, ends, strict=True)]
    assert sorted(pieces) == sorted(documents) and len(pieces) == 20


# ---- isolation


def no_target_crosses_a_border(folder: Path) -> None:
    """A of 4 tokens and its end, B of 6 and its end, in one row of 12, and one token more."""
    a, b, eot = [10, 11, 12, 13], [20, 21, 22, 23, 24, 25], 256
    batch = Dataset(folder, config(length=12, rows=1, slices=1, isolate_documents=True), "here").batch(0, 0)
    assert batch.positions is not None and batch.documents is not None
    ids, targets = batch.ids[0].tolist(), batch.targets[0].tolist()
    assert ids == [*a, eot, *b, eot]
    # each is a target once, a document's first token from its own EOT and its EOT from its last: none crosses
    assert targets == [*a[1:], eot, *b, eot, 30]
    pairs = list(zip(ids, targets, strict=True))
    assert (a[-1], b[0]) not in pairs and (a[-1], eot) in pairs and (eot, b[0]) in pairs
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0]
    assert batch.documents[0].tolist() == [0] * 4 + [1] * 7 + [2]
    assert batch.positions.dtype == batch.documents.dtype == torch.int64
    assert [(targets[i], batch.documents[0, i].item()) for i in range(12) if targets[i] < eot] == [
        *((token, 0) for token in a[1:]), *((token, 1) for token in b), (30, 2)
    ]  # fmt: skip
    model = build({"vocab_size": 257, "context_length": 12, "dim": 32, "n_layers": 2, "n_heads": 4})
    other = batch.ids.clone()
    other[0, :4] += 50
    with torch.no_grad():
        found = [model(x, positions=batch.positions, documents=batch.documents) for x in (batch.ids, other)]
    assert not torch.equal(found[0][:, :4], found[1][:, :4])
    assert torch.equal(found[0][:, 4:], found[1][:, 4:]), "the prediction of B's first token has read A"


ROW = [10, 11, 12, 13, 256, 20, 21, 22, 23, 24, 25, 256, 30]


def test_a8_no_target_crosses_the_border_of_two_documents(tokens: Folder) -> None:
    no_target_crosses_a_border(tokens(ROW, shard_tokens=4))
    dataset = Dataset(tokens(ROW), config(length=12, rows=1, slices=1), "here")
    plain = dataset.batch(0, 0)
    assert plain.positions is None and plain.documents is None
    (held_out, *_) = Dataset(dataset.folder, config(length=12, isolate_documents=True), "here").validation(2)
    assert held_out.documents is not None


def test_a8_mutant_an_end_that_belongs_to_the_document_before(tokens: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(ids: Any, eot_id: int) -> Any:
        positions, documents = document_layout(np.roll(ids, 1, axis=1), eot_id)
        return positions, documents

    monkeypatch.setattr(data_module, "document_layout", late)
    with pytest.raises(AssertionError):
        no_target_crosses_a_border(tokens(ROW))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_document_layout_is_what_a_loop_would_say(row: list[int]) -> None:
    positions, documents, position, document = [], [], 0, 0
    for i, token in enumerate(row):
        document += token == 0
        position = 0 if token == 0 or i == 0 else position + 1
        positions.append(position)
        documents.append(document)
    got = document_layout(np.array([row, row]), 0)
    assert got[0].tolist() == [positions] * 2
    assert got[1].tolist() == [documents] * 2


# ---- what does not fit


def test_d14_ids_that_the_model_does_not_have_are_refused_with_both_numbers(tokens: Folder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"up to 256\b.*model\.vocab_size=50\b.*model\.vocab_size=257\b"):
        Dataset(tokens([60] * 40), config(vocab_size=50), "here")
    folder = folder_of(tmp_path / "text", "some text " * 30)
    with pytest.raises(ValueError, match="257"):
        prepare(config(folder, tmp_path / "cache", vocab_size=256))
    with pytest.raises(ValueError, match=r"data\.vocab_size=600.*model\.vocab_size=512"):
        prepare(config(folder, tmp_path / "cache", tokenizer="bpe").model_copy(
            update={"data": DataConfig(source="text", path=str(folder), vocab_size=600)}))  # fmt: skip


def test_too_little_text_is_refused_with_both_numbers(tokens: Folder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"here: the train split has 4 tokens.*needs 5.*context_length"):
        Dataset(tokens([1] * 4), config(length=4), "here")
    assert Dataset(tokens([1] * 5, [1] * 4), config(length=4), "here").windows == 1
    with pytest.raises(ValueError, match=r"here: the val split has 3 tokens.*needs 4.*context_length"):
        Dataset(tokens([1] * 5, [1] * 3), config(length=4), "here")
    folder = folder_of(tmp_path / "text", "one", "two")
    with pytest.raises(ValueError, match=r"the train split has 4 tokens.*needs 129") as error:
        prepare(config(folder, tmp_path / "cache", length=128))
    assert str(folder) in str(error.value)
