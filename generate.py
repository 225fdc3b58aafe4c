"""Print text from a trained run, as it is made.

    python generate.py --run runs/day1 --prompt "def "
    echo "Once upon a time" | python generate.py --run runs/day4 - --num-samples 3 --json

Only the new text is printed, without the end-of-text token and without the stop string that ended it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from octlm.command import Parser, run

if TYPE_CHECKING:
    from octlm.checkpoint import Run

BYTE_ORDER_MARK = "\ufeff"  # at the start of a file it says how the text is stored and is no part of it


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="generate.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--run", required=True, metavar="DIR|CHECKPOINT", help="a run directory or one checkpoint")
    p.add_argument("--which", choices=("best", "latest"), default="best", help="checkpoint (default: best)")
    text = p.add_mutually_exclusive_group()
    text.add_argument(
        "--prompt", metavar="TEXT", help='"" = the start of a document; default: the run\'s sample.prompt'
    )
    text.add_argument("--prompt-file", metavar="F", help="the same from a UTF-8 file, newlines kept")
    text.add_argument("stdin", nargs="?", metavar="-", help="the same from standard input")
    own = "default: the run's sample."
    p.add_argument("--max-new-tokens", type=int, metavar="N", help=own + "max_new_tokens")
    p.add_argument("--temperature", type=float, metavar="X", help="0 = most likely; " + own + "temperature")
    p.add_argument("--top-k", type=int, metavar="K", help="0 = off; " + own + "top_k")
    p.add_argument("--top-p", type=float, metavar="P", help="1 = off; " + own + "top_p")
    p.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0 = off (default)")
    p.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="1 = off (default)")
    p.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; repeatable")
    p.add_argument("--ignore-eot", action="store_true", help="go on after an end-of-text token")
    p.add_argument("--seed", type=int, default=0, help="sample i depends on (seed, i) (default: 0)")
    p.add_argument("--num-samples", type=int, default=1, metavar="N", help="different samples (default: 1)")
    p.add_argument("--no-cache", action="store_true", help="the slow reference path: the same text")
    p.add_argument("--json", action="store_true", help="one object a sample: text, ids, finish_reason, speed")
    return p


def main(argv: list[str]) -> None:
    args = parser().parse_args(argv)
    if args.stdin not in (None, "-"):
        raise ValueError(f"unexpected argument {args.stdin!r}; a prompt is given with --prompt")
    if args.num_samples < 1:
        raise ValueError(f"--num-samples must be at least 1; got {args.num_samples}")
    prompt = _prompt(args)
    stops = [_argument(stop, "--stop") for stop in args.stop]
    if not all(stops):
        raise ValueError("--stop must not be empty")
    import torch  # after the arguments, so that --help does not wait for it

    from octlm.checkpoint import load_run
    from octlm.parallel import choose_threads

    torch.set_num_threads(choose_threads(None))
    trained = load_run(args.run, which=args.which)
    ours = trained.config.sample
    for name in ("max_new_tokens", "temperature", "top_k", "top_p"):
        if getattr(args, name) is None:
            setattr(args, name, getattr(ours, name))
    ids = _cut(_encode(trained, ours.prompt if prompt is None else prompt), trained, args.max_new_tokens)
    for i in range(args.num_samples):
        sample = _sample(trained, ids, stops, args, i, _ignore if args.json else _write)
        if args.json:
            _write(json.dumps(sample, allow_nan=False) + "\n")


def _sample(
    trained: Run,
    ids: list[int],
    stops: list[str],
    args: argparse.Namespace,
    row: int,
    show: Callable[[str], None],
) -> dict[str, Any]:
    """Draw sample `row`, showing text once no stop string can begin in it; return what --json prints."""
    from octlm.sampling import StopText, stream

    decoder, stop, reason = trained.tokenizer.decoder(), StopText(stops), None
    new: list[int] = []
    shown: list[str] = []

    def push(text: str) -> None:
        if text:
            shown.append(text)
            show(text)

    started = time.perf_counter()
    events = stream(
        trained.model,
        [ids],
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        stop_ids=() if args.ignore_eot else (trained.tokenizer.eot_id,),
        seed=args.seed,
        use_cache=not args.no_cache,
        first_row=row,
    )
    if args.num_samples > 1:
        show(f"--- sample {row + 1} of {args.num_samples}\n")
    try:
        for _, token, end in events:
            reason = end
            if token is not None:
                new.append(token)
                push(stop.push(decoder.push(token)))
            if stop.stopped:
                break
    finally:  # whatever ended it, text held back is not lost
        events.close()
        push(stop.push(decoder.flush()))
        push(stop.flush())
        if shown and not shown[-1].endswith("\n"):
            show("\n")
    seconds = max(time.perf_counter() - started, 1e-9)
    return {
        "text": "".join(shown),
        "ids": new,
        "finish_reason": "stop" if stop.stopped else reason,
        "prompt_tokens": len(ids),
        "tokens_per_second": round(len(new) / seconds, 3),
    }


def _prompt(args: argparse.Namespace) -> str | None:
    """Return the prompt as typed, or None where none was; ValueError for what is not UTF-8."""
    if args.prompt is not None:
        return _argument(args.prompt, "--prompt")
    if args.prompt_file is not None:
        with open(args.prompt_file, "rb") as file:
            return _decode(file.read(), args.prompt_file).removeprefix(BYTE_ORDER_MARK)
    if args.stdin is not None:
        if sys.stdin is None:
            raise ValueError("standard input is closed")
        return _decode(sys.stdin.buffer.read(), "standard input").removeprefix(BYTE_ORDER_MARK)
    return None


def _decode(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise ValueError(f"{origin}: not UTF-8: byte {byte:#04x} at offset {error.start}") from None


def _argument(text: str, origin: str) -> str:
    """Undo what Python does to arguments in a C locale: bytes above 127 arrive as lone surrogates."""
    try:
        return _decode(text.encode("utf-8", "surrogateescape"), origin)
    except UnicodeEncodeError as error:
        raise ValueError(f"{origin}: not UTF-8: lone surrogate at character {error.start}") from None


def _encode(trained: Run, text: str) -> list[int]:
    return trained.tokenizer.encode(text) or [trained.tokenizer.eot_id]


def _cut(ids: list[int], trained: Run, max_new_tokens: int) -> list[int]:
    """Keep the end of a prompt longer than the context: room for the new tokens, or half of it."""
    context = trained.config.model.context_length
    if len(ids) > context:
        keep = max(context - max(max_new_tokens, 0), (context + 1) // 2)
        cut = f"the first {len(ids) - keep} of {len(ids)} prompt tokens were cut, {keep} kept"
        print(f"generate.py: the context holds {context} tokens: {cut}", file=sys.stderr)
        return ids[-keep:]
    if len(ids) == context and max_new_tokens > 0:
        print(f"generate.py: the prompt fills the context of {context} tokens: no room left", file=sys.stderr)
    return ids


def _write(text: str) -> None:
    """Write UTF-8 whatever the locale, at once; the text's own newlines, on every system."""
    if sys.stdout is None:
        raise ValueError("standard output is closed")
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()


def _ignore(text: str) -> None:
    """Show nothing: --json prints a sample when it is complete."""


if __name__ == "__main__":
    run(main)
