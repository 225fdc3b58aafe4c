"""How does a run survive a kill at any moment, and how does anyone get exactly the same model back?

A checkpoint is a directory, there whole or not at all: written beside its place, the manifest (size and
sha256 of every file) last, then renamed. Tensors go by parameter name, full, on no device and never cast.
What an optimizer has beside tensors (learning rate) comes from the configuration. A run has one writer.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from octlm.config import Config, load_config, written_sha256
from octlm.files import hash_file, naming, sync
from octlm.files import replace as replace_file
from octlm.model import Decoder
from octlm.tokenizer import Tokenizer, load_tokenizer

FORMAT = 1
FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "config.yaml", "tokenizer.json")
MODEL, OPTIMIZER, STATE, CONFIG, TOKENIZER = FILES
MANIFEST, BEST = "manifest.json", "best.json"
ABOUT = "octlm"  # the key of our metadata in a safetensors file
LARGEST_TEXT = 1 << 20  # bytes of a JSON or YAML file; ours have a few thousand
step_name = "step-{:06d}".format
STEP_NAME = re.compile(r"step-([0-9]{6,18})")
OURS = r"step-[0-9]+(\.txt)?|best\.json|config\.yaml|env\.json|metrics\.jsonl"
TEMPORARY_NAME = re.compile(rf"\.({OURS})\.(tmp|old)-[0-9]+|\.events\.tmp")
Optimizers = Optimizer | Sequence[Optimizer]


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its small parts in memory, its tensors still in the files."""

    path: Path
    step: int
    config: Config
    tokenizer: Tokenizer
    state: dict[str, Any]

    def load_model(self, model: nn.Module) -> None:
        """Copy the weights into the parameters of `model`, which stay where they are and stay tied.

        Raises ValueError, before anything changes, unless names, shapes and dtypes are exactly those saved.
        """
        path, targets = self.path / MODEL, _model_tensors(model)
        with _opened(path) as file, torch.no_grad():
            _require_names(path, set(file.keys()), set(targets))
            tensors = {name: file.get_tensor(name) for name in targets}
            for name, target in targets.items():
                found, wanted = ((tuple(tensor.shape), tensor.dtype) for tensor in (tensors[name], target))
                if found != wanted:
                    raise ValueError(f"{path}: {name} is {found}, the model has {wanted}")
            for name, target in targets.items():
                target.copy_(tensors[name])

    def load_optimizer(self, optimizer: Optimizers, model: nn.Module) -> None:
        """Give each parameter of `model` the state saved under its name, in the dtype in which it was saved.

        Hyperparameters stay those of `optimizer`. Raises ValueError, before anything changes, if other
        parameters were saved, or if another kind of optimizer had them.
        """
        path, owned = self.path / OPTIMIZER, _owned(optimizer, model)
        with _opened(path) as file:
            saved = _about(path, file).get("parameters")  # {name: [class, state key, ...]}
            if not isinstance(saved, dict):
                raise ValueError(f"{path}: does not list its parameters")
            _require_names(path, set(saved), set(owned))
            for name, (one, _, _) in owned.items():
                if not isinstance(saved[name], list) or saved[name][:1] != [type(one).__name__]:
                    raise ValueError(f"{path}: {name} was not optimized by {type(one).__name__}")
            wanted = {f"{key}/{name}": (key, name) for name in saved for key in saved[name][1:]}
            _require_names(path, set(file.keys()), set(wanted))
            tensors = {full: file.get_tensor(full) for full in wanted}
        states: dict[str, dict[str, Tensor]] = {name: {} for name in owned}
        for full, (key, name) in wanted.items():
            _, group, parameter = owned[name]
            shape, wide = tuple(tensors[full].shape), tuple(parameter.shape)
            # A scalar, of the parameter's shape, or a statistic of its rows or columns.
            if shape and any(a not in (1, b) for a, b in zip_longest(shape, wide)):
                raise ValueError(f"{path}: {full} is {shape}, its parameter {wide}")
            on_device = key != "step" or group.get("capturable") or group.get("fused")  # as torch places it
            # A copy, since a tensor of the file is a memory map, aligned to nothing.
            states[name][key] = tensors[full].to(parameter.device if on_device else "cpu", copy=True)
        for name, (one, _, parameter) in owned.items():
            one.state[parameter] = states[name]  # load_state_dict would cast it to the parameter's dtype


