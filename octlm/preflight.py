"""Is this model worth training? Three claims, tested before step 1, on copies.

loss         the first loss is within dim x 0.02^2 / 2 + 0.1 nats of ln V: logits of variance dim x 0.02^2 cost half
             of it more than the uniform guess (pre-norm; post-norm starts higher and is told, not refused)
gradient     every parameter gets one, after one step where an output starts at zero
causality    with randomised parameters, since at an initialisation of 0.02 most leaks are smaller than a rounding,
             and outputs that start at zero would hide everything
"""

import copy
import math

import torch

from octlm.audit import Finding, causality, health
from octlm.config import ModelConfig
from octlm.model import Decoder
from octlm.model.decoder import INIT_STD

CUTS, IDS = 3, 16  # a part of what scripts/audit.py tests: a training is to begin soon


def preflight(model: Decoder, device: torch.device, *, fresh: bool = True) -> list[Finding]:
    """Test a model before its training; `fresh` says that its weights are untrained."""
    config = model.config
    if config.vocab_size < 2:
        return []
    findings = [
        health(model, config.vocab_size, config.context_length, parts=[part], loss_margin=margin(config), device=device)
        for part in (["loss", "gradient"] if fresh else ["gradient"])
    ]
    if config.context_length > 1:
        twin = randomise(copy.deepcopy(model))
        sizes = (config.vocab_size, config.context_length)
        findings.append(causality(twin, *sizes, embed=twin.embed, device=device, cuts=CUTS, ids=IDS))
    return findings


def randomise(model: Decoder, scale: float = 0.2, seed: int = 0) -> Decoder:
    """Add normal noise of this scale to every parameter, in place; the model is in eval mode afterwards."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model.eval()


def margin(config: ModelConfig) -> float:
    """Give how far from ln V the first loss may be, in nats per token."""
    return config.dim * INIT_STD**2 / 2 + 0.1 if config.norm_placement == "pre" else math.inf
