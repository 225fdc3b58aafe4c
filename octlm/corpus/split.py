"""What is in a corpus, and which part of it validates?

One reading (`scan`) counts and hashes; the split follows from the hashes alone, so that it depends neither
on the order of the files nor on a seed. `divide` reads again and says for each piece of text on which side
it is. The two sides are disjoint and neither is empty.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octlm.config import DataConfig
from octlm.corpus.document import Source
from octlm.tokenizer import cut

TOKENIZER_CHARACTERS = 100_000_000  # a tokenizer is trained on the first 100 million characters of the training split
PIECE_CHARACTERS = 1 << 14


@dataclass(frozen=True)
class Scan:
    """What one reading of a corpus found. Documents without text are counted nowhere."""

    sha256: str  # over the sha256 of every document, in order
    characters: int
    sizes: npt.NDArray[np.int64]  # bytes of each document; 16 to 24 bytes a document is all that is kept of the text
    hashes: npt.NDArray[np.uint64]  # the first 8 bytes of its sha256
    log2_probabilities: npt.NDArray[np.float64]  # of each document; empty where the source knows none

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())


def scan(source: Source) -> Scan:
    """Read a corpus once; raises ValueError naming it when there is no text in it."""
    whole, characters = hashlib.sha256(), 0
    sizes, hashes, likely = array("q"), array("Q"), array("d")
    for number, document in enumerate(source.documents()):
        digest, size = hashlib.sha256(), 0
        for text in document:
            block = text.encode()
            digest.update(block)
            size += len(block)
            characters += len(text)
        if size:
            whole.update(digest.digest())
            sizes.append(size)
            hashes.append(int.from_bytes(digest.digest()[:8], "big"))
            if source.log2_probability:
                likely.append(source.log2_probability(number))
    if not sizes:
        raise ValueError(f"{source.where}: there is no text in it (data.source={source.name})")
    arrays = np.array(sizes, np.int64), np.array(hashes, np.uint64), np.array(likely, np.float64)
    return Scan(whole.hexdigest(), characters, *arrays)


@dataclass(frozen=True)
class Split:
    """Which part of the corpus validates: whole documents, or everything from one character on."""

    by: str
    validates: npt.NDArray[np.bool_]  # (documents,); all False where a boundary divides
    boundary: int | None = None  # characters

    def cut(self, number: int, position: int, length: int) -> int:
        """Return how many of the `length` characters from `position` on, in document `number`, are for
        training."""
        if self.boundary is None:
            return 0 if self.validates[number] else length
        return min(max(self.boundary - position, 0), length)


def choose_split(found: Scan, data: DataConfig, where: str) -> Split:
    """Divide a corpus by `data.split` (None: by position where it is one document); neither part is empty."""
    n = len(found.sizes)
    by = data.split or ("document" if n > 1 else "position")
    if by == "document":
        return Split(by, choose_documents(found, data.val_fraction, where))
    boundary = int(found.characters * (1 - data.val_fraction))
    if not 0 < boundary < found.characters:
        raise ValueError(
            f"{where}: {found.characters} characters cannot be divided with "
            f"data.val_fraction={data.val_fraction}: give more text or another fraction"
        )
    return Split(by, np.zeros(n, np.bool_), boundary)


def choose_documents(found: Scan, fraction: float, where: str) -> npt.NDArray[np.bool_]:
    """Say which documents validate: in the order of their hash, until they hold `fraction` of the bytes.

    Documents with the same text go to the same side (one would give the other away), and the largest such
    group always trains, so that one book beside two notes does not end up as the validation split.
    """
    groups, member = np.unique(found.hashes, return_inverse=True)
    if len(groups) < 2:
        what = "is one document" if len(found.sizes) == 1 else f"holds the same text {len(found.sizes)} times"
        raise ValueError(f"{where}: it {what}, which cannot be split by document; say data.split=position")
    sizes = np.zeros(len(groups), np.int64)
    np.add.at(sizes, member, found.sizes)
    candidates = np.delete(np.arange(len(groups)), int(sizes.argmax()))
    enough = int(np.searchsorted(np.cumsum(sizes[candidates]), fraction * found.bytes)) + 1
    return np.isin(member, candidates[:enough])


def divide(source: Source, found: Scan, split: Split) -> Iterator[tuple[str, str | None]]:
    """Yield (split, text) in reading order, and (split, None) where a document ends.

    Raises ValueError when the text is no longer what the scan found.
    """
    changed = ValueError(f"{source.where}: the text changed while it was being read; try again")
    whole, position, number = hashlib.sha256(), 0, 0
    for document in source.documents():
        digest, side = hashlib.sha256(), None
        for text in document:
            if number == len(found.sizes):
                raise changed
            digest.update(text.encode())
            cut = split.cut(number, position, len(text))
            position += len(text)
            if cut:
                side = "train"
                yield side, text[:cut]
            if cut < len(text):
                side = "val"
                yield side, text[cut:]
        if side is not None:
            yield side, None
            whole.update(digest.digest())
            number += 1
    if whole.hexdigest() != found.sha256:
        raise changed


def in_pieces(text: str) -> Iterator[str]:
    """Cut a chunk between words: the trainer gathers hundreds of pieces before it counts them."""
    while text:
        safe = cut(text[:PIECE_CHARACTERS]) or PIECE_CHARACTERS
        yield text[:safe]
        text = text[safe:]


def training_text(source: Source, found: Scan, split: Split, tokenizer: str) -> Iterator[str]:
    """Yield the text that a tokenizer is trained on: the first TOKENIZER_CHARACTERS of the training split.

    An alphabet is not learned from examples: `char` sees the whole corpus, since it could not write a
    character that only the validation split has.
    """
    size = 0
    for side, text in divide(source, found, split):
        if text is not None and (side == "train" or tokenizer == "char"):
            yield from in_pieces(text)
            size += len(text)
            if size >= TOKENIZER_CHARACTERS and tokenizer != "char":
                return
