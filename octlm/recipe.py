"""Where was each value written, and what was meant by one that cannot be?

A recipe is a YAML file of sections; its key `extends` names another file (relative to it) that it overrides.
`section.key=value` words from a command line override both. The schema is a pydantic model of sections.
Every refusal is a ValueError of one line, such as
`configs/day1.yaml: model.n_head: unknown key; did you mean n_heads? (line 3)` or
`command line: train.steps=abc: must be a valid integer, got "abc"`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from octlm import yaml12

MAX_BYTES = 8 << 20  # of one file: /dev/zero is no recipe
WORDING = {"tuple_type": "must be a list", "missing": "is too short"}  # pydantic's own say something else
Whole = TypeVar("Whole", bound=BaseModel)
Schemas = Mapping[str, type[BaseModel]]


class Entry(NamedTuple):
    """One value as written, and where."""

    value: Any
    origin: str  # the file, or `command line: the word`
    line: int  # 0: a word
    base: str  # the directory that a relative path starts from; "" = the working directory
    rank: int  # a higher one overrides a lower one


def conflict(message: str, *keys: str) -> PydanticCustomError:
    """Make a validator's error whose message says it all.

    keys: those whose values do not go together, so that the refusal can say where the last was written."""
    return PydanticCustomError("conflict", "{message}", {"message": message, "keys": keys})


def load(whole: type[Whole], path: Path, overrides: Sequence[str], synonyms: Mapping[str, str]) -> Whole:
    """Read a file, those that it extends, and the words; return the validated whole.

    synonyms: names that other programs use -> `section.key`. A relative path's directory is in the validation
    context under the name of the key."""
    schemas: dict[str, Any] = {name: field.annotation for name, field in whole.model_fields.items()}
    entries: dict[str, Entry] = {}
    chain = _chain(path)
    for rank, (file, root) in enumerate(chain):
        base = os.path.dirname(os.path.abspath(file))
        for key, value, line in _keys(root, shown(file), schemas, synonyms):
            entries[key] = Entry(value, shown(file), line, base, rank)
    for word in overrides:
        key, value = _override(word, schemas, synonyms)
        entry = Entry(value, f"command line: {_short(word)}", 0, "", len(chain))
        if key in entries and not entries[key].line:
            raise ValueError(f"{entry.origin}: {key} is given twice")
        entries[key] = entry
    return _validated(whole, schemas, entries)


def shown(path: Path) -> str:
    """Write a path for a message: relative where it lies below the working directory, always on one line."""
    near = os.path.relpath(path) if "\0" not in str(path) else ".."
    return _short(str(path) if near.startswith("..") else near, 200)


def nearest(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean x?` for the most similar word, or nothing where none is similar."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def quoted(value: Any) -> str:
    """Write a value for a message, as YAML and not too long."""
    text = yaml12.scalar(value)
    return text if len(text) <= 80 else f"{text[:50]} ... {text[-20:]}"


def _short(text: str, most: int = 80) -> str:
    """Write a person's own words without quotes, on one line and not too long."""
    text = yaml12.scalar(text)[1:-1] if not text.isprintable() else text
    return text if len(text) <= most else f"{text[: most - 30]} ... {text[-20:]}"


def _chain(path: Path) -> list[tuple[Path, dict[yaml12.Key, Any]]]:
    """Read a file and those that it extends, the most general one first and each without its `extends`."""
    chain: list[tuple[Path, dict[yaml12.Key, Any]]] = []
    seen: list[str] = []
    via = ""
    while True:
        root = yaml12.read(yaml12.decode(_bytes(path, via), shown(path)), shown(path))
        seen.append(os.path.realpath(path))
        if not isinstance(root, dict):
            raise ValueError(f"{shown(path)}: must be sections of keys, got {quoted(root)}")
        chain.insert(0, (path, root))
        extends = next((key for key in root if key == "extends"), None)
        if extends is None:
            return chain
        parent = root.pop(extends)
        via = f"{shown(path)}: extends (line {extends.line}): "
        if not isinstance(parent, str) or not parent or "\0" in parent:
            raise ValueError(f"{via}must be a file name, got {quoted(parent)}")
        path = Path(os.path.dirname(path), os.path.expanduser(parent))
        if os.path.realpath(path) in seen:
            raise ValueError(f"{via}{quoted(parent)} is extended by itself; remove one `extends`")


