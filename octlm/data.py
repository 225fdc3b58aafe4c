"""How does text become the rows of a training step?

    text --scan, split--> tokenizer of the training split --encode--> shards --permute--> batch(step, slice)

The work is done once for each (text, tokenizer, split) and found again by a hash of all three. Ids are
streamed into shard files, `uint16` where the model's vocabulary allows it; memory grows with the corpus
neither here nor in reading.

Exactly one end-of-text token (EOT) stands after every document. Where a split by position cuts a document
in two, its training part has no EOT: the document does not end there.

`batch` is a function of (seed, step, slice) and of nothing else: window i of an epoch's permutation, with
x = tokens[i*T : i*T+T] and y the same one further; each of the W = (N-1) // T windows once an epoch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from octlm.config import Config, DataConfig, cache_directory
from octlm.corpus import Source, materialize_stdin, open_source
from octlm.corpus.document import naming
from octlm.corpus.shards import Ids, ShardWriter, TokenFile
from octlm.corpus.split import Scan, choose_split, divide, scan, training_text
from octlm.files import hash_file
from octlm.tokenizer import Tokenizer, build_tokenizer, load_tokenizer

if TYPE_CHECKING:
    import torch

FORMAT = 1  # of the token files: part of the cache key
SHARD_TOKENS = 1 << 27
SPLITS = ("train", "val")
STALE_SECONDS = 24 * 3600  # what an interrupted preparation left is removed after a day
log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Rows of tokens. `positions` and `documents` are there only with data.isolate_documents."""

    ids: torch.Tensor  # (B, T) int64
    targets: torch.Tensor  # (B, T) int64, -1 = not a target
    positions: torch.Tensor | None  # (B, T) int64
    documents: torch.Tensor | None  # (B, T) int64

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Apply the same change to all that is there."""
        return Batch._make(None if tensor is None else change(tensor) for tensor in self)


def prepare(config: Config, show_progress: bool = False, *, shard_tokens: int = SHARD_TOKENS) -> Dataset:
    """Return the tokens that `config` asks for, from the cache or made now.

    Several processes may do this at once: each writes into its own temporary folder and the first rename
    wins. Raises ValueError, naming the path or the key, for text that is missing, too small, or not UTF-8.
    """
    vocab_size = config.data.vocab_size or config.model.vocab_size
    if vocab_size > config.model.vocab_size:
        raise ValueError(f"data.vocab_size={vocab_size} is more than model.vocab_size={config.model.vocab_size}")
    data = materialize_stdin(config.data)
    dtype = "uint16" if config.model.vocab_size <= 1 << 16 else "uint32"
    source = open_source(data)
    found = scan(source)
    made_from = [source.name, source.licence, source.facts, found.sha256, data.split, data.val_fraction]
    given = load_tokenizer(Path(data.tokenizer_file)) if data.tokenizer_file else None
    if given and given.size > vocab_size:
        more = f"has {given.size} ids, more than the vocabulary of {vocab_size}"
        raise ValueError(f"{data.tokenizer_file}: {more}: set model.vocab_size={given.size} or more")
    tokens = [given.fingerprint] if given else [data.tokenizer, vocab_size]
    asked = [FORMAT, *made_from, *tokens, dtype, shard_tokens]
    cache = cache_directory(data) / "tokens"
    entry = cache / checksum(asked)[:32]
    fault = find_fault(entry)
    if fault:
        if entry.exists():
            log.warning("%s: %s; making it anew", entry, fault)
        cache.mkdir(parents=True, exist_ok=True)
        remove_stale(cache)
        remove_stale(cache.with_name("stdin"))
        temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=cache))
        try:
            with naming(temporary):
                write_tokens(temporary, source, found, data, given or vocab_size, dtype, shard_tokens, show_progress)
            install(temporary, entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return Dataset(entry, config, source.where)


def find_fault(entry: Path) -> str | None:
    """Say what is wrong with a cache entry: missing, torn, not the bytes written. None: nothing."""
    try:
        manifest = json.loads((entry / "manifest.json").read_bytes())
        if manifest.pop("checksum") != checksum(manifest):
            return "manifest.json is corrupted"
        files = {"tokenizer.json": manifest["tokenizer"]["fingerprint"]}
        files |= {shard["file"]: shard["sha256"] for name in SPLITS for shard in manifest["splits"][name]["shards"]}
        wrong = [name for name, sha256 in files.items() if hash_file(entry / name) != sha256]
        return f"{wrong[0]} is corrupted" if wrong else None
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "manifest.json is corrupted"


def checksum(document: Any) -> str:
    """Return a sha256 that is the same for the same JSON document, however it is laid out."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def install(temporary: Path, entry: Path) -> None:
    """Give a finished folder its name, unless another process has put a good one there."""
    while True:
        try:
            os.rename(temporary, entry)
            return
        except OSError:
            if not entry.exists():  # not because there is one already
                raise
        if find_fault(entry) is None:
            return
        aside = Path(tempfile.mkdtemp(prefix="tmp-", dir=entry.parent))
        os.rename(entry, aside / "faulty")
        shutil.rmtree(aside)


