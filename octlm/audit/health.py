"""Is an untrained model fit to be trained?

loss      the first loss is about ln V: the model begins without an opinion
gradient  every parameter gets one, after one step where an output starts at zero
memory    one batch can be learned by heart: if not, something is broken
eval      two calls in eval mode agree
residual  the matrices that write to the residual stream, found by watching what is added to it, and no others, are
          drawn smaller by `residual_scale` (1 / sqrt(2 x layers) in Radford et al. 2019)
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from octlm.audit.blame import difference
from octlm.audit.finding import Finding, Measure
from octlm.audit.subject import NotJudged, Subject, copy_of

LOSS_TOKENS = 512  # at least, for the first loss
BLOCK = 32  # tokens of the batch that is learned by heart
MEMORY_STEPS, MEMORY_SHARE = 300, 0.1  # updates at most, to this share of the first loss
DRAWN = 0.15  # how far a spread may be from its own: 300 numbers scatter by 0.04, and one layer's scale is 0.29 off
ADDITIONS = ("add", "__add__", "__radd__", "__iadd__", "add_")


def health(
    model: nn.Module,
    vocab_size: int,
    length: int,
    *,
    parts: Sequence[str] = ("loss", "gradient", "memory", "eval", "residual"),
    loss_margin: float = 0.5,
    residual_scale: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Finding:
    """Test copies of a model from ids (B, T) to logits (B, T, V) on random ids of `length` tokens.

    loss_margin is how far the first loss may be from ln V, in nats per token; residual is left out without a
    residual_scale. Raises ValueError for a part that is none.
    """
    unknown = [name for name in parts if name not in PARTS]
    if unknown or length < 1 or vocab_size < 2:
        raise ValueError(f"health: parts {unknown or list(parts)}, vocab_size={vocab_size}, length={length}")
    parts = [name for name in parts if name != "residual" or residual_scale is not None]
    measures, faults = [], []
    for name in parts:
        trial = Trial(vocab_size, length, loss_margin, residual_scale, device, torch.Generator().manual_seed(seed))
        try:
            measure = PARTS[name](copy_of(model, {}).eval(), trial)
        except NotJudged as reason:
            measure = Measure(math.inf, 0.0, f"not judged: {reason}")
        measures.append(measure)
        if not measure.worst <= measure.tolerance:
            faults.append(measure._replace(what=f"{name}: {measure.what}"))
    shown = (faults or measures)[0]
    where = "; ".join(fault.what for fault in faults)
    return Finding(
        f"fit to be trained: {', '.join(parts)}", not faults, shown.worst, shown.tolerance, where, len(parts)
    )


class Trial(NamedTuple):
    """What the parts are told."""

    vocab_size: int
    length: int
    loss_margin: float
    residual_scale: float | None
    device: torch.device | str | None
    generator: torch.Generator


def draw(trial: Trial, tokens: int) -> tuple[Tensor, Tensor]:
    """Draw ids and targets, rows enough for so many tokens."""
    shape = (2, -(-tokens // trial.length), trial.length)
    ids, targets = torch.randint(trial.vocab_size, shape, generator=trial.generator)
    return ids, targets


def loss_of(subject: Subject, ids: Tensor, targets: Tensor) -> Tensor:
    """Give the mean loss, in nats per token."""
    logits = subject(ids).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.to(logits.device).flatten())


@torch.no_grad()
def first_loss(model: nn.Module, trial: Trial) -> Measure:
    """Compare the first loss with ln V."""
    loss = float(loss_of(Subject(model, trial.device), *draw(trial, LOSS_TOKENS)))
    even = math.log(trial.vocab_size)
    off = abs(loss - even)
    what = f"{loss:.4f} nats per token, {off:.4f} from ln {trial.vocab_size} = {even:.4f}"
    return Measure(off, trial.loss_margin, what)


def gradients(model: nn.Module, trial: Trial) -> Measure:
    """Name the parameters that never get a gradient, in two steps at most: an output may start at zero."""
    without = set(trainable(model))
    optimizer = torch.optim.SGD(trainable(model).values(), lr=0.1)
    ids, targets = draw(trial, LOSS_TOKENS)  # enough that sparse experts all get some
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        loss_of(Subject(model, trial.device), ids, targets).backward()
        optimizer.step()
        without &= {name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())}
        if not without:
            break
    return Measure(len(without), 0.0, f"none in {', '.join(sorted(without))}")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Give the parameters that take a gradient by name; raises NotJudged where there is none."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise NotJudged("no parameter takes a gradient")
    return found


def memory(model: nn.Module, trial: Trial) -> Measure:
    """Learn one short row by heart."""
    ids, targets = (x[:1, :BLOCK] for x in draw(trial, trial.length))
    subject = Subject(model, trial.device)
    optimizer = torch.optim.AdamW(trainable(model).values(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    first = loss = float(loss_of(subject, ids, targets).detach())
    for _ in range(MEMORY_STEPS + 1):
        optimizer.zero_grad(set_to_none=True)
        value = loss_of(subject, ids, targets)
        loss = float(value.detach())
        if loss <= MEMORY_SHARE * first:
            break
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    what = f"{ids.shape[1]} tokens are still at {loss:.4f} nats of {first:.4f} after {MEMORY_STEPS} updates"
    return Measure(loss, MEMORY_SHARE * first, what)


@torch.no_grad()
def deterministic(model: nn.Module, trial: Trial) -> Measure:
    """Call twice in eval mode."""
    ids, _ = draw(trial, trial.length)
    subject = Subject(model, trial.device)
    worst = difference(subject(ids), subject(ids))
    return Measure(worst, 0.0, f"two calls differ by {worst:.3g}")


@torch.no_grad()
def residual(model: nn.Module, trial: Trial) -> Measure:
    """Compare the spread of the matrices that write to the residual stream with that of all others."""
    assert trial.residual_scale is not None
    matrices = {
        name: float(module.weight.detach().double().std())
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), Tensor) and module.weight.dim() == 2
    }
    writers = residual_writers(model, trial) & matrices.keys()
    others = sorted(std for name, std in matrices.items() if name not in writers)
    if not writers or not others:
        raise NotJudged("no matrix was seen to write to a residual stream")
    common = others[len(others) // 2]
    off = {name: std / (common * (trial.residual_scale if name in writers else 1.0)) for name, std in matrices.items()}
    wrong = sorted(name for name, ratio in off.items() if abs(ratio - 1) > DRAWN)
    what = ", ".join(f"{name} {'' if name in writers else '(no writer) '}x {off[name]:.2f}" for name in wrong[:4])
    return Measure(max(abs(ratio - 1) for ratio in off.values()), DRAWN, f"not at its scale: {what}")


def residual_writers(model: nn.Module, trial: Trial) -> set[str]:
    """Name the modules whose output, dropped out or not, is added to something."""
    made: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, so that no id is used twice

    def keep(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            passed = isinstance(module, nn.Dropout | nn.Identity) and args and made.get(id(args[0]))
            made.setdefault(id(output), (passed[0] if passed else name, output))  # a parent hands on its child's

    class Additions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in ADDITIONS:
                writers.update(made[id(x)][0] for x in args if id(x) in made)
            return func(*args, **kwargs or {})

    writers: set[str] = set()
    subject = Subject(model, trial.device)
    with subject.watch(keep), Additions():
        subject(draw(trial, trial.length)[0])
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    return writers - embeddings


PARTS: dict[str, Callable[[nn.Module, Trial], Measure]] = {
    "loss": first_loss,
    "gradient": gradients,
    "memory": memory,
    "eval": deterministic,
    "residual": residual,
}
