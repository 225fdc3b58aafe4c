"""What can be measured of a model, apart from training it?

Validation is over the whole split, each token scored once: nats per token, and bits per byte, which alone compares
models with different tokenizers: bits_per_byte = total nats / ln 2 / total bytes of text.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from octlm.config import Config, ModelConfig
from octlm.data import Batch, Dataset
from octlm.model import Decoder
from octlm.parallel import autocast
from octlm.tokenizer import Tokenizer

PICTURE_TOKENS = 128  # the largest square of an attention picture


class Validation(NamedTuple):
    """The loss over a whole validation split."""

    loss: float  # nats per token
    bits_per_byte: float
    tokens: int
    oracle_bits_per_byte: float | None = None  # of a model that knows the true probabilities

    def figures(self) -> dict[str, float]:
        """Give what a record shows; a negative excess is hardly skill (octlm/audit/floor.py weighs it)."""
        found = {"loss": self.loss, "bits_per_byte": self.bits_per_byte}
        if self.oracle_bits_per_byte is not None:
            found["oracle_bits_per_byte"] = self.oracle_bits_per_byte
            found["excess_bits_per_byte"] = self.bits_per_byte - self.oracle_bits_per_byte
        return found


def loss_sum(model: Callable[..., Tensor], batch: Batch, device: torch.device) -> Tensor:
    """Give the next-token loss in nats, summed over the batch's targets (those of -1 left out)."""
    here = batch.map(lambda x: x.to(device, non_blocking=True))
    logits = model(here.ids, positions=here.positions, documents=here.documents)
    return F.cross_entropy(logits.float().flatten(0, 1), here.targets.flatten(), ignore_index=-1, reduction="sum")


@torch.inference_mode()
def validate(
    model: Decoder,
    dataset: Dataset,
    rows: int,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    stop: Callable[[], bool] = lambda: False,
) -> Validation | None:
    """Score the whole validation split, `rows` windows at a time; None if `stop` said so on the way.

    The model is in eval mode meanwhile, and in its former mode afterwards.
    """
    training = model.training
    model.eval()
    nats, tokens = 0.0, 0
    try:
        for batch in dataset.validation(rows):
            if stop():
                return None
            with autocast(device, dtype):
                nats += loss_sum(model, batch, device).item()
            tokens += int((batch.targets >= 0).sum())
    finally:
        model.train(training)
    bits_per_byte = nats / math.log(2) / dataset.val_bytes
    return Validation(nats / tokens, bits_per_byte, tokens, dataset.oracle_bits_per_byte)


@torch.inference_mode()
def log_probabilities(model: Decoder, tokenizer: Tokenizer, texts: Iterable[str]) -> list[float]:
    """Give the natural logarithm of each text's probability as a whole document, its end included, in float64.

    Every token counts once, the first after an end of text; windows of context_length tokens do not see each other.
    The model is in eval mode.
    """
    length, device = model.config.context_length, model.embed.weight.device
    found = []
    for text in texts:
        tokens = [tokenizer.eot_id, *tokenizer.encode(text), tokenizer.eot_id]
        filled = -(-(len(tokens) - 1) // length) * length
        ids = torch.full((filled,), tokenizer.eot_id)
        targets = torch.full((filled,), -1)
        ids[: len(tokens) - 1], targets[: len(tokens) - 1] = torch.tensor(tokens[:-1]), torch.tensor(tokens[1:])
        logits = model(ids.view(-1, length).to(device)).double().flatten(0, 1)
        loss = F.cross_entropy(logits, targets.to(device), ignore_index=-1, reduction="sum")
        found.append(-loss.item())
    return found


@torch.inference_mode()
def attention_weights(model: Decoder, ids: Tensor) -> Tensor:
    """Give the weights (n_layers, H, T, T) with which each token of ids (1, T) reads the others.

    They are read from the hand-written attention path, with the model's own weights.
    """
    twin = Decoder(ModelConfig(**{**model.config.model_dump(), "attention": "naive", "dropout": 0.0}))
    twin.load_state_dict(model.state_dict())
    twin.to(ids.device).eval()
    seen: list[Tensor] = []
    for name, module in twin.named_modules():
        if name.endswith("attend.weights"):
            module.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    twin(ids)
    return torch.stack(seen)


def attention_picture(model: Decoder, ids: Tensor) -> Tensor:
    """Draw attention_weights as one grey picture (height, width) uint8: a row a layer, a column a head."""
    weights = attention_weights(model, ids[:1, :PICTURE_TOKENS])
    weights = F.pad(weights.sqrt(), (1, 1, 1, 1), value=1.0)  # the root lifts small weights; a white frame each
    return (weights.permute(0, 2, 1, 3).flatten(0, 1).flatten(1) * 255).round().to(torch.uint8).cpu()


def describe(config: Config) -> dict[str, object]:
    """Say what would be trained, from a model without storage: its size, its output, its cost."""
    with torch.device("meta"):
        model = Decoder(config.model)
        logits = model(torch.zeros(1, config.model.context_length, dtype=torch.int64))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "logits_shape": list(logits.shape),
        "config_sha256": config.sha256,
        "tokens_per_step": config.train.tokens_per_step,
        "flops_per_token": model.flops_per_token(),
    }
