"""Where does the text come from? A table of sources, each a function of the configuration's data section."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octlm.config import DataConfig
from octlm.corpus.document import Document, Source, read_text
from octlm.corpus.download import TINYSHAKESPEARE, TINYSTORIES, open_remote
from octlm.corpus.fables import open_fables
from octlm.corpus.stdlib import open_stdlib
from octlm.corpus.text import materialize_stdin, open_text

__all__ = ["SOURCES", "Document", "Source", "materialize_stdin", "open_source", "read_text"]

SOURCES: dict[str, Callable[[DataConfig], Source]] = {
    "stdlib": open_stdlib,
    "fables": open_fables,
    "text": open_text,
    "tinyshakespeare": partial(open_remote, TINYSHAKESPEARE),
    "tinystories": partial(open_remote, TINYSTORIES),
}


def open_source(data: DataConfig) -> Source:
    """Return the source that `data` names; raises ValueError when its files are not there."""
    return SOURCES[data.source](data)
