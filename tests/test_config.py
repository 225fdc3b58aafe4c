"""A recipe is read as it was written, or refused in one line: where, which key, what value, what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from octlm import yaml12
from octlm.config import (
    CONFIGS,
    SECTIONS,
    Config,
    ModelConfig,
    differing_keys,
    load_config,
)

RECIPES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
KEYS = [f"{section}.{key}" for section, schema in SECTIONS.items() for key in schema.model_fields]


def write(folder: Path, content: str | bytes, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(source: str | Path, overrides: tuple[str, ...] = ()) -> str:
    """Return the one line with which a recipe is refused."""
    with pytest.raises(ValueError) as caught:
        load_config(source, overrides)
    line = str(caught.value)
    assert len(line.splitlines()) == 1 and line.isprintable() and len(line) < 700, line
    return line


# The recipes of the project


def test_base_yaml_is_the_schema_with_a_comment_on_every_key() -> None:
    text = (CONFIGS / "base.yaml").read_text(encoding="utf-8")
    root = yaml12.read(text, "base.yaml")
    assert load_config("base") == Config()
    written = {f"{section}.{key}" for section, keys in root.items() for key in keys}
    assert written == set(KEYS)
    lines = text.splitlines()
    for section, keys in root.items():
        for key, value in keys.items():
            assert re.search(r"  # \S", lines[key.line - 1]), key
            # null, where the schema resolves it: a recipe that changes dim does not inherit a hidden_dim
            assert (value is None) == (SECTIONS[section].model_fields[key].default is None), key


def parameters(m: ModelConfig) -> int:
    """Count the weights by hand, with all biases of linear layers off."""
    norm = m.dim * (2 if m.norm == "layernorm" else 1)
    attention = 2 * m.dim * m.dim + 2 * m.dim * m.head_dim * m.n_kv_heads
    mlp = (3 if m.mlp == "swiglu" else 2) * m.dim * m.hidden_dim
    learned = m.context_length * m.dim if m.positions == "learned" else 0
    return m.vocab_size * m.dim + learned + m.n_layers * (attention + mlp + 2 * norm) + norm


@pytest.mark.parametrize(
    ("name", "overrides", "count"),
    [
        ("day1", (), 541_952),
        ("day1-overfit", (), 541_952),
        ("day2", (), 3_295_488),
        ("day3", (), 3_295_488),
        ("day4", (), 26_255_872),
        ("day5", (), 26_255_872),
        ("day4", ("model.positions=learned", "model.norm=layernorm", "model.mlp=gelu", "model.n_kv_heads=8"),
         29_639_680),
    ],
)  # fmt: skip
def test_the_days_have_the_promised_sizes(name: str, overrides: tuple[str, ...], count: int) -> None:
    model = load_config(name, overrides).model
    assert model.tie_head and not model.bias and parameters(model) == count


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_asks_one_question_and_says_only_what_differs(name: str) -> None:
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    root = yaml12.read(text, name)
    if name == "base":
        return
    assert text.startswith("# ") and "?" in text.splitlines()[0]
    parent = load_config(CONFIGS / root.pop("extends"))
    child = load_config(name)
    written = {f"{section}.{key}" for section, keys in root.items() for key in keys}
    resolved = {"model.n_kv_heads", "model.hidden_dim", "optim.min_learning_rate"}
    differs = set(differing_keys(parent, child))
    assert written <= differs and differs - written <= resolved


def test_day3_mixes_windowed_layers_with_a_full_one() -> None:
    model = load_config("day3").model
    assert model.windows[-1] == 0 and all(model.windows[:-1]) and all(model.strides[:-1])
    assert differing_keys(load_config("day2"), load_config("day3")) == ["model.window", "model.stride"]


# How words are read

WORDS: dict[str, Any] = {
    "1e-4": 1e-4, "1.0e5": 1e5, "3E+2": 300.0, ".5": 0.5, "1.": 1.0, "-0.25": -0.25, "+7": 7,
    "010": 10, "0o10": 8, "0x1F": 31, "-12": -12, "0": 0, "00": 0,
    "1:30": "1:30", "1_000": "1_000", "0b101": "0b101", "1e": "1e", "e5": "e5", "-": "-", ".": ".",
    "1.2.3": "1.2.3", "2024-01-31": "2024-01-31", "0x": "0x", "0o8": "0o8", "-0x1F": "-0x1F", "١": "١",
    "true": True, "True": True, "FALSE": False, "tRUE": "tRUE",
    "yes": "yes", "no": "no", "on": "on", "off": "off", "y": "y", "n": "n", "On": "On",
    "null": None, "~": None, "": None, "Null": None, "nULL": "nULL", "none": "none", "None": "None",
    ".inf": math.inf, "-.INF": -math.inf, "inf": "inf", "nan": "nan", "=": "=",
}  # fmt: skip


def misread(resolve: Callable[[str], Any]) -> list[str]:
    """Return the words that `resolve` does not read as the YAML 1.2 core schema does."""
    results = {word: resolve(word) for word in WORDS}
    return [word for word, right in WORDS.items() if repr(results[word]) != repr(right)]  # 1 is not True


def test_i2_words_are_read_by_the_core_schema_of_yaml_1_2() -> None:
    assert misread(yaml12.plain) == []
    assert math.isnan(yaml12.plain(".nan"))
    del (words := dict(WORDS))["-"]  # alone it begins a list
    text = "".join(f"k{i}: {word}\n" for i, word in enumerate(words))
    assert list(map(repr, yaml12.read(text, "x").values())) == list(map(repr, words.values()))


def test_i2_the_table_of_words_catches_yaml_1_1() -> None:
    def yaml11(word: str) -> Any:
        return yaml.safe_load(f"[{word}]")[0] if word not in ("", "=", "-") else word

    assert {"1e-4", "010", "1:30", "1_000", "yes", "on", "2024-01-31"} <= set(misread(yaml11))


@pytest.mark.parametrize(
    ("content", "key", "value"),
    [
        (b"\xef\xbb\xbfmodel:\n  dim: 64\n", "model.dim", 64),
        (b"model:\r\n  dim: 64\r\n", "model.dim", 64),
        (b"---\nmodel: {dim: 64}\n...\n", "model.dim", 64),
        (b"# only this\n\nmodel:\n    dim: 64   # wide\n", "model.dim", 64),
        (b'{"model": {"dim": 64}}', "model.dim", 64),
        (b"train: {seed: 010}", "train.seed", 10),
        (b"train: {compile: on}", "train.compile", "on"),
        (b"model:\n  tie_head: False\n", "model.tie_head", False),
        (b"optim:\n  learning_rate: 1e-4\n", "optim.learning_rate", 1e-4),
        (b"optim:\n  learning_rate: 1\n", "optim.learning_rate", 1.0),
        (b"optim:\n  betas:\n  - 0.8\n  - .9\n", "optim.betas", (0.8, 0.9)),
        (b"model: {window: [8, 0]}", "model.window", (8, 0)),
        (b"sample: {prompt: no}", "sample.prompt", "no"),
        (b"sample: {prompt: 1_000}", "sample.prompt", "1_000"),
        (b'sample: {prompt: "5"}', "sample.prompt", "5"),
        (b"sample:\n  prompt: |\n    def f():\n        #\n", "sample.prompt", "def f():\n    #\n"),
        (b'sample: {prompt: "\\ud83d\\ude00 \\0 \\t"}', "sample.prompt", "\U0001f600 \0 \t"),
        (b"sample:\n  prompt: '" + b"a" * 1_000_000 + b"'\n", "sample.prompt", "a" * 1_000_000),
    ],
)
def test_odd_but_right_recipes_are_read(tmp_path: Path, content: bytes, key: str, value: Any) -> None:
    config = load_config(write(tmp_path, content))
    section, name = key.split(".")
    assert getattr(getattr(config, section), name) == value


HOSTILE: list[tuple[bytes, str]] = [
    # broken YAML: file, line, column
    (b"", "x.yaml: is empty"),
    (b"# nothing but a comment\n", "x.yaml: is empty"),
    (b"---\n", "x.yaml: must be sections of keys, got null"),
    (b"- model\n- data\n", 'x.yaml: must be sections of keys, got ."model", "data"'),
    (b"model", 'x.yaml: must be sections of keys, got "model"'),
    (b"42", "x.yaml: must be sections of keys, got 42"),
    (b"model:\n\tdim: 64\n", "x.yaml: line 2, column 1: .*'\\\\t'.*; indent with spaces"),
    (b"model: {dim: 64\n", "x.yaml: line 2, column 1: expected ',' or '}'"),
    (b"model: [64\n", "x.yaml: line 2, column 1: expected ',' or ']'"),
    (b"model:\n  dim: 64\n n_heads: 4\n", "x.yaml: line 3, column 2: "),
    (b"model:\n  dim 64\n  n_heads: 4\n", "x.yaml: line 3, column 10: "),
    (b"sample: {prompt: 'a}\n", "x.yaml: line 2, column 1: found unexpected end of stream"),
    (b"model: {dim: 64}\n---\nmodel: {dim: 32}\n", "x.yaml: line 2, column 1: a second document"),
    (b"%YAML 3.0\n---\nmodel: {}\n", "x.yaml: line 1, column 1: "),
    (b"model: {dim: `64`}\n", "x.yaml: line 1, column 14: found character '`'"),
    # bytes that are no text
    (b"model:\n  dim: \xff\n", "x.yaml: line 2, column 8: the byte 0xff is not UTF-8"),
    (b"\xff\xfem\x00o\x00", "x.yaml: line 1, column 1: the byte 0xff is not UTF-8"),
    (b"sample: {prompt: '\xed\xa0\x80'}", "x.yaml: line 1, column 19: the byte 0xed is not UTF-8"),
    (b"model:\n  dim: 6\x004\n", "x.yaml: line 2, column 9: the character U.0000 must be an escape"),
    (b"\x00" * 4096, "x.yaml: line 1, column 1: the character U.0000"),
    (b"sample: {prompt: \x1b[31m}", "x.yaml: line 1, column 18: the character U.001B"),
    (b"\x7fELF\x02\x01\x01", "x.yaml: line 1, column 1: the character U.007F"),
    (b'sample: {prompt: "\\ud83d"}', "x.yaml: line 1, column 18: half a surrogate pair"),
    (b'sample: {prompt: "\\UFFFFFFFF"}', "x.yaml: line 1, column 21: the number of an escape"),
    (b'sample: {prompt: "\\U00110000"}', "x.yaml: line 1, column 21: the number of an escape"),
    (b"%YAML 1." + b"9" * 5000 + b"\n---\nmodel: {}", "x.yaml: line 1, column 9: the number"),
    (b'data: {source: text, path: "C:\\Users\\x"}', "line 1, column 33: .*; in double quotes .*'single"),
    (b'data: {source: text, path: "C:\\temp\\new"}', "data.path: .*control character.*'single quotes'"),
    # what would construct, expand, merge or override in silence
    (b"model: !!python/object/apply:os.system ['true']\n", "x.yaml: line 1, column 8: the tag .*python"),
    (b"model: {dim: !!int '64'}\n", "x.yaml: line 1, column 14: the tag"),
    (b"model: {dim: ! 64}\n", "x.yaml: line 1, column 14: the tag"),
    (b"model: &m {dim: 64}\ntrain: *m\n", "x.yaml: line 1, column 8: anchors"),
    (b"a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]\n", "x.yaml: line 1, column 4: anchors"),
    (b"sample: {prompt: *x}\n", "x.yaml: line 1, column 18: .*quote the text"),
    (b"model: {<<: {dim: 64}}\n", "x.yaml: line 1, column 9: merge keys .*extends"),
    (b"model:\n  dim: 64\n  n_heads: 4\n  dim: 32\n", "line 4, column 3: model.dim: given twice .*line 2"),
    (b"model: {dim: 64}\ntrain: {}\n'model': {dim: 32}\n", "x.yaml: line 3, column 1: model: given twice"),
    (b"? [model]\n: {dim: 64}\n", "x.yaml: line 1, column 3: a key must be a plain word"),
    (b"a: " * 5000, "x.yaml: line 1, column 5: mapping values are not allowed"),
    (b"[" * 100_000, "x.yaml: line 1, column 10: nested more than 8 deep"),
    (b"{a: " * 100_000, "x.yaml: line 1, column 37: nested more than 8 deep"),
    (b"- " * 100_000, "x.yaml: line 1, column 19: nested more than 8 deep"),
    (b"model: {dim: " + b"9" * 5000 + b"}", "x.yaml: line 1, column 14: a number of 5000 digits is too long"),
    # keys that no section has
    (b"model:\n  n_head: 4\n", r"x.yaml: model.n_head: unknown key; did you mean n_heads\? .line 2"),
    (b"optim: {learning_rat: 1e-3}", r"optim.learning_rat: unknown key; did you mean learning_rate\?"),
    (b"modle: {dim: 64}", r"x.yaml: modle: unknown key; did you mean model\?"),
    (b"num-epochs: 3", r"x.yaml: num-epochs: unknown key; did you mean train.steps\?"),
    (b"train: {num-epochs: 3}", r"x.yaml: train.num-epochs: unknown key; did you mean steps\?"),
    (b"train: {dim: 64}", r"train.dim: unknown key; dim belongs under model: did you mean model.dim"),
    (b"vocab_size: 64", "under model or data: did you mean model.vocab_size or data.vocab_size"),
    (b"model.dim: 64", r"x.yaml: model.dim: unknown key; dim belongs under model"),
    (b"train: {lr: 1e-3}", r"x.yaml: train.lr: unknown key; did you mean optim.learning_rate\?"),
    (b"model: {N-Heads: 4}", r"x.yaml: model.N-Heads: unknown key; did you mean n_heads\?"),
    (b"model: {1: 4}", r"x.yaml: model.1: unknown key; did you mean "),
    (b"model: {null: 4}", r"x.yaml: model.null: unknown key; did you mean "),
    (b'"\\e[31m\\n": {}', r"x.yaml: \\x1B\[31m\\x0A: unknown key"),
    (b"model:\n# dim: 64\n", "x.yaml: model: must be a section of keys, got null .line 1"),
    (b"model: 64", "x.yaml: model: must be a section of keys, got 64"),
    (b"model: [dim, 64]", "x.yaml: model: must be a section of keys, got"),
    # values of another type or out of bounds
    (b"model:\n  dim: '64'\n", 'model.dim: must be a valid integer, got "64"; remove the quotes .line 2'),
    (b"model: {dim: 64.5}", "x.yaml: model.dim: must be a valid integer, got 64.5 .line 1"),
    (b"model: {dim: 64.0}", "x.yaml: model.dim: must be a valid integer, got 64.0; write 64"),
    (b"model: {dim: true}", "x.yaml: model.dim: must be a valid integer, got true"),
    (b"model: {dim: [64]}", "x.yaml: model.dim: must be a valid integer, got .64"),
    (b"model: {dim: {a: 1}}", 'x.yaml: model.dim: must be a valid integer, got {"a": 1}'),
    (b"model: {dim:}", "x.yaml: model.dim: must be a valid integer, got null"),
    (b"model: {dim: -64}", "x.yaml: model.dim: must be greater than or equal to 1, got -64"),
    (b"model: {dim: 0xFFFFFFFFFFFFFFFFFF}", "x.yaml: model.dim: must be less than"),
    (b"train: {steps: 1_000}", 'x.yaml: train.steps: must be a valid integer, got "1_000"; write 1000'),
    (b"train: {steps: 1:30}", 'x.yaml: train.steps: must be a valid integer, got "1:30"'),
    (b"train: {seed: 1e3}", "x.yaml: train.seed: must be a valid integer, got 1000.0; write 1000"),
    (b"optim: {learning_rate: '3e-4'}", 'must be a valid number, got "3e-4"; remove the quotes'),
    (b"optim: {learning_rate: .nan}", "x.yaml: optim.learning_rate: must be a finite number, got .nan"),
    (b"optim: {learning_rate: -.inf}", "x.yaml: optim.learning_rate: must be a finite number, got -.inf"),
    (b"optim: {learning_rate: 1e999}", "x.yaml: optim.learning_rate: must be a finite number, got .inf"),
    (b"optim: {learning_rate: true}", "x.yaml: optim.learning_rate: must be a valid number, got true"),
    (b"optim: {learning_rate: 0}", "x.yaml: optim.learning_rate: must be greater than 0, got 0"),
    (b"optim: {betas: [0.9]}", r"x.yaml: optim.betas: is too short, got \[0.9\]"),
    (b"optim: {betas: [0.9, 0.9, 0.9]}", "x.yaml: optim.betas: .*at most 2 items"),
    (b"optim: {betas: [0.9, 1.0]}", "x.yaml: optim.betas: must be less than 1, got"),
    (b"optim: {betas: 0.9}", "x.yaml: optim.betas: must be a list, got 0.9"),
    (b"model: {tie_head: yes}", 'tie_head: must be a valid boolean, got "yes"; only true and false are'),
    (b"model: {tie_head: off}", 'tie_head: must be a valid boolean, got "off"; only true and false are'),
    (b"model: {tie_head: y}", 'tie_head: must be a valid boolean, got "y"; only true and false are'),
    (b"model: {tie_head: 'false'}", 'tie_head: must be a valid boolean, got "false"; remove the quotes'),
    (b"model: {tie_head: 2}", "tie_head: must be a valid boolean, got 2; only true and false are"),
    (b"model: {norm: layer-norm}", "must be 'layernorm' or 'rmsnorm', got .*; did you mean layernorm"),
    (b"train: {compile: true}", "x.yaml: train.compile: must be 'off', 'auto' or 'on', got true"),
    (b"train: {strategy: ddp}", "x.yaml: train.strategy: must be 'single', got \"ddp\""),
    (b"train: {device: gpu}", 'x.yaml: train.device: must be auto, cpu, mps, cuda or cuda:N, got "gpu"'),
    (b"train: {keep: 0}", "x.yaml: train.keep: would keep no checkpoint; use -1"),
    (b"sample: {prompt: 5}", 'x.yaml: sample.prompt: must be a valid string, got 5; .*"quotes"'),
    (b"sample: {prompt: true}", 'x.yaml: sample.prompt: must be a valid string, got true; .*"quotes"'),
    (b"sample: {prompt:}", 'x.yaml: sample.prompt: must be a valid string, got null; .*"quotes"'),
    (b"model: {window: []}", "x.yaml: model.window: .*at least 1 item"),
    (b"model: {window: [8, -1]}", "x.yaml: model.window: must be greater than or equal to 0, got .8, -1"),
    (b"model: {window: wide}", 'x.yaml: model.window: must be a valid integer or a list, got "wide"'),
    (b"data: {source: text, path: ''}", "x.yaml: data.path: is empty"),
    (b"data: {source: text, path: 5}", "x.yaml: data.path: must be a valid string or a list, got 5"),
    (b"data: {val_fraction: 1}", "x.yaml: data.val_fraction: must be less than 1, got 1"),
    (b"model: {dropout: 1.0}", "x.yaml: model.dropout: must be less than 1, got 1.0"),
    (b"extends: [base.yaml]\n", r'x.yaml: extends .line 1.: must be a file name, got \["base.yaml"\]'),
    (b"extends:\nmodel: {dim: 64}\n", "x.yaml: extends .line 1.: must be a file name, got null"),
    (b"extends: bsae.yaml\n", "x.yaml: extends .line 1.: .*bsae.yaml: no such file"),
    (b"extends: x.yaml\n", "x.yaml: extends .line 1.: .*extended by itself"),
    (b"extends: .\n", "x.yaml: extends .line 1.: .*: Is a directory"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), HOSTILE, ids=range(len(HOSTILE)))
def test_i1_i2_i4_i5_a_hostile_recipe_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal(write(tmp_path, content))
    assert re.search(expected, line), line
    assert line.startswith("x.yaml: ")


BOOLEANS = [
    f"{s}.{k}" for s, schema in SECTIONS.items() for k, f in schema.model_fields.items() if f.annotation is bool
]
NO_BOOLEANS = ["yes", "no", "on", "off", "y", "n", "Yes", "OFF", '"false"', "'true'", "0", "1", "2", "1.0", "tRUE"]


@pytest.mark.parametrize("key", BOOLEANS)
def test_i2_only_true_and_false_are_booleans(key: str, tmp_path: Path) -> None:
    assert len(BOOLEANS) >= 6 and "model.tie_head" in BOOLEANS
    section, name = key.split(".")
    for word, right in (("true", True), ("false", False), ("False", False), ("TRUE", True)):
        by_file = load_config(write(tmp_path, f"{section}: {{{name}: {word}}}"))
        for config in (by_file, load_config("base", [f"{key}={word}"])):
            assert getattr(getattr(config, section), name) is right
    for word in NO_BOOLEANS:
        line = refusal(write(tmp_path, f"{section}: {{{name}: {word}}}"))
        assert f"{key}: must be a valid boolean, got " in line and ("only true and" in line or "quotes" in line), line
        line = refusal("base", (f"{key}={word}",))
        assert f"{key}={word}: must be a valid boolean, got " in line, line
