"""Hold the shape of the code: imports go down a floor, files stay short, each outside thing has one door.

Every rule is a function from sources ({path: text}) to complaints. It is run on the tree, on a planted
violation that it must find, and on a legal neighbour that it must let pass.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
Sources = dict[str, str]

# A module of octlm/ may import its own floor and those below it.
FLOORS = {
    "audit": 0, "command": 0, "config": 0, "files": 0, "recipe": 0, "yaml12": 0,
    "metrics": 1, "model": 1, "optim": 1, "parallel": 1, "tokenizer": 1,
    "checkpoint": 2, "corpus": 2, "data": 2, "sampling": 2,
    "console": 3, "interop": 3, "preflight": 3, "probes": 3, "run_directory": 3,
    "loop": 4,
    "experiment": 5,
}  # fmt: skip
TOP = 6  # octlm/__init__.py, train.py, generate.py, scripts/, labs/, tests/
TOP_NAMES = {"train", "generate", "scripts", "labs", "tests"}

MAX_FILE_LINES = 400
MAX_PACKAGE_LINES = 5500  # octlm/ without octlm/audit/, which is read and used apart from it
MAX_AUDIT_LINES = 1400

# What may be named only in these files.
HOMES = {
    "torch.distributed": {"octlm/parallel.py"},
    "yaml": {"octlm/config.py", "octlm/yaml12.py"},
    "os.environ": {"octlm/config.py", "octlm/parallel.py"},
    "os.environb": {"octlm/config.py", "octlm/parallel.py"},
    "os.getenv": {"octlm/config.py", "octlm/parallel.py"},
    "os.getenvb": {"octlm/config.py", "octlm/parallel.py"},
}


def read_tree() -> Sources:
    """Return every Python file of the project by its path below the root."""
    paths = [ROOT / "train.py", ROOT / "generate.py"]
    for folder in ("octlm", "scripts", "labs", "tests"):
        paths += (ROOT / folder).rglob("*.py")
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths) if path.is_file()
    }


def product(files: Sources) -> Sources:
    """Leave the tests out."""
    return {path: text for path, text in files.items() if not path.startswith("tests/")}


def package(files: Sources) -> Sources:
    """Keep the files of octlm/."""
    return {path: text for path, text in files.items() if path.startswith("octlm/")}


def module_name(path: str) -> str:
    """octlm/model/norms.py -> octlm.model.norms, octlm/model/__init__.py -> octlm.model."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, full dotted name) of every import, wherever in the file it stands."""
    parts = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def dependencies(files: Sources) -> Iterator[tuple[str, int, str]]:
    """Yield (path, line, module of the project) for every import inside octlm/ of a module of the project."""
    known = {module_name(path) for path in files} | {f"octlm.{name}" for name in FLOORS}
    for path, text in package(files).items():
        for line, name in imported(path, ast.parse(text)):
            if name.split(".")[0] in TOP_NAMES:
                yield path, line, name
            while name.startswith("octlm") and name not in known and "." in name:
                name = name.rpartition(".")[0]  # a class or function: the module is what counts
            if name.split(".")[0] == "octlm":
                yield path, line, name


def floor(module: str) -> int | None:
    """Return the floor of a dotted module of the project, None for one of octlm/ without a floor."""
    parts = module.split(".")
    return TOP if parts[0] != "octlm" or len(parts) == 1 else FLOORS.get(parts[1])


def imports_that_climb(files: Sources) -> list[str]:
    """Name modules of octlm/ that have no floor, and imports of a higher floor."""
    found = [f"{path}: has no floor" for path in package(files) if floor(module_name(path)) is None]
    for path, line, target in dependencies(files):
        here, there = floor(module_name(path)), floor(target)
        if here is not None and there is not None and there > here:
            found.append(f"{path}:{line}: floor {here} imports {target} of floor {there}")
    return found


