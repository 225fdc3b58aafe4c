"""How do gradients move the weights?

AdamW   Loshchilov, Hutter 2019, arXiv 1711.05101
Muon    momentum, orthogonalised, for the matrices of the layers; AdamW for the rest
        Jordan et al. 2024; its steps scaled to AdamW's size as in Liu et al. 2025, arXiv 2502.16982

Weight decay acts on the matrices that multiply, never on norms, biases or embeddings (a tied head is an embedding).
The learning rate is a pure function of the step, so a resume needs no schedule state.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from octlm.config import OptimConfig

Shape = Callable[[float, OptimConfig], float]

# from progress after warm-up, in (0, 1], to the share of the way from min_learning_rate to learning_rate
SCHEDULES: dict[str, Shape] = {
    "constant": lambda progress, optim: 1.0,
    "linear": lambda progress, optim: 1.0 - progress,
    "cosine": lambda progress, optim: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "wsd": lambda progress, optim: min(1.0, (1.0 - progress) / max(optim.decay_fraction, 1e-9)),
}


def learning_rate(step: int, optim: OptimConfig, steps: int) -> float:
    """Give the rate of step 0, 1, ...: linear warm-up to the peak at step warmup_steps - 1, then the schedule.

    The last of `steps` steps, and any after it, runs at min_learning_rate exactly (constant: at the peak).
    """
    if step < optim.warmup_steps:
        return optim.learning_rate * (step + 1) / optim.warmup_steps
    progress = min(1.0, (step + 1 - optim.warmup_steps) / max(1, steps - optim.warmup_steps))
    low, share = optim.min_learning_rate, SCHEDULES[optim.schedule](progress, optim)
    return low + (optim.learning_rate - low) * share


def parameter_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Sort every trainable parameter once: `matrices` of the layers, the untied `head`, and `rest` (no decay)."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)} - embeddings
    groups: dict[str, list[nn.Parameter]] = {"matrices": [], "head": [], "rest": []}
    for name, parameter in model.named_parameters():  # a tied parameter comes once
        if parameter.requires_grad:
            group = "rest" if id(parameter) not in linear else "head" if name.startswith("head.") else "matrices"
            groups[group].append(parameter)
    return groups


def _adamw(groups: dict[str, list[nn.Parameter]], optim: OptimConfig) -> list[torch.optim.Optimizer]:
    decays = {"matrices": optim.weight_decay, "head": optim.weight_decay, "rest": 0.0}
    parameters = [{"params": held, "weight_decay": decays[name]} for name, held in groups.items() if held]
    return [torch.optim.AdamW(parameters, lr=optim.learning_rate, betas=optim.betas, fused=True)]


def _muon(groups: dict[str, list[nn.Parameter]], optim: OptimConfig) -> list[torch.optim.Optimizer]:
    others = _adamw({**groups, "matrices": []}, optim)
    if not groups["matrices"]:
        return others
    rate, decay = optim.learning_rate, optim.weight_decay
    muon = torch.optim.Muon(groups["matrices"], lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, *others]


OPTIMIZERS = {"adamw": _adamw, "muon": _muon}


def build_optimizers(model: nn.Module, optim: OptimConfig) -> list[torch.optim.Optimizer]:
    """Make the optimizers that together hold every trainable parameter of the model exactly once."""
    return OPTIMIZERS[optim.name](parameter_groups(model), optim)


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
    """Use this rate from now on, in every group."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
