"""What is a run? Five frozen, strict sections, read from YAML, the files it extends, and `key=value` words.

Whatever can be refused without data is refused here, in one line that names the file (or the command line),
the key, the value and a remedy. What is left is resolved: no None stands for a computed number and every path
is absolute, so two runs that mean the same have one sha256. configs/base.yaml explains every key, with units.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from octlm import yaml12
from octlm.recipe import conflict, load, nearest, quoted

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
LARGEST = 2**53  # the largest integer that JSON readers in other languages keep exactly

# What other programs call it.
ELSEWHERE = {
    **dict.fromkeys(("epochs", "num_epochs", "iterations", "max_iters"), "train.steps"),
    **dict.fromkeys(("block_size", "seq_len", "max_seq_len"), "model.context_length"),
    **dict.fromkeys(("n_embd", "d_model", "hidden_size"), "model.dim"),
    "batch_size": "train.micro_batch_size",
    "dtype": "train.precision",
    "grad_clip": "optim.clip",
    "lr": "optim.learning_rate",
    "min_lr": "optim.min_learning_rate",
}


def _text(text: str) -> str:
    if re.search("[\ud800-\udfff]", text):
        raise conflict("holds bytes that are not UTF-8")
    return text


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0), AfterValidator(lambda number: number + 0.0)]  # -0.0 becomes 0.0
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[NotNegative, Field(lt=1)]
Text = Annotated[str, AfterValidator(_text)]
Tiled = Annotated[Whole | Annotated[tuple[Whole, ...], Field(min_length=1)], BeforeValidator(_tuple)]


Paths = Annotated[Text | Annotated[tuple[Text, ...], Field(min_length=1)], BeforeValidator(_tuple)]
TiktokenName = Literal["gpt2", "r50k_base", "p50k_base", "cl100k_base", "o200k_base"]


class Section(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    """The decoder's shape and variants; None for n_kv_heads or hidden_dim is resolved when it is made."""

    vocab_size: Count = 1024
    context_length: Count = 128  # tokens
    dim: Count = 128
    n_layers: Annotated[Whole, Field(le=10_000)] = 2
    n_heads: Count = 4
    n_kv_heads: Count = Field(default=None, validate_default=True)  # None: n_heads
    mlp: Literal["gelu", "swiglu", "relu2"] = "gelu"
    hidden_dim: Count = Field(default=None, validate_default=True)  # None: by mlp and dim
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_placement: Literal["pre", "post"] = "pre"
    norm_eps: Positive = 1e-5
    positions: Literal["learned", "sinusoidal", "rope", "none"] = "learned"
    rope_theta: Positive = 10000.0
    rope_scale: Positive = 1.0  # divides positions
    attention: Literal["naive", "sdpa"] = "naive"
    window: Tiled = 0  # tokens, the current one counted; 0 = all
    stride: Tiled = 0  # columns 0, stride, 2 x stride, ... stay visible; 0 = none
    qk_norm: bool = False
    logit_softcap: NotNegative = 0.0
    tie_head: bool = True
    bias: bool = False
    dropout: Share = 0.0

    @field_validator("n_kv_heads", mode="before")
    @classmethod
    def _every_head(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("n_heads", 1) if value is None else value

    @field_validator("hidden_dim", mode="before")
    @classmethod
    def _usual_width(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            return value
        dim = info.data.get("dim", 1)
        # 8/3 x dim, rounded up to a multiple of 8: three such matrices weigh what two of 4 x dim do
        return -(-8 * dim // 24) * 8 if info.data.get("mlp") == "swiglu" else 4 * dim

    @model_validator(mode="after")
    def _fits(self) -> ModelConfig:
        if self.dim % self.n_heads:
            nearest_dim = -(-self.dim // self.n_heads) * self.n_heads
            message = f"dim={self.dim} is not divisible by n_heads={self.n_heads}; dim={nearest_dim} would be"
            raise conflict(message, "n_heads", "dim")
        if self.n_heads % self.n_kv_heads:
            fits = ", ".join(str(n) for n in range(1, min(self.n_heads, 256) + 1) if self.n_heads % n == 0)
            message = f"n_heads={self.n_heads} is not divisible by n_kv_heads={self.n_kv_heads}; use {fits}"
            raise conflict(message, "n_kv_heads", "n_heads")
        if self.positions == "rope" and self.head_dim % 2:
            message = f"rope turns pairs, and dim / n_heads = {self.head_dim} is odd; use an even head width"
            raise conflict(message, "n_heads", "dim", "positions")
        if self.positions == "sinusoidal" and self.dim % 2:
            raise conflict(f"sinusoidal positions need an even dim, not {self.dim}", "dim", "positions")
        if self.positions != "rope" and self.rope_scale != 1:
            message = f"rope_scale={self.rope_scale} needs positions=rope, not {self.positions}; use 1.0"
            raise conflict(message, "rope_scale", "positions")
        return self

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def windows(self) -> tuple[int, ...]:
        """Return the window of each layer, in tokens; 0 = all."""
        return self._tiled(self.window)

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the stride of each layer; 0 = none."""
        return self._tiled(self.stride)

    def _tiled(self, pattern: int | tuple[int, ...]) -> tuple[int, ...]:
        """Repeat a pattern over the layers, cut at the last; a stride beside window 0 has nothing to add."""
        pattern = (pattern,) if isinstance(pattern, int) else pattern
        return tuple(pattern[i % len(pattern)] for i in range(self.n_layers))


class DataConfig(Section):
    """Where the text comes from and how it becomes tokens."""

    source: Literal["stdlib", "fables", "text", "tinyshakespeare", "tinystories"] = "stdlib"
    path: Paths | None = None  # see source=text
    stories: Count = 20000  # fables only, as is seed
    seed: Whole = 0
    split: Literal["document", "position"] | None = None  # None: by position where the source is one document
    val_fraction: Annotated[Share, Field(gt=0)] = 0.1
    tokenizer: Literal["bpe", "byte", "char"] | TiktokenName = "bpe"
    tokenizer_file: Text | None = None  # a run's tokenizer.json, to be used instead
    vocab_size: Count | None = None  # None: the model's
    cache_dir: Text | None = None  # None: see cache_directory
    isolate_documents: bool = False

    @field_validator("path", "tokenizer_file", "cache_dir")
    @classmethod
    def _absolute(cls, value: Any, info: ValidationInfo) -> str | tuple[str, ...] | None:
        if isinstance(value, tuple):
            return tuple(str(cls._absolute(path, info)) for path in value)
        if value is None or (value == "-" and info.field_name == "path"):
            return value
        if not value or re.search(r"[\x00-\x1f\x7f]", value):
            control = "holds a control character; after a backslash in double quotes? Use 'single quotes'"
            raise conflict(control if value else "is empty; use null for none")
        base = (info.context or {}).get(info.field_name, "")
        return os.path.abspath(os.path.join(base, os.path.expanduser(value)))

    @model_validator(mode="after")
    def _has_path(self) -> DataConfig:
        if self.source == "text" and self.path is None:
            message = "source=text needs data.path: files, folders, globs, or - for standard input"
            raise conflict(message, "source", "path")
        if self.source in ("stdlib", "fables") and self.path is not None:
            raise conflict(f"source={self.source} reads no data.path; use data.source=text", "path", "source")
        return self

    @model_validator(mode="after")
    def _tells(self) -> DataConfig:
        if self.source == "fables":
            if self.split == "position":  # the probability of half a story is not known
                message = "source=fables is split by document only; use data.split=null"
                raise conflict(message, "split", "source")
            if self.stories == 1:
                raise conflict("stories=1 leaves none to validate; use 2 or more", "stories")
            return self
        for key in ("stories", "seed"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise conflict(f"{key}={getattr(self, key)} needs data.source=fables, not {self.source}", key, "source")
        return self


class OptimConfig(Section):
    """The update and the learning rate's course; rates are per step."""

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: Annotated[Positive, Field(le=1e30)] = 1e-3  # float32 holds no more, with Muon's factors
    min_learning_rate: NotNegative = Field(default=None, validate_default=True)  # None: a tenth of it
    weight_decay: NotNegative = 0.1
    betas: Annotated[tuple[Share, Share], BeforeValidator(_tuple)] = (0.9, 0.95)
    clip: NotNegative = 1.0  # largest global gradient norm; 0 = off
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    warmup_steps: Whole = 20
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2  # wsd: the last share of the steps

    @field_validator("min_learning_rate", mode="before")
    @classmethod
    def _tenth(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("learning_rate", 0.0) / 10 if value is None else value

    @model_validator(mode="after")
    def _falls(self) -> OptimConfig:
        if self.min_learning_rate > self.learning_rate:
            rates = f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}"
            raise conflict(f"{rates}; use null for a tenth", "min_learning_rate", "learning_rate")
        return self


class TrainConfig(Section):
    """How long, in what portions, on what; every *_every is in steps, 0 = only at the end."""

    steps: Count = 400
    tokens_per_step: Count = 4096
    micro_batch_size: Count = 32  # rows
    seed: Whole = 0
    log_every: Whole = 10
    eval_every: Whole = 100
    save_every: Whole = 100
    sample_every: Whole = 100
    keep: Annotated[int, Field(ge=-1, le=LARGEST)] = 2  # newest checkpoints; -1 = all
    device: Text = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["off", "auto", "on"] = "off"
    threads: Annotated[Count, Field(le=1024)] | None = None  # None: the cores that this process may use
    strategy: Literal["single"] = "single"
    overfit_block: bool = False
    preflight: bool = True
    early_stop: Whole = 0  # evaluations without a better loss; 0 = off

    @field_validator("device")
    @classmethod
    def _known(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", value):
            raise conflict("must be auto, cpu, mps, cuda or cuda:N")
        return value

    @field_validator("keep")
    @classmethod
    def _keeps(cls, value: int) -> int:
        if value == 0:
            raise conflict("would keep no checkpoint; use -1 to keep all, or 1 for the newest")
        return value


class SampleConfig(Section):
    """The sample that training shows, and generate.py's defaults."""

    prompt: Text = ""  # empty: the start of a document
    max_new_tokens: Count = 128
    temperature: NotNegative = 0.8  # 0 = the most likely token
    top_k: Whole = 50  # 0 = off
    top_p: Annotated[NotNegative, Field(gt=0, le=1)] = 1.0  # 1 = off


class Config(Section):
    """A whole run, resolved: two equal configs have one sha256, however they were written."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()

    @model_validator(mode="after")
    def _agrees(self) -> Config:
        train, length = self.train, self.model.context_length
        rows, over = divmod(train.tokens_per_step, length)
        if over or rows % train.micro_batch_size:
            tokens = train.micro_batch_size * length
            remedy = f"train.tokens_per_step={-(-train.tokens_per_step // tokens) * tokens}"
            if not over:
                remedy += f" or train.micro_batch_size={math.gcd(rows, train.micro_batch_size)}"
            raise conflict(
                f"tokens_per_step={train.tokens_per_step} is not divisible by micro_batch_size="
                f"{train.micro_batch_size} x context_length={length} = {tokens}; use {remedy}",
                *("train.tokens_per_step", "train.micro_batch_size", "model.context_length"),
            )
        if (self.data.vocab_size or 0) > self.model.vocab_size:
            sizes = f"data.vocab_size={self.data.vocab_size} is above model.vocab_size={self.model.vocab_size}"
            raise conflict(f"{sizes}; use null for the model's", "data.vocab_size", "model.vocab_size")
        return self

    @property
    def sha256(self) -> str:
        """Return the hash of every resolved value: 1e-4 and 0.0001, or null and its meaning, agree."""
        return _hash(self.model_dump())

    def to_yaml(self) -> str:
        """Write every value so that load_config reads an equal Config."""
        return yaml12.dump(self.model_dump())


SECTIONS: dict[str, Any] = {name: field.annotation for name, field in Config.model_fields.items()}

# What an unfinished run may change when it goes on.
CADENCES = ("log_every", "eval_every", "save_every", "sample_every", "keep")
RESUMABLE = frozenset(f"train.{key}" for key in ("steps", *CADENCES))


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe by name ("day1" is configs/day1.yaml) or path, then apply `section.key=value` words.

    Raises ValueError with one line: the origin of the offending key, the key, the value and a remedy."""
    return load(Config, _find(source), overrides, ELSEWHERE)


def written_sha256(path: Path) -> str:
    """Return the sha256 that a Config had when it was written, whatever keys the schema has got since."""
    return _hash(yaml12.read(yaml12.decode(path.read_bytes(), str(path)), str(path)))


def differing_keys(a: Config, b: Config) -> list[str]:
    """Return the dotted keys whose values differ, in the order of the schema."""
    return [
        f"{section}.{key}"
        for section, schema in SECTIONS.items()
        for key in schema.model_fields
        if getattr(getattr(a, section), key) != getattr(getattr(b, section), key)
    ]


def cache_directory(data: DataConfig) -> Path:
    """Return where prepared data and downloads are kept; it need not exist yet.

    data.cache_dir, else $OCTLM_CACHE, else $XDG_CACHE_HOME/octlm, else ~/.cache/octlm."""
    if data.cache_dir or os.environ.get("OCTLM_CACHE"):
        return Path(os.path.abspath(os.path.expanduser(data.cache_dir or os.environ["OCTLM_CACHE"])))
    shared = os.environ.get("XDG_CACHE_HOME", "")  # its specification says to ignore a relative path
    return Path(shared if os.path.isabs(shared) else os.path.expanduser("~/.cache")) / "octlm"


def tiktoken_cache() -> Path:
    """Return where tiktoken keeps the published encodings that it has downloaded."""
    named = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    return Path(tempfile.gettempdir(), "data-gym-cache") if named is None else Path(named)


def _hash(document: Any) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _find(source: str | Path) -> Path:
    """Return the file of a recipe's name, or the path itself."""
    if isinstance(source, Path) or re.search(r"[/\\\0]|\.ya?ml$", source):
        return Path(source)
    named = CONFIGS / f"{source}.yaml"
    if os.path.isfile(named) or not source:
        return named
    if os.path.exists(source):
        return Path(source)
    names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    hint = nearest(source, names)
    raise ValueError(f"no recipe is called {quoted(source)}{hint} (there are {', '.join(names)}; or a path)")
