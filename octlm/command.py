"""How does a command end? 0: done. 1: the run failed. 2: the user can mend it. 130, 143: it was stopped.

With 1 and 2 comes exactly one line on standard error, `train.py: error: <message>`, and no traceback. Any
other exception is a fault of ours and keeps its traceback; `python -X dev train.py ...` always shows it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # the disk, the quota, the file-size limit


class RunFailed(RuntimeError):
    """The run itself failed: exit 1; the message is the one line on standard error."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that takes no abbreviations and refuses in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Print one line on standard error and exit with 2."""
        raise SystemExit(_fail(2, message, self.prog))


def run(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Call main with the arguments and exit with the code that its return or exception stands for."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # text is UTF-8 whatever the locale; a path in a message may not be
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = _code(main)
    with contextlib.suppress(OSError):  # what a failed main had printed: one message is enough
        _flush()
    raise SystemExit(code)


def _code(main: Callable[[list[str]], int | None]) -> int | str | None:
    try:
        try:
            code: int | str | None = main(sys.argv[1:]) or 0
        except SystemExit as stop:
            code = stop.code
        _flush()
        return code
    except BrokenPipeError:  # the reader, `head` say, has enough: end as a program that SIGPIPE ends
        return 141  # 128 + SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except MemoryError as error:
        return _fail(1, f"out of memory: {error}" if str(error) else "out of memory")
    except RuntimeError as error:
        if not (isinstance(error, RunFailed) or re.search("out of memory|t allocate memory", str(error))):
            raise
        return _fail(1, str(error))
    except OSError as error:
        return _fail(1 if error.errno in FULL else 2, _reason(error))
    except ValueError as error:
        return _fail(2, str(error) or "ValueError without a message")


def _reason(error: OSError) -> str:
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, (str, bytes))]
    if paths and error.strerror:
        return f"{' -> '.join(paths)}: {error.strerror}"
    return error.strerror or str(error) or type(error).__name__


def _fail(code: int, message: str, program: str | None = None) -> int:
    """Print the one line: line breaks folded, other control characters shown, for they rewrite terminals."""
    if sys.flags.dev_mode and sys.exc_info()[0]:
        traceback.print_exc()
    folded = re.sub(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*", " ", message.strip())
    line = "".join(c if c.isprintable() or 0xD800 <= ord(c) < 0xE000 else f"\\x{ord(c):02x}" for c in folded)
    if sys.stderr is not None:
        print(f"{program or Path(sys.argv[0]).name}: error: {line}", file=sys.stderr, flush=True)
    return code


def _flush() -> None:
    """Send what waits for standard output now, where its failure can still be told."""
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        # the interpreter's own flush at exit must succeed, for it would print a second message
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise type(error)(error.errno, error.strerror, "standard output") from None


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
