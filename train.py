"""Train a decoder from a YAML config: python train.py --config day1 train.steps=800"""

import json
from pathlib import Path

from octlm.command import Parser, run


def parser() -> Parser:
    """Describe the command line."""
    p = Parser(
        prog="train.py",
        description="Train a decoder from a YAML config; run it again to go on where it stopped.",
    )
    p.add_argument("--config", required=True, metavar="NAME|PATH", help="day1 for configs/day1.yaml, or a file")
    p.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the config: train.steps=800")
    p.add_argument("--run-dir", type=Path, metavar="DIR", help="where the run is kept (default: runs/NAME)")
    p.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|CHECKPOINT",
        help="auto: go on with an unfinished run of the same config; never: want a new directory (default: auto)",
    )
    p.add_argument("--init-from", type=Path, metavar="CHECKPOINT", help="start from these weights, at step 0")
    p.add_argument("--dry-run", action="store_true", help="print the model's size and shapes as one line of JSON")
    return p


def main(argv: list[str]) -> None:
    """Train, or describe what would be trained."""
    args = parser().parse_intermixed_args(argv)
    from octlm.config import load_config  # pydantic and torch take seconds to import: --help needs neither

    config = load_config(args.config, args.overrides)
    if args.dry_run:
        from octlm.probes import describe

        print(json.dumps(describe(config)))
        return
    from octlm.loop import train

    run_dir = args.run_dir or Path("runs") / Path(args.config).stem
    train(config, run_dir, resume=args.resume, init_from=args.init_from)


if __name__ == "__main__":
    run(main)
