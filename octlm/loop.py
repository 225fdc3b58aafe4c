"""How is a decoder trained?

One function, `train`, from top to bottom: open the run, prepare the data, test the model, then step by step until the
end. At every step the duties come first (evaluate, sample, report), so a run that was stopped between its save and its
evaluation does the evaluation on resume; then one update; then, where one is due, a checkpoint.

Everything random is a function of (seed, step, slice), set before each micro-batch, so a checkpoint holds no random
state and a resumed run repeats the uninterrupted one bit for bit.
"""

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octlm.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    prune,
    read_checkpoint,
    save_checkpoint,
    write_best,
)
from octlm.command import RunFailed
from octlm.config import Config
from octlm.console import Clock, Console, StopSignal
from octlm.corpus import materialize_stdin
from octlm.data import Dataset, prepare
from octlm.files import replace
from octlm.metrics import Metrics, Record, read_records
from octlm.model import Decoder
from octlm.optim import build_optimizers, learning_rate, set_learning_rate
from octlm.parallel import autocast, choose_device, choose_precision, choose_threads, refuse_several_processes
from octlm.preflight import preflight
from octlm.probes import attention_picture, loss_sum, validate
from octlm.run_directory import open_run, write_environment
from octlm.sampling import generate


def train(config: Config, run_dir: Path, *, resume: str = "auto", init_from: Path | None = None) -> None:
    """Train `config` in `run_dir`, from the start or from where it was left.

    Raises ValueError for what the user can mend, RunFailed where the run itself fails (a loss that is not finite, a
    failed preflight), OSError on a full disk, and SystemExit(128 + signal) after SIGINT or SIGTERM; the checkpoints
    that were written before stay good.
    """
    refuse_several_processes()
    if init_from is not None and resume not in ("auto", "never"):
        raise ValueError("--init-from starts at step 0 and --resume CHECKPOINT does not: give one of them")
    t, batch_rows = config.train, config.train.micro_batch_size
    device = choose_device(t.device)
    dtype = choose_precision(t.precision, device)
    torch.set_num_threads(choose_threads(t.threads))
    config = config.model_copy(update={"data": materialize_stdin(config.data)})

    with open_run(run_dir, config, resume) as checkpoint:
        if checkpoint is not None:
            reason = finished([r for r in read_records(run_dir) if r["step"] <= checkpoint.step], t.steps)
            if reason:
                print(f"{run_dir}: finished at step {checkpoint.step}: {reason}")
                return
        write_environment(run_dir, device, dtype)
        dataset = prepare(config, show_progress=sys.stderr is not None)
        prompt = encode_prompt(config, dataset)

        torch.manual_seed(t.seed)
        model = Decoder(config.model).to(device)
        model.unused_ids = dataset.tokenizer.unused_ids(config.model.vocab_size)
        optimizers = build_optimizers(model, config.optim)
        scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        step = 0
        if checkpoint is not None:
            step = restore(checkpoint, model, optimizers, scaler, dataset)
        elif init_from is not None:
            load_weights(init_from, model, dataset)
        saved = step
        forward = compiled(model, t.compile, dataset, device, dtype)

        parameters = sum(p.numel() for p in model.parameters())
        metrics = Metrics(run_dir, step if checkpoint or read_records(run_dir) else None)
        with StopSignal() as stop, Console(t.steps, step, stop) as console, metrics:
            clock = Clock(max((r["seconds"] for r in metrics.records), default=0.0))

            def log(kind: str, **fields: Any) -> None:
                metrics.log(kind, step, tokens=step * t.tokens_per_step, seconds=clock.seconds(), **fields)

            def save() -> None:
                nonlocal saved
                path = save_checkpoint(
                    run_dir,
                    step,
                    model=model,
                    optimizer=optimizers,
                    state={"scaler": scaler.state_dict(), "data_sha256": dataset.fingerprint},
                    config=config,
                    tokenizer=dataset.tokenizer,
                )
                log("checkpoint", path=path.name)
                prune(run_dir, t.keep)
                saved = step

            console.say(
                f"{run_dir}: {parameters:,} parameters on {dataset.describe()}; {device.type}, "
                f"{str(dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads, from step {step}"
            )
            if step == 0:
                facts = {
                    "parameters": parameters,
                    "config_sha256": config.sha256,
                    "data_sha256": dataset.fingerprint,
                }
                log("run_start", **facts)
                for finding in preflight(model, device, fresh=init_from is None) if t.preflight else ():
                    log("audit", **vars(finding))
                    if not finding.ok:
                        raise RunFailed(f"{run_dir}: preflight: {finding}")

            while True:
                ending = step >= t.steps
                evaluating = step > 0 and (ending or due(step, t.eval_every)) and not metrics.recorded("eval", step)
                sampling = step > 0 and (ending or due(step, t.sample_every)) and not metrics.recorded("sample", step)
                if evaluating and not stop.signal:
                    scores = validate(model, dataset, batch_rows, device=device, dtype=dtype, stop=stop)
                    if scores is not None:
                        if scores.loss < best_loss(metrics.records):
                            write_best(run_dir, step, scores.loss)
                        log("eval", **scores.figures())
                        if len(model.layers):
                            picture = attention_picture(model, dataset.batch(0, 0).ids[:1].to(device))
                            metrics.image("attention", step, picture)
                console.report(step, [r for r in metrics.records[-4:] if r["step"] == step])
                if sampling and not stop.signal:
                    settings = config.sample.model_dump(exclude={"prompt"})
                    settings["stop_ids"] = (dataset.tokenizer.eot_id,)
                    ids = generate(model, [prompt], seed=t.seed, **settings)[0]
                    text = config.sample.prompt + dataset.tokenizer.decode(ids)
                    (run_dir / "samples").mkdir(exist_ok=True)
                    replace(run_dir / "samples" / f"step-{step:06d}.txt", text.encode())
                    log("sample", text=text)
                    console.show(text)
                early = 0 < t.early_stop <= evaluations_since_best(metrics.records)
                if ending or early or stop.signal:
                    break

                clock.start()
                rate = learning_rate(step, config.optim, t.steps)
                set_learning_rate(optimizers, rate)
                loss = accumulate(forward, dataset, step, config, device, dtype, scaler)
                norm = clip_gradients(model, optimizers, scaler, config.optim.clip)
                if not math.isfinite(loss) or not (math.isfinite(norm) or scaler.is_enabled()):
                    what = f"step {step + 1}: loss {loss}, gradient norm {norm}: not finite"
                    raise RunFailed(f"{run_dir}: {what}; the last good checkpoint is {latest_checkpoint(run_dir)}")
                update(model, optimizers, scaler, norm)
                step += 1
                clock.stop()

                if due(step, t.log_every) or step == t.steps:
                    fields = {"loss": loss, "learning_rate": rate, "gradient_norm": norm}
                    log("train", **fields, tokens_per_second=clock.rate(t.tokens_per_step))
                if step == t.steps or due(step, t.save_every) or due(step, t.eval_every):
                    save()
                console.advance(step)

            if stop.signal:
                if step > saved:
                    save()
                console.say(f"{run_dir}: stopped at step {step}; the same command goes on from there")
                raise SystemExit(128 + stop.signal)
            log("run_end", reason="steps" if ending else "early_stop")
            console.say(f"{run_dir}: done at step {step}, {clock.seconds():.0f} s")


