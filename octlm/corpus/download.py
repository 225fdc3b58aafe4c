"""How does a well-known corpus get here? It is downloaded once; its size and sha256 are checked every time.

A download that was interrupted goes on where it stopped; the file gets its name only after the check.
Without a network one line says which file to put where. With `data.path=FILE` the user's own file is read
instead (a part of TinyStories, say): it is taken as given, and the manifest records its sha256 and whether
it is the known file.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from octlm.config import DataConfig, cache_directory
from octlm.corpus.document import Document, Source, naming, read_text
from octlm.corpus.text import OWN_FILES, find_files, named_paths
from octlm.files import CHUNK_BYTES, hash_file

try:
    import fcntl
except ImportError:  # not on Windows: there, two first downloads at the same time are not kept apart
    fcntl = None  # type: ignore[assignment]

TIMEOUT_SECONDS = 20
# not OSError as a whole: a full disk is one
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
# The look-behind stands after the literal: a pattern that starts with a literal is searched much faster.
SEPARATOR = re.compile(r"<\|endoftext\|>(?<![^\n]<\|endoftext\|>)\r?\n")
LONGEST_STORY = 1 << 20  # characters; the longest real one has a few thousand


@dataclass(frozen=True)
class Remote:
    """One file on the network: where it is and what it must be."""

    name: str
    url: str
    filename: str
    size: int  # bytes
    sha256: str
    licence: str
    documents: Callable[[Path], Iterator[Document]]

    def __str__(self) -> str:
        return f"{self.size:,} bytes, sha256 {self.sha256}"


def whole_file(path: Path) -> Iterator[Document]:
    """Yield a file as one document."""
    yield read_text(path)


def split_stories(path: Path) -> Iterator[Document]:
    """Yield the stories of a file that separates them by a line <|endoftext|>.

    The separator and the newlines around a story are layout, not text; stories without text are skipped.
    """
    for story in raw_stories(path):
        if text := story.strip("\r\n"):
            yield iter((text,))


def raw_stories(path: Path) -> Iterator[str]:
    rest = ""
    for text in chain(read_text(path), ("\n",)):  # the last line of the file may lack its newline
        rest += text
        lines = rest.rfind("\n") + 1  # only whole lines can be told from a separator
        *stories, tail = SEPARATOR.split(rest[:lines])
        yield from stories
        rest = tail + rest[lines:]
        if len(rest) > LONGEST_STORY:
            raise ValueError(f"{path}: no line <|endoftext|> in {len(rest):,} characters: not TinyStories?")
    yield rest


TINYSHAKESPEARE = Remote(
    name="tinyshakespeare",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    filename="tinyshakespeare.txt",
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    licence="public domain (the plays)",
    documents=whole_file,
)
# Eldan and Li, 2023, "TinyStories", arXiv:2305.07759; the GPT-4 half, version 2.
TINYSTORIES = Remote(
    name="tinystories",
    url="https://huggingface.co/datasets/roneneldan/TinyStories/resolve/"
    "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/TinyStoriesV2-GPT4-train.txt",
    filename="TinyStoriesV2-GPT4-train.txt",
    size=2_227_753_162,
    sha256="6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
    licence="CDLA-Sharing-1.0",
    documents=split_stories,
)


def open_remote(remote: Remote, data: DataConfig) -> Source:
    """Return a downloaded corpus, or the one file that `data.path` names in its place."""
    given = named_paths(data)
    files = [file for name in given for file in find_files(name)]
    files = files or [fetch(remote, cache_directory(data) / "downloads")]
    if len(files) != 1:
        raise ValueError(f"data.path={', '.join(given)}: data.source={remote.name} takes one file, not {len(files)}")
    [path] = files
    sha256 = hash_file(path)
    known = sha256 == remote.sha256
    if not known and not given:
        raise mismatch(remote, path, "delete it to download it again")
    licence = remote.licence if known else OWN_FILES
    facts = {"file_sha256": sha256, "known_file": known, "url": remote.url if known else None}
    return Source(remote.name, licence, lambda: remote.documents(path), str(path), facts)


def fetch(remote: Remote, folder: Path) -> Path:
    """Return the file in `folder`; what is missing of it is downloaded and checked first."""
    path = folder / remote.filename
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{remote.filename}.part"
    with locked(folder / f"{remote.filename}.lock"):
        if path.exists():  # another process brought it while this one waited
            return path
        try:
            download(remote, part)
        except NETWORK_ERRORS as error:
            reason = getattr(error, "reason", None) or error
            raise ValueError(
                f"data.source={remote.name}: cannot download {remote.url} ({reason}); "
                f"put that file at {path} ({remote}), or say data.path=FILE"
            ) from None
        if hash_file(part) != remote.sha256:
            refusal = mismatch(remote, part, f"{remote.url} has changed or was not reached, try again")
            part.unlink()
            raise refusal
        os.replace(part, path)
    return path


def download(remote: Remote, part: Path) -> None:
    """Append to `part` what is missing of the file; a server that cannot continue starts it anew."""
    have = part.stat().st_size if part.exists() else 0
    if have >= remote.size:  # complete: only the check was missing. Or too long: the check says so.
        return
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        resumed = answer.status == http.client.PARTIAL_CONTENT
        begun = have if resumed else 0
        bar = tqdm(desc=remote.filename, total=remote.size, initial=begun, unit="B", unit_scale=True, disable=None)
        with naming(part), open(part, "ab" if resumed else "wb") as file, bar:  # the bar: on a terminal only
            while block := answer.read(CHUNK_BYTES):
                file.write(block)
                bar.update(len(block))
                if file.tell() > remote.size:
                    return
    if part.stat().st_size < remote.size:
        raise http.client.IncompleteRead(b"", remote.size - part.stat().st_size)


def mismatch(remote: Remote, path: Path, remedy: str) -> ValueError:
    """Return the error for a file that is not the one we know."""
    return ValueError(
        f"{path}: {path.stat().st_size:,} bytes, sha256 {hash_file(path)}, but data.source={remote.name} is "
        f"{remote}: {remedy}, or say data.path=FILE"
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the system releases when the process dies."""
    with open(path, "wb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
