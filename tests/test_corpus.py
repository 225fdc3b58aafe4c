"""Text arrives as it was written, in a fixed order, or one line names the file and the byte."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octlm.config import DataConfig
from octlm.corpus import SOURCES, Source, materialize_stdin, open_source, read_text
from octlm.corpus.download import TINYSTORIES, split_stories
from octlm.corpus.split import scan
from octlm.corpus.stdlib import is_module
from tests.corpora import one_line, texts


def from_path(*paths: Path | str) -> Source:
    return open_source(DataConfig(source="text", path=tuple(str(path) for path in paths)))


# ---- UTF-8

UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.sampled_from("\ufeff\ufeffa€😀")).map("".join) | UNICODE, st.integers(1, 7))
def test_text_is_whole_whatever_the_chunk_size(tmp_path_factory: pytest.TempPathFactory, text: str, size: int) -> None:
    path = tmp_path_factory.mktemp("utf8") / "file.txt"
    path.write_bytes(text.encode())
    chunks = list(read_text(path, size))
    assert "".join(chunks) == text.removeprefix("\ufeff")
    assert all(chunks)


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"\xff abc", 0),
        (b"ab\xffcdefgh", 2),
        ("é€😀".encode() + b"\x80tail", 9),
        (b"\xef\xbb\xbfab\xff", 5),  # the mark at the start is counted
        (b"abc\xe2\x82", 3),  # cut short at the end
        (b"abcdefg\xf0\x9f\x98x", 7),  # a sequence that breaks off
        (b"ok\xed\xa0\x80", 2),  # a surrogate
        (b"\xc0\xaf", 0),  # overlong
    ],
)
def test_a_bad_byte_is_named_by_file_and_offset(tmp_path: Path, content: bytes, offset: int, size: int) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"byte {offset} ") as error:
        list(read_text(path, size))
    assert str(path) in one_line(error)
    with pytest.raises(UnicodeDecodeError) as truth:
        content.decode()
    assert truth.value.start == offset


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a", "a"),
        (b"a\x00b\x00", "a\x00b\x00"),
        (b"\xef\xbb\xbfmarked", "marked"),
        (b"\xef\xbb\xbf\xef\xbb\xbfx", "\ufeffx"),
        (b"x\xef\xbb\xbfy", "x\ufeffy"),
        (b"a\r\nb\rc\n\r\n", "a\r\nb\rc\n\r\n"),
        ("👩‍👩‍👧 é e\u0301 \u2028".encode(), "👩‍👩‍👧 é e\u0301 \u2028"),
        (b"<|endoftext|>", "<|endoftext|>"),
        (b"a" * (1 << 20) + b"b", "a" * (1 << 20) + "b"),
    ],
    ids=[
        "1 byte",
        "NUL",
        "mark",
        "two marks",
        "inner mark",
        "newlines",
        "emoji",
        "special",
        "1 MB without a space",
    ],
)
def test_nothing_of_the_text_is_changed(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert texts(from_path(path)) == [text]


# ---- the user's own files


def test_folders_are_read_in_order_without_hidden_binary_or_linked_ones(tmp_path: Path) -> None:
    for name in (
        "b.txt",
        "a.md",
        "sub/z.PY",
        "sub/deep/n.rst",
        ".hidden.txt",
        ".git/x.txt",
        "image.png",
        "data",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    assert texts(from_path(tmp_path)) == ["a.md", "b.txt", "sub/deep/n.rst", "sub/z.PY"]


def test_named_files_globs_and_folders_are_taken_in_the_order_given_and_once(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "c d é.txt", "x[1].txt", "x1.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "same.log").symlink_to("a.log")
    assert texts(from_path(tmp_path / "*.log")) == ["a.log", "b.log", "a.log"]  # a link is a file of its own
    assert texts(from_path(tmp_path / "b.log", tmp_path / "[ab].log")) == ["b.log", "a.log"]
    assert texts(from_path(tmp_path / "c d é.txt")) == ["c d é.txt"]
    assert texts(from_path(tmp_path / "x[1].txt")) == ["x[1].txt"]  # itself, not the pattern
    assert texts(from_path(tmp_path / "**" / "x*.txt")) == ["x1.txt", "x[1].txt"]


HOSTILE = (
    "missing", "below a file", "no match", "empty folder", "no text in the folder", "pipe", "device",
    "endless device", "link loop", "dangling link", "too long",
)  # fmt: skip


def hostile_paths(folder: Path) -> dict[str, Path]:
    (folder / "empty").mkdir()
    (folder / "binary").mkdir()
    (folder / "binary" / "x.bin").write_bytes(b"x")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nowhere")
    return {
        "missing": folder / "nothing.txt",
        "below a file": folder / "binary" / "x.bin" / "y",
        "no match": folder / "*.none",
        "empty folder": folder / "empty",
        "no text in the folder": folder / "binary",
        "pipe": folder / "pipe",
        "device": Path("/dev/null"),
        "endless device": Path("/dev/zero"),
        "link loop": folder / "loop",
        "dangling link": folder / "dangling",
        "too long": folder / ("n" * 5000),
    }


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_path_that_is_no_text_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    paths = hostile_paths(tmp_path)
    assert tuple(paths) == HOSTILE
    with pytest.raises((ValueError, OSError)) as error:
        scan(from_path(paths[kind]))
    assert str(paths[kind]) in one_line(error)


@pytest.mark.parametrize("folder", [False, True])
def test_unreadable_files_and_folders_are_refused_by_name(tmp_path: Path, folder: bool) -> None:
    inner = tmp_path / "closed" if folder else tmp_path / "closed.txt"
    inner.mkdir() if folder else inner.write_text("x")
    (tmp_path / "open.txt").write_text("x")
    inner.chmod(0)
    if os.access(inner, os.R_OK):
        pytest.skip("this user reads everything")
    with pytest.raises(PermissionError) as error:
        scan(from_path(tmp_path))
    inner.chmod(0o700)
    assert str(inner) in one_line(error)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_files_without_text_are_skipped_and_a_corpus_without_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match="no text") as error:
        scan(from_path(tmp_path))
    assert str(tmp_path) in one_line(error)
    (tmp_path / "b.txt").write_bytes(b"x")
    assert len(scan(from_path(tmp_path)).sizes) == 1


def test_standard_input_is_kept_under_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "some text é\r\n".encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    asked = DataConfig(source="text", path="-", cache_dir=str(tmp_path))
    data = materialize_stdin(asked)
    assert isinstance(data.path, str)
    assert Path(data.path) == tmp_path / "stdin" / f"{hashlib.sha256(content).hexdigest()}.txt"
    assert Path(data.path).read_bytes() == content
    assert materialize_stdin(data) is data  # what a resumed run finds: nothing is read again
    assert texts(open_source(data)) == [content.decode()]
    with pytest.raises(ValueError, match="standard input is empty"):
        materialize_stdin(asked)
    assert len(list((tmp_path / "stdin").iterdir())) == 1  # nothing half-written stays


# ---- the sources


def test_the_table_has_what_the_configuration_allows() -> None:
    assert list(get_args(DataConfig.model_fields["source"].annotation)) == list(SOURCES)


def test_stdlib_is_the_sorted_top_level_modules() -> None:
    source = open_source(DataConfig())
    names = sorted(path.name for path in Path(source.where).glob("*.py") if is_module(path.name))
    assert texts(source) == ["".join(read_text(Path(source.where, name))) for name in names]
    assert {"argparse.py", "os.py", "doctest.py"} <= set(names)
    assert not [name for name in names if name.startswith("__") or "test_" in name]
    assert is_module("_a.py")
    assert not any(map(is_module, ("__hello__.py", "test.py", "test_x.py", "x_test.py", "x.pyc")))
    found = scan(source)
    assert found.bytes > 3_000_000
    assert source.facts == {"python": sys.version.split()[0], "modules": len(names)}


def test_stories_are_separated_by_lines_and_by_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stories.txt"
    path.write_bytes(
        b"\nOne.\n\nMore <|endoftext|> inside.\n<|endoftext|>\nTwo\r\n<|endoftext|>\r\n\n<|endoftext|>\n"
        b"<|endoftext|>\n <|endoftext|>\nThree<|endoftext|>\n<|endoftext|>"
    )
    expected = ["One.\n\nMore <|endoftext|> inside.", "Two", " <|endoftext|>\nThree<|endoftext|>"]
    for size in (1, 2, 5, 13, 14, 15, 1 << 20):
        monkeypatch.setattr("octlm.corpus.download.read_text", lambda path, size=size: read_text(path, size))
        assert ["".join(story) for story in split_stories(path)] == expected
    data = DataConfig(source="tinystories", path=str(path))
    assert texts(open_source(data)) == expected
    assert open_source(data).facts["known_file"] is False
    assert open_source(data).licence != TINYSTORIES.licence  # it is not the file whose licence we know
    path.write_bytes(b"no separator\n" * 100_000)
    with pytest.raises(ValueError, match="not TinyStories") as error:
        scan(open_source(data))
    assert str(path) in one_line(error)
