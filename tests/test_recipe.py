"""Words override files, files what they extend, and every refusal names the place of the offending key."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import train
from octlm import yaml12
from octlm.command import run
from octlm.config import (
    RESUMABLE,
    SECTIONS,
    Config,
    DataConfig,
    ModelConfig,
    OptimConfig,
    SampleConfig,
    TrainConfig,
    cache_directory,
    differing_keys,
    load_config,
)
from tests.test_config import KEYS, refusal, write

ROOT = Path(__file__).parent.parent


def value(config: Config, dotted: str) -> Any:
    section, key = dotted.split(".")
    return getattr(getattr(config, section), key)


# Words


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("train.steps=8", 8),
        ("train.seed=010", 10),
        ("train.threads=8", 8),
        ("train.threads=null", None),
        ("train.threads=~", None),
        ("train.early_stop= 3 ", 3),
        ("train.overfit_block=true", True),
        ("train.overfit_block=False", False),
        ("train.compile=on", "on"),
        ("train.device=cuda:1", "cuda:1"),
        ("optim.learning_rate=1e-4", 1e-4),
        ("optim.learning_rate=1", 1.0),
        ("optim.weight_decay=-0.0", 0.0),
        ("optim.betas=[0.9, 0.95]", (0.9, 0.95)),
        ("optim.betas=[.5,0]", (0.5, 0.0)),
        ("model.window=8", 8),
        ("model.window=[8, 0]", (8, 0)),
        ("sample.prompt=", ""),
        ("sample.prompt=null", "null"),
        ("sample.prompt=5", "5"),
        ("sample.prompt=true", "true"),
        ("sample.prompt=a = b", "a = b"),
        ("sample.prompt=[1, 2", "[1, 2"),
        ("sample.prompt=[1, 2]", "[1, 2]"),
        ('sample.prompt="q"', '"q"'),
        ("sample.prompt= two\nlines ", " two\nlines "),
        ("data.split=null", None),
        ("data.cache_dir=null", None),
        ("data.cache_dir=~", os.path.expanduser("~")),
    ],
)
def test_i3_a_word_is_read_by_the_type_of_its_key(word: str, expected: Any) -> None:
    got = value(load_config("base", [word]), word.split("=")[0])
    assert (type(got), repr(got)) == (type(expected), repr(expected))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("train.steps=abc", 'train.steps=abc: must be a valid integer, got "abc"'),
        ("train.steps=8.5", "train.steps=8.5: must be a valid integer, got 8.5"),
        ("train.steps=8.0", "train.steps=8.0: must be a valid integer, got 8.0; write 8"),
        ("train.steps=true", "train.steps=true: must be a valid integer, got true"),
        ("train.steps=", "train.steps=: must be a valid integer, got null"),
        ("train.steps=null", "train.steps=null: must be a valid integer, got null"),
        ("train.steps=0", "train.steps=0: must be greater than or equal to 1, got 0"),
        ("train.steps=" + "9" * 5000, "train.steps=9+ ... 9+: a number of 5000 digits"),
        ("train.steps='8'", "train.steps='8': must be a valid integer"),
        ("train.overfit_block=yes", 'must be a valid boolean, got "yes"; only true and false are booleans'),
        ("train.overfit_block=1", "train.overfit_block=1: must be a valid boolean, got 1; only true and"),
        ("train.compile=yes", "train.compile=yes: must be 'off', 'auto' or 'on'"),
        ("optim.betas=[0.9", r"optim.betas=\[0.9: must be a list"),
        ("optim.betas=[0.9, [}]", r"optim.betas=\[0.9, \[\}\]: line 1, column 8: expected"),
        ("optim.betas=[0.9, '0.9']", "must be a valid number, got .*; remove the quotes"),
        ("optim.betas=[*a, 1]", "line 1, column 2: anchors"),
        ("data.path=", "data.path=: is empty"),
        ("data.path=\udcff", r"data.path=\\uDCFF: holds bytes that are not UTF-8"),
        ("sample.prompt=\udcff", "sample.prompt=.*: holds bytes that are not UTF-8"),
        ("train.steps", "train.steps: must be section.key=value"),
        ("", ": must be section.key=value"),
        ("--steps=8", "--steps: unknown key; did you mean train.steps"),
        ("steps=8", "steps: unknown key; steps belongs under train: did you mean train.steps"),
        ("train.stepps=8", r"train.stepps: unknown key; did you mean steps\?"),
        ("train.dim=8", "train.dim: unknown key; dim belongs under model"),
        ("train.num-epochs=8", "train.num-epochs: unknown key; did you mean steps"),
        ("train.steps.x=8", "train.steps.x: unknown key; did you mean "),
        ("train .steps=8", "train .steps: unknown key; "),
        ("model=8", "model=8: is a section; set one of its keys, such as model.vocab_size"),
        ("extends=day2.yaml", "extends: unknown key; "),
        ("=8", ": unknown key; "),
        ("a\nb=8", r"a\\x0Ab: unknown key; "),
    ],
)
def test_i1_i3_a_bad_word_is_refused_with_the_word(word: str, expected: str) -> None:
    line = refusal("base", (word,))
    assert re.search(f"^command line: (.*: )?{expected}", line), line


NULLABLE = [f"{s}.{k}" for s, schema in SECTIONS.items() for k, f in schema.model_fields.items() if f.default is None]


@pytest.mark.parametrize("key", NULLABLE)
def test_i3_a_value_that_may_be_absent_is_set_and_unset_by_words(key: str, tmp_path: Path) -> None:
    assert len(NULLABLE) >= 8 and "model.n_kv_heads" in NULLABLE
    special = {"optim.min_learning_rate": "1e-5", "model.n_kv_heads": "2", "data.split": "document"}
    some = special.get(key, "/8" if key.endswith(("path", "file", "dir")) else "8")
    section, name = key.split(".")
    file = write(tmp_path, f"{section}: {{{name}: {some}}}")
    if key == "data.path":  # null and a source of text do not go together
        assert load_config("base", ["data.source=text", "data.path=/8"]).data.path == "/8"
        assert load_config(file, ["data.path=null"]) == load_config("base")
        return
    there, absent = load_config("base", [f"{key}={some}"]), load_config("base")
    assert value(there, key) != value(absent, key)
    assert load_config(file) == there and load_config(file, [f"{key}=null"]) == absent
    for wrong in ("8.5", "true", "'8'", "eight") if isinstance(value(there, key), int) else ():
        assert f"command line: {key}={wrong}: must be a valid integer" in refusal("base", (f"{key}={wrong}",))


# The command line: what is refused leaves nothing behind


MISSPELT = {
    "optim.learning_rat": "optim.learning_rat: unknown key; did you mean learning_rate?",
    "num-epochs": "num-epochs: unknown key; did you mean train.steps?",
    "train.num-epochs": "train.num-epochs: unknown key; did you mean steps?",
    "train.dim": "train.dim: unknown key; dim belongs under model: did you mean model.dim?",
    "modle.dim": "did you mean model",
    "Model.dim": "did you mean model",
    "model.tie_haed": "model.tie_haed: unknown key; did you mean tie_head?",
}
BROKEN: dict[str, tuple[bytes | None, str]] = {
    "tab": (b"model:\n\tdim: 64\n", r"x.yaml: line 2, column 1: .*indent with spaces"),
    "bracket": (b"model: {dim: 64\n", r"x.yaml: line 2, column 1: "),
    "list": (b"- model\n", r"x.yaml: must be sections of keys"),
    "empty": (b"", r"x.yaml: is empty"),
    "mark only": (b"\xef\xbb\xbf", r"x.yaml: is empty"),
    "not UTF-8": (b"model: {dim: \xff}", r"x.yaml: line 1, column 14: the byte 0xff"),
    "path": (b'data: {source: text, path: "C:\\Users\\x"}', r"x.yaml: line 1, column 33: .*'single quotes'"),
    "missing": (None, r"x.yaml: no such file"),
    "directory": (None, r"x.yaml: Is a directory"),
}


class Refused(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Refused]]:
    """Run the command train.py in this process and an empty directory; nothing may be trained or written."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def trained(*arguments: object, **options: object) -> None:
        raise AssertionError("it would train")

    monkeypatch.setitem(sys.modules, "octlm.loop", SimpleNamespace(train=trained))

    def invoke(config: Path | str, *words: str) -> Refused:
        monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(config), "--run-dir", "run", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(train.main)
        assert list(here.iterdir()) == []
        return Refused(int(ended.value.code or 0), *capfd.readouterr())

    before = signal.getsignal(signal.SIGTERM)
    yield invoke
    signal.signal(signal.SIGTERM, before)


