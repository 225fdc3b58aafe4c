"""Make a recipe's tokenizer and token files by hand (train.py does it itself when they are not there).

python scripts/prepare.py --config day1
cat book.txt | python scripts/prepare.py --config day1 data.source=text data.path=-
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to run from a checkout that is not installed

from octlm.command import Parser, run


def main(arguments: list[str]) -> None:
    parser = Parser(prog="prepare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="NAME|PATH", help="day1 .. day5, or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the recipe")
    options = parser.parse_intermixed_args(arguments)

    from octlm.config import load_config
    from octlm.data import prepare  # loads torch: --help is to be instant

    dataset = prepare(load_config(options.config, options.overrides), show_progress=True)
    print(f"{dataset.folder}: {dataset.describe()}")


if __name__ == "__main__":
    run(main)
