"""Token files hold the text, each document ended once, found again by content, mended when damaged."""

from __future__ import annotations

import ast
import json
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octlm import data as data_module
from octlm.config import Config, load_config
from octlm.corpus.document import read_text
from octlm.data import Dataset, prepare
from tests.corpora import all_ids, config, folder_of
from tests.test_data import write_dataset

ROOT = Path(__file__).parent.parent
# ---- preparing: from text to token files


WORDS = "the theatre   of the  mother's 1234 1234\n\n\tin other lands, " * 2  # something to merge
HOSTILE_TEXT = st.lists(  # not st.text: there, the union of two alphabets loses the weight of the smaller
    st.sampled_from([*"ab  \n\r\t'1.é€😀\u200d\u0301\x00\ufeff", "the", "   ", " of"])
    | st.characters(exclude_categories=["Cs"]),
    max_size=40,
).map("".join)


@settings(max_examples=25)
@given(
    st.lists(HOSTILE_TEXT, min_size=2, max_size=5),
    st.integers(1, 9),
    st.sampled_from(["byte", "char", "bpe"]),
)
def test_f3_chunked_encoding_is_whole_encoding_and_each_document_ends_once(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], chunk: int, tokenizer: str
) -> None:
    documents = [WORDS + "".join(documents), *documents, "another " + WORDS[::-1]]
    root = tmp_path_factory.mktemp("prepare")
    folder_of(root / "text", *documents)
    asked = config(root / "text", root / "cache", length=1, rows=1, slices=1, tokenizer=tokenizer, vocab_size=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octlm.corpus.text.read_text", lambda path: read_text(path, chunk))
        dataset = prepare(asked, shard_tokens=7)
    encode, eot = dataset.tokenizer.encode, dataset.tokenizer.eot_id
    expected = [(*encode(text.removeprefix("\ufeff")), eot) for text in documents if text.removeprefix("\ufeff")]
    got = []
    for split in (dataset.train, dataset.val):
        ids = all_ids(split)
        assert ids[-1] == eot
        borders = [i + 1 for i, token in enumerate(ids) if token == eot]
        got += [tuple(ids[a:b]) for a, b in zip([0, *borders], borders, strict=False)]
    assert Counter(got) == Counter(expected)
    described = dataset.manifest["splits"]
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        assert described[name]["tokens"] == len(split) == sum(shard["tokens"] for shard in described[name]["shards"])
        assert described[name]["eot_tokens"] == described[name]["documents"] == all_ids(split).count(eot)
        assert described[name]["bytes"] == dataset.tokenizer.byte_lengths()[all_ids(split)].sum()
        assert described[name]["highest_id"] == max(all_ids(split))
    assert dataset.manifest["source"]["documents"] == len(expected)
    assert dataset.manifest["source"]["bytes"] == sum(described[name]["bytes"] for name in described)


def test_f3_a_megabyte_in_chunks_has_the_ids_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    words = ["the", "naïve", "café😀", "don't", "12345", "\r\n", "\n\n", "\t ", ".", "привет", "of", "x" * 30]
    text = " ".join(words[i] for i in rng.integers(0, len(words), 200_000))
    text = text.encode()[: 1 << 20].decode(errors="ignore")
    chunk = 4099  # odd: every kind of character is cut somewhere
    borders = range(chunk, len(text.encode()), chunk)
    assert len({text.encode()[i] & 0xC0 for i in borders}) == 4 and len(borders) > 250
    monkeypatch.setattr("octlm.corpus.text.read_text", lambda path: read_text(path, chunk))
    dataset = prepare(config(folder_of(tmp_path / "text", text), tmp_path / "cache", tokenizer="bpe"))
    at = int(len(text) * 0.9)  # where a split by position cuts one document
    assert all_ids(dataset.train) == dataset.tokenizer.encode(text[:at])
    assert all_ids(dataset.val) == [*dataset.tokenizer.encode(text[at:]), dataset.tokenizer.eot_id]


def test_one_document_is_cut_by_position_and_ends_in_validation_only(tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(1001)) + "é€😀"
    folder = folder_of(tmp_path / "text", text)
    for split in (None, "position"):
        dataset = prepare(config(folder, tmp_path / "cache", split=split), shard_tokens=100)
        assert dataset.manifest["split"]["by"] == "position"
        cut = int(len(text) * 0.9)
        assert all_ids(dataset.train) == list(text[:cut].encode())
        assert all_ids(dataset.val) == [*text[cut:].encode(), 256]
    with pytest.raises(ValueError, match=r"one document.*data\.split=position"):
        prepare(config(folder, tmp_path / "cache", split="document"))


def test_special_token_strings_are_ordinary_text(tmp_path: Path) -> None:
    text = "a <|endoftext|> b " * 20
    dataset = prepare(config(folder_of(tmp_path / "text", text), tmp_path / "cache"))
    ids = all_ids(dataset.train) + all_ids(dataset.val)
    assert ids.count(256) == 1
    assert dataset.tokenizer.decode_bytes(ids).decode() == text


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_ids_take_the_width_that_the_vocabulary_needs(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    folder = folder_of(tmp_path / "text", "some text " * 30)
    dataset = prepare(config(folder, tmp_path / "cache", vocab_size=vocab_size))
    assert dataset.manifest["dtype"] == dtype
    file = dataset.folder / "train-00000.bin"
    assert file.stat().st_size == len(dataset.train) * np.dtype(dtype).itemsize
    ids = list(b"some text " * 30)
    assert all_ids(dataset.train) == ids[:270]
    assert dataset.train.read(7, 9).tolist() == ids[7:16]


# ---- the cache


@pytest.fixture
def book(tmp_path: Path) -> Config:
    folder = folder_of(tmp_path / "text", *(f"document {i} " * 20 for i in range(8)))
    return config(folder, tmp_path / "cache", tokenizer="bpe")


def test_a_prepared_corpus_is_found_again_by_its_content(
    book: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(book)
    folder = tmp_path / "moved"
    (tmp_path / "text").rename(folder)

    def forbidden(*_: Any) -> None:
        raise AssertionError("prepared twice")

    moved = book.model_copy(update={"data": book.data.model_copy(update={"path": str(folder)})})
    with monkeypatch.context() as patch:
        patch.setattr(data_module, "build_tokenizer", forbidden)
        again = prepare(moved)
        assert again.folder == first.folder
        assert again.fingerprint == first.fingerprint
        for change in (
            {"val_fraction": 0.3},
            {"tokenizer": "byte"},
            {"vocab_size": 300},
            {"split": "position"},
        ):
            with pytest.raises(AssertionError, match="prepared twice"):
                prepare(moved.model_copy(update={"data": moved.data.model_copy(update=change)}))
        (folder / "000.txt").write_text("document 0 " * 19 + "Document 0 ")
        with pytest.raises(AssertionError, match="prepared twice"):
            prepare(moved)
    assert prepare(moved).fingerprint != first.fingerprint
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 2  # nothing half-made stays
    assert str(tmp_path) not in (first.folder / "manifest.json").read_text()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train-00000.bin", flip),
        ("val-00000.bin", lambda path: path.write_bytes(path.read_bytes()[:-2])),
        ("train-00000.bin", lambda path: path.write_bytes(path.read_bytes() + b"\0\0")),
        ("train-00000.bin", Path.unlink),
        ("manifest.json", Path.unlink),
        ("manifest.json", lambda path: path.write_bytes(path.read_bytes()[:100])),
        ("manifest.json", lambda path: path.write_text("[]")),
        ("manifest.json", lambda path: path.write_text(path.read_text().replace('"bytes": 1', '"bytes": 2'))),
        ("tokenizer.json", flip),
        ("tokenizer.json", Path.unlink),
    ],
)
def test_a_damaged_cache_entry_is_noticed_and_made_anew(
    book: Config, file: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    first = prepare(book)
    whole = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    damage(first.folder / file)
    again = prepare(book)
    assert len(caplog.records) == 1
    assert file in caplog.text
    assert str(first.folder) in caplog.text
    assert {path.name: path.read_bytes() for path in again.folder.iterdir()} == whole
    assert [path.name for path in first.folder.parent.iterdir()] == [first.folder.name]


def test_the_second_of_two_processes_takes_what_the_first_has_made(
    book: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = data_module.write_tokens
    made = []

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(data_module, "write_tokens", write)
        made.append(prepare(book))  # another process, from start to end
        write(*arguments)

    monkeypatch.setattr(data_module, "write_tokens", overtaken)
    inode = None
    dataset = prepare(book)
    inode = (made[0].folder / "manifest.json").stat().st_ino
    assert (dataset.folder / "manifest.json").stat().st_ino == inode
    assert dataset.fingerprint == made[0].fingerprint
    assert len(list(dataset.folder.parent.iterdir())) == 1


def test_what_an_interrupted_preparation_left_is_ignored_and_removed_after_a_day(book: Config, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "tokens"
    for name in ("tmp-old", "tmp-new"):
        (cache / name).mkdir(parents=True)
        (cache / name / "train-00000.bin").write_bytes(b"x")
    yesterday = time.time() - 25 * 3600
    os.utime(cache / "tmp-old", (yesterday, yesterday))
    prepare(book)
    assert not (cache / "tmp-old").exists()
    assert (cache / "tmp-new").exists()  # another process may be writing it


def test_e2_standard_input_that_a_kill_cut_off_is_removed_after_a_day(book: Config, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "stdin"
    folder.mkdir(parents=True)
    yesterday = time.time() - 25 * 3600
    for name in ("tmp-old", "tmp-new", "0123.txt"):
        (folder / name).write_bytes(b"x")
    for name in ("tmp-old", "0123.txt"):
        os.utime(folder / name, (yesterday, yesterday))
    prepare(book)
    assert sorted(path.name for path in folder.iterdir()) == ["0123.txt", "tmp-new"]


def test_a_failed_write_names_the_path_and_leaves_nothing(tmp_path: Path) -> None:
    asked = config(folder_of(tmp_path / "text", "some text " * 30_000), tmp_path / "cache")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=str(tmp_path / "cache")):
            prepare(asked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []
    prepare(asked)


# ---- hostile files, and other surroundings

GOOD = b"some good text, " * 40
HOSTILE_FILES: dict[str, tuple[list[bytes], str | None]] = {  # files of a folder -> what the refusal says
    "empty": ([b""], "no text"),
    "empty among others": ([b"", GOOD, b"", GOOD[::-1], b""], None),
    "1 byte": ([b"a"], "1 characters"),
    "2 bytes": ([b"ab"], "has 1 tokens"),
    "two files of 1 byte": ([b"a", b"b"], "has 2 tokens"),
    "the same file twice": ([GOOD, GOOD], "same text 2 times"),
    "NUL": ([b"\0" * 500], None),
    "mark": ([b"\xef\xbb\xbf" + GOOD], None),
    "mark only": ([b"\xef\xbb\xbf"], "no text"),
    "CRLF": ([b"line\r\n" * 100], None),
    "lone CR": ([b"line\r" * 100], None),
    "UTF-16": (["some text".encode("utf-16")], "byte 0 "),
    "Latin-1": ([GOOD + b"caf\xe9 " + GOOD], "byte 643 "),
    "bad at the start": ([b"\x80" + GOOD], "byte 0 "),
    "bad at the end": ([GOOD + b"\xe2\x82"], "byte 640 "),
    "bad at a chunk border": ([b"a" * ((1 << 20) - 1) + b"\xe2" + b"b"], f"byte {(1 << 20) - 1} "),
    "emoji": (["👩‍👩‍👧🏽".encode() * 400], None),
    "all of Unicode": ([bytes("".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000)])), "utf-8")], None),
    "special strings": ([b"<|endoftext|>" * 60], None),
    "gzip": ([b"\x1f\x8b\x08\x00abc" + GOOD], "byte 1 "),
    "no newline": ([b"x " * 300 + b"end"], None),
}


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_f2_hostile_files_are_prepared_right_or_refused_in_one_line(tmp_path: Path, kind: str, tokenizer: str) -> None:
    files, refusal = HOSTILE_FILES[kind]
    folder = folder_of(tmp_path / "with space é", *files)
    asked = config(folder, tmp_path / "cache", tokenizer=tokenizer)
    if refusal:
        with pytest.raises(ValueError, match=refusal) as error:
            prepare(asked)
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)
        return
    dataset = prepare(asked)
    texts = [content.removeprefix(b"\xef\xbb\xbf") for content in files if content]
    back = [dataset.tokenizer.decode_bytes(all_ids(split)) for split in (dataset.train, dataset.val)]
    assert b"".join(back) in (b"".join(texts), b"".join(texts[::-1]))


