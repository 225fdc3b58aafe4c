"""Is this model worth training? Three claims, tested in seconds before step 1, on a copy.

causality    with randomised parameters, since at an initialisation of 0.02 most leaks are smaller than a rounding,
             and outputs that start at zero would hide everything
loss         the first loss is at most ln V + dim x 0.02^2 / 2 + 0.1 nats: logits of variance dim x 0.02^2 cost half
             of it more than the uniform guess (pre-norm; post-norm starts higher and is told, not refused)
gradient     every parameter gets one, after one step where an output starts at zero
"""

import copy
import math

import torch
from torch import nn

from octlm.audit import Finding, causality
from octlm.config import ModelConfig
from octlm.data import Batch
from octlm.model import Decoder
from octlm.model.decoder import INIT_STD
from octlm.probes import loss_sum

ROWS = 1  # of the first batch, for the gradients
LOSS_TARGETS = 512  # tokens, at least
CUTS = 3  # places where the future is changed: the start, the middle, the end


def preflight(model: Decoder, batch: Batch, device: torch.device, *, fresh: bool = True) -> list[Finding]:
    """Test the model on the first rows of a batch; `fresh` says that its weights are untrained."""
    config = model.config
    twin = copy.deepcopy(model)
    few = batch.map(lambda x: x[:ROWS])
    findings = [gradient_claim(twin, few, device)]
    twin.load_state_dict(model.state_dict())
    if fresh:
        findings.append(loss_claim(twin.eval(), device))
    length = min(config.context_length, few.ids.shape[1])
    if length > 1 and config.vocab_size > 1:
        findings.append(
            causality(randomise(twin), config.vocab_size, length, embed=twin.embed, device=device, cuts=CUTS)
        )
    return findings


def randomise(model: nn.Module, scale: float = 0.2, seed: int = 0) -> nn.Module:
    """Add normal noise of this scale to every parameter, in place; the model is in eval mode afterwards."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model.eval()


def loss_bound(config: ModelConfig) -> float:
    """Give the largest first loss, in nats per token, that an untrained pre-norm model may have."""
    return math.log(config.vocab_size) + config.dim * INIT_STD**2 / 2 + 0.1


@torch.no_grad()
def loss_claim(model: Decoder, device: torch.device) -> Finding:
    """Compare the first loss with the bound, on random ids: a text of few words has no mean over the vocabulary."""
    length = model.config.context_length
    shape = (2, -(-LOSS_TARGETS // length), length)
    ids, targets = torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    loss = loss_sum(model, Batch(ids, targets, None, None), device).item() / targets.numel()
    bound = loss_bound(model.config) if model.config.norm_placement == "pre" else math.inf
    ok = loss <= bound
    return Finding("the first loss is that of an even guess", ok, loss, bound, "" if ok else "nats per token", 1)


def gradient_claim(model: Decoder, batch: Batch, device: torch.device) -> Finding:
    """Count the parameters that never get a gradient, in two steps at most: an output may start at zero."""
    model.eval()  # dropout could hide a gradient
    without = {name for name, _ in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cases = 0
    while without and cases < 2:
        optimizer.zero_grad(set_to_none=True)
        loss_sum(model, batch, device).div(batch.targets.numel()).backward()
        optimizer.step()
        without &= {n for n, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())}
        cases += 1
    return Finding("every parameter gets a gradient", not without, len(without), 0.0, ", ".join(sorted(without)), cases)
