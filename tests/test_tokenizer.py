"""Text becomes ids and the same text again; tiktoken, Hugging Face and the saved file tell one story."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import random
import socket
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tiktoken_ext.openai_public as openai_public
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace

from octlm import tokenizer as module
from octlm.checkpoint import save_checkpoint
from octlm.config import Config, DataConfig, ModelConfig, TrainConfig, load_config
from octlm.model import Decoder
from octlm.tokenizer import EOT, NAMED, SPLITS, TOKENIZERS, Tokenizer, build_tokenizer, cut, load_tokenizer
from tests import generation
from tests.generation import Call

call = generation.call  # its fixture

LINES = [
    """It was the best of times, it was the worst of times, isn't it? They'll say "we've 12345 of 'em".\n""",
    "def f(x):\n    return x  # CRLF:\r\n\tnaïve café, Привет мир, 中文中文。\n\n\n",
    "  aaaa aaaaaaaa bbbb 👩‍👩‍👧 👩‍👩‍👧\r\n",
]
CORPUS = "".join(LINES * 3)
HOSTILE = [
    "", " ", "\0", "\r", "\r\n\r\n", " \n \n", "a" * 50, "a " * 20, " " * 33 + "x", "\n" * 9 + "x", "\t\t x",
    "x\n\n  ", ".\n\n/a", "\ufeffBOM", "👩‍👩‍👧‍👦👨🏽‍🚀", "e\u0301\u0301 o\u0308", "\u200d\u200b\u00ad",
    "ſ's'ſ 'S 'LL 'ﬀ",
    "\x1c\x1d a\x85b\u2028c\u3000d", "ǅ ʰ İ K ß", "١٢٣٤ ²³ Ⅷ 1234567", EOT, f"a{EOT}{EOT} b",
    "<|fim_prefix|><|endofprompt|>", "\U0010ffff\ufffe\ue000", "\ufffd", "'", "don't DON'T", "a_b__c___d",
    "https://x.y/z?q=1&r=%20\r\n/", "نص عربي", "ไทย",
]  # fmt: skip
PARTS = ["a", "aa", "b", "é", "e\u0301", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", ".", "/", "12", "中", EOT]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PARTS)).map("".join), st.sampled_from(HOSTILE))
BLANKS = [*PARTS, " ", "\n", "\t", "\r", "\x1c", "\u3000", "   "]
Kinds = dict[str, Tokenizer]
Readers = dict[str, HuggingFace]
SIZE = 360
RANKED = ["byte", "bpe", "cl100k_base", "o200k_base"]  # all three patterns; gpt2 and its kin share bpe's
ALL = [*RANKED, "char"]


def build(name: str, vocab_size: int = 1024, texts: Sequence[str] = (CORPUS,), cache: Path = Path("none")) -> Tokenizer:
    return build_tokenizer(name, lambda: texts, vocab_size, cache)


def ranks_of(tokenizer: Tokenizer) -> dict[bytes, int]:
    return {token: i for i, token in tokenizer._pieces.items()}


@pytest.fixture(scope="module")
def tokenizers() -> Kinds:
    """One of each kind; the published patterns, whose ranks need a download, with those of `bpe`."""
    bpe = build("bpe", SIZE)
    made = {"byte": build("byte"), "bpe": bpe, "char": build("char", 1024, [CORPUS, *HOSTILE])}
    for name in ("cl100k_base", "o200k_base"):
        made[name] = module.byte_level(name, ranks_of(bpe), NAMED[name][1])
    return made


@pytest.fixture(scope="module")
def readers(tokenizers: Kinds, tmp_path_factory: pytest.TempPathFactory) -> Readers:
    """The same tokenizers, read by the other library from the file; in them, too, text is just text."""
    read = {}
    for name, tokenizer in tokenizers.items():
        path = tmp_path_factory.mktemp("saved") / "tokenizer.json"
        tokenizer.save(path)
        read[name] = HuggingFace.from_file(str(path))
        read[name].encode_special_tokens = True
    return read


# ---- encoding and decoding


@pytest.mark.parametrize("name", RANKED)
@settings(max_examples=200)
@given(text=TEXTS)
def test_every_string_comes_back_and_hugging_face_agrees(
    name: str, text: str, tokenizers: Kinds, readers: Readers
) -> None:
    ids = tokenizers[name].encode(text)
    assert tokenizers[name].decode(ids) == text
    assert readers[name].encode(text).ids == ids
    assert readers[name].decode(ids) == text
    assert sum(len(tokenizers[name].decode_bytes([i])) for i in ids) == len(text.encode())


def test_the_trained_tokenizer_merges_and_all_its_tokens_are_reached(tokenizers: Kinds) -> None:
    bpe = tokenizers["bpe"]
    assert len(bpe.encode(CORPUS)) < len(CORPUS.encode()) / 3
    words = {token.decode(): i for token, i in ranks_of(bpe).items() if token.isalpha()}  # each is one piece
    assert max(map(len, words)) > 3 and len(words) > 80
    assert {word: bpe.encode(word) for word in words} == {word: [i] for word, i in words.items()}


@settings(max_examples=150)
@given(
    merges=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=1, max_size=12),
    more=st.lists(st.text("ab", min_size=2, max_size=5), max_size=2),
    text=st.text("ab", max_size=40),
)
@example(merges=[(0, 1), (1, 0), (1, 1), (0, 3)], more=["bbabb"], text="bbabb")
def test_merges_derived_from_any_ranks_give_the_same_ids(
    merges: list[tuple[int, int]], more: list[str], text: str
) -> None:
    """Many tokens of two letters, so that most have several splits; and `more`, perhaps with none at all."""
    ranks = {bytes([i]): i for i in range(256)}
    pool = [b"a", b"b"]
    for left, right in merges:
        pool.append(pool[left % len(pool)] + pool[right % len(pool)])
        ranks.setdefault(pool[-1], len(ranks))
    for word in more:
        ranks.setdefault(word.encode(), len(ranks))
    tokenizer = module.byte_level("bpe", ranks, len(ranks))
    reader = HuggingFace.from_str(tokenizer._file.decode())
    assert reader.encode(text).ids == tokenizer.encode(text)


@given(text=st.text(alphabet=sorted(set(CORPUS).union(*HOSTILE))))
@example(text="\n\n\r\n\0\0")
def test_char_gives_one_id_a_character(text: str, tokenizers: Kinds, readers: Readers) -> None:
    ids = tokenizers["char"].encode(text)
    assert len(ids) == len(text) and tokenizers["char"].decode(ids) == text
    assert readers["char"].encode(text).ids == ids and readers["char"].decode(ids) == text


@pytest.mark.parametrize("character, shown", [("é", "'é' (U+00E9)"), ("\n", r"'\n' (U+000A)"), ("👩", "(U+1F469)")])
def test_char_names_a_character_that_it_lacks(character: str, shown: str) -> None:
    char = build("char", 10, ["abc"])
    assert (char.size, char.eot_id, char.encode("cab")) == (4, 3, [2, 0, 1])
    with pytest.raises(ValueError) as caught:
        char.encode(f"ab{character}{character}")
    message = str(caught.value)
    assert shown in message and "at character 2" in message and "\n" not in message


@pytest.mark.parametrize("name", ALL)
def test_special_strings_are_text_and_the_end_of_text_is_silent(name: str, tokenizers: Kinds, readers: Readers) -> None:
    tokenizer = tokenizers[name]
    ids = tokenizer.encode(f"a{EOT}b")
    assert tokenizer.eot_id not in ids and tokenizer.decode(ids) == f"a{EOT}b"
    assert tokenizer.decode([ids[0], tokenizer.eot_id, ids[-1]]) == "ab"
    assert readers[name].token_to_id(EOT) == tokenizer.eot_id
    assert readers[name].decode([ids[0], tokenizer.eot_id, ids[-1]]) == "ab"
    readers[name].encode_special_tokens = False  # as `from_file` leaves it: that library reads the mark
    assert readers[name].encode(f"a{EOT}b").ids == [ids[0], tokenizer.eot_id, ids[-1]]
    readers[name].encode_special_tokens = True


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("text, place", [("\ud800", 0), ("ab\udfffc", 2), ("\ud83d\ude00", 0)])
def test_a_lone_surrogate_is_refused(name: str, text: str, place: int, tokenizers: Kinds) -> None:
    with pytest.raises(ValueError, match=rf"^text: lone surrogate '\\ud\w+' at character {place}$"):
        tokenizers[name].encode(text)
    if name in ("bpe", "char"):
        with pytest.raises(ValueError, match="lone surrogate"):
            build(name, 1024, [CORPUS, text])


@pytest.mark.parametrize("name", RANKED)
def test_every_byte_has_an_id(name: str, tokenizers: Kinds) -> None:
    ranks = ranks_of(tokenizers[name])
    ids = [ranks[bytes([byte])] for byte in range(256)]
    assert tokenizers[name].decode_bytes(ids) == bytes(range(256))
    assert name not in ("byte", "bpe") or ids == list(range(256))
    assert tokenizers[name].decode_bytes(np.array(ids, np.uint16)) == bytes(range(256))


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_the_stream_is_the_text_and_never_half_a_character(name: str, data: st.DataObject, tokenizers: Kinds) -> None:
    tokenizer = tokenizers[name]
    anything = st.lists(st.integers(-1, 300) | st.integers(0, tokenizer.size + 3))
    ids = data.draw(anything | st.sampled_from(HOSTILE[14:20]).map(tokenizer.encode))
    stream = tokenizer.decoder()
    parts = [stream.push(i) for i in ids]
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids)
    assert stream.flush() == "" and stream.push(tokenizer.encode("a")[0]) == "a"


def test_a_character_in_parts_comes_whole_and_an_unfinished_one_as_a_replacement() -> None:
    byte = build("byte")
    stream = byte.decoder()
    assert [stream.push(i) for i in "é👩".encode()] == ["", "é", "", "", "", "👩"]
    assert [stream.push(i) for i in "👩".encode()[:3]] == [""] * 3 and stream.flush() == "\ufffd"


# ---- sizes


def test_the_size_counts_the_end_of_text() -> None:
    for size in (257, 258, 300):
        bpe = build("bpe", size)
        assert (bpe.size, bpe.eot_id, len(ranks_of(bpe))) == (size, size - 1, size - 1)
    assert (build("byte").size, build("byte").eot_id) == (257, 256)


@pytest.mark.parametrize("texts, size", [([], 257), ([""], 257), (["ab ab"], 258), (["x"], 257), (["ab" * 9], 260)])
def test_a_small_corpus_gives_a_small_tokenizer(texts: list[str], size: int) -> None:
    bpe = build("bpe", 1024, texts)
    assert bpe.size == size and bpe.unused_ids(1024) == tuple(range(size, 1024))
    assert bpe.decode(bpe.encode("unseen ütext")) == "unseen ütext"


@pytest.mark.parametrize("name, size", [("byte", 257), ("bpe", 257), ("char", len(set(CORPUS)) + 1)])
def test_more_ids_than_the_vocabulary_are_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError) as caught:
        build(name, 20)
    message = str(caught.value)
    assert f" {size} ids" in message and " 20; " in message and f"model.vocab_size={size}" in message
    assert "\n" not in message


def test_f6_gaps_have_no_token_and_no_bytes(tokenizers: Kinds) -> None:
    gapped = tokenizers["cl100k_base"]
    count = len(ranks_of(gapped))
    assert gapped.unused_ids(gapped.size + 1) == (*range(count, gapped.eot_id), gapped.size)
    assert gapped.decode([count, gapped.eot_id, gapped.size + 5, -1]) == ""
    lengths = gapped.byte_lengths()
    assert lengths.shape == (gapped.size,) and lengths.dtype == np.int64 and not lengths[count:].any()
    with pytest.raises(TypeError):
        gapped.decode([97.0])  # type: ignore[list-item]


def check_that_gaps_are_never_drawn(call: Call, folder: Path) -> None:
    """An untrained model of 304 ids: 44 between the bytes and the end of text, and 3 after it, have no token."""
    torch.manual_seed(0)
    gapped = module.byte_level("byte", {bytes([i]): i for i in range(256)}, 300)
    config = Config(
        model=ModelConfig(vocab_size=304, context_length=256, dim=32),
        data=DataConfig(tokenizer="byte"),
        train=TrainConfig(tokens_per_step=256, micro_batch_size=1),
    )
    model = Decoder(config.model)
    model.head.weight.data[256:] *= 30  # else a gap is the best id by chance only
    saved = save_checkpoint(
        folder, 1, model=model, optimizer=torch.optim.AdamW(model.parameters()), state={}, config=config,
        tokenizer=gapped,
    )  # fmt: skip
    for temperature in (0, 1):
        words = ("--temperature", temperature, "--top-k", 0, "--ignore-eot", "--json", "--max-new-tokens", 200)
        result = call("--run", saved, "--prompt", "a", *words)
        assert result.code == 0, result.err
        ids = json.loads(result.out)["ids"]
        assert len(ids) == 200 and not set(ids) & {*range(256, 300), 301, 302, 303}


def test_f6_an_untrained_model_with_gaps_in_its_vocabulary_gives_text(call: Call, tmp_path: Path) -> None:
    check_that_gaps_are_never_drawn(call, tmp_path)


def test_f6_catches_a_sampler_that_draws_them(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "unused_ids", lambda self, vocab_size: ())
    with pytest.raises(AssertionError):
        check_that_gaps_are_never_drawn(call, tmp_path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"gpt3.*{', '.join(['byte', 'char', 'bpe', *NAMED])}$"):
        build("gpt3")


# ---- training


def test_f5_training_does_not_depend_on_threads_and_leaves_forks_in_peace() -> None:
    program = """if True:
        import os, random, sys
        from pathlib import Path
        import octlm.tokenizer
        assert not {"tokenizers", "torch"} & sys.modules.keys(), "import is light"
        rng = random.Random(0)
        words = ["".join(rng.choices("abcdefgh", k=rng.randrange(1, 9))) for _ in range(500)]
        texts = [" ".join(rng.choices(words, k=400)) for _ in range(100)]
        tokenizer = octlm.tokenizer.build_tokenizer("bpe", lambda: texts, 700, Path("none"))
        print(tokenizer.fingerprint, flush=True)
        ids = tokenizer.encode(texts[0])
        if (child := os.fork()) == 0:  # as a worker of someone's loader does
            again = octlm.tokenizer.build_tokenizer("byte", list, 257, Path("none"))
            os._exit(7 if tokenizer.encode(texts[0]) == ids and again.encode("ab") == [97, 98] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """
    prints = set()
    root = Path(__file__).parents[1]
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]  # 3.12: fork beside threads
    for variable in ("NONE=0", "RAYON_NUM_THREADS=1", "RAYON_NUM_THREADS=4", "TOKENIZERS_PARALLELISM=false"):
        setting = dict([variable.split("=")])
        done = subprocess.run(command, env=setting, cwd=root, capture_output=True, timeout=60)
        assert done.returncode == 0 and done.stderr == b"", done.stderr.decode()
        prints.add(done.stdout)
    assert len(prints) == 1 and len(prints.pop()) == 65
    for word in ("data.workers=4", "data.num_workers=1"):  # there are none, and nobody is led to think so
        with pytest.raises(ValueError, match=r"workers: unknown key"):
            load_config("base", [word])


LONG = {
    "a": "a" * 1_000_000,
    "_": "_" * 1_000_000,
    "letters": "".join(random.Random(0).choices(string.ascii_letters, k=1_000_000)),
    "blanks": " " * 1_000_000,
    "blanks and a word": " " * 1_100_000 + "x",  # overflows the stack of the pattern engine if not cut
    "line ends and a word": "\r\n" * 550_000 + "x",
    "mixed blanks": "x" + "\t \u3000" * 400_000 + ".\n",
}


@pytest.mark.parametrize("kind", LONG)
def test_f4_a_megabyte_without_a_break_trains_and_encodes(kind: str, tokenizers: Kinds) -> None:
    assert len(LONG[kind]) >= 1_000_000 and build("bpe", 300, [LONG[kind]]).size > 257
    for name in RANKED if kind.endswith("a word") else ["bpe"]:
        started = time.monotonic()
        assert tokenizers[name].decode(tokenizers[name].encode(LONG[kind])) == LONG[kind]
        assert time.monotonic() - started < 10  # a limit against hanging: a tenth of a second is usual


@pytest.mark.slow
@pytest.mark.parametrize("name", RANKED)
def test_f4_every_kind_encodes_a_megabyte_without_a_break(name: str, tokenizers: Kinds) -> None:
    for text in LONG.values():
        started = time.monotonic()
        assert tokenizers[name].decode(tokenizers[name].encode(text)) == text
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("name", RANKED)
def test_cutting_out_long_runs_of_blanks_changes_no_id(name: str) -> None:
    ranks = {bytes([i]): i for i in range(256)}
    for blanks in ("  ", "   ", "    ", "\n\n", "\n ", "\n  ", " \n", "\t ", "\r\n", ".\n", ". ", " a"):
        ranks.setdefault(blanks.encode(), len(ranks))
    whole = module.byte_level(name, ranks, 200_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG_BLANK", 1)
        parts = module.byte_level(name, ranks, 200_000)

        @settings(max_examples=300)
        @given(text=st.lists(st.sampled_from(BLANKS), max_size=30).map("".join))
        @example(text=" a\n\n   b  \n  .\n\n/ \t")
        @example(text="x  \x1ca")
        def check(text: str) -> None:
            assert parts.encode(text) == whole.encode(text)

        check()


# ---- cutting text


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=200)
@given(data=st.data())
def test_text_is_cut_where_no_id_changes(name: str, data: st.DataObject, tokenizers: Kinds) -> None:
    known = sorted(set(CORPUS).union(*HOSTILE)) if name == "char" else None
    parts = [part for part in PARTS if name != "char" or set(part) <= set(known or "")]
    text = data.draw(st.text(known) if known else TEXTS)
    text += data.draw(st.lists(st.sampled_from(parts)).map("".join))
    place = cut(text)
    encode = tokenizers[name].encode
    assert encode(text[:place]) + encode(text[place:]) == encode(text)
    if place:
        assert text[place - 1].isalnum() and text[place].isspace()


def test_the_last_place_is_found() -> None:
    places = {"": 0, "abc": 0, "abc ": 3, " a": 0, "a b c": 3, "a.\n": 0, "é\u3000": 1, "12\r\n3": 2, "_ ": 0}
    assert {text: cut(text) for text in places} == places


@pytest.mark.parametrize("name", RANKED)
def test_no_pattern_joins_a_letter_or_digit_of_any_script_with_white_space(name: str, tokenizers: Kinds) -> None:
    ranks = {bytes([i]): i for i in range(256)}
    for blank in " \n":  # any joint piece would show as one of these tokens
        ranks |= {bytes([i]) + blank.encode(): len(ranks) + i for i in range(256)}
    tokenizer = module.byte_level(name, ranks, 200_000)
    every = [chr(i) for i in range(0x110000) if chr(i).isalnum()]
    for blank in " \n":
        ids = tokenizer.encode("".join(f"{character}{blank}{blank}." for character in every))
        joint = [ranks[bytes([i]) + blank.encode()] for i in range(256) if i != ord(blank)]
        assert len(every) > 100_000 and not set(ids) & set(joint)
    assert ranks[b".\n"] in tokenizer.encode(".\n") or name in ("byte", "bpe"), "a joint piece would be seen"


# ---- the saved form


@pytest.mark.parametrize("name", ALL)
def test_the_file_alone_rebuilds_the_tokenizer(name: str, tokenizers: Kinds, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizers[name].save(path)
    loaded = load_tokenizer(path)
    for attribute in ("name", "size", "eot_id", "fingerprint"):
        assert getattr(loaded, attribute) == getattr(tokenizers[name], attribute)
    assert loaded.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    for text in HOSTILE:
        assert loaded.encode(text) == tokenizers[name].encode(text)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_fingerprints_differ(tokenizers: Kinds) -> None:
    others = [build("bpe", SIZE + 1), build("bpe", SIZE, [CORPUS[9:]]), build("char")]
    assert len({tokenizer.fingerprint for tokenizer in [*tokenizers.values(), *others]}) == len(ALL) + 3
    assert build("bpe", SIZE).fingerprint == tokenizers["bpe"].fingerprint


def swap_ids(document: dict[str, Any]) -> None:
    vocab = document["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


TAMPERED = {
    "duplicate id": lambda d: d["model"]["vocab"].update(a=98),
    "negative id": lambda d: d["model"]["vocab"].update(a=-1),
    "huge id": lambda d: d["model"]["vocab"].update(a=1 << 40),
    "id a float": lambda d: d["model"]["vocab"].update(a=97.0),
    "id true": lambda d: d["model"]["vocab"].update(a=True),
    "id a list": lambda d: d["model"]["vocab"].update(a=[97]),
    "no byte a": lambda d: d["model"]["vocab"].pop("a"),
    "an empty token": lambda d: d["model"]["vocab"].update({"": 5000}),
    "an endless token": lambda d: d["model"]["vocab"].update({"a" * 100_000: 5000}),
    "a word that spells no bytes": lambda d: d["model"]["vocab"].update({"中": 5000}),
    "a surrogate": lambda d: d["model"]["vocab"].update({"\ud800": 5000}),
    "another token": lambda d: d["model"]["vocab"].update(zzzz=5000),
    "ids swapped": swap_ids,
    "no end of text": lambda d: d["model"]["vocab"].pop(EOT),
    "end of text moved": lambda d: d["added_tokens"][0].update(id=7),
    "vocab a list": lambda d: d["model"].update(vocab=[]),
    "model a list": lambda d: d.update(model=[]),
    "no model": lambda d: d.pop("model"),
    "name a list": lambda d: d["model"].update(name=["bpe"]),
    "another name": lambda d: d["model"].update(name="o200k_base"),
    "an unknown name": lambda d: d["model"].update(name="x"),
    "char by name": lambda d: d["model"].update(name="char"),
    "a merge less": lambda d: d["model"]["merges"].pop(),
    "dropout": lambda d: d["model"].update(dropout=0.1),
    "another pattern": lambda d: d["pre_tokenizer"].update(use_regex=False),
    "another key": lambda d: d.update(x=1),
}  # fmt: skip
BROKEN = {
    "empty": b"", "one byte": b"{", "NUL": b"\0" * 9, "not UTF-8": b'{"\xff": 1}', "BOM": b"\xef\xbb\xbf{}",
    "null": b"null", "a number": b"3", "a list": b"[]", "a string": b'"x"', "deep": b"[" * 200_000,
    "deep objects": b'{"model":' * 100_000, "long number": b'{"model": ' + b"9" * 10_000 + b"}",
    "NaN": b'{"model": NaN}', "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}  # fmt: skip


def assert_refused(path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        load_tokenizer(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{path}: not a tokenizer.json of octlm: ")


@pytest.mark.parametrize("fault", TAMPERED)
def test_a_tampered_file_is_refused(fault: str, tokenizers: Kinds, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    document = json.loads(tokenizers["bpe"]._file)
    same = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    assert same.encode() == tokenizers["bpe"]._file, "what is refused is the fault, not the writing"
    TAMPERED[fault](document)
    path.write_text(json.dumps(document, indent=2) + "\n")
    assert_refused(path)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_file_of_another_kind_is_refused(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(BROKEN[fault])
    assert_refused(path)


def test_a_file_cut_short_or_edited_is_refused(tokenizers: Kinds, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for name in ("bpe", "char"):
        whole = tokenizers[name]._file
        for size in (1, 100, len(whole) // 2, len(whole) - 3, len(whole) - 1):
            path.write_bytes(whole[:size])
            assert_refused(path)
        twice = whole.replace(b'"model": {', b'"model": 1, "model": {')
        for edited in (whole + b" ", whole.replace(b"\n", b"\r\n"), twice):
            assert edited != whole
            path.write_bytes(edited)
            assert_refused(path)


@pytest.mark.parametrize("change", [{"ab": 99}, {"\ud800": 99}, {"": 99}, {"a": 5}])
def test_a_tampered_char_file_is_refused(change: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    document = json.loads(build("char", 10, ["abc"])._file)
    document["model"]["vocab"].update(change)
    path.write_text(json.dumps(document, indent=2) + "\n")
    assert_refused(path)


@pytest.mark.parametrize("fault", ["a byte lacks", "an endless token", "an endless table"])
def test_a_hostile_file_that_agrees_with_itself_is_refused(fault: str, tmp_path: Path) -> None:
    """Encoding would panic, or loading take time in the square of a token's length, or memory without end."""
    ranks = {bytes([i]): i for i in range(256)}
    if fault == "a byte lacks":
        del ranks[b"\xff"]
    if fault == "an endless token":
        ranks[b"a" * (4 * module.MAX_PIECE + 1)] = 256
    hostile = module.byte_level("bpe", ranks, module.MAX_IDS if fault == "an endless table" else 300)
    hostile.save(tmp_path / "tokenizer.json")
    assert_refused(tmp_path / "tokenizer.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.json"):
        load_tokenizer(tmp_path / "missing.json")


# ---- published encodings, without the network


def published_constructions(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What tiktoken says of its encodings, with the files' addresses and hashes in place of their ranks."""
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda url, expected_hash: (url, expected_hash))
    monkeypatch.setattr(
        openai_public, "data_gym_to_mergeable_bpe_ranks",
        lambda vocab_bpe_file, vocab_bpe_hash, **other: (vocab_bpe_file, vocab_bpe_hash),
    )  # fmt: skip
    return {name: openai_public.ENCODING_CONSTRUCTORS[name]() for name in NAMED}


def test_the_table_says_what_tiktoken_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "download", lambda url: asked.append(url) or b"")
    for name, construction in published_constructions(monkeypatch).items():
        with pytest.raises(ValueError, match=construction["mergeable_ranks"][1]):
            build(name, 300_000, cache=tmp_path)
        assert (asked.pop(), NAMED[name][2]) == construction["mergeable_ranks"]
        assert NAMED[name][1] == construction["special_tokens"][EOT]
    assert not list(tmp_path.iterdir()), "nothing with a wrong hash is kept"


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_our_patterns_split_as_tiktoken_does(name: str, tokenizers: Kinds) -> None:
    """Ranks join any two characters of a small alphabet that stand in one piece, so every boundary shows."""
    with pytest.MonkeyPatch.context() as patch:
        pattern = published_constructions(patch)[name]["pat_str"]
    alphabet = "aAsSſ1 \n\r\t'./é\u0301中\u3000\x1c"
    ranks = {bytes([i]): i for i in range(256)}
    for left in alphabet:
        ranks.setdefault(left.encode(), len(ranks))
    for left in alphabet:
        for right in alphabet:
            ranks.setdefault((left + right).encode(), len(ranks))
    theirs = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={EOT: 200_000})
    ours = module.byte_level(name, ranks, 200_000)

    @settings(max_examples=500)
    @given(text=st.lists(st.sampled_from([*alphabet, "1111", "    ", "\r\n", "'s", "'S"]), max_size=12).map("".join))
    def check(text: str) -> None:
        assert ours.encode(text) == theirs.encode_ordinary(text)

    check()


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tokenizers: Kinds, tmp_path: Path) -> Any:
    """A small file in place of a published one; nothing listens at its address, tiktoken's cache is empty."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "theirs"))
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(module, "HOST", "http://127.0.0.1:9")

    def plant(name: str) -> tuple[bytes, Path, Path]:
        ranks = ranks_of(tokenizers["bpe"])
        if name == "gpt2":
            merges = json.loads(tokenizers["bpe"]._file)["model"]["merges"]
            longer = {merge.replace(" ", ""): merge for merge in merges}  # one split of each token
            file = "gpt-2/encodings/main/vocab.bpe"
            data = "\n".join(["#version: 0.2", *longer.values(), ""]).encode()
        else:
            lines = [base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items()]
            file, data = f"encodings/{name}.tiktoken", b"\n".join([*lines, b""])
        split, eot_id, _ = NAMED[name]
        monkeypatch.setitem(NAMED, name, (split, eot_id, hashlib.sha256(data).hexdigest()))
        key = hashlib.sha1(f"{module.HOST}/{file}".encode()).hexdigest()
        return data, tmp_path / "ours" / "tiktoken" / file.rsplit("/", 1)[1], tmp_path / "theirs" / key

    return plant


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("name", NAMED)
def test_f1_a_file_in_either_cache_is_used_and_a_wrong_one_refused(
    name: str, place: int, plant: Any, tokenizers: Kinds, tmp_path: Path
) -> None:
    planted = plant(name)
    data, path = planted[0], planted[place]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    made = build(name, 300_000, cache=tmp_path / "ours")
    assert made.decode(made.encode(CORPUS)) == CORPUS
    assert (made.name, made.eot_id, made.size) == (name, NAMED[name][1], NAMED[name][1] + 1)
    if name != "gpt2":
        assert ranks_of(made) == ranks_of(tokenizers["bpe"])
        assert made.encode(CORPUS) == tokenizers[name if name in RANKED else "bpe"].encode(CORPUS)
    else:  # the ids of single bytes are in the order of their spelling
        assert ranks_of(made).keys() == ranks_of(tokenizers["bpe"]).keys()
        assert made.decode_bytes([0, 1, 187, 188, 220, 255]) == b'!"\xff\0 \xad'
    path.write_bytes(data + b"\n")
    with pytest.raises(ValueError) as caught:
        build(name, 300_000, cache=tmp_path / "ours")
    wrong = hashlib.sha256(data + b"\n").hexdigest()
    assert all(part in str(caught.value) for part in (name, path.name, wrong, NAMED[name][2], module.HOST))
    assert "\n" not in str(caught.value) and path.read_bytes() == data + b"\n", "refused, not removed"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """It takes a call and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("network", ["refuses", "is silent", "has no name", "finds nothing", "stalls"])
