"""Small trainings for the tests: a tiny recipe on text that the tests make, run in this process."""

import random
from pathlib import Path
from typing import Any

from octlm.config import Config, load_config
from octlm.loop import train
from octlm.metrics import read_records

TINY_RUN = (
    "data.source=text", "data.tokenizer=byte", "data.split=position",
    "model.vocab_size=257", "model.context_length=16", "model.dim=32", "model.n_heads=4", "model.n_layers=2",
    "model.n_kv_heads=2", "model.positions=rope", "model.dropout=0.1", "optim.learning_rate=1e-2",
    "optim.warmup_steps=4",
    "train.steps=20", "train.tokens_per_step=128", "train.micro_batch_size=4", "train.log_every=1",
    "train.eval_every=10",
    "train.save_every=5", "train.sample_every=10", "train.keep=-1", "train.threads=1", "sample.max_new_tokens=8",
)  # fmt: skip


def write_text(path: Path, n_words: int = 700, seed: int = 0) -> Path:
    """Write words of a small vocabulary: about 4 KB, 30 batches of TINY_RUN."""
    words = ["sun", "moon", "the", "a", "rises", "falls", "over", "hill", "sea", "and", "then", "waits"]
    path.write_text(" ".join(random.Random(seed).choices(words, k=n_words)) + ".\n", encoding="utf-8")
    return path


def tiny(tmp_path: Path, *words: str) -> Config:
    """The tiny recipe on a text under tmp_path, with further key=value words."""
    text = tmp_path / "text.txt"
    if not text.exists():
        write_text(text)
    chosen = {word.partition("=")[0]: word for word in (*TINY_RUN, f"data.path={text}", *words)}
    return load_config("base", [*chosen.values(), f"data.cache_dir={tmp_path / 'cache'}"])


def run(config: Config, run_dir: Path, **options: Any) -> list[dict[str, Any]]:
    """Train and give the records."""
    train(config, run_dir, **options)
    return read_records(run_dir)


def comparable(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The train, eval and sample records without times and speeds."""
    timeless = [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in records]
    return [r for r in timeless if r["kind"] in ("train", "eval", "sample")]
