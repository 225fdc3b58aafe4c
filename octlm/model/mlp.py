"""What does each position compute on its own, between two rounds of attention?

gelu     down(GELU(up(x)))                     Hendrycks, Gimpel 2016, arXiv 1606.08415
relu2    down(max(up(x), 0)^2)                 So et al. 2021, arXiv 2109.08668
swiglu   down(silu(gate(x)) * up(x))           Shazeer 2020, arXiv 2002.05202
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """Two matrices with an activation between them: (B, T, C) -> (B, T, C)."""

    def __init__(self, dim: int, hidden_dim: int, bias: bool, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up_proj = nn.Linear(dim, hidden_dim, bias=bias)
        self.down_proj = nn.Linear(hidden_dim, dim, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


class GatedMLP(nn.Module):
    """Three matrices, one of them a gate: (B, T, C) -> (B, T, C)."""

    def __init__(self, dim: int, hidden_dim: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden_dim, bias=bias)
        self.up_proj = nn.Linear(dim, hidden_dim, bias=bias)
        self.down_proj = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def relu_squared(x: Tensor) -> Tensor:
    """Square the positive part, element by element."""
    return torch.relu(x).square()


MLPS: dict[str, Callable[[int, int, bool], MLP | GatedMLP]] = {
    "gelu": partial(MLP, activation=F.gelu),
    "relu2": partial(MLP, activation=relu_squared),
    "swiglu": GatedMLP,
}