class Run(NamedTuple):
    """What it takes to use a trained model."""

    model: Decoder
    tokenizer: Tokenizer
    config: Config
    step: int


def save_checkpoint(
    run_dir: Path, step: int, *, model: nn.Module, optimizer: Optimizers, state: dict[str, Any],
    config: Config, tokenizer: Tokenizer,
) -> Path:  # fmt: skip
    """Write `checkpoints/step-<step>` under `run_dir` and return its path; `state` is plain JSON.

    Raises OSError that names the path if it cannot be written: the earlier checkpoints are then as they were,
    and nothing is left of this one. A checkpoint of the same step (the run went back before it) is replaced.
    """
    final = Path(run_dir, "checkpoints", step_name(step))
    temporary = final.with_name(f".{final.name}.tmp-{os.getpid()}")
    identity = {"step": step, "config_sha256": config.sha256}
    parameters: dict[str, list[str]] = {}
    states: dict[str, Tensor] = {}
    for name, (one, _, parameter) in _owned(optimizer, model).items():
        held = {key: value for key, value in one.state.get(parameter, {}).items() if value is not None}
        assert all(isinstance(value, Tensor) for value in held.values()), f"{name}: state beside tensors"
        parameters[name] = [type(one).__name__, *held]
        states |= {f"{key}/{name}": value for key, value in held.items()}
    writers: dict[str, Callable[[Path], object]] = {
        MODEL: lambda path: _write_tensors(path, _model_tensors(model), identity),
        OPTIMIZER: lambda path: _write_tensors(path, states, {**identity, "parameters": parameters}),
        STATE: lambda path: path.write_bytes(_json({**identity, "state": state})),
        CONFIG: lambda path: path.write_bytes(config.to_yaml().encode()),
        TOKENIZER: tokenizer.save,
    }
    files: dict[str, Any] = {}
    with naming(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        sync(final.parent.parent)
        temporary.mkdir(exist_ok=True)  # a dead process had our number: what it wrote is overwritten
    try:
        for name, write in writers.items():
            with naming(final / name):
                write(temporary / name)
                sync(temporary / name)
                files[name] = _fingerprint(temporary / name)
        with naming(final / MANIFEST):
            (temporary / MANIFEST).write_bytes(_json({"format": FORMAT, **identity, "files": files}))
            sync(temporary / MANIFEST)
            sync(temporary)
        with naming(final):
            replaced = _set_aside(final) if final.exists() else temporary
            temporary.rename(final)
            sync(final.parent)
            shutil.rmtree(replaced, ignore_errors=True)  # else `clean` does it
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # an error is on its way, or there is nothing left
    return final


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify the checkpoint directory `path` and open it.

    Raises ValueError, one line that names the file, for anything missing, foreign, linked, damaged, or mixed
    from two checkpoints. No file beside the six known names is opened.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file():
        latest = latest_checkpoint(path)
        hint = f"; it is a run: name one of its checkpoints, such as {latest}" if latest else ""
        raise ValueError(f"{path}: not a complete checkpoint: no {MANIFEST}{hint}")
    _require_names(path, set(os.listdir(path)), {*FILES, MANIFEST})
    for name in (*FILES, MANIFEST):
        if (path / name).is_symlink() or not (path / name).is_file():
            raise ValueError(f"{path / name}: not a regular file")
    manifest = _read_json(path / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path / MANIFEST}: format {_shown(manifest.get('format'))}; octlm reads {FORMAT}")
    step, sha256, files = manifest.get("step"), manifest.get("config_sha256"), manifest.get("files")
    if not (type(step) is int and step >= 0 and isinstance(sha256, str) and isinstance(files, dict)):
        raise ValueError(f"{path / MANIFEST}: step, config_sha256 or files is missing or of a wrong type")
    if STEP_NAME.fullmatch(path.name) and path.name != step_name(step):
        raise ValueError(f"{path / MANIFEST}: step {_shown(step)}, in a directory of another step")
    _require_names(path / MANIFEST, set(files), set(FILES))
    for name in FILES:
        if files[name] != _fingerprint(path / name):
            raise ValueError(f"{path / name}: damaged: its size or sha256 is not the manifest's")
    state = _read_json(path / STATE)
    identities = {STATE: state}
    for name in (MODEL, OPTIMIZER):
        with _opened(path / name) as file:
            identities[name] = _about(path / name, file)
    for name, identity in identities.items():
        if (identity.get("step"), identity.get("config_sha256")) != (step, sha256):
            raise ValueError(f"{path / name}: of another step or configuration than {MANIFEST} (step {step})")
    if not isinstance(state.get("state"), dict):
        raise ValueError(f"{path / STATE}: no object `state`")
    _read_text(path / CONFIG)  # refuses a huge one before it is parsed
    config = load_config(path / CONFIG)
    if written_sha256(path / CONFIG) != sha256:
        raise ValueError(f"{path / CONFIG}: its config_sha256 is not that of {MANIFEST}")
    tokenizer = load_tokenizer(path / TOKENIZER)
    if tokenizer.size > (vocab_size := config.model.vocab_size):
        raise ValueError(f"{path / TOKENIZER}: {tokenizer.size} ids, but model.vocab_size is {vocab_size}")
    return Checkpoint(path, step, config, tokenizer, state["state"])


def latest_checkpoint(run_dir: Path) -> Path | None:
    """Return the complete checkpoint of the highest step. A damaged one is not passed over: reading fails."""
    return next(reversed(_complete(run_dir)), None)


def best_checkpoint(run_dir: Path) -> Path | None:
    """Return the checkpoint that `checkpoints/best.json` names; None without that file."""
    path = Path(run_dir, "checkpoints", BEST)
    if not path.exists():
        return None
    step = _read_json(path).get("step")
    best = path.with_name(step_name(step)) if type(step) is int else None
    if best not in _complete(run_dir):
        raise ValueError(f"{path}: step {_shown(step)} has no complete checkpoint")
    return best


def write_best(run_dir: Path, step: int, loss: float) -> None:
    """Name `step` as the one with the lowest validation loss (nats per token), atomically."""
    final = Path(run_dir, "checkpoints", BEST)
    assert math.isfinite(loss) and final.with_name(step_name(step)) in _complete(run_dir), (step, loss)
    replace_file(final, _json({"step": step, "loss": loss}))


def prune(run_dir: Path, keep: int) -> None:
    """Delete all checkpoints but the best and the newest `keep`; -1 keeps all, 0 is a ValueError."""
    if keep == 0 or keep < -1:
        raise ValueError(f"train.keep={keep}: must be how many of the newest checkpoints stay, or -1 for all")
    for path in _complete(run_dir)[:-keep] if keep > 0 else ():
        if path != best_checkpoint(run_dir):
            shutil.rmtree(_set_aside(path))


def clean(run_dir: Path) -> None:
    """Remove what killed processes left half-written or half-deleted, anywhere in the run."""
    for folder in ("", "checkpoints", "samples"):
        for entry in sorted(Path(run_dir, folder).glob(".*")):
            if TEMPORARY_NAME.fullmatch(entry.name):
                (shutil.rmtree if entry.is_dir() else os.unlink)(entry)


def load_run(path: str | Path, which: str = "best") -> Run:
    """Load the model, in eval mode on the CPU, of a run directory or of one checkpoint directory.

    `which` chooses within a run directory: "best" (the latest if no evaluation chose one) or "latest".
    Raises ValueError, one line, if there is no such checkpoint or if it is damaged.
    """
    path = Path(path)
    if which not in ("best", "latest"):
        raise ValueError(f"which={which!r}: must be best or latest")
    best = best_checkpoint(path) if which == "best" else None
    chosen = path if (path / MANIFEST).is_file() else best or latest_checkpoint(path)
    if chosen is None:
        raise ValueError(f"{path}: neither a checkpoint nor a run directory that has a complete one")
    checkpoint = read_checkpoint(chosen)
    model = Decoder(checkpoint.config.model)
    checkpoint.load_model(model)
    model.unused_ids = checkpoint.tokenizer.unused_ids(checkpoint.config.model.vocab_size)
    return Run(model.eval(), checkpoint.tokenizer, checkpoint.config, checkpoint.step)


def _complete(run_dir: Path) -> list[Path]:
    """List the complete checkpoints by number: step-1000000 comes after step-999999."""
    paths = [path.parent for path in Path(run_dir, "checkpoints").glob(f"step-*/{MANIFEST}")]
    steps = {int(match[1]): path for path in paths if (match := STEP_NAME.fullmatch(path.name))}
    return [steps[step] for step in sorted(steps) if steps[step].name == step_name(step)]


def _set_aside(directory: Path) -> Path:
    """Give `directory` a name that `clean` removes, so that a kill while it is deleted leaves no half."""
    aside = directory.with_name(f".{directory.name}.old-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    return directory.rename(aside)


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Name every tensor that makes the model; a shared one once, under its first name."""
    saved = model.state_dict()
    return {n: tensor for n, tensor in [*model.named_parameters(), *model.named_buffers()] if n in saved}


def _owned(optimizer: Optimizers, model: nn.Module) -> dict[str, tuple[Optimizer, dict[str, Any], Tensor]]:
    """Map the name of each optimized parameter to (optimizer, group, parameter)."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owned: dict[str, tuple[Optimizer, dict[str, Any], Tensor]] = {}
    for one in [optimizer] if isinstance(optimizer, Optimizer) else optimizer:
        for group in one.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                assert name not in owned, f"{name}: optimized twice"
                owned[name] = (one, group, parameter)
    return owned


def _shown(value: object) -> str:
    """Put what a file holds on one line of readable length."""
    return repr(value).strip("'")[:100]


def _require_names(path: Path, found: set[str], wanted: set[str]) -> None:
    """Refuse names that are not the wanted ones; the message lists the first few."""
    parts = []
    for word, names in ("missing", sorted(wanted - found)), ("unexpected", sorted(found - wanted)):
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        parts += [f"{word} {', '.join(map(_shown, names[:4]))}{more}"] if names else []
    if parts:
        raise ValueError(f"{path}: {'; '.join(parts)}")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file for reading; the library's own kind of error becomes a ValueError."""
    try:
        with safe_open(path, "pt", device="cpu") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {_shown(str(error))}") from error


def _write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a safetensors file; all metadata is under one key, since the library orders several at random."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    path.write_bytes(save(whole, {ABOUT: json.dumps(about)}))


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _read_text(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{path}: not a regular file")
    if path.stat().st_size > LARGEST_TEXT:
        raise ValueError(f"{path}: larger than any of its kind")
    return path.read_bytes().decode(errors="replace")


def _read_json(path: Path) -> dict[str, Any]:
    return _parsed(path, _read_text(path))


def _about(path: Path, file: Any) -> dict[str, Any]:
    """Return what we say in the metadata of an open safetensors file."""
    return _parsed(path, (file.metadata() or {}).get(ABOUT, "{}"))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {_shown(str(error))}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object")
    return value


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"sha256": hash_file(path), "size": path.stat().st_size}
