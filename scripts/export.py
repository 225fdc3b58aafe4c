"""Write what the web page computes again, or shows: from PyTorch, and from what training left behind.

python scripts/export.py attention           # one untrained layer with all its intermediates
python scripts/export.py model               # the page's own model, from runs/page
python scripts/export.py model RUN --out DIR # any run, for the page's button that opens a file
python scripts/export.py runs RUN...         # the losses of runs, for the page's curves
python scripts/export.py memory              # what scripts/bench.py attention measured
python scripts/export.py fixtures            # what the page's tests are held to: every variant, and small operations
python scripts/export.py attention --check   # compare with what is there, write nothing

Everything goes to its place under web/, or all into DIR; a rerun writes the same bytes.
Exit 1 when --check finds a number that differs by more than 1e-6.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to run from a checkout that is not installed

from octlm.command import Parser, run
from octlm.files import replace
from scripts.exports import attention, fixtures, memory, model, runs
from scripts.exports.files import Files, compare

ROOT = Path(__file__).resolve().parent.parent
DATA, TESTS = ROOT / "web" / "public" / "data", ROOT / "web" / "test" / "fixtures"
FOR_TESTS = ("model-reference.safetensors", "variants.safetensors", "ops.json")

OWN_RUN, OWN_CURVES = "runs/page", ["runs/page", "runs/day1"]
SUBJECTS: dict[str, Callable[[list[str]], Files]] = {
    "attention": lambda paths: attention.attention(),
    "model": lambda paths: model.any_model(paths[0]) if paths else model.own_model(OWN_RUN),
    "runs": lambda paths: runs.runs(paths or OWN_CURVES),
    "memory": lambda paths: memory.memory(ROOT),
    "fixtures": lambda paths: fixtures.fixtures(DATA / "model.safetensors"),
}
MOST_RUNS = {"attention": 0, "model": 1, "runs": 6, "memory": 0, "fixtures": 0}  # the page has six line styles


def main(arguments: list[str]) -> None:
    parser = Parser(prog="export.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=SUBJECTS)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run directory, or a checkpoint")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: under web/, each file in its place")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there and write nothing")
    options = parser.parse_args(arguments)
    if len(options.runs) > MOST_RUNS[options.what]:
        raise ValueError(f"{options.runs[-1]}: {options.what} takes at most {MOST_RUNS[options.what]} RUN")
    if options.what == "model" and options.runs and options.out is None:
        raise ValueError(f"{options.runs[0]}: say with --out DIR where to write it; under web/ is the page's own model")

    files = SUBJECTS[options.what](options.runs)
    paths = {name: (options.out or (TESTS if name in FOR_TESTS else DATA)) / name for name in files}
    if options.check:
        print(f"{options.what}: {compare(paths, files)}")
        return
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, files[name])
        print(f"{path}: {len(files[name]):,} bytes")


if __name__ == "__main__":
    run(main)
