"""How does text become ids, and ids text again?

A byte-level tokenizer is one table, `ranks: bytes -> id`. A pattern splits the text into pieces, each piece
starts as single bytes, and the adjacent pair whose joint bytes have the lowest rank is merged until no pair
has one (byte-pair encoding: Sennrich, Haddow, Birch 2016, arXiv 1508.07909; on bytes: the GPT-2 report,
Radford et al. 2019). All else is derived from the table: the `tiktoken.Encoding` that encodes here, and the
one saved form, `tokenizer.json` in the Hugging Face layout, which `tokenizers.Tokenizer.from_file` reads to
the same ids. (But that library takes the text "<|endoftext|>" for the end of a document unless its
`encode_special_tokens` is set; here text is always text.) `char` has no ranks: one id a character.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import http.client
import json
import operator
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tiktoken

from octlm.config import tiktoken_cache
from octlm.files import replace

EOT = "<|endoftext|>"

Texts = Callable[[], Iterable[str]]

MAX_IDS = 1 << 24  # more in a file is hostile: tables here are as long as the highest id
MAX_PIECE = 256  # characters of a piece in *training*: the time to merge in one word grows with its square
LONG_BLANK = 10_000  # characters; tiktoken's pattern engine overflows its stack at a million before a word
ANSWER_SECONDS = 3.0  # for a server to begin to answer: offline, a command ends within 5 s


class Split(NamedTuple):
    """Say where text is cut into pieces."""

    pattern: str  # tiktoken's, in syntax that the Rust and the Hugging Face engine read alike (\z, not $)
    blank: str  # what the pattern takes in one run, all but the last one, before a word (in Python's syntax)
    built_in: bool  # the ByteLevel pre-tokenizer has the pattern built in


# U+001C..U+001F are white space to Python only. In the newer two patterns a line end closes a run of blanks.
SPLITS: dict[str, Split] = {
    "gpt2": Split(
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+\z|\s+(?!\S)|\s",
        blank=r"[^\S\x1c-\x1f]", built_in=True),
    "cl100k": Split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s+\z|\s*[\r\n]|\s+(?!\S)|\s",
        blank=r"[^\S\x1c-\x1f\r\n]", built_in=False),
    "o200k": Split(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+\z|\s+(?!\S)|\s+",
        blank=r"[^\S\x1c-\x1f\r\n]", built_in=False),
}  # fmt: skip

# Published encodings: split, end of text, sha256 of the file, all as in tiktoken_ext/openai_public.py.
NAMED: dict[str, tuple[str, int, str]] = {
    "gpt2": ("gpt2", 50256, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    "r50k_base": ("gpt2", 50256, "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
    "p50k_base": ("gpt2", 50256, "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "cl100k_base": ("cl100k", 100257, "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    "o200k_base": ("o200k", 199999, "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
}
HOST = "https://openaipublic.blob.core.windows.net"

# How GPT-2's vocab.bpe and tokenizer.json spell bytes: printable Latin-1 as itself, others from U+0100 on.
PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
OTHERS = sorted({*range(256)} - PRINTABLE)
SPELLING = [chr(256 + OTHERS.index(byte)) if byte in OTHERS else chr(byte) for byte in range(256)]
BYTE = {character: byte for byte, character in enumerate(SPELLING)}


def unspell(word: str) -> bytes:
    """Return the bytes that a word of vocab.bpe or tokenizer.json stands for."""
    return bytes([BYTE[character] for character in word])


class Tokenizer:
    """Turn text into ids and back, exactly."""

    def __init__(
        self, name: str, pieces: dict[int, bytes], eot_id: int, encode: Callable[[str], list[int]],
        pre_tokenizer: dict[str, Any], decoder: dict[str, Any], model: dict[str, Any],
    ) -> None:  # fmt: skip
        assert eot_id not in pieces and EOT not in model["vocab"]
        self.name, self.eot_id, self._pieces, self._encode = name, eot_id, pieces, encode
        self.size = max([*pieces, eot_id]) + 1
        end = {"id": eot_id, "content": EOT, "single_word": False, "lstrip": False, "rstrip": False}
        # the end of text is in the model too: readers give a token that is only "added" the next free id
        self.vocab: dict[str, int] = dict(sorted([*model["vocab"].items(), (EOT, eot_id)], key=operator.itemgetter(1)))
        document = {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{**end, "normalized": False, "special": True}],
            "normalizer": None, "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder,
            # readers pass over a key of `model` that they do not know, but not over one at the top
            "model": {**model, "vocab": self.vocab, "name": name},
        }  # fmt: skip
        self._file = (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()
        self.fingerprint = hashlib.sha256(self._file).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, special strings being ordinary text; ValueError for what has no id."""
        return self._encode(check_unicode(text))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Join the bytes of `ids`; the end of text, and an id without a token, has none."""
        return b"".join([self._pieces.get(operator.index(i), b"") for i in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, with U+FFFD for bytes that are not UTF-8."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decoder(self) -> StreamDecoder:
        """Return a decoder for one stream of ids."""
        return StreamDecoder(self)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of bytes of each id (size,); 0 for the end of text and ids without a token."""
        return np.array([len(self._pieces.get(i, b"")) for i in range(self.size)], dtype=np.int64)

    def unused_ids(self, vocab_size: int) -> tuple[int, ...]:
        """Return the ids below `vocab_size` that have no token: gaps and the tail."""
        return tuple(i for i in range(vocab_size) if i not in self._pieces and i != self.eot_id)

    def save(self, path: Path) -> None:
        """Write the file that `load_tokenizer` and Hugging Face read; its sha256 is the fingerprint."""
        path.write_bytes(self._file)


