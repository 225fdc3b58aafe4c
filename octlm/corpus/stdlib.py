"""Which text is on every machine that runs Python? The Python standard library itself, about 4.7 MB.

The top-level modules only, sorted by name; names that begin with two underscores and test files are left out.
Nothing is copied. The Python version is among the facts, because another version is another corpus.
"""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

from octlm.config import DataConfig
from octlm.corpus.document import Source, read_text


def is_module(name: str) -> bool:
    """Say whether a file of the library's folder belongs to the corpus."""
    stem = name.removesuffix(".py")
    test = stem == "test" or stem.startswith("test_") or stem.endswith("_test")
    return name.endswith(".py") and not name.startswith("__") and not test


def open_stdlib(_: DataConfig) -> Source:
    """Return the standard library's top-level modules, one document a module."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(path for path in folder.iterdir() if is_module(path.name) and path.is_file())
    facts = {"python": platform.python_version(), "modules": len(modules)}
    return Source("stdlib", "PSF-2.0", lambda: map(read_text, modules), str(folder), facts)
