"""What does causal attention compute, and does octlm compute it?

    scores[i, j] = q[i] . k[j] / sqrt(D)       how well query i matches key j             (B, H, Tq, Tk)
    scores[i, j] = -inf  if j > offset + i     query i stands at position offset + i: no key after it is read
    weights      = softmax of each row         masked keys get weight 0, and the others still sum to 1
    output[i]    = sum over j of weights[i, j] v[j]                                       (B, H, Tq, D)

B rows, H heads, Tq queries, Tk keys and values, D numbers in each (Vaswani et al. 2017, arXiv 1706.03762).
The offset is 0 where a whole sequence is read at once (Tq = Tk: a square). With a cache, the first `offset` keys and
values are kept from earlier calls and only the queries of the new tokens come in, so that Tk = offset + Tq.

The operation itself is `causal_attention` in octlm/model/attention.py. This script compares it with PyTorch's own on
random numbers, and says by how much the two differ:

python labs/llm/attention/attention.py
python -m unittest discover -s labs/llm/attention -p 'test_*.py' -v
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # to run from a checkout that is not installed

from octlm import causal_attention

SEED = 0
B, H, T, D = 2, 4, 32, 16
TOLERANCE = 1e-12  # float64 rounds at 1e-16; a wrong mask, scale or alignment is off by more than 1e-3


class Record(NamedTuple):
    """What one comparison found."""

    device: str
    shape: tuple[int, ...]  # of the output, (B, H, Tq, D)
    largest_error: float  # NaN if either output holds one


def inputs(n_queries: int = T, offset: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q (B, H, n_queries, D) and k, v (B, H, offset + n_queries, D) in float64 on the CPU, always the same."""
    generator = torch.Generator().manual_seed(SEED)
    lengths = (n_queries, offset + n_queries, offset + n_queries)
    q, k, v = (torch.randn(B, H, length, D, dtype=torch.float64, generator=generator) for length in lengths)
    return q, k, v


def reference(q: Tensor, k: Tensor, v: Tensor, offset: int = 0) -> Tensor:
    """Attend with PyTorch's operation, its mask made from absolute positions: (B, H, Tq, D)."""
    query_position = offset + torch.arange(q.shape[2])
    key_position = torch.arange(k.shape[2])
    allowed = key_position <= query_position[:, None]  # (Tq, Tk), True = may read
    return scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=0.0)


def compare(n_queries: int = T, offset: int = 0) -> Record:
    """Compute both on the same numbers and measure the largest absolute difference."""
    q, k, v = inputs(n_queries, offset)
    output = causal_attention(q, k, v, offset=offset)
    error = (output - reference(q, k, v, offset)).abs().max()
    return Record(str(output.device), tuple(output.shape), error.item())


def main(arguments: list[str]) -> int:
    """Print the record; return 1 if the two operations differ by more than TOLERANCE."""
    # without a usage line a wrong argument is refused in one line
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    record = compare()
    print(f"causal_attention: a correctness record, not a performance claim (float64, seed {SEED}, dropout 0)")
    print(f"device: {record.device}")
    print(f"output shape: {record.shape}")
    print(f"largest absolute error against scaled_dot_product_attention: {record.largest_error:.3g}")
    return 0 if record.largest_error <= TOLERANCE else 1  # NaN is no success


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
