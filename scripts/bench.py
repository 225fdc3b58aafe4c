"""Measure octlm on this machine: every figure with the machine, the load and the commit that it holds for.

python scripts/bench.py attention     # EXP-014: memory and time of one attention, math backend against fused

One measurement at a time: a lock keeps a second away, and work of others on the cores is refused (--loaded measures
all the same and marks the record).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to run from a checkout that is not installed

from octlm.command import Parser, run
from scripts.benches import attention
from scripts.benches.machine import the_only_one

BENCHES = {"attention": attention}


def main(arguments: list[str]) -> None:
    parser = Parser(prog="bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    for name, bench in BENCHES.items():
        summary = (bench.__doc__ or "").splitlines()[0]
        own = benches.add_parser(name, help=summary, description=bench.__doc__)
        own.add_argument("--loaded", action="store_true", help="measure although others use the cores")
        bench.add_arguments(own)
    options = parser.parse_args(arguments)
    with the_only_one(options.loaded) as machine:
        BENCHES[options.bench].measure(options, machine)


if __name__ == "__main__":
    run(main)
