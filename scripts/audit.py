"""Test what a model claims: a run of octlm, a recipe before its training, anyone's module, or a Hugging Face directory.

python scripts/audit.py --run runs/day1
python scripts/audit.py --config day1 model.positions=rope
python scripts/audit.py --model package.module:factory --vocab-size 256 --length 32
python scripts/audit.py --hf path/to/checkpoint

One line an audit; where one fails, a second line names the place. Exit 1 when a claim fails or cannot be judged.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to run from a checkout that is not installed

from octlm.command import Parser, run

if TYPE_CHECKING:
    import torch

    from octlm.audit import Finding
    from octlm.checkpoint import Run
    from octlm.config import Config
    from octlm.data import Dataset

Audits = dict[str, "Callable[[], Finding]"]
LENGTH = 32  # tokens, for a model of which nothing says how many it takes
STEPS, KILLED_AT = 4, 2  # of the training that is interrupted
TEXTS = 200  # fresh texts that a model with a known floor is scored on


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="audit.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", metavar="DIR|CHECKPOINT", help="a trained run, its best checkpoint if one was chosen")
    what.add_argument("--config", metavar="NAME|PATH", help="a recipe's untrained model")
    what.add_argument("--model", metavar="MODULE:FACTORY", help="a function that makes an nn.Module, ids -> logits")
    what.add_argument("--hf", metavar="DIR", help="a Hugging Face checkpoint on this disk (needs the extra hf)")
    p.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the recipe, after --config")
    p.add_argument("--vocab-size", type=int, metavar="V", help="--model, --hf: default: what its configuration says")
    p.add_argument("--length", type=int, metavar="T", help=f"tokens of a row; default: the context, at most {LENGTH}"
                   " with --model and --hf")  # fmt: skip
    p.add_argument("--only", action="append", metavar="AUDIT", help="causality, cache, ...; repeatable; default: all")
    p.add_argument("--json", action="store_true", help="print a list of objects instead of the table")
    return p


def main(arguments: list[str]) -> int:
    args = parser().parse_intermixed_args(arguments)
    for name, least in (("vocab_size", 2), ("length", 2)):
        if getattr(args, name) is not None and getattr(args, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least {least}")
    if args.overrides and args.config is None:
        raise ValueError(f"unexpected argument {args.overrides[0]!r}: key=value belongs to --config")
    import torch

    from octlm.parallel import choose_threads

    torch.set_num_threads(choose_threads(None))
    with contextlib.redirect_stdout(sys.stderr):  # what someone's code prints is no finding
        audits = octlm_audits(args) if args.run or args.config else foreign_audits(args)
    unknown = set(args.only or ()) - audits.keys()
    if unknown:
        raise ValueError(f"--only {min(unknown)}: there is no such audit here; there are {', '.join(audits)}")
    chosen = {name: audit for name, audit in audits.items() if not args.only or name in args.only}
    records = []
    width = max(map(len, chosen))
    for name, audit in chosen.items():
        finding = judged(name, audit)
        records.append({"audit": name, **{k: finite(v) for k, v in vars(finding).items()}})
        if not args.json:
            print(line(name.ljust(width), finding), flush=True)
    if args.json:
        print(json.dumps(records, indent=1, allow_nan=False))
    return 0 if all(record["ok"] for record in records) else 1


def judged(name: str, audit: Callable[[], Finding]) -> Finding:
    """Run one audit; what it lacks, such as a text that is gone, fails it alone. Its prints go to standard error."""
    from octlm.audit import Finding

    try:
        with contextlib.redirect_stdout(sys.stderr):
            return audit()
    except (ValueError, OSError) as error:
        return Finding(name, False, math.inf, 0.0, f"not judged: {error}", 0)


def line(name: str, finding: Finding) -> str:
    """Write one row of the table, and what was found under it."""
    verdict = "ok    " if finding.ok else "FAILED"
    figures = f"worst {finding.worst:<9.3g} tolerance {finding.tolerance:<8.3g} cases {finding.cases:<5}"
    place = "".join(f"\n        {part}" for part in finding.where.split("; ")) if finding.where else ""
    return f"{verdict}  {name}  {figures}  {finding.claim}{place}"


def finite(value: Any) -> Any:
    """Replace what JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- octlm's own models


