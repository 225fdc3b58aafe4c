"""What is a text corpus? A source that lists documents, each a stream of text.

Nothing here or above holds more than one chunk: a corpus may be larger than memory.
Text is UTF-8 and newlines are kept as they are (a newline translated on one machine and not on another
is another corpus). A byte-order mark at the start of a file says how it is encoded and is not text: dropped.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octlm.files import CHUNK_BYTES

Document = Iterator[str]  # its text, in non-empty pieces


@dataclass(frozen=True)
class Source:
    """Where text comes from: `documents()` lists it, always in the same order.

    `where` is what the user named (for messages). `facts` go into the manifest and the cache key, so they
    hold no path and no time: the same text in another folder is the same corpus.
    """

    name: str
    licence: str
    documents: Callable[[], Iterator[Document]]  # each is read before the next is asked for
    where: str
    facts: dict[str, Any] = field(default_factory=dict)
    log2_probability: Callable[[int], float] | None = None  # of a document by its number, where it is known


def read_text(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[str]:
    """Yield the text of a UTF-8 file in non-empty chunks, newlines kept, a leading byte-order mark dropped.

    Raises ValueError with the path and the offset of the first byte that is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = True
    consumed = 0  # bytes that have left the decoder as text
    with open(path, "rb") as file:
        while True:
            block = file.read(chunk_bytes)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                # error.object is what the decoder held back plus this block, so the offset is right across
                # a chunk border
                offset = consumed + error.start
                bad = f"byte {offset} (0x{error.object[error.start]:02x}) is not UTF-8: {error.reason}"
                raise ValueError(f"{path}: {bad}") from None
            consumed = file.tell() - len(decoder.getstate()[0])
            if start and text:
                text, start = text.removeprefix("\ufeff"), False
            if text:
                yield text
            if not block:
                return


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path into an error of the disk: a write that fails (disk full) does not say to which file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