def _bytes(path: Path, via: str) -> bytes:
    """Read a file; `via` says who asked for it."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        names = [other.name for other in path.parent.glob("*.y*ml")]
        raise ValueError(f"{via}{shown(path)}: no such file{nearest(path.name, names)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ValueError(f"{via}{shown(path)}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{via}{shown(path)}: is over {MAX_BYTES >> 20} MiB; a recipe is a few lines")
    return raw


def _keys(
    root: Mapping[yaml12.Key, Any], name: str, schemas: Schemas, synonyms: Mapping[str, str]
) -> Iterator[tuple[str, Any, int]]:
    """Yield each `section.key`, its value and its line; refuse what the schema does not have."""
    for section, keys in root.items():
        if section not in schemas:
            raise ValueError(f"{name}: {_unknown('', section, schemas, synonyms)} (line {section.line})")
        if not isinstance(keys, dict):
            got = quoted(keys)
            raise ValueError(f"{name}: {section}: must be a section of keys, got {got} (line {section.line})")
        for key, value in keys.items():
            if key not in schemas[section].model_fields:
                raise ValueError(f"{name}: {_unknown(section, key, schemas, synonyms)} (line {key.line})")
            yield f"{section}.{key}", value, key.line


def _override(word: str, schemas: Schemas, synonyms: Mapping[str, str]) -> tuple[str, Any]:
    """Read `section.key=value` by the type of the key: text as it stands, anything else as YAML."""
    dotted, equals, raw = word.partition("=")
    section, key = dotted.split(".", 1) if "." in dotted else ("", dotted)
    origin = f"command line: {_short(word)}"
    if not equals:
        raise ValueError(f"{origin}: must be section.key=value, such as train.steps=100")
    if dotted in schemas:
        example = next(iter(schemas[dotted].model_fields))
        raise ValueError(f"{origin}: is a section; set one of its keys, such as {dotted}.{example}")
    if section not in schemas or key not in schemas[section].model_fields:
        raise ValueError(f"command line: {_unknown(section, key, schemas, synonyms)}")
    field = schemas[section].model_fields[key]
    kinds = _kinds(field.annotation)
    if field.default is None and raw == "null":
        return dotted, None
    if raw.startswith("[") and raw.endswith("]") and tuple in kinds:
        return dotted, yaml12.read(raw, origin)
    if str in kinds:
        return dotted, raw
    try:
        return dotted, yaml12.plain(raw.strip())
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None


def _kinds(annotation: Any) -> set[Any]:
    """Return the types that an annotation is made of, at any depth of Annotated and unions."""
    if get_origin(annotation) is None:
        return {annotation}
    if get_origin(annotation) is Literal:
        return {str}
    parts = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return {get_origin(annotation)}.union(*map(_kinds, parts))


def _unknown(section: str, key: str, schemas: Schemas, synonyms: Mapping[str, str]) -> str:
    """Say which key was meant by an unknown one: by its place, its name elsewhere, or its likeness."""
    word = key.rpartition(".")[2].lower().replace("-", "_")
    refused = f"{_short(f'{section}.{key}' if section else key)}: unknown key; "
    homes = [name for name, schema in schemas.items() if word in schema.model_fields]
    if homes and section not in homes:
        places = " or ".join(f"{home}.{word}" for home in homes)
        return f"{refused}{word} belongs under {' or '.join(homes)}: did you mean {places}?"
    words = [f"{name}.{field}" for name, schema in schemas.items() for field in schema.model_fields]

    def likeness(candidate: str) -> float:
        home, _, name = candidate.rpartition(".")
        return difflib.SequenceMatcher(None, word, name).ratio() + 0.2 * (home == section)

    best = synonyms.get(word) or max([*words, *([] if section else schemas)], key=likeness)
    return f"{refused}did you mean {best.removeprefix(f'{section}.')}?"


def _validated(whole: type[Whole], schemas: Schemas, entries: Mapping[str, Entry]) -> Whole:
    made: dict[str, BaseModel] = {}
    section = ""
    try:
        for section, schema in schemas.items():
            ours = {key: entries[f"{section}.{key}"] for key in schema.model_fields if f"{section}.{key}" in entries}
            values = {key: entry.value for key, entry in ours.items()}
            bases = {key: entry.base for key, entry in ours.items()}
            made[section] = schema.model_validate(values, context=bases)
        section = ""
        return whole(**made)
    except ValidationError as error:
        raise ValueError(_explain(error.errors(include_url=False), section, entries)) from None


def _explain(problems: list[Any], section: str, entries: Mapping[str, Entry]) -> str:
    """Turn the first refusal into one line: the origin, the key, what it must be, what it is, a remedy."""
    first = problems[0]
    about = first.get("ctx", {}).get("keys", ())
    keys = [f"{section}.{key}" if section else key for key in about or first["loc"][:1]]
    key = max((key for key in keys if key in entries), key=lambda key: entries[key].rank)
    entry = entries[key]
    # of a value that may be one thing or a list of them: the refusal of the kind that was written
    same = [p for p in problems if p["loc"][:1] == first["loc"][:1]]
    fits = [p for p in same if ("tuple" in str(p["loc"][1:2])) == isinstance(entry.value, list)]
    problem = (fits or same)[-1]
    message = WORDING.get(problem["type"]) or problem["msg"].replace("Input should be", "must be")
    if len(same) > len(fits) and not isinstance(entry.value, list):
        message += " or a list"
    got = "" if about else f", got {quoted(entry.value)}"
    message = f"{message}{got}{_hint(problem)}"
    return f"{entry.origin}: {key}: {message} (line {entry.line})" if entry.line else f"{entry.origin}: {message}"


def _hint(problem: Mapping[str, Any]) -> str:
    """Say how to mend a refused value; nothing where nothing is to be said."""
    kind, value = problem["type"], problem["input"]
    if kind == "literal_error" and isinstance(value, str):
        return nearest(value, re.findall(r"'(\w+)'", problem["ctx"]["expected"]))
    if kind == "string_type" and not isinstance(value, (list, tuple, dict)):
        return '; text that reads as something else needs "quotes"'
    if kind == "int_type" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return f"; write {int(value)}"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str) and len(value) < 100:
        if not isinstance(yaml12.plain(value), str):
            return "; remove the quotes"
        if isinstance(yaml12.plain(value.replace("_", "")), (int, float)):
            return f"; write {value.replace('_', '')}"
    return "; only true and false are booleans" if kind == "bool_type" else ""