def octlm_audits(args: argparse.Namespace) -> Audits:
    """List the audits of a run or of a recipe."""
    import torch

    from octlm import audit
    from octlm.checkpoint import load_run
    from octlm.config import ModelConfig, load_config
    from octlm.data import prepare
    from octlm.model import Decoder
    from octlm.preflight import margin, randomise

    trained = load_run(args.run) if args.run else None
    config = trained.config if trained else load_config(args.config, args.overrides)
    shape = config.model
    length = args.length or shape.context_length
    if args.vocab_size or length > shape.context_length:
        raise ValueError(
            f"--vocab-size and --length: the model has {shape.vocab_size} ids and {shape.context_length} tokens"
        )
    sizes = (shape.vocab_size, length)
    torch.manual_seed(config.train.seed)
    fresh = Decoder(shape)
    torch.manual_seed(config.train.seed)
    wild = randomise(Decoder(shape))  # at an initialisation of 0.02 most faults are smaller than a rounding
    other = Decoder(
        ModelConfig(**{**shape.model_dump(), "attention": {"naive": "sdpa", "sdpa": "naive"}[shape.attention]})
    )
    other.load_state_dict(wild.state_dict())
    ids = torch.randint(shape.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))

    def data() -> Dataset:
        return prepare(config, show_progress=sys.stderr.isatty())

    def targets() -> Finding:
        batch = data().batch(0, 0)
        return audit.targets(batch.ids, batch.targets)

    audits: Audits = {}
    if trained:
        model = trained.model
        audits["causality as trained"] = lambda: audit.causality(model, *sizes, embed=model.embed)
    audits |= {
        "causality": lambda: audit.causality(wild, *sizes, embed=wild.embed),
        "masks": lambda: masks(wild, ids[:1, : min(length, 64)]),
        "cache": lambda: audit.cache(wild, octlm_step(wild, length), ids),
        "parity of naive and sdpa": lambda: audit.parity(wild, other.eval(), [ids], 1e-4, 1e-4),
        "health": lambda: audit.health(
            fresh,
            *sizes,
            loss_margin=margin(shape),
            residual_scale=(2 * shape.n_layers) ** -0.5 if shape.n_layers else None,
        ),
        "targets": targets,
        "resume": lambda: interrupted(config, data()),
    }
    if trained and config.data.source == "fables":
        audits["floor"] = lambda: known_floor(trained)
    return audits


