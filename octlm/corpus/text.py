"""How do the user's own files become documents? One file is one document.

A path is a file (any name), a folder (read recursively: files with a suffix of TEXT_SUFFIXES; names that
begin with a dot are skipped, and links to folders are not followed), a glob, or `-` for standard input,
which is kept in the cache under its sha256 so that a resumed run finds it again.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from octlm.config import DataConfig, cache_directory
from octlm.corpus.document import Source, naming, read_text
from octlm.files import CHUNK_BYTES

# What is read from a folder: prose, markup and program text. Anything else is read when it is named itself.
PROSE = "txt text md markdown rst org tex adoc html htm css xml svg csv tsv srt po"
SETTINGS = "json jsonl yaml yml toml ini cfg"
CODE = """py pyi c h cc cpp cxx hpp cs rs go java kt scala swift js jsx mjs ts tsx rb php pl lua r jl hs ml
ex exs erl clj lisp el vim sh bash zsh fish ps1 sql"""
TEXT_SUFFIXES = frozenset(f".{suffix}" for kind in (PROSE, SETTINGS, CODE) for suffix in kind.split())
STDIN = "-"
OWN_FILES = "unknown: the user's own text"


def open_text(data: DataConfig) -> Source:
    """Return the files that `data.path` names, in the order given, folders and globs sorted."""
    paths = named_paths(data)
    files = list(dict.fromkeys(file for name in paths for file in find_files(name)))  # each file once
    where, facts = ", ".join(paths), {"files": len(files)}
    return Source("text", OWN_FILES, lambda: map(read_text, files), where, facts)


def named_paths(data: DataConfig) -> tuple[str, ...]:
    """Return `data.path` as a tuple, empty when it is not set."""
    return (data.path,) if isinstance(data.path, str) else tuple(data.path or ())


def find_files(name: str) -> list[Path]:
    """Return the files that one path names: itself, those of a folder, or those of a glob's matches."""
    if not os.path.lexists(name):  # a file that is called a[1].txt is itself, not a pattern
        matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []
        if not matches:
            raise ValueError(f"data.path={name}: no such file or folder, and nothing matches it as a pattern")
        return [file for match in matches for file in find_files(match)]
    mode = os.stat(name).st_mode
    if stat.S_ISREG(mode):
        return [Path(os.path.abspath(name))]
    if not stat.S_ISDIR(mode):
        raise ValueError(f"data.path={name}: neither a file nor a folder (for a pipe, say data.path=-)")
    files = list(walk(Path(os.path.abspath(name))))
    if not files:
        raise ValueError(f"data.path={name}: no text file (.txt, .md, .py, ...) in it; name other files themselves")
    return files


def walk(folder: Path) -> Iterator[Path]:
    """Yield the text files under a folder in sorted order; an unreadable folder raises its OSError."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):  # a linked folder may lead back here
            yield from walk(path)
        elif path.suffix.lower() in TEXT_SUFFIXES and path.is_file():
            yield path


def materialize_stdin(data: DataConfig) -> DataConfig:
    """Read standard input once into the cache; return `data` with "-" replaced by the stored file's path.

    Without a "-" `data` comes back as it is. Raises ValueError when standard input is empty.
    """
    paths = named_paths(data)
    if STDIN not in paths:
        return data
    if sys.stdin is None:
        raise ValueError("data.path=-: standard input is closed")
    folder = cache_directory(data) / "stdin"
    folder.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    handle, temporary = tempfile.mkstemp(dir=folder, prefix="tmp-")
    try:
        with naming(Path(temporary)), os.fdopen(handle, "wb") as file:
            while block := sys.stdin.buffer.read(CHUNK_BYTES):
                file.write(block)
                digest.update(block)
                size += len(block)
        if not size:
            raise ValueError("data.path=-: standard input is empty")
        stored = folder / f"{digest.hexdigest()}.txt"
        os.replace(temporary, stored)
    except BaseException:
        os.unlink(temporary)
        raise
    replaced = tuple(str(stored) if path == STDIN else path for path in paths)
    return data.model_copy(update={"path": replaced[0] if len(replaced) == 1 else replaced})