class StreamDecoder:
    """Give out text as ids come, never half a character; all of it is `Tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """Return the text that this id completes, perhaps none."""
        return self._utf8.decode(self._tokenizer.decode_bytes([id]))

    def flush(self) -> str:
        """End the stream: return U+FFFD for a character that was begun, else nothing."""
        return self._utf8.decode(b"", final=True)


def cut(text: str) -> int:
    """Return the last place where `text` may be cut: the ids of both parts, joined, are the ids of the whole.

    That is before white space that follows a letter or digit: no pattern in SPLITS takes the two into one
    piece, or looks back. 0 means that there is no such place.
    """
    found = re.match(r"[\s\S]*[^\W_](?=\s)", text)
    return found.end() if found else 0


def build_tokenizer(name: str, texts: Texts, vocab_size: int, cache_dir: Path) -> Tokenizer:
    """Build the tokenizer `name` with at most `vocab_size` ids, the end of text included.

    `bpe` and `char` learn from `texts()`; published encodings are kept in `cache_dir`. Fewer ids than asked
    are no error: `size` tells. Raises ValueError for an unknown name, for more ids than `vocab_size`, and for
    a published encoding that cannot be had.
    """
    if name not in TOKENIZERS:
        raise ValueError(f"data.tokenizer={name!r}: unknown tokenizer; there are {', '.join(TOKENIZERS)}")
    tokenizer = TOKENIZERS[name](texts, vocab_size, cache_dir)
    if tokenizer.size > vocab_size:
        raise ValueError(
            f"data.tokenizer={name}: the tokenizer has {tokenizer.size} ids, more than the vocabulary of "
            f"{vocab_size}; set model.vocab_size={tokenizer.size}"
        )
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Rebuild a tokenizer from the file that `Tokenizer.save` wrote; refuse any other with a ValueError.

    Only the name and the vocabulary are read. The tokenizer made of them must write the same file, byte for
    byte, so nothing in the file can disagree with what is used here.
    """
    data = path.read_bytes()
    try:
        tokenizer = rebuild(json.loads(data.decode()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a tokenizer.json of octlm: {error}") from None
    if tokenizer._file != data:
        raise ValueError(f"{path}: not a tokenizer.json of octlm: its vocabulary gives another file")
    return tokenizer


def rebuild(document: object) -> Tokenizer:
    """Make a tokenizer of the name and vocabulary in `document`, which may be anything."""
    model = document.get("model") if isinstance(document, dict) else None
    name, vocab = (model.get("name"), model.get("vocab")) if isinstance(model, dict) else (None, None)
    if not isinstance(name, str) or name not in TOKENIZERS or not isinstance(vocab, dict):
        raise ValueError("it has no tokenizer name and vocabulary")
    ids = {word: i for word, i in vocab.items() if type(i) is int and 0 <= i < MAX_IDS}
    if len(set(ids.values())) != len(vocab) or EOT not in ids:
        raise ValueError(f"its ids are not distinct numbers below {MAX_IDS}, or none is of {EOT}")
    eot_id = ids.pop(EOT)
    if name == "char":
        if any(len(word) != 1 for word in ids):
            raise ValueError("an entry of its vocabulary is not one character")
        return characters(ids)
    if not BYTE.keys() <= ids.keys() or not all(BYTE.keys() >= set(word) for word in ids):
        raise ValueError("its vocabulary lacks a byte, or has an entry that spells no bytes")
    if not all(0 < len(word) <= 4 * MAX_PIECE for word in ids):
        raise ValueError(f"a token of its vocabulary is empty or longer than {4 * MAX_PIECE} bytes")
    return byte_level(name, {unspell(word): i for word, i in ids.items()}, eot_id)


def check_unicode(text: str) -> str:
    """Return `text`; raise ValueError if it has a lone surrogate, which has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text: lone surrogate {text[error.start]!r} at character {error.start}") from None
    return text


def byte_level(name: str, ranks: dict[bytes, int], eot_id: int) -> Tokenizer:
    """Derive a tokenizer from `ranks`, which has every single byte."""
    pattern, blank, built_in = SPLITS[NAMED[name][0] if name in NAMED else "gpt2"]
    ranks = dict(sorted(ranks.items(), key=operator.itemgetter(1)))
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={EOT: eot_id})
    long_blank = re.compile(rf"(?<!{blank}){blank}{{{LONG_BLANK},}}(?=[\S\x1c-\x1f])")

    def encode(text: str) -> list[int]:
        # A run of twice LONG_BLANK fills a window: cheap to see. Before a word the pattern takes a run but
        # for its last blank; cut out, the run ends the text and is taken without the lookahead.
        if not any(text[i : i + LONG_BLANK].isspace() for i in range(0, len(text), LONG_BLANK)):
            return encoding.encode_ordinary(text)
        places = [place for run in long_blank.finditer(text) for place in (run.start(), run.end() - 1)]
        parts = zip([0, *places], [*places, len(text)], strict=True)
        return [i for start, end in parts for i in encoding.encode_ordinary(text[start:end])]

    words = {rank: "".join([SPELLING[byte] for byte in token]) for token, rank in ranks.items()}
    merges = []
    for token in ranks:
        # Every split of the token in two tokens, as other converters list them. Only one is ever reached,
        # the last state of the token's own bytes before they are one, so the others change nothing.
        halves = ((ranks.get(token[:i]), ranks.get(token[i:])) for i in range(1, len(token)))
        found = sorted((left, right) for left, right in halves if left is not None and right is not None)
        merges += [f"{words[left]} {words[right]}" for left, right in found]
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": True,  # a piece that is a token is that token, as in tiktoken
        "vocab": {word: rank for rank, word in words.items()}, "merges": merges,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    cutter = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    newer = {"type": "Sequence", "pretokenizers": [cutter, {**level, "use_regex": False}]}
    split = level if built_in else newer
    return Tokenizer(name, {i: token for token, i in ranks.items()}, eot_id, encode, split, level, model)


def characters(found: Iterable[str]) -> Tokenizer:
    """Give characters ids in order of code points, and the end of text the id after them."""
    ids = {character: i for i, character in enumerate(sorted(found))}
    pieces = {i: check_unicode(character).encode() for character, i in ids.items()}

    def encode(text: str) -> list[int]:
        try:
            return [ids[character] for character in text]
        except KeyError as error:
            [new] = error.args
            at = f"{new!r} (U+{ord(new):04X}) at character {text.index(new)}"
            raise ValueError(f"char tokenizer: no id for {at}: not in the text it was made from") from None

    each = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    return Tokenizer("char", pieces, len(ids), encode, each, {"type": "Fuse"}, model)


def build_char(texts: Texts, vocab_size: int, cache_dir: Path) -> Tokenizer:
    """Give every character of the texts an id."""
    found: set[str] = set()
    for text in texts():
        found.update(check_unicode(text))
    return characters(found)


def build_bpe(texts: Texts, vocab_size: int, cache_dir: Path) -> Tokenizer:
    """Learn ranks from pairs that occur at least twice; the number of threads does not change them."""
    from tokenizers import Regex, models, pre_tokenizers, trainers  # here, since encoding does without
    from tokenizers import Tokenizer as Learner

    learner = Learner(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLITS["gpt2"].pattern), "isolated"),
        pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{MAX_PIECE}}}"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=max(256, vocab_size - 1), min_frequency=2, show_progress=False,  # one id is for EOT
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    learner.train_from_iterator(map(check_unicode, texts()), trainer)
    ranks = {unspell(word): BYTE.get(word, i) for word, i in learner.get_vocab().items()}
    assert sorted(ranks.values()) == list(range(len(ranks)))
    return byte_level("bpe", ranks, len(ranks))


def build_named(name: str, texts: Texts, vocab_size: int, cache_dir: Path) -> Tokenizer:
    """Take the ranks of a published encoding."""
    data = published(name, cache_dir)
    if name == "gpt2":  # a heading, then a merge a line; single bytes come first, in order of their spelling
        words = [*sorted(BYTE), *(line.replace(" ", "") for line in data.decode().splitlines()[1:])]
        ranks = {unspell(word): rank for rank, word in enumerate(words)}
    else:
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())}
    return byte_level(name, ranks, NAMED[name][1])


def published(name: str, cache_dir: Path) -> bytes:
    """Return the file of a published encoding: from our cache, from tiktoken's, or downloaded into ours."""
    file = "gpt-2/encodings/main/vocab.bpe" if name == "gpt2" else f"encodings/{name}.tiktoken"
    url, path = f"{HOST}/{file}", cache_dir / "tiktoken" / Path(file).name
    theirs = tiktoken_cache() / hashlib.sha1(url.encode()).hexdigest()
    kept = next((copy for copy in (path, theirs) if copy.is_file()), None)
    if kept:
        data = kept.read_bytes()
    else:
        try:
            data = download(url)
        except (OSError, http.client.HTTPException) as error:
            remedy = f"put it at {path}, or at {theirs}, or use data.tokenizer=bpe"
            raise ValueError(f"data.tokenizer={name}: cannot download {url} ({error}); {remedy}") from None
    place = kept or url
    if (sha256 := hashlib.sha256(data).hexdigest()) != (right := NAMED[name][2]):
        raise ValueError(f"data.tokenizer={name}: {place}: sha256 {sha256}, not {right}; get it from {url}")
    if kept is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)
    return data


def download(url: str) -> bytes:
    """Fetch `url`; OSError if no answer has begun within ANSWER_SECONDS. The thread bounds what a socket's
    timeout does not: looking up the name, and trying several addresses."""
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(urllib.request.urlopen(url, timeout=ANSWER_SECONDS))
        except (OSError, http.client.HTTPException) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        with answer.result(ANSWER_SECONDS) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise
    except FutureTimeout:  # no OSError in Python 3.10
        raise TimeoutError(f"no answer within {ANSWER_SECONDS:g} s") from None


TOKENIZERS: dict[str, Callable[[Texts, int, Path], Tokenizer]] = {
    "byte": lambda texts, size, cache_dir: byte_level("byte", {bytes([i]): i for i in range(256)}, 256),
    "char": build_char, "bpe": build_bpe,
    **{name: partial(build_named, name) for name in NAMED},
}  # fmt: skip
