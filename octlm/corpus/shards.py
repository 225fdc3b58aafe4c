"""How do ids lie on disk? As little-endian integers in shard files, written in a stream and read by position.

The text of a split comes in pieces that may end inside a word: what the next piece may change is held back.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from octlm.tokenizer import Tokenizer, cut

Ids = npt.NDArray[np.int64]


def file_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of ids in a file: little-endian on every machine."""
    return np.dtype(name).newbyteorder("<")


class ShardWriter:
    """Encodes the text of one split as it comes and appends the ids to shard files."""

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer, dtype: str, shard_tokens: int) -> None:
        self.folder, self.split, self.tokenizer, self.shard_tokens = folder, split, tokenizer, shard_tokens
        self.dtype = file_dtype(dtype)
        self.rest = ""  # text whose last token may still change with what follows
        self.open_document = False
        self.bytes = self.documents = self.eot_tokens = 0
        self.highest_id = -1
        self.shards: list[dict[str, Any]] = []
        self.file: BinaryIO | None = None
        self.digest = hashlib.sha256()

    def add(self, text: str | None) -> int:
        """Take the next piece of a document, or None at its end; return its size in bytes."""
        if text is None:
            self.write(self.tokenizer.encode(self.rest))
            self.write([self.tokenizer.eot_id])
            self.rest, self.open_document = "", False
            self.eot_tokens += 1
            return 0
        self.documents += not self.open_document
        self.open_document = True
        size = len(text.encode())
        self.bytes += size
        self.rest += text
        safe = cut(self.rest)
        self.write(self.tokenizer.encode(self.rest[:safe]))
        self.rest = self.rest[safe:]
        return size

    def write(self, ids: list[int]) -> None:
        block = np.asarray(ids, self.dtype)
        if not len(block):
            return
        self.highest_id = max(self.highest_id, int(block.max()))
        while len(block):
            if self.file is None:
                self.shards.append({"file": f"{self.split}-{len(self.shards):05d}.bin", "tokens": 0})
                self.file = open(self.folder / self.shards[-1]["file"], "wb")  # noqa: SIM115 (closed by close_shard)
                self.digest = hashlib.sha256()
            room = self.shard_tokens - self.shards[-1]["tokens"]
            part, block = block[:room], block[room:]
            self.file.write(part.tobytes())
            self.digest.update(part.tobytes())
            self.shards[-1]["tokens"] += len(part)
            if self.shards[-1]["tokens"] == self.shard_tokens:
                self.close_shard()

    def close_shard(self) -> None:
        if self.file is not None:
            file, self.file = self.file, None
            self.shards[-1]["sha256"] = self.digest.hexdigest()
            file.close()

    def finish(self) -> dict[str, Any]:
        """Write what is left (a document that the boundary cuts has no EOT here) and describe the split."""
        self.write(self.tokenizer.encode(self.rest))
        self.close_shard()
        return {
            "tokens": sum(shard["tokens"] for shard in self.shards),
            "bytes": self.bytes,
            "documents": self.documents,
            "eot_tokens": self.eot_tokens,
            "highest_id": self.highest_id,
            "shards": self.shards,
        }


class TokenFile:
    """The ids of one split, read by position from its shards; nothing of it stays in memory.

    (A memory map that lives as long as the run ends up with all of it counted as the process's memory.)
    """

    def __init__(self, folder: Path, shards: list[dict[str, Any]], dtype: str) -> None:
        self.paths = [folder / shard["file"] for shard in shards]
        self.starts = [0, *np.cumsum([shard["tokens"] for shard in shards], dtype=np.int64).tolist()]
        self.dtype = file_dtype(dtype)

    def __len__(self) -> int:
        return self.starts[-1]

    def read(self, start: int, count: int) -> Ids:
        """Return tokens[start : start+count], which must exist, as (count,) int64."""
        assert start >= 0 and start + count <= len(self)
        parts = []
        while count > 0:
            shard = bisect_right(self.starts, start) - 1
            here = min(count, self.starts[shard + 1] - start)
            offset = (start - self.starts[shard]) * self.dtype.itemsize
            parts.append(np.fromfile(self.paths[shard], self.dtype, count=here, offset=offset))
            if len(parts[-1]) != here:
                raise ValueError(f"{self.paths[shard]}: it has been cut short; it will be made anew at the next start")
            start, count = start + here, count - here
        return np.concatenate(parts).astype(np.int64)
