"""How is YAML read? As version 1.2 with its core schema (https://yaml.org/spec/1.2.2/#103-core-schema).

PyYAML resolves plain words by YAML 1.1, where `3e-4` is a string, `on` is True, `010` is 8, `1:30` is 90, and
a repeated key silently wins. So only its parser is used, and words are resolved here. A recipe needs no tag,
anchor, alias, merge key or second document: each is refused with its place, so nothing is ever constructed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from yaml.reader import Reader

MAX_DEPTH = 8  # a recipe is two levels and a list; Python's own stack ends at some hundreds
MAX_DIGITS = 1000  # Python refuses to print an integer beyond 4,300 digits, and an error message prints it

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Key(str):
    """A key of a mapping, and the line that it stands on."""

    line: int


def plain(word: str) -> bool | int | float | str | None:
    """Resolve an unquoted word by the core schema; ValueError for a number of over 1,000 digits."""
    if word in _WORDS:
        return _WORDS[word]
    if _SPECIAL.fullmatch(word):
        return float(word.replace(".", ""))
    if not (_FLOAT.fullmatch(word) or _BASED.fullmatch(word)):
        return word
    if len(word) > MAX_DIGITS:
        raise ValueError(f"a number of {len(word)} digits is too long")
    if _BASED.fullmatch(word):
        return int(word, 0)
    return int(word) if _INTEGER.fullmatch(word) else float(word)


def decode(raw: bytes, name: str) -> str:
    """Decode UTF-8, with or without a byte order mark; ValueError with the place of the first bad byte."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line_start = raw.rfind(b"\n", 0, error.start) + 1
        place = _place(name, raw.count(b"\n", 0, error.start), len(raw[line_start : error.start].decode()))
        raise ValueError(f"{place}: the byte 0x{raw[error.start]:02x} is not UTF-8") from None


def read(text: str, name: str) -> Any:
    """Parse one document, its keys as Key; a refusal is a ValueError: `<name>: line 3, column 7: what is wrong`."""
    odd = Reader.NON_PRINTABLE.search(text)
    if odd:
        line_start = text.rfind("\n", 0, odd.start()) + 1
        place = _place(name, text.count("\n", 0, odd.start()), odd.start() - line_start)
        raise ValueError(f'{place}: the character U+{ord(odd[0]):04X} must be an escape in "double quotes"')
    events = _events(text, name)
    next(events)  # the start of the stream
    if isinstance(next(events), yaml.StreamEndEvent):
        raise ValueError(f"{name}: is empty")
    root = _value(events, next(events), (), name)
    next(events)  # the end of the document
    if not isinstance(after := next(events), yaml.StreamEndEvent):
        raise _refusal(name, after, "a second document begins; a recipe is one")
    return root


def scalar(value: Any) -> str:
    """Write one value so that `read` gives it back; strings are always quoted: none reads as a number."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return '"' + "".join(_escaped(character) for character in value) + '"'
    return re.sub("inf|nan", r".\g<0>", repr(value))


def dump(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Write sections of keys, one key a line."""
    lines = []
    for section, keys in sections.items():
        lines += [f"{section}:", *(f"  {key}: {scalar(value)}" for key, value in keys.items())]
    return "".join(f"{line}\n" for line in lines)


def _events(text: str, name: str) -> Iterator[Any]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        what = f"{error.problem or error.context}{_remedy(error)}"
        raise ValueError(f"{_place(name, mark.line, mark.column)}: {what}") from None
    except (OverflowError, ValueError):  # from PyYAML's chr() and int()
        place = _place(name, loader.line, loader.column)
        raise ValueError(f"{place}: the number of an escape or a directive is too large") from None


def _value(events: Iterator[Any], event: Any, path: tuple[str, ...], name: str) -> Any:
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _refusal(name, event, "anchors (&) and aliases (*) are not read; write the value, or quote the text")
    if event.tag is not None:
        raise _refusal(name, event, f"the tag {event.tag!r} is not read; remove it, or quote the text")
    if len(path) > MAX_DEPTH:
        raise _refusal(name, event, f"nested more than {MAX_DEPTH} deep")
    if isinstance(event, yaml.ScalarEvent):
        try:
            return plain(event.value) if event.implicit[0] else _joined(event.value)
        except ValueError as error:
            raise _refusal(name, event, str(error)) from None
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(_value(events, item, (*path, "-"), name))
        return items
    keys: dict[Key, Any] = {}
    lines: dict[str, int] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
            raise _refusal(name, event, "a key must be a plain word")
        if event.value == "<<":
            raise _refusal(name, event, "merge keys (<<) are not read; use `extends: other.yaml`")
        key, where = Key(event.value), (*path, event.value)
        if key in lines:
            raise _refusal(name, event, f"{'.'.join(where)}: given twice (first on line {lines[key]})")
        mark: Any = event.start_mark
        key.line = lines[key] = mark.line + 1
        keys[key] = _value(events, next(events), where, name)
    return keys


def _joined(text: str) -> str:
    """Join the two halves of a character that JSON writes as two escapes; half a character is refused."""
    if not _SURROGATE.search(text):
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ValueError("half a surrogate pair is no character") from None


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _place(name: str, line: int, column: int) -> str:
    return f"{name}: line {line + 1}, column {column + 1}"


def _refusal(name: str, event: Any, message: str) -> ValueError:
    return ValueError(f"{_place(name, event.start_mark.line, event.start_mark.column)}: {message}")


def _remedy(error: yaml.MarkedYAMLError) -> str:
    if "'\\t'" in (error.problem or ""):
        return "; indent with spaces"
    if "double-quoted" in (error.context or "") and "escape" in (error.problem or ""):
        return "; in double quotes a backslash begins an escape, so use 'single quotes'"
    return ""
