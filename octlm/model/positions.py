"""How does the model know where a token stands?

learned      x + table[p]                                         Radford et al. 2018 (GPT)
sinusoidal   x * sqrt(C) + PE[p], PE[p, 2i] = sin(p / 10000^(2i/C)), PE[p, 2i+1] = cos(same)
                                                                  Vaswani et al. 2017, arXiv 1706.03762
rope         q, k rotated by the angles p / scale * theta^(-2i/D), halves paired as in Llama
                                                                  Su et al. 2021, arXiv 2104.09864
none         nothing: the causal mask alone breaks the symmetry   Haviv et al. 2022, arXiv 2203.16634

Every entry answers two questions: what is added to the token embeddings (`add`), and how are queries and keys
turned (`rotation`). Positions are (B or 1, T) int64; padding is -1 and gets any finite value.
Angles are computed in fp32 whatever the model's dtype: bf16 cannot tell position 256 from 257.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from octlm.config import ModelConfig

Rotate = Callable[[Tensor], Tensor]  # (B, H, T, D) -> the same, turned


def unturned(x: Tensor) -> Tensor:
    """Leave queries and keys as they are."""
    return x


class NoPositions(nn.Module):
    """No position enters anywhere."""

    limit: int | None = None  # the first position that has no encoding

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        """Give (B, T, C) token embeddings their positions."""
        return x

    @staticmethod
    def rotation(config: ModelConfig) -> Callable[[Tensor], Rotate]:
        """Give the function from positions to the map that turns (B, H, T, D) queries and keys."""
        return lambda positions: unturned


class LearnedPositions(NoPositions):
    """One trained vector a position, so no position beyond context_length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.limit = config.context_length
        self.table = nn.Embedding(config.context_length, config.dim)

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions.clamp(min=0))


class SinusoidalPositions(NoPositions):
    """Fixed waves of amplitude 1; the embeddings are scaled by sqrt(C), else the waves would drown them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.dim = config.dim

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        waves = angles(positions, self.dim, 10000.0)  # (B, T, C/2)
        waves = torch.stack((waves.sin(), waves.cos()), dim=-1).flatten(-2)  # (B, T, C)
        return x * math.sqrt(self.dim) + waves.to(x.dtype)


class RotaryPositions(NoPositions):
    """Queries and keys turned by their positions, so that scores depend on the distance alone."""

    @staticmethod
    def rotation(config: ModelConfig) -> Callable[[Tensor], Rotate]:
        head_dim, theta, scale = config.head_dim, config.rope_theta, config.rope_scale

        def at(positions: Tensor) -> Rotate:
            turn = angles(positions / scale, head_dim, theta).unsqueeze(1)  # (B, 1, T, D/2)
            cos, sin = turn.cos(), turn.sin()

            def rotate(x: Tensor) -> Tensor:
                a, b = x.chunk(2, dim=-1)
                return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

            return rotate

        return at


def angles(positions: Tensor, width: int, theta: float) -> Tensor:
    """Give positions (B, T) their angles (B, T, width/2) in fp32: p * theta^(-2i / width)."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
    return positions.to(torch.float32).unsqueeze(-1) * theta**-exponents


POSITIONS: dict[str, type[NoPositions]] = {
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "rope": RotaryPositions,
    "none": NoPositions,
}