def one_line(result: Refused, expected: str) -> None:
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("train.py: error: ") and result.err.count("\n") == 1 and result.err.endswith("\n")
    assert re.search(expected, result.err), result.err


@pytest.mark.parametrize("key", MISSPELT)
def test_i1_a_misspelt_key_ends_the_command_before_it_writes(
    key: str, training: Callable[..., Refused], tmp_path: Path
) -> None:
    section, _, name = key.rpartition(".")
    recipe = write(tmp_path, f"{section}: {{{name}: 3}}" if section else f"{name}: 3")
    for result in (training(recipe), training("base", f"{key}=3")):
        one_line(result, re.escape(MISSPELT[key]))


@pytest.mark.parametrize("kind", BROKEN)
def test_i4_a_broken_recipe_ends_the_command_in_one_line(
    kind: str, training: Callable[..., Refused], tmp_path: Path
) -> None:
    content, expected = BROKEN[kind]
    if content is not None:
        write(tmp_path, content)
    if kind == "directory":
        (tmp_path / "x.yaml").mkdir()
    one_line(training(tmp_path / "x.yaml"), expected)


@pytest.mark.parametrize("word", ["train.steps=8.5", "train.steps=true", "model.tie_head=yes", "train.steps", "x=1"])
def test_i3_a_bad_word_ends_the_command_in_one_line(word: str, training: Callable[..., Refused]) -> None:
    one_line(training("base", word), f"command line: {re.escape(word.partition('=')[0])}")