def test_f1_offline_one_line_says_which_file_to_put_where(
    network: str, plant: Any, silent_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert 0 < module.ANSWER_SECONDS <= 4
    held = threading.Event()
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    if network == "is silent":
        monkeypatch.setattr(module, "HOST", silent_server)
    if network == "has no name":  # nor does a name server say so, which no socket's timeout bounds
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: held.wait(5) and [])
        monkeypatch.setattr(module, "HOST", "http://nowhere.invalid")
    if network in ("finds nothing", "stalls"):
        handler = type("Handler", (Missing,), {"held": held if network == "stalls" else None})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(module, "HOST", f"http://127.0.0.1:{server.server_address[1]}")
    _, path, copy = plant("cl100k_base")
    with pytest.raises(ValueError) as caught:
        build("cl100k_base", 300_000, cache=tmp_path / "ours")
    message = str(caught.value)
    url = f"{module.HOST}/encodings/cl100k_base.tiktoken"
    assert all(part in message for part in ("data.tokenizer=cl100k_base", url, str(path), copy.name)), message
    assert "\n" not in message and not path.exists() and not copy.exists()
    held.set()
    if network in ("finds nothing", "stalls"):
        assert network == "stalls" or "404" in message
        server.shutdown()
        server.server_close()


class Missing(http.server.BaseHTTPRequestHandler):
    """Answers 404, or the planted file, or begins to answer and holds on."""

    data: bytes | None = None
    held: threading.Event | None = None

    def do_GET(self) -> None:
        self.send_response(404 if self.data is None and self.held is None else 200)
        self.end_headers()
        self.wfile.write(self.data or b"")
        if self.held is not None:
            self.held.wait(5)

    def log_message(self, *arguments: Any) -> None:
        pass


def test_a_download_is_kept_for_the_next_time(plant: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Serving(Missing):
        pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serving) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(module, "HOST", f"http://127.0.0.1:{server.server_address[1]}")
        Serving.data, path, copy = plant("o200k_base")
        first = build("o200k_base", 300_000, cache=tmp_path / "ours")
        server.shutdown()
    assert path.read_bytes() == Serving.data and not copy.exists() and [*path.parent.iterdir()] == [path]
    assert build("o200k_base", 300_000, cache=tmp_path / "ours").fingerprint == first.fingerprint


def test_every_name_of_the_table_is_covered_here(tokenizers: Kinds) -> None:
    assert set(TOKENIZERS) == {"byte", "char", "bpe", *NAMED}
    assert {NAMED[name][0] for name in NAMED if name in tokenizers} | {"gpt2"} == set(SPLITS)
