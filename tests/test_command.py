"""Every command ends with the code that says what happened, and with one line where something went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FULL_DEVICE = Path("/dev/full")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}


IMPORTS = """
import errno, os, signal, sys, time
from octlm.command import Parser, RunFailed, run

def interruptible():  # a shell starts background jobs deaf to SIGINT, and the tests may be one
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""


def script(tmp_path: Path, body: str) -> list[str]:
    """Write a command line whose main(argv) is `body`; return how to start it."""
    path = tmp_path / "tool.py"
    main = "def main(argv):\n" + textwrap.indent(body, "    ")
    path.write_text(f"{IMPORTS}{main}\nrun(main)\n", encoding="utf-8")
    return [sys.executable, str(path)]


def ended(command: list[str], **changes: str) -> tuple[int, str, str]:
    """Run to the end; return the exit code and what was written to both streams."""
    done = subprocess.run(command, env={**ENVIRONMENT, **changes}, capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


ENDS: list[tuple[str, int, str]] = [
    ("pass", 0, ""),
    ("return 0", 0, ""),
    ("return 3", 3, ""),
    ("raise SystemExit(4)", 4, ""),
    ("raise ValueError('x.yaml: model.n_head: unknown key')", 2, "x.yaml: model.n_head: unknown key"),
    ("raise ValueError('one\\n  two\\r\\nthree\\u2028four')", 2, "one two three four"),
    ("raise ValueError('red \\x1b[31m, bell \\a')", 2, "red \\x1b[31m, bell \\x07"),
    ("raise ValueError('name \\udcff é')", 2, "name \\udcff é"),
    ("raise ValueError()", 2, "ValueError without a message"),
    ("b'\\xff'.decode()", 2, "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ("open('/no/such/file')", 2, "/no/such/file: No such file or directory"),
    ("open('/')", 2, "/: Is a directory"),
    ("os.rename('/no/a', '/no/b')", 2, "/no/a -> /no/b: No such file or directory"),
    ("raise OSError('the disk fell off')", 2, "the disk fell off"),
    ("raise PermissionError(errno.EACCES, 'Permission denied', b'/x')", 2, "/x: Permission denied"),
    ("raise OSError(errno.ENOSPC, 'No space left on device', '/a')", 1, "/a: No space left on device"),
    ("raise OSError(errno.ENOSPC, 'No space left on device')", 1, "No space left on device"),
    ("raise OSError(errno.EDQUOT, 'Disk quota exceeded', '/a')", 1, "/a: Disk quota exceeded"),
    ("raise OSError(errno.EFBIG, 'File too large', '/a')", 1, "/a: File too large"),
    ("raise RunFailed('step 7: the loss is not finite')", 1, "step 7: the loss is not finite"),
    ("raise MemoryError", 1, "out of memory"),
    ("raise KeyboardInterrupt", 130, ""),
    ("interruptible(); os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", 130, ""),
    ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", 143, ""),
    ("print('kept'); raise ValueError('late')", 2, "late"),
]


def test_each_end_has_its_code_and_at_most_one_line(tmp_path: Path) -> None:
    # one interpreter for the whole table, and a fork for each row
    path = tmp_path / "tool.py"
    path.write_text(
        IMPORTS
        + "".join(f"def main{i}(argv):\n    {body}\n" for i, (body, _, _) in enumerate(ENDS))
        + f"for i in range({len(ENDS)}):\n"
        "    print(f'<{i}>', file=sys.stderr, flush=True)\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        run(globals()[f'main{i}'])\n"
        "    print(f'[{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}]', file=sys.stderr, flush=True)\n",
        encoding="utf-8",
    )
    code, out, err = ended([sys.executable, str(path)])
    expected = [
        f"<{i}>\n" + (f"tool.py: error: {line}\n" if line else "") + f"[{code}]\n"
        for i, (_, code, line) in enumerate(ENDS)
    ]
    assert err == "".join(expected)
    assert (code, out) == (0, "kept\n")


def test_our_own_fault_keeps_its_traceback(tmp_path: Path) -> None:
    code, _, err = ended(script(tmp_path, "assert argv, 'planted'"))
    assert code == 1 and "Traceback" in err and "planted" in err
    shown = script(tmp_path, "raise ValueError('planted')")
    code, _, err = ended([shown[0], "-X", "dev", *shown[1:]])
    assert code == 2 and "Traceback" in err and err.endswith("tool.py: error: planted\n")


def test_a_reader_that_has_enough_ends_the_command_quietly(tmp_path: Path) -> None:
    command = script(tmp_path, "while True: print('x' * 1000)")
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=60) == 128 + signal.SIGPIPE
    # the pipe breaks only when what is left is flushed, at the very end
    late = script(tmp_path, "time.sleep(0.5); print('late')")
    with subprocess.Popen(late, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=60) == 128 + signal.SIGPIPE


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("body", "line"), [("print('x')", "standard output: No space left on device"),
                                            ("print('x'); raise ValueError('first')", "first")])  # fmt: skip
def test_a_full_standard_output_is_one_line(tmp_path: Path, body: str, line: str) -> None:
    command = script(tmp_path, body)
    with FULL_DEVICE.open("w") as full:
        done = subprocess.run(command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.stderr.decode() == f"tool.py: error: {line}\n"
    assert done.returncode == (2 if line == "first" else 1)


def test_text_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    command = script(tmp_path, "print('é \\U0001f600 \\udcff'); raise ValueError('é')")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert ended(command, **ascii_only) == (2, "é \U0001f600 \\udcff\n", "tool.py: error: é\n")


PARSER = """
parser = Parser(prog="tool.py")
parser.add_argument("--share", type=float, default=0.5)
parser.add_argument("words", nargs="*")
args = parser.parse_intermixed_args(argv)
print(args.share, args.words)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["a=1", "--share", "2", "b=2"], 0, "2.0 ['a=1', 'b=2']\n", ""),
        (["--sha", "2"], 2, "", "tool.py: error: unrecognized arguments: --sha\n"),
        (["--share", "many"], 2, "", "tool.py: error: argument --share: invalid float value: 'many'\n"),
        (["--share"], 2, "", "tool.py: error: argument --share: expected one argument\n"),
        (["--two\nlines"], 2, "", "tool.py: error: unrecognized arguments: --two lines\n"),
    ],
)
def test_a_parser_refuses_in_one_line(tmp_path: Path, arguments: list[str], code: int, out: str, err: str) -> None:
    assert ended([*script(tmp_path, PARSER), *arguments]) == (code, out, err)