def remove_stale(cache: Path) -> None:
    """Remove what was left by preparations that were interrupted."""
    for left in cache.glob("tmp-*"):
        with suppress(FileNotFoundError):  # another process has finished or removed it
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


def write_tokens(
    folder: Path,
    source: Source,
    found: Scan,
    data: DataConfig,
    tokenizer: Tokenizer | int,
    dtype: str,
    shard_tokens: int,
    show_progress: bool,
) -> None:
    """Write tokenizer.json, the shards and, last, manifest.json into `folder`.

    `tokenizer` is one that is there, or how many ids the one may have that is made here from the training text.
    """
    split = choose_split(found, data, source.where)
    if isinstance(tokenizer, int):
        texts = partial(training_text, source, found, split, data.tokenizer)
        tokenizer = build_tokenizer(data.tokenizer, texts, tokenizer, cache_directory(data))
    tokenizer.save(folder / "tokenizer.json")
    writers = {name: ShardWriter(folder, name, tokenizer, dtype, shard_tokens) for name in SPLITS}
    hidden = None if show_progress else True  # None: shown on a terminal only
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(desc="tokens", total=found.bytes, unit="B", unit_scale=True, disable=hidden))
        for writer in writers.values():
            stack.callback(writer.close_shard)  # also when a write failed
        for name, text in divide(source, found, split):
            bar.update(writers[name].add(text))
        splits = {name: writer.finish() for name, writer in writers.items()}
    if found.log2_probabilities.size:
        for name, its in zip(SPLITS, (~split.validates, split.validates), strict=True):
            bits = -math.fsum(found.log2_probabilities[its])
            splits[name] |= {"oracle_bits": bits, "oracle_bits_per_byte": bits / splits[name]["bytes"]}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "source": {
            "name": source.name,
            "licence": source.licence,
            "sha256": found.sha256,
            "bytes": found.bytes,
            "characters": found.characters,
            "documents": len(found.sizes),
            "facts": source.facts,
        },
        "split": {"by": split.by, "val_fraction": data.val_fraction},
        "tokenizer": {"name": tokenizer.name, "size": tokenizer.size, "fingerprint": tokenizer.fingerprint},
        "dtype": dtype,
        "splits": splits,
    }
    manifest["checksum"] = checksum(manifest)
    text = json.dumps(manifest, indent=1) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8", newline="\n")