def due(step: int, every: int) -> bool:
    """Say whether a cadence (0 = never) falls on this step."""
    return every > 0 and step % every == 0


def finished(records: Sequence[Record], steps: int) -> str:
    """Say why the records leave nothing to do; an empty text where there is something."""
    ends = [r for r in records if r["kind"] == "run_end"]
    if ends and ends[-1]["reason"] == "early_stop":
        return "no better loss for train.early_stop evaluations"
    return "a larger train.steps goes on from there" if ends and ends[-1]["step"] >= steps else ""


def best_loss(records: Sequence[Record]) -> float:
    """Give the lowest validation loss so far, in nats per token."""
    return min((r["loss"] for r in records if r["kind"] == "eval" and r["loss"] is not None), default=math.inf)


def evaluations_since_best(records: Sequence[Record]) -> int:
    """Count the evaluations after the one with the lowest loss."""
    losses = [math.inf if r["loss"] is None else r["loss"] for r in records if r["kind"] == "eval"]
    return len(losses) - 1 - losses.index(min(losses)) if losses else 0


def encode_prompt(config: Config, dataset: Dataset) -> list[int]:
    """Give the ids that samples start from; an empty prompt is the start of a document."""
    try:
        ids = dataset.tokenizer.encode(config.sample.prompt) or [dataset.tokenizer.eot_id]
    except ValueError as error:
        raise ValueError(f"sample.prompt: {error}") from error
    if len(ids) >= config.model.context_length:
        limit = config.model.context_length
        raise ValueError(f"sample.prompt: {len(ids)} tokens leave no room in model.context_length {limit}; shorten it")
    return ids