@pytest.mark.parametrize("letter", ["a", "_", "random"])
def test_f4_a_megabyte_without_a_space_ends(tmp_path: Path, letter: str) -> None:
    letters = np.random.default_rng(0).integers(97, 123, 1 << 20, np.uint8).tobytes()
    content = letters if letter == "random" else letter.encode() * (1 << 20)
    asked = config(folder_of(tmp_path / "text", content), tmp_path / "cache", tokenizer="bpe")
    start = time.monotonic()
    dataset = prepare(asked)
    assert time.monotonic() - start < 30  # a limit against hanging
    back = [dataset.tokenizer.decode_bytes(all_ids(split)) for split in (dataset.train, dataset.val)]
    assert b"".join(back) == content


PREPARE = (sys.executable, str(ROOT / "scripts" / "prepare.py"))
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "OMP_NUM_THREADS": "1"}
RECIPE = """
model: {vocab_size: 300, context_length: 4}
data: {source: text, path: "-"}
train: {tokens_per_step: 8, micro_batch_size: 2}
"""


def test_f2_f5_the_locale_changes_nothing_and_two_processes_may_prepare_at_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "text", "é€😀 naïve\r\nline\rend \u2028 " * 50)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE)
    processes = [
        subprocess.Popen(
            [*PREPARE, "--config", str(recipe), f"data.path={folder}", f"data.cache_dir={tmp_path / 'one'}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT | locale,
        )
        for locale in ({"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C", "PYTHONUTF8": "0"})
    ]
    answers = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    for out, err, code in answers:
        assert (err, code) == (b"", 0)  # no progress bar without a terminal
        assert out.count(b"\n") == 1
    prepare(load_config(recipe, [f"data.path={folder}", f"data.cache_dir={tmp_path / 'two'}"]))
    made = [
        {str(path.relative_to(tmp_path / cache)): path.read_bytes() for path in (tmp_path / cache).rglob("*.*")}
        for cache in ("one", "two")
    ]
    assert made[0] == made[1]
    assert len(made[0]) == 4


def opened_by_locale(text: str) -> list[str]:
    """Name the calls in a source that read or write text in the machine's encoding, or translate its line ends."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [
            part for argument in [*node.args[1:], *(k.value for k in node.keywords)] for part in ast.walk(argument)
        ]
        of_bytes = any(isinstance(mode, ast.Constant) and mode.value in ("rb", "wb", "ab", "xb") for mode in modes)
        said = {keyword.arg for keyword in node.keywords}
        if (name in ("open", "fdopen") and (not method or name == "fdopen") and not of_bytes) or name == "write_text":
            found += [f"{name}:{node.lineno}"] * (not {"encoding", "newline"} <= said)
        if name == "read_text" and method:
            found += [f"{name}:{node.lineno}"] * ("encoding" not in said)
    return found


def test_f2_no_file_is_opened_by_the_locale() -> None:
    sources = [*(ROOT / "octlm").rglob("*.py"), *ROOT.glob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    assert ROOT / "octlm" / "corpus" / "document.py" in sources
    for path in sources:
        assert opened_by_locale(path.read_text(encoding="utf-8")) == [], path
    for bad in ("open(p)", "open(p, 'w', encoding='utf-8')", "Path(p).write_text(t, encoding='utf-8')",
                "p.read_text()", "open(p, 'r')", "os.fdopen(h, 'w')", "open(p, mode='a')"):  # fmt: skip
        assert len(opened_by_locale(bad)) == 1, bad
    for good in ("open(p, 'rb')", "open(p, mode='ab')", "open(p, 'ab' if x else 'wb')", "open_source(d)", "f(x)",
                 "open(p, 'a', encoding='utf-8', newline='')", "p.read_text(encoding='utf-8')"):  # fmt: skip
        assert opened_by_locale(good) == [], good


def test_f2_bad_standard_input_is_one_line_of_the_command(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE)
    command = [*PREPARE, "--config", str(recipe), f"data.cache_dir={tmp_path / 'cache'}"]
    done = subprocess.run(command, input=b"ab\xff", capture_output=True, env=ENVIRONMENT, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"byte 2 " in done.stderr
    assert str(tmp_path / "cache" / "stdin").encode() in done.stderr


# ---- memory

PEAK = """
import re, sys
from pathlib import Path
from octlm.config import Config, DataConfig, ModelConfig, TrainConfig
from octlm.data import Dataset, prepare

def peak():  # MB, of this program; ru_maxrss would start at what its parent held
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
"""
PREPARING = """
data = DataConfig(source="text", path=sys.argv[1], cache_dir=sys.argv[2], tokenizer=sys.argv[3])
prepare(Config(data=data, model=ModelConfig(vocab_size=512)), shard_tokens=1 << 22)
print(peak())
"""
READING = """
dataset = Dataset(Path(sys.argv[1]), Config(), "here")
dataset.batch(0, 0)
before = peak()
for step in range(2000):
    dataset.batch(step, 0)
print(peak() - before)
"""


def measure(program: str, *arguments: Path | str) -> float:
    command = [sys.executable, "-c", PEAK + program, *map(str, arguments)]
    # one thread: each of the tokenizer's trainer holds an arena of its own, by chance 10 MB more or less
    env = {**os.environ, "RAYON_NUM_THREADS": "1"}
    return float(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True, timeout=600).stdout)


def peak_of_preparing(tmp_path: Path, size: int, tokenizer: str) -> int:
    """Prepare a text of `size` bytes, read in chunks of 16 KiB; return the largest memory that Python held for it."""
    line = "the quick brown fox, é€😀; and more of it\n"
    folder = folder_of(tmp_path / f"{size}", line * (size // len(line.encode())))
    tracemalloc.start(1)
    try:
        prepare(config(folder, tmp_path / "cache", tokenizer=tokenizer))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_f3_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str) -> None:
    monkeypatch.setattr("octlm.corpus.text.read_text", lambda path: read_text(path, 1 << 14))
    _, one, two = (peak_of_preparing(tmp_path, size, tokenizer) for size in (1 << 14, 1 << 18, 1 << 19))
    assert 0 < one < 600_000 and two < one + 60_000  # the list of ids alone would take 8 bytes a token


def test_f3_catches_a_reader_of_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octlm.corpus.text.read_text", lambda path: iter([path.read_bytes().decode()]))
    _, one, two = (peak_of_preparing(tmp_path, size, "byte") for size in (1 << 14, 1 << 18, 1 << 19))
    assert two > one + 1_000_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("tokenizer", "megabytes"), [("byte", 64), ("bpe", 16)])
def test_f3_preparing_takes_the_same_memory_for_twice_the_text(tmp_path: Path, tokenizer: str, megabytes: int) -> None:
    line = "the quick brown fox jumps over the lazy dog, é€😀; and then some more of it\n".encode()
    peaks = []
    for size in (megabytes, 2 * megabytes):
        path = tmp_path / f"{size}.txt"
        path.write_bytes(line * (size * (1 << 20) // len(line)))
        peaks.append(measure(PREPARING, path, tmp_path / "cache", tokenizer))
    assert max(peaks) < 250
    assert abs(peaks[1] - peaks[0]) < 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_j2_reading_batches_takes_no_memory(tmp_path: Path) -> None:
    tokens = 250_000_000
    folder = write_dataset(tmp_path, [1] * 200, [1] * 200, shard_tokens=200)
    os.truncate(folder / "train-0.bin", 2 * tokens)  # 500 MB, most of it a hole in the file
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["tokens"] = tokens
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert measure(READING, folder) < 60  # 16 MB of it are the permutation


def mapped(folder: Path) -> list[str]:
    """List the files under a folder that this process has mapped into its memory."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if str(folder) in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_j2_no_file_of_tokens_stays_mapped_or_open(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, list(range(200)), [1] * 200, shard_tokens=50)
    dataset = Dataset(folder, config(length=4, vocab_size=512), "here")
    for step in range(20):
        dataset.batch(step, 0)
    assert len(list(dataset.validation(4))) > 2
    open_files = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert mapped(folder) == [] and not any(str(folder) in name for name in open_files)
    kept = np.memmap(folder / "train-0.bin", "<u2", mode="r")  # what would be seen
    assert len(mapped(folder)) == 1 and len(kept) == 50
