"""Hold what a fresh machine relies on: declared packages, a light import, no network, and make's promises."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import octlm

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAMS = [ROOT / "train.py", ROOT / "generate.py", *sorted((ROOT / "scripts").glob("*.py"))]
OPTIONAL = "transformers"  # of the extra hf; its import says so where it is missing
DISTRIBUTIONS = {"yaml": "pyyaml", "pydantic_core": "pydantic"}  # import name -> package that brings it


def outside_imports(text: str) -> set[str]:
    """Return the packages that a source imports and that are neither Python's nor ours."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in names:
            found.add(DISTRIBUTIONS.get(name.split(".")[0], name.split(".")[0]))
            if name.startswith("torch.utils.tensorboard"):  # torch's writer imports it without requiring it
                found.add("tensorboard")
    return found - set(sys.stdlib_module_names) - {"octlm", "train", "generate", "scripts"}


def python(code: str, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python at the root of the checkout."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )


def test_imports_are_read() -> None:
    text = "import os, torch.nn\nfrom yaml import load\nfrom . import x\ndef f():\n    import numpy as np\n"
    assert outside_imports(text) == {"torch", "pyyaml", "numpy"}
    assert outside_imports("from torch.utils.tensorboard import SummaryWriter") == {"torch", "tensorboard"}


def test_dependencies_are_what_is_imported() -> None:
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    sources = [*(ROOT / "octlm").rglob("*.py"), *PROGRAMS]
    used = set().union(*(outside_imports(path.read_text(encoding="utf-8")) for path in sources))
    assert {canonicalize_name(name) for name in used} == declared | {OPTIONAL}


def test_constraints_pin_every_direct_dependency_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {}
    for pin in (Requirement(line) for line in lines if not line.startswith("#")):
        (specifier,) = pin.specifier
        assert specifier.operator == "==" and "+" not in specifier.version and pin.url is None, pin
        pins[canonicalize_name(pin.name)] = specifier.version
    extras = PROJECT["optional-dependencies"]
    assert extras["dev"][0] == "octlm[hf]"
    for line in PROJECT["dependencies"] + extras["hf"] + extras["dev"][1:]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), line