def test_a_word_given_twice_is_refused() -> None:
    assert "train.steps is given twice" in refusal("base", ("train.steps=5", "train.seed=1", "train.steps=6"))


# Files


def test_the_nearest_of_file_parent_and_word_wins(tmp_path: Path) -> None:
    write(tmp_path, "model: {dim: 16, n_heads: 2}\ntrain: {steps: 1}\n", "a.yaml")
    write(tmp_path, "extends: a.yaml\nmodel: {dim: 32}\ntrain: {steps: 2}\n", "b.yaml")
    config = load_config(write(tmp_path, "extends: ./b.yaml\ntrain: {steps: 3}\n"), ["train.steps=4"])
    assert (config.model.dim, config.model.n_heads, config.train.steps) == (32, 2, 4)
    assert config.model.hidden_dim == 128  # by the final dim


def test_a_chain_that_returns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, "extends: sub/b.yaml\n", "a.yaml")
    write(tmp_path / "sub", "extends: ../a.yaml\n", "b.yaml")
    assert "sub/b.yaml: extends (line 1)" in refusal(tmp_path / "a.yaml")


def test_the_place_of_the_offending_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "model:\n  n_heads: 4\ntrain:\n  steps: many\n", "a.yaml")
    child = write(tmp_path, "extends: a.yaml\nmodel:\n  norm: rmsnorm\n  dim: 66\n", "b.yaml")
    assert refusal(child).startswith("b.yaml: model.dim: dim=66 is not divisible by n_heads=4; ")
    assert refusal(child).endswith("(line 4)")
    line = refusal(child, ("model.dim=64",))
    assert line == 'a.yaml: train.steps: must be a valid integer, got "many" (line 4)'
    line = refusal(child, ("model.n_heads=5", "train.steps=1"))
    assert line.startswith("command line: model.n_heads=5: dim=66 is not divisible by n_heads=5; dim=70")
    write(tmp_path, "model: {dmi: 4}", "a.yaml")
    assert refusal(child).startswith("a.yaml: model.dmi: unknown key; did you mean dim?")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("dya1", r'no recipe is called "dya1"; did you mean day1\? .there are base, day1, '),
        ("nothing-like-it", "no recipe is called .* .there are base, "),
        ("", r"configs/\.yaml: no such file"),
        ("configs/day7.yaml", r"configs/day7.yaml: no such file; did you mean day\d.yaml\?"),
        ("no/such/folder/x.yaml", "no/such/folder/x.yaml: no such file"),
        ("a\0b.yaml", r"a\\x00b.yaml: embedded null byte"),
        ("two\nlines.yaml", r"two\\x0Alines.yaml: no such file"),
        ("configs", "configs: Is a directory"),
        ("x" * 300, 'no recipe is called "x'),
        ("x" * 300 + ".yaml", "File name too long"),
        ("/dev/zero", "/dev/zero: is over 8 MiB"),
        ("/dev/null", "/dev/null: is empty"),
    ],
)
def test_i4_a_source_that_is_no_recipe_is_refused(monkeypatch: pytest.MonkeyPatch, source: str, expected: str) -> None:
    monkeypatch.chdir(ROOT)
    line = refusal(source)
    assert re.search(expected, line), line