def octlm_step(model: Any, length: int) -> Callable[[torch.Tensor, Any], tuple[torch.Tensor, Any]]:
    """Give the step of audit.cache, with a cache of octlm as its state."""

    def step(new: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        state = state or model.new_cache(len(new), length)
        return model(new, state), state

    return step


def masks(model: Any, ids: torch.Tensor) -> Finding:
    """Compare what each position reads with the boolean product of the layers' masks, their rule written out anew."""
    import copy

    import torch

    from octlm.audit import Finding, dependency

    twin = copy.deepcopy(model).double()
    length = ids.shape[1]
    declared = torch.eye(length)
    for window, stride in zip(model.config.windows, model.config.strides, strict=True):
        allowed = [
            [k <= q and (not window or q - k < window or (stride > 0 and k % stride == 0)) for k in range(length)]
            for q in range(length)
        ]
        declared = ((torch.tensor(allowed).float() @ declared) > 0).float()
    wrong = (dependency(twin, twin.embed, ids) != declared.bool()).nonzero()
    where = "" if not len(wrong) else f"logits[{int(wrong[0, 0])}] and token {int(wrong[0, 1])}"
    return Finding("each position reads what its masks say", not where, float(len(wrong)), 0.0, where, length**2)


def interrupted(config: Config, dataset: Dataset) -> Finding:
    """Train a few steps, once whole and once over a checkpoint on disk."""
    import torch

    from octlm.audit import resume
    from octlm.checkpoint import read_checkpoint, save_checkpoint, step_name
    from octlm.loop import accumulate, clip_gradients, restore, update
    from octlm.model import Decoder
    from octlm.optim import build_optimizers, learning_rate, set_learning_rate

    device = torch.device("cpu")

    def session(state: Any, steps: int) -> tuple[Any, list[float]]:
        torch.manual_seed(config.train.seed)
        model = Decoder(config.model)
        optimizers = build_optimizers(model, config.optim)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        begin, losses = 0, []
        with tempfile.TemporaryDirectory() as folder:
            if state is not None:
                begin = state["step"]
                kept = Path(folder, "checkpoints", step_name(begin))
                kept.mkdir(parents=True)
                for name, content in state["files"].items():
                    (kept / name).write_bytes(content)
                restore(read_checkpoint(kept), model, optimizers, scaler, dataset)
            for step in range(begin, begin + steps):
                set_learning_rate(optimizers, learning_rate(step, config.optim, config.train.steps))
                losses.append(accumulate(model, dataset, step, config, device, torch.float32, scaler))
                update(model, optimizers, scaler, clip_gradients(model, optimizers, scaler, config.optim.clip))
            facts = {"scaler": scaler.state_dict(), "data_sha256": dataset.fingerprint}
            saved = save_checkpoint(
                Path(folder), begin + steps, model=model, optimizer=optimizers, state=facts, config=config,
                tokenizer=dataset.tokenizer,
            )  # fmt: skip
            files = {path.name: path.read_bytes() for path in sorted(saved.iterdir())}
        return {"step": begin + steps, "files": files}, losses

    return resume(session, STEPS, KILLED_AT)


def known_floor(trained: Run) -> Finding:
    """Score fresh fables, of a seed that no run can have, and weigh them against their exact probability."""
    from octlm.audit import floor
    from octlm.corpus.fables import tell
    from octlm.probes import log_probabilities

    stories = [tell(-1, number) for number in range(TEXTS)]
    log_q = log_probabilities(trained.model, trained.tokenizer, [story.text for story in stories])
    return floor(log_q, [story.log2_probability * math.log(2) for story in stories])


# -- anyone's models


def foreign_audits(args: argparse.Namespace) -> Audits:
    """List the audits of a module that a factory makes, or of a Hugging Face checkpoint."""
    import torch

    from octlm import audit

    model = hugging_face(args.hf) if args.hf else made_by(args.model)
    if not callable(model):
        raise ValueError(f"--model {args.model}: makes {type(model).__name__}, not a module from ids to logits")
    vocab_size = args.vocab_size or said(model, "vocab_size") or table_size(model)
    if not vocab_size:
        raise ValueError(f"{args.hf or args.model}: nothing says how many ids it has: give --vocab-size")
    length = args.length or min(
        LENGTH, said(model, "max_position_embeddings", "context_length", "n_positions") or LENGTH
    )
    audits: Audits = {"causality": lambda: audit.causality(model, vocab_size, length)}
    if args.hf:
        ids = torch.randint(vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
        audits["cache"] = lambda: audit.cache(model, hugging_face_step(model), ids)
    elif isinstance(model, torch.nn.Module):
        audits["health"] = lambda: audit.health(model, vocab_size, length)
    return audits


def made_by(name: str) -> Any:
    """Import a factory by its name, from the folder that the command runs in or an installed package, and call it."""
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise ValueError(f"--model {name}: write package.module:factory")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), factory)
        return found() if inspect.isroutine(found) or inspect.isclass(found) else found
    except (Exception, SystemExit) as error:  # someone's code may do anything
        raise ValueError(f"--model {name}: {type(error).__name__}: {error}") from error


def hugging_face(folder: str) -> Any:
    """Load a causal language model from a directory; nothing is downloaded and no code of the directory runs."""
    if not Path(folder, "config.json").is_file():
        raise ValueError(f"--hf {folder}: no config.json in it")
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError:
        raise ValueError("--hf needs the package transformers (the extra hf; `make setup` installs it)") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:
        raise ValueError(f"--hf {folder}: {type(error).__name__}: {error}") from error
    model, loaded = found
    if loaded["missing_keys"]:  # they would be random
        raise ValueError(f"--hf {folder}: no weights for {', '.join(sorted(loaded['missing_keys'])[:3])}")
    return model.eval()


def hugging_face_step(model: Any) -> Callable[[torch.Tensor, Any], tuple[torch.Tensor, Any]]:
    """Give the step of audit.cache, with a cache of transformers as its state."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # its older name

    def step(new: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        output = model(new, use_cache=True, **{name: state})
        return output.logits, output[name]

    return step


def said(model: Any, *names: str) -> int | None:
    """Read a size from a model's configuration."""
    return next((int(v) for name in names if (v := getattr(getattr(model, "config", None), name, None))), None)


def table_size(model: Any) -> int | None:
    """Give the number of rows of a model's first embedding."""
    import torch

    modules: Iterator[Any] = model.modules() if isinstance(model, torch.nn.Module) else iter(())
    return next((m.num_embeddings for m in modules if isinstance(m, torch.nn.Embedding)), None)


if __name__ == "__main__":
    run(main)
