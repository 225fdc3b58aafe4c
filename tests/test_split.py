"""The two splits are disjoint, neither is empty, and only the text decides which is which."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octlm.config import DataConfig
from octlm.corpus import Source
from octlm.corpus.split import choose_split, divide, scan, training_text
from tests.corpora import of_documents

DOCUMENTS = st.lists(st.text("ab é", max_size=12), min_size=1, max_size=12)


def sides(source: Source, data: DataConfig) -> dict[str, list[str]]:
    """Return the documents of each side, joined again, as `divide` gives them."""
    found = scan(source)
    result: dict[str, list[str]] = {"train": [], "val": []}
    pieces: dict[str, str] = {"train": "", "val": ""}
    for side, text in divide(source, found, choose_split(found, data, "made")):
        if text is None:
            result[side].append(pieces[side])
            pieces[side] = ""
        else:
            pieces[side] += text
    for side, text in pieces.items():
        result[side] += [text] if text else []
    return result


@given(DOCUMENTS, st.floats(0.05, 0.95))
def test_split_by_document_is_disjoint_and_never_empty(documents: list[str], fraction: float) -> None:
    data = DataConfig(split="document", val_fraction=fraction)
    kept = [text for text in documents if text]
    if len(set(kept)) < 2:
        with pytest.raises(ValueError, match="no text" if not kept else r"split=position"):
            sides(of_documents(*documents), data)
        return
    got = sides(of_documents(*documents), data)
    assert got["train"]
    assert got["val"]
    assert not set(got["train"]) & set(got["val"])
    assert sorted(got["train"] + got["val"]) == sorted(kept)
    total = {text: len(text.encode()) * kept.count(text) for text in set(kept)}
    largest = max(total.values())
    held = sum(total[text] for text in set(got["val"]))
    assert any(total[text] == largest for text in got["train"])
    # enough, unless everything but the largest is there; and not more than one group too much
    assert held >= fraction * sum(total.values()) or len(set(got["train"])) == 1
    assert any(held - total[text] < fraction * sum(total.values()) for text in got["val"])
    backwards = sides(of_documents(*documents[::-1]), data)
    if list(total.values()).count(largest) == 1:
        assert set(backwards["val"]) == set(got["val"])  # the order of the files does not matter


@given(DOCUMENTS, st.floats(0.05, 0.95))
def test_split_by_position_cuts_at_one_character(documents: list[str], fraction: float) -> None:
    text = "".join(documents)
    boundary = int(len(text) * (1 - fraction))
    data = DataConfig(split="position", val_fraction=fraction)
    if not text or not 0 < boundary < len(text):
        with pytest.raises(ValueError, match="made"):
            sides(of_documents(*documents), data)
        return
    got = sides(of_documents(*documents), data)
    assert "".join(got["train"]) == text[:boundary]
    assert "".join(got["val"]) == text[boundary:]


def test_tinyshakespeare_is_cut_where_nanogpt_cuts_it() -> None:
    found = SimpleNamespace(sizes=np.array([1_115_394]), characters=1_115_394)
    assert choose_split(found, DataConfig(), "x").boundary == 1_003_854  # int(n * 0.9)


def test_a_tokenizer_sees_the_training_split_only_and_a_stated_amount_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, data = of_documents("aaaaa" * 9 + "z"), DataConfig(split="position", val_fraction=0.5)
    found = scan(source)
    split = choose_split(found, data, "made")
    assert "".join(training_text(source, found, split, "bpe")) == "a" * 23
    assert "z" in "".join(training_text(source, found, split, "char"))  # an alphabet is whole
    monkeypatch.setattr("octlm.corpus.split.TOKENIZER_CHARACTERS", 7)
    assert "".join(training_text(source, found, split, "bpe")) == "a" * 10  # to the end of the chunk


@pytest.mark.parametrize("later", [("one", "TWO"), ("one",), ("one", "two", "three"), ("two", "one")])
def test_text_that_changes_between_two_readings_is_refused(later: tuple[str, ...]) -> None:
    found = scan(of_documents("one", "two"))
    split = choose_split(found, DataConfig(), "made")
    with pytest.raises(ValueError, match="changed while"):
        list(divide(of_documents(*later), found, split))