def import_cycles(files: Sources) -> list[str]:
    """Name a cycle of imports between the units of octlm/ (files and folders), else one between all files."""
    for depth in (2, None):
        graph: dict[str, set[str]] = {}
        for path, _, target in dependencies(files):
            here = ".".join(module_name(path).split(".")[:depth])
            there = ".".join(target.split(".")[:depth])
            if here != there or depth is None:
                graph.setdefault(here, set()).add(there)
        if cycle := find_cycle(graph):
            return [" -> ".join(cycle)]
    return []


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of one cycle, the first repeated at the end, or nothing."""
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str]:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node not in done:
            for target in sorted(graph.get(node, ())):
                if cycle := visit(target, [*trail, node]):
                    return cycle
            done.add(node)
        return []

    for start in sorted(graph):
        if cycle := visit(start, []):
            return cycle
    return []


def long_files(files: Sources) -> list[str]:
    """Name files that no one reads in one go, tests and labs apart."""
    lines = {p: text.count("\n") for p, text in product(files).items() if not p.startswith("labs/")}
    return [f"{path}: {n} lines, over {MAX_FILE_LINES}" for path, n in lines.items() if n > MAX_FILE_LINES]


def long_package(files: Sources) -> list[str]:
    """Say so if octlm/, or octlm/audit/ in it, has outgrown its size."""
    found = []
    for name, most in (("octlm/", MAX_PACKAGE_LINES), ("octlm/audit/", MAX_AUDIT_LINES)):
        audits = name == "octlm/audit/"
        texts = [text for path, text in package(files).items() if path.startswith("octlm/audit/") == audits]
        lines = sum(text.count("\n") for text in texts)
        found += [f"{name}: {lines} lines, over {most}"] if lines > most else []
    return found


def names_away_from_home(files: Sources) -> list[str]:
    """Name uses of what only one or two files may use (HOMES), under whatever alias."""
    found = []
    for path, text in product(files).items():
        tree = ast.parse(text)
        uses = list(imported(path, tree))
        plain = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        aliases = {alias.asname: alias.name for node in plain for alias in node.names if alias.asname}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                root, _, rest = ast.unparse(node).partition(".")
                uses.append((node.lineno, f"{aliases.get(root, root)}.{rest}"))
        hits = {
            (line, home)
            for line, name in uses
            for home, paths in HOMES.items()
            if path not in paths and (name == home or name.startswith(home + "."))
        }
        found += [f"{path}:{line}: {home} away from home" for line, home in sorted(hits)]
    return found


def config_read_in_forward(files: Sources) -> list[str]:
    """Name reads of a configuration inside a `forward`: what is chosen, is chosen in `__init__`."""
    found = []
    for path, text in product(files).items():
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef) or function.name != "forward":
                continue
            for node in ast.walk(function):
                if not isinstance(node, ast.Attribute):
                    continue
                owner = node.value
                name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                if name in ("cfg", "config"):
                    found.append(f"{path}:{node.lineno}: {ast.unparse(node)} in forward")
    return found


def dated_names(files: Sources) -> list[str]:
    """Name files and new identifiers that carry a day or an experiment: those live in YAML."""
    dated = re.compile(r"(?:^|_)days?(?:_|$)|day_?\d|exp_?\d", re.IGNORECASE)
    found = []
    for path, text in product(files).items():
        if path == "octlm/experiment.py":
            continue
        names = [(1, part) for part in path.removesuffix(".py").split("/")]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append((node.lineno, node.name))
            elif isinstance(node, ast.arg):
                names.append((node.lineno, node.arg))
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.append((node.lineno, node.id if isinstance(node, ast.Name) else node.attr))
        found += [f"{path}:{line}: {name} is dated" for line, name in names if dated.search(name)]
    return found


def grab_bags(files: Sources) -> list[str]:
    """Name files and folders whose name says nothing of what is in them."""
    bags = {"util", "utils", "common", "helper", "helpers", "misc"}
    return [f"{path}: name what it holds" for path in files if bags & set(path.removesuffix(".py").split("/"))]


def audit_imports(files: Sources) -> list[str]:
    """Name imports of octlm/audit/ other than torch, the standard library and itself."""
    return [
        f"{path}:{line}: imports {name}"
        for path, text in package(files).items()
        if path.startswith("octlm/audit")
        for line, name in imported(path, ast.parse(text))
        if name.split(".")[0] not in {"torch", *sys.stdlib_module_names} and not f"{name}.".startswith("octlm.audit.")
    ]


def newer_syntax(files: Sources) -> list[str]:
    """Name files that Python 3.10 cannot read."""
    found = []
    for path, text in files.items():
        try:
            ast.parse(text, feature_version=(3, 10))
        except SyntaxError as error:
            found.append(f"{path}:{error.lineno}: {error.msg}")
    return found


Rule = Callable[[Sources], list[str]]

# (rule, sources that break it once)
PLANTED: list[tuple[Rule, Sources]] = [
    (imports_that_climb, {"octlm/config.py": "from octlm.model import Decoder\n"}),
    (imports_that_climb, {"octlm/model/decoder.py": "def late():\n    import octlm.loop\n"}),
    (imports_that_climb, {"octlm/model/decoder.py": "from .. import sampling\n"}),
    (imports_that_climb, {"octlm/data.py": "from octlm import Decoder\n"}),
    (imports_that_climb, {"octlm/loop.py": "import train\n"}),
    (imports_that_climb, {"octlm/loop.py": "from scripts.prepare import main\n"}),
    (imports_that_climb, {"octlm/surprise.py": ""}),
    (import_cycles, {"octlm/data.py": "import octlm.corpus\n", "octlm/corpus.py": "import octlm.data\n"}),
    (import_cycles, {"octlm/model/a.py": "import octlm.model.b\n", "octlm/model/b.py": "from .a import x\n"}),
    (import_cycles, {"octlm/data/__init__.py": "from .a import x\n", "octlm/data/a.py": "from . import x\n"}),
    # the files have no cycle, the folder and the file have
    (import_cycles, {"octlm/corpus/a.py": "import octlm.data\n", "octlm/data.py": "import octlm.corpus.b\n"}),
    (long_files, {"octlm/loop.py": "\n" * 401}),
    (long_files, {"train.py": "\n" * 401}),
    (long_package, {f"octlm/model/part{i}.py": "\n" * 393 for i in range(14)}),
    (long_package, {f"octlm/audit/part{i}.py": "\n" * 351 for i in range(4)}),
    (names_away_from_home, {"octlm/loop.py": "import torch.distributed as dist\n"}),
    (names_away_from_home, {"octlm/loop.py": "from torch import distributed\n"}),
    (names_away_from_home, {"train.py": "import torch\ntorch.distributed.barrier()\n"}),
    (names_away_from_home, {"scripts/prepare.py": "import yaml\n"}),
    (names_away_from_home, {"octlm/data.py": "from yaml import safe_load\n"}),
    (names_away_from_home, {"octlm/data.py": "import os\nos.environ['HOME']\n"}),
    (names_away_from_home, {"octlm/data.py": "import os as system\nsystem.getenv('HOME')\n"}),
    (names_away_from_home, {"octlm/data.py": "from os import environ\n"}),
    (config_read_in_forward, {"octlm/model/mlp.py": "def forward(self, x):\n    return self.config.dim\n"}),
    (config_read_in_forward, {"octlm/model/mlp.py": "def forward(self, x):\n    return cfg.dim\n"}),
    (dated_names, {"octlm/loop.py": "def train_day2(): ...\n"}),
    (dated_names, {"octlm/loop.py": "EXP_001 = 1\n"}),
    (dated_names, {"octlm/loop.py": "class Day4: ...\n"}),
    (dated_names, {"scripts/day3.py": ""}),
    (dated_names, {"train.py": "def f(day): ...\n"}),
    (grab_bags, {"octlm/utils.py": ""}),
    (grab_bags, {"octlm/common/masks.py": ""}),
    (grab_bags, {"tests/helpers.py": ""}),
    (audit_imports, {"octlm/audit/causality.py": "import numpy\n"}),
    (audit_imports, {"octlm/audit/causality.py": "from octlm.model import Decoder\n"}),
    (audit_imports, {"octlm/audit/causality.py": "from .. import config\n"}),
    (newer_syntax, {"train.py": "try:\n    pass\nexcept* ValueError:\n    pass\n"}),
    (newer_syntax, {"octlm/loop.py": "type Row = list[int]\n"}),
]  # fmt: skip

# (rule, sources that only look like a violation)
LEGAL: list[tuple[Rule, Sources]] = [
    (imports_that_climb, {"octlm/loop.py": "from octlm import audit\nfrom octlm.model import Decoder\n"}),
    (imports_that_climb, {"octlm/data.py": "import octlm.sampling\n", "train.py": "import octlm.loop\n"}),
    (imports_that_climb, {"octlm/__init__.py": "from octlm.loop import train\n"}),
    (imports_that_climb, {"octlm/model/__init__.py": "from octlm.model.decoder import Decoder\n"}),
    (import_cycles, {"octlm/data.py": "import octlm.corpus\n", "octlm/corpus/__init__.py": "import json\n"}),
    (import_cycles, {"octlm/model/a.py": "from octlm.model.b import x\n", "octlm/model/b.py": ""}),
    (long_files, {"octlm/loop.py": "\n" * 400, "tests/test_loop.py": "\n" * 900}),
    (long_package, {f"octlm/model/part{i}.py": "\n" * 392 for i in range(14)}),
    (long_package, {f"octlm/{name}{i}.py": "\n" * 325 for name in ("", "audit/") for i in range(4)}),
    (names_away_from_home, {"octlm/config.py": "import os, yaml\nos.environ['HOME']\n"}),
    (names_away_from_home, {"octlm/parallel.py": "import torch.distributed as d\nd.barrier()\n"}),
    (names_away_from_home, {"octlm/loop.py": "import os, torch.distributions\nos.path.join('a')\n"}),
    (config_read_in_forward, {"octlm/model/mlp.py": "def __init__(self, config):\n    config.dim\n"}),
    (config_read_in_forward, {"octlm/model/mlp.py": "def forward(self, x):\n    return configure(x).dim\n"}),
    (dated_names, {"octlm/loop.py": "today = torch.exp2(torch.expm1(x))\nexpected_2 = 1\n"}),
    (dated_names, {"octlm/experiment.py": "exp_001 = 1\n"}),
    (grab_bags, {"octlm/commonplace.py": "", "tests/test_helpers_are_gone.py": ""}),
    (audit_imports, {"octlm/audit/floor.py": "import math, torch\nimport octlm.audit.finding\n"}),
    (audit_imports, {"octlm/audit/__init__.py": "from .finding import Finding\nfrom torch import nn\n"}),
    (newer_syntax, {"train.py": "def f(x: int | None):\n    match x:\n        case 1:\n            pass\n"}),
]  # fmt: skip

RULES = list(dict.fromkeys(rule for rule, _ in PLANTED))


@pytest.fixture(scope="module")
def tree() -> Sources:
    return read_tree()


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule: Rule, tree: Sources) -> None:
    assert "octlm/__init__.py" in tree and "tests/test_layering.py" in tree
    assert rule(tree) == []


@pytest.mark.parametrize(("rule", "files"), PLANTED)
def test_a_planted_violation_is_found(rule: Rule, files: Sources) -> None:
    found = rule(files)
    assert len(found) == 1, found


@pytest.mark.parametrize(("rule", "files"), LEGAL)
def test_a_legal_neighbour_passes(rule: Rule, files: Sources) -> None:
    assert rule(files) == []