class Dataset:
    """The two splits of a prepared corpus, as batches. All sizes are in tokens unless they say bytes."""

    def __init__(self, folder: Path, config: Config, where: str) -> None:
        text = (folder / "manifest.json").read_bytes()
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads(text)
        self.fingerprint = hashlib.sha256(text).hexdigest()
        self.tokenizer: Tokenizer = load_tokenizer(folder / "tokenizer.json")
        self.vocab_size, self.context_length = config.model.vocab_size, config.model.context_length
        self.rows_per_step = config.train.tokens_per_step // self.context_length
        self.rows_per_slice = config.train.micro_batch_size
        self.overfit_block = config.train.overfit_block
        self.isolate_documents = config.data.isolate_documents
        splits = self.manifest["splits"]
        self.train, self.val = (TokenFile(folder, splits[name]["shards"], self.manifest["dtype"]) for name in SPLITS)
        self.val_bytes: int = splits["val"]["bytes"]
        # the floor of the validation loss, where the source knows how likely its documents are
        self.oracle_bits_per_byte: float | None = splits["val"].get("oracle_bits_per_byte")
        highest = max(self.tokenizer.size - 1, *(splits[name]["highest_id"] for name in SPLITS))
        if highest >= self.vocab_size:
            raise ValueError(
                f"{where}: the tokens have ids up to {highest}, but model.vocab_size="
                f"{self.vocab_size}: say model.vocab_size={highest + 1} or more"
            )
        needed = {"train": self.context_length + 1, "val": self.context_length}  # val: EOT stands before it
        for name, tokens in zip(SPLITS, (self.train, self.val), strict=True):
            if len(tokens) < needed[name]:
                raise ValueError(
                    f"{where}: the {name} split has {len(tokens)} tokens, but one window needs "
                    f"{needed[name]}: give more text or a smaller model.context_length, or change "
                    "data.val_fraction or data.split"
                )
        self.windows = (len(self.train) - 1) // self.context_length
        seed, windows = config.train.seed, self.windows
        # two epochs: a step at the border takes rows from both
        self._order = lru_cache(maxsize=2)(lambda epoch: permutation(seed, epoch, windows))

    def describe(self) -> str:
        """Return for people how much of what this is."""
        source, made = self.manifest["source"]["name"], self.manifest["tokenizer"]
        tokens = f"{len(self.train):,} training and {len(self.val):,} validation tokens of {source}"
        return f"{tokens} ({made['name']}, {made['size']:,} of {self.vocab_size:,} ids)"

    def epoch(self, step: int) -> int:
        """Return how often all windows had been seen before `step`."""
        return step * self.rows_per_step // self.windows

    def batch(self, step: int, slice: int) -> Batch:
        """Return micro-batch `slice` of `step` (both count from 0): rows_per_slice rows of context_length."""
        assert step >= 0 and 0 <= slice < self.rows_per_step // self.rows_per_slice
        first = step * self.rows_per_step + slice * self.rows_per_slice
        numbers = range(first, first + self.rows_per_slice)
        windows = [0 if self.overfit_block else int(self._order(n // self.windows)[n % self.windows]) for n in numbers]
        length = self.context_length
        rows = np.stack([self.train.read(window * length, length + 1) for window in windows])
        return self._batch(rows[:, :-1], rows[:, 1:])

    def validation(self, rows: int) -> Iterator[Batch]:
        """Yield the whole validation split in order, `rows` rows at a time; each token is a target once.

        An EOT stands before the first token. The last row is filled up with EOT, which has no target.
        """
        portion = rows * self.context_length
        for first in range(0, len(self.val), portion):
            count = min(portion, len(self.val) - first)
            before = self.val.read(first - 1, 1) if first else [self.tokenizer.eot_id]
            tokens = self.val.read(first, count)
            height = -(-count // self.context_length)
            ids = np.full((height, self.context_length), self.tokenizer.eot_id, np.int64)
            targets = np.full((height, self.context_length), -1, np.int64)
            ids.flat[:count] = np.append(before, tokens[:-1])
            targets.flat[:count] = tokens
            yield self._batch(ids, targets)

    def _batch(self, ids: Ids, targets: Ids) -> Batch:
        import torch  # takes seconds, and preparing needs none of it

        positions = documents = None
        if self.isolate_documents:
            positions, documents = map(torch.from_numpy, document_layout(ids, self.tokenizer.eot_id))
        ids, targets = np.ascontiguousarray(ids), np.ascontiguousarray(targets)
        return Batch(torch.from_numpy(ids), torch.from_numpy(targets), positions, documents)


def permutation(seed: int, epoch: int, n: int) -> Ids:
    """Return a permutation of range(n) that depends on (seed, epoch) alone.

    From the raw stream of Philox, which numpy keeps the same for ever; Generator.permutation it may change.
    """
    return np.argsort(np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(n), kind="stable")


def document_layout(ids: Ids, eot_id: int) -> tuple[Ids, Ids]:
    """Return positions and document numbers (both (B, T)) for rows whose documents may not see each other.

    An EOT opens the document after it: it has position 0, sees only itself and predicts that document's
    first token; as a target it still ends the document before. So no target is lost, and none is predicted
    across a border.
    """
    opens = ids == eot_id
    column = np.arange(ids.shape[1])
    opened_at = np.maximum.accumulate(np.where(opens, column, 0), axis=1)
    return column - opened_at, np.cumsum(opens, axis=1)