def test_importing_octlm_loads_no_torch_and_a_config_neither() -> None:
    done = python("import sys, octlm; dir(octlm); octlm.ModelConfig(); print('torch' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_every_export_is_there() -> None:
    assert set(octlm.EXPORTS) < set(dir(octlm))
    for name, module in octlm.EXPORTS.items():
        assert getattr(octlm, name) is getattr(sys.modules[module], name)
    assert callable(octlm.audit.causality)
    with pytest.raises(AttributeError, match="'octlm' has no attribute 'Encoder'"):
        octlm.Encoder  # noqa: B018


# Each program's --help in one process, under an audit hook that reports sockets and files opened for writing.
HELP = """
import contextlib, io, json, os, runpy, sys
seen, texts = [], []
def watch(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event.startswith("socket.") or writes and "__pycache__" not in str(args[0]):
        seen.append([event, str(args[0])])
sys.addaudithook(watch)
import octlm
for program in sys.argv[1:]:
    sys.argv = [program, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_path(program, run_name="__main__")
    texts.append(out.getvalue())
print(json.dumps([seen, texts, "torch" in sys.modules]))
"""


def test_f1_i6_help_opens_no_socket_and_writes_nothing(tmp_path: Path) -> None:
    done = python(HELP, *map(str, PROGRAMS), OCTLM_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    seen, texts, torch_loaded = json.loads(done.stdout)
    assert seen == [] and done.stderr == "" and not (tmp_path / "cache").exists()
    assert len(texts) == len(PROGRAMS) and all(text.startswith("usage: ") for text in texts)
    assert not torch_loaded, "--help waits for torch"


def test_the_watch_sees_a_socket_and_a_file(tmp_path: Path) -> None:
    program = tmp_path / "noisy.py"
    program.write_text("import socket\nsocket.socket().close()\nopen(__file__ + '.out', 'w').close()\n")
    seen, _, _ = json.loads(python(HELP, str(program)).stdout)
    assert [event for event, _ in seen] == ["socket.__new__", "open"]


# A network that is not there: whoever asks for it is told so at once, and it is noted that he asked.
OFFLINE = """
import runpy, sys, time
from pathlib import Path
asked = []
def watch(event, args):
    if event.startswith("socket."):
        asked.append(event)
        raise OSError(101, "Network is unreachable")
sys.addaudithook(watch)
import octlm, octlm.loop, octlm.sampling, octlm.checkpoint, octlm.tokenizer, octlm.audit
cache = Path(sys.argv[1])
for name in ("byte", "char", "bpe"):
    tokenizer = octlm.tokenizer.build_tokenizer(name, lambda: ["some text"], 300, cache)
    assert tokenizer.decode(tokenizer.encode("some text")) == "some text"
assert asked == [] and not cache.exists(), asked
began = time.monotonic()
words = ["data.source=text", "data.path=README.md", "data.tokenizer=gpt2", "model.vocab_size=50257"]
sys.argv = ["scripts/prepare.py", "--config", "base", f"data.cache_dir={cache}", *words]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(len(asked) > 0, time.monotonic() - began < 30)
"""


def test_f1_a_machine_without_a_network_lacks_the_published_tokenizers_only(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    done = python(OFFLINE, str(tmp_path / "cache"), TIKTOKEN_CACHE_DIR=str(tmp_path / "theirs"))
    assert (done.returncode, done.stdout) == (2, "True True\n"), done
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("prepare.py: error: data.tokenizer=gpt2: cannot")
    for part in ("vocab.bpe", str(tmp_path / "cache" / "tiktoken" / "vocab.bpe"), str(tmp_path / "theirs")):
        assert part in done.stderr


# make, in a folder with blanks in its name and with stand-ins for the Pythons: nothing is installed.

CODE = 'import json, sys; sys.argv[1:2] == ["-c"] or print(json.dumps(sys.argv[1:]))'
# through sh, since a "#!" line takes no blanks, and this Python may lie in a folder that has some
PRINT_ARGUMENTS = f"""#!/bin/sh
exec {shlex.quote(sys.executable)} -c {shlex.quote(CODE)} "$@"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    folder = tmp_path / "a folder with 'blanks'"
    (folder / ".venv/bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    write_program(folder / ".venv/bin/python", PRINT_ARGUMENTS)
    (folder / ".venv/.installed").touch()
    return folder


def write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a plain shell: the suite itself may run under `make test`."""
    inherited = re.compile("MAKE|MFLAGS|(PROMPT|CONFIG|RUN|ARGS|PYTHON|TORCH_INDEX)$")
    env = {name: value for name, value in os.environ.items() if not inherited.match(name)}
    return subprocess.run(
        ["make", "--silent", *arguments],
        cwd=folder, env={**env, **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def arguments(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the stand-in for .venv's Python was called with."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_names_every_target(checkout: Path) -> None:
    text = (checkout / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))
    shown = make(checkout).stdout
    assert shown == make(checkout, "help").stdout
    assert targets == set(re.findall(r"^  make ([a-z-]+)", shown, re.MULTILINE))
    assert {"setup", "train", "generate", "test", "test-all", "lint", "tensorboard", "help"} <= targets
    assert max(map(len, shown.splitlines())) <= 110


PROMPTS = {
    "plain": "def ",
    "quotes": """a "b" 'c' `d`""",
    "dollar": "costs $5, $HOME, ${x}, $(shell false), $(",
    "newlines": "def f(x):\n\treturn x\n",
    "backslash": "a\\n \\",
    "punctuation": "a, b; #c & | > * ~ ! =:=",
    "dash": "--help",
    "empty": "",
    "unicode": "Zoë 🙂",
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_arrives_as_typed(checkout: Path, prompt: str) -> None:
    wanted = ["generate.py", "--run", "runs/day1", f"--prompt={prompt}"]
    assert arguments(make(checkout, "generate", f"PROMPT={prompt}")) == wanted
    assert arguments(make(checkout, "generate", PROMPT=prompt)) == wanted


def test_the_prompt_forms_that_differ(checkout: Path) -> None:
    spelt_for_make = make(checkout, "generate", "RUN=day1", 'PROMPT=a "b" $$x')
    assert arguments(spelt_for_make)[-1] == '--prompt=a "b" $x'
    assert arguments(make(checkout, "generate", PROMPT="    $$x"))[-1] == "--prompt=    $$x"
    assert arguments(make(checkout, "generate")) == ["generate.py", "--run", "runs/day1"]


def test_a_run_is_a_name_or_a_path_and_arguments_pass(checkout: Path) -> None:
    assert arguments(make(checkout, "generate", "RUN=my run"))[2] == "runs/my run"
    assert arguments(make(checkout, "generate", "RUN=/tmp/my run"))[2] == "/tmp/my run"
    done = make(checkout, "train", "CONFIG=my day.yaml", "ARGS=train.steps=5 data.path='a b'")
    assert arguments(done) == ["train.py", "--config", "my day.yaml", "train.steps=5", "data.path=a b"]
    assert arguments(make(checkout, "train", CONFIG="not mine"))[2] == "day1"
    done = make(checkout, "test", "ARGS=-k cache")
    assert arguments(done) == ["-m", "pytest", "-n", "auto", "--dist", "loadfile", "-m", "not slow", "-k", "cache"]


# `-m venv` makes a .venv whose pip fails while a file named `unplugged` is there; each step leaves a line.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
"-m venv"*) echo "$*" >> steps; rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
"-m pip"*) echo "$*" >> steps; test ! -e unplugged ;;
--version) echo "Python 3.9.9" ;;
"-c import sys"*) test ! -e old ;;
esac
"""


def test_setup_starts_over_after_an_interruption_and_is_done_once(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    write_program(checkout / "fake python", FAKE_PYTHON)
    venv, pip = "-m venv --clear .venv", "-m pip install --quiet --disable-pip-version-check"
    install = f"{pip} -c constraints.txt -e .[dev]"

    def steps(*more: str) -> list[str]:
        (checkout / "steps").write_text("")
        make(checkout, "setup", "PYTHON=./fake python", *more)
        return (checkout / "steps").read_text(encoding="utf-8").splitlines()

    (checkout / "unplugged").touch()
    assert steps() == [venv, install] and not (checkout / ".venv/.installed").exists()
    (checkout / "unplugged").unlink()
    assert steps() == [venv, install]
    assert steps() == []
    later = (checkout / ".venv/.installed").stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    index = "https://wheels.example/cpu"
    assert steps(f"TORCH_INDEX={index}") == [install.replace(" -c con", f" --extra-index-url {index} -c con")]
    os.utime(checkout / "constraints.txt", (0, 0))
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("/nowhere/python3")
    assert steps() == [venv, install]


def test_a_python_that_will_not_do_is_one_clear_line(checkout: Path) -> None:
    (checkout / ".venv/.installed").unlink()
    write_program(checkout / "fake python", FAKE_PYTHON)
    (checkout / "old").touch()
    old, missing = (make(checkout, "test", f"PYTHON={name}") for name in ("./fake python", "no such python"))
    assert old.returncode == missing.returncode == 2 and not (checkout / "steps").exists()
    assert "./fake python is Python 3.9.9; octlm needs Python 3.10 or newer" in old.stderr.splitlines()[0]
    assert "no such python: no such program" in missing.stderr.splitlines()[0]