def test_a_name_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = load_config("day1")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "model: {dim: 64}", "day1")  # a file of a recipe's name does not hide it; it is ./day1
    assert load_config("day1") == here != load_config("./day1")
    assert load_config(Path("day1")).model.dim == 64


# Paths


def test_i5_a_path_starts_where_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", "/home/me")
    parent = "data:\n  source: text\n  path: [a.txt, 'sub/*.md', ~/b, /c]\n  cache_dir: ../cache\n"
    write(tmp_path / "there", parent, "a.yaml")
    data = load_config(write(tmp_path, "extends: there/a.yaml")).data
    assert data.path == (f"{tmp_path}/there/a.txt", f"{tmp_path}/there/sub/*.md", "/home/me/b", "/c")
    assert data.cache_dir == f"{tmp_path}/cache"
    data = load_config("../x.yaml", ["data.path=a.txt", "data.cache_dir=."]).data
    assert (data.path, data.cache_dir) == (f"{tmp_path}/here/a.txt", f"{tmp_path}/here")
    for word, path in {
        "data.path=[a.txt, ~/b]": (f"{tmp_path}/here/a.txt", "/home/me/b"),
        "data.path=[odd].txt": f"{tmp_path}/here/[odd].txt",
        "data.path=-": "-",
    }.items():
        assert load_config("base", ["data.source=text", word]).data.path == path
    assert load_config(write(tmp_path, "data: {source: text, path: '-'}")).data.path == "-"
    assert DataConfig(source="text", path="a/./b").path == f"{tmp_path}/here/a/b"


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("OCTLM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_directory(DataConfig()) == Path("/home/me/.cache/octlm")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory(DataConfig()) == Path("/home/me/.cache/octlm")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory(DataConfig()) == Path("/xdg/octlm")
    monkeypatch.setenv("OCTLM_CACHE", "~/c")
    assert cache_directory(DataConfig()) == Path("/home/me/c")
    assert cache_directory(DataConfig(cache_dir="/d")) == Path("/d")


# A saved config


reals = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
shares = st.floats(min_value=0, max_value=1, exclude_max=True)
text = st.text(st.characters(exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
configs = st.builds(
    lambda model, data, optim, sample, **train: Config(
        model=model, data=data, optim=optim, sample=sample, train=TrainConfig(**train)
    ),
    model=st.builds(
        ModelConfig,
        norm_eps=reals.filter(bool),
        rope_theta=reals.filter(bool),
        logit_softcap=reals,
        window=st.one_of(st.integers(0, 99), st.lists(st.integers(0, 99), min_size=1, max_size=2)),
        mlp=st.sampled_from(["gelu", "swiglu", "relu2"]),
        tie_head=st.booleans(),
        dropout=shares,
    ),
    data=st.builds(
        DataConfig,
        source=st.just("text"),
        path=st.one_of(names, st.just("-"), st.lists(names, min_size=1, max_size=3)),
        cache_dir=st.none() | names,
    ),
    optim=st.builds(OptimConfig, learning_rate=st.floats(1e-30, 1e30), betas=st.tuples(shares, shares)),
    sample=st.builds(SampleConfig, prompt=text, temperature=reals),
    seed=st.integers(0, 2**53),
    threads=st.none() | st.integers(1, 64),
    keep=st.sampled_from([-1, 1]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs)
def test_a_saved_config_is_read_back_to_the_same(tmp_path: Path, config: Config) -> None:
    again = load_config(write(tmp_path, config.to_yaml(), "config.yaml"))
    assert again == config and again.sha256 == config.sha256 and again.to_yaml() == config.to_yaml()


ODD_TEXTS = ["1e-4", "010", "no", "~", "null", "", " ", "'", '"', "\\", "# x", "a: b", "- a", "*a", "\ufeff",
             "\x85\u2028", "\U0001f600", "\0\x1b\x7f", "a\r\nb\n", "C:\\Users\\a b\\é", "x" * 5000,
             "\ue000\uffff"]  # fmt: skip


@pytest.mark.parametrize("odd", ODD_TEXTS, ids=ascii)
def test_i5_odd_text_survives_in_a_saved_config(tmp_path: Path, odd: str) -> None:
    config = Config(sample=SampleConfig(prompt=odd))
    assert load_config(write(tmp_path, config.to_yaml())) == config
    if odd and odd.isprintable():
        config = Config(data=DataConfig(source="text", path=f"/data/{odd}"))
        assert load_config(write(tmp_path, config.to_yaml())) == config


def test_i5_odd_texts_catch_a_writer_of_yaml_1_1() -> None:
    def survives(odd: str) -> bool:
        return bool(yaml12.read(yaml.safe_dump({"prompt": odd}), "x") == {"prompt": odd})

    assert not survives("1e-4")  # it is written without quotes, for YAML 1.1 has no such number


def test_one_meaning_has_one_hash(tmp_path: Path) -> None:
    base = load_config("base")
    same = "optim.learning_rate=0.001 optim.min_learning_rate=0.0001 model.n_kv_heads=4 model.hidden_dim=512"
    same += " model.dropout=-0.0 model.rope_theta=10000 train.seed=0x0"
    again = load_config("base", same.split())
    assert again == base and again.sha256 == base.sha256
    backwards = {s: dict(reversed(keys.items())) for s, keys in reversed(base.model_dump().items())}
    assert load_config(write(tmp_path, yaml12.dump(backwards))).sha256 == base.sha256
    assert load_config(write(tmp_path, json.dumps(base.model_dump()))).sha256 == base.sha256
    others = {load_config("base", [word]).sha256 for word in ("train.seed=1", "sample.top_k=1")}
    assert len({base.sha256, *others}) == 3
    assert re.fullmatch("[0-9a-f]{64}", base.sha256)


def test_differing_keys_are_named() -> None:
    assert differing_keys(Config(), Config()) == []
    other = load_config("base", ["train.steps=5", "model.dim=64", "optim.learning_rate=1"])
    assert differing_keys(Config(), other) == [
        *("model.dim", "model.hidden_dim", "optim.learning_rate", "optim.min_learning_rate", "train.steps")
    ]
    assert set(KEYS) > RESUMABLE and "train.steps" in RESUMABLE and "train.early_stop" not in RESUMABLE


# Sums that cannot hold


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ModelConfig(dim=100, n_heads=3), "dim=100 is not divisible by n_heads=3; dim=102 would be"),
        (lambda: ModelConfig(n_kv_heads=3), "n_heads=4 is not divisible by n_kv_heads=3; use 1, 2, 4"),
        (lambda: ModelConfig(n_heads=4, n_kv_heads=8), "n_heads=4 is not divisible by n_kv_heads=8"),
        (lambda: ModelConfig(dim=12, n_heads=4, positions="rope"), "dim / n_heads = 3 is odd"),
        (lambda: ModelConfig(dim=9, n_heads=3, positions="sinusoidal"), "an even dim, not 9"),
        (lambda: ModelConfig(rope_scale=2.0), "rope_scale=2.0 needs positions=rope, not learned"),
        (lambda: ModelConfig(n_layers=-1), "greater than or equal to 0"),
        (lambda: ModelConfig(dropout=-0.1), "greater than or equal to 0"),
        (lambda: ModelConfig(norm_eps=0.0), "greater than 0"),
        (lambda: ModelConfig(heads=4), "heads"),
        (lambda: DataConfig(source="text"), "source=text needs data.path"),
        (lambda: DataConfig(path="x"), "source=stdlib reads no data.path"),
        (lambda: DataConfig(val_fraction=0.0), "greater than 0"),
        (lambda: OptimConfig(learning_rate=1e-5, min_learning_rate=1e-4),
         "min_learning_rate=0.0001 is above learning_rate=1e-05"),
        (lambda: Config(data=DataConfig(vocab_size=2000)),
         "data.vocab_size=2000 is above model.vocab_size=1024"),
        (lambda: Config(train=TrainConfig(tokens_per_step=4000)),
         "=4000 is not .* micro_batch_size=32 x context_length=128 = 4096; use train.tokens_per_step=4096$"),
        (lambda: Config(train=TrainConfig(micro_batch_size=24)),
         "= 3072; use train.tokens_per_step=6144 or train.micro_batch_size=8"),
    ],
)  # fmt: skip
def test_what_cannot_hold_is_refused_with_the_numbers(make: Any, expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert re.search(expected, str(caught.value).partition(" [type=")[0]), caught.value


def test_what_can_hold_is_resolved() -> None:
    model = ModelConfig(n_layers=5, window=[8, 0], stride=[4, 0], n_kv_heads=None, hidden_dim=None)
    assert (model.windows, model.strides) == ((8, 0, 8, 0, 8), (4, 0, 4, 0, 4))
    assert (model.n_kv_heads, model.hidden_dim, model.head_dim) == (4, 512, 32)
    assert ModelConfig(window=[8, 0], stride=4).strides == (4, 4)  # of no consequence in the second layer
    assert [ModelConfig(dim=d, mlp="swiglu").hidden_dim for d in (96, 128, 256, 512)] == [256, 344, 688, 1368]
    assert ModelConfig(n_layers=0, positions="none").windows == ()
    assert OptimConfig(learning_rate=3e-3).min_learning_rate == 3e-3 / 10
    assert load_config("base", ["train.steps=5", "optim.warmup_steps=20"]).optim.warmup_steps == 20
    with pytest.raises(ValueError):
        model.dim = 64  # type: ignore[misc]
    assert len({model, ModelConfig()}) == 2  # frozen: it can be a key


def test_the_schema_offers_exactly_what_the_tables_have() -> None:
    from octlm.corpus import SOURCES
    from octlm.optim import OPTIMIZERS, SCHEDULES
    from octlm.tokenizer import TOKENIZERS

    def offered(section: str, key: str) -> set[str]:
        kind = SECTIONS[section].model_fields[key].annotation
        return {word for part in get_args(kind) for word in (get_args(part) or [part])}

    assert offered("data", "source") == set(SOURCES)
    assert offered("data", "tokenizer") == set(TOKENIZERS)
    assert offered("optim", "name") == set(OPTIMIZERS)
    assert offered("optim", "schedule") == set(SCHEDULES)


def test_f2_reading_a_recipe_loads_no_torch_and_no_locale(tmp_path: Path) -> None:
    recipe = write(tmp_path, "sample: {prompt: 'naïve 😀'}  # é\r\n")
    code = "import sys, octlm.config as c; print(c.load_config(sys.argv[1]).sha256, 'torch' in sys.modules)"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", code, str(recipe)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60)
    assert (done.stdout.decode(), done.stderr) == (f"{load_config(recipe).sha256} False\n", b"")
    assert load_config(recipe).sample.prompt == "naïve 😀"