def restore(
    checkpoint: Checkpoint,
    model: Decoder,
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    dataset: Dataset,
) -> int:
    """Load everything that the checkpoint holds and give its step; refuse it on other data."""
    if checkpoint.state["data_sha256"] != dataset.fingerprint:
        raise ValueError(f"{checkpoint.path}: the corpus or its tokenizer has changed since; start a new --run-dir")
    checkpoint.load_model(model)
    checkpoint.load_optimizer(optimizers, model)
    scaler.load_state_dict(checkpoint.state["scaler"])
    return checkpoint.step


def load_weights(path: Path, model: Decoder, dataset: Dataset) -> None:
    """Copy a checkpoint's weights; refuse them where ids would mean other text."""
    checkpoint = read_checkpoint(path)
    if checkpoint.tokenizer.fingerprint != dataset.tokenizer.fingerprint:
        remedy = f"use data.tokenizer_file={path / 'tokenizer.json'}"
        raise ValueError(f"{path}: its tokenizer is not this run's, so its ids mean other text; {remedy}")
    checkpoint.load_model(model)


def compiled(
    model: Decoder, mode: str, dataset: Dataset, device: torch.device, dtype: torch.dtype
) -> Callable[..., Tensor]:
    """Give the forward pass that training calls: the model, compiled where `mode` is on, or auto and it works."""
    if mode == "off":
        return model
    fast: Callable[..., Tensor] = torch.compile(model, dynamic=False)
    try:
        with autocast(device, dtype):
            loss_sum(fast, dataset.batch(0, 0), device).backward()
    except RuntimeError as error:  # what torch's compiler raises; an error of ours comes back in the eager run
        if mode == "on":
            raise
        warnings.warn(f"train.compile: auto: running eagerly ({type(error).__name__})", stacklevel=2)
        return model
    finally:
        model.zero_grad(set_to_none=True)
    return fast


def accumulate(
    forward: Callable[..., Tensor],
    dataset: Dataset,
    step: int,
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
    scaler: torch.amp.GradScaler,
) -> float:
    """Add up the gradients of one step's micro-batches; give the mean loss in nats per token."""
    t = config.train
    total = torch.zeros((), device=device)
    for part in range(t.tokens_per_step // (t.micro_batch_size * config.model.context_length)):
        torch.manual_seed(random_seed(t.seed, step, part))
        with autocast(device, dtype):
            loss = loss_sum(forward, dataset.batch(step, part), device) / t.tokens_per_step
        scaler.scale(loss).backward()
        total += loss.detach()
    return total.item()


def random_seed(seed: int, step: int, part: int) -> int:
    """Give the seed of one micro-batch's dropout: 64 well-mixed bits of (seed, step, slice)."""
    return int(np.random.SeedSequence((seed, step, part)).generate_state(1, np.uint64)[0])


def clip_gradients(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], scaler: torch.amp.GradScaler, clip: float
) -> float:
    """Scale the gradients to a global norm of at most clip (0 = leave them); give the norm before."""
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf).item()


def update(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], scaler: torch.amp.GradScaler, norm: float
) -> None:
    """Take one step and forget the gradients; an fp16 overflow anywhere skips the step of every optimizer."""
    for optimizer in optimizers if math.isfinite(norm) else ():
        scaler.step(optimizer)
    scaler.update()
    model.zero_grad(set_to_none=True)
