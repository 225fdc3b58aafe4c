"""The floor is right: a parser that shares no code with the generator finds each text's one derivation and its odds."""

from __future__ import annotations

import hashlib
import itertools
import lzma
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from octlm import metrics
from octlm.config import Config, DataConfig, load_config
from octlm.console import Console, StopSignal
from octlm.corpus import open_source
from octlm.corpus.fables import FABLES, Grammar, compose, tell
from octlm.corpus.split import scan
from octlm.data import SPLITS, prepare
from octlm.model import attention, masks
from octlm.probes import Validation
from tests.corpora import all_ids, texts
from tests.runs import comparable, run, tiny

ROOT = Path(__file__).parent.parent
Heard = dict[str, str]  # slot -> the option it said


# ---- an independent scorer: from the text and the tables to every derivation


def tokens_of(option: str) -> list[tuple[str, str, int]]:
    """Split an option into (literal, "", 0) and ("", slot, form), by hand."""
    found = []
    for part in re.split(r"(\{[^}]*\})", option):
        slot, _, form = part.strip("{}").partition(".")
        found.append(("", slot, int(form or 0)) if part.startswith("{") else (part, "", 0))
    return found


def parses(grammar: Grammar, text: str) -> list[int]:
    """Give for each derivation of `text` the number of equally likely stories that it is one of."""
    parts = {option: tokens_of(option) for options in grammar.values() for option in options}

    def match(
        todo: Sequence[tuple[str, str, int]], at: int, heard: Heard, ways: int
    ) -> Iterator[tuple[int, Heard, int]]:
        if not todo:
            yield at, heard, ways
            return
        (literal, slot, form), rest = todo[0], todo[1:]
        if not slot:
            if text.startswith(literal, at):
                yield from match(rest, at + len(literal), heard, ways)
            return
        rule = grammar[slot.split(":")[0]]
        for option in [heard[slot]] if slot in heard else rule:
            odds = ways if slot in heard else ways * len(rule)
            inner = parts[option] if "{" in option else [(option.split("/")[form], "", 0)]
            for place, more, product in match(inner, at, {**heard, slot: option}, odds):
                yield from match(rest, place, more, product)

    whole = match([("", "story", 0)], 0, {}, 1)
    return [ways for end, _, ways in whole if end == len(text)]


def bits(text: str) -> float:
    """Score one text: -log2 of its probability; it must have exactly one derivation."""
    [ways] = parses(FABLES, text)
    return math.log2(ways)


def derivations(grammar: Grammar) -> Iterator[tuple[str, int]]:
    """Tell every story of a grammar, in every way, with the product of the numbers of options."""
    script: list[int] = []  # which option at each draw
    sizes: list[int] = []

    def choose(options: Sequence[str]) -> str:
        if len(sizes) == len(script):
            script.append(0)
        sizes.append(len(options))
        return options[script[len(sizes) - 1]]

    while True:
        sizes.clear()
        text = compose(choose, grammar)
        yield text, math.prod(sizes)
        while script and script[-1] == sizes[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1


def cut_down(seed: int, doubled: int = 5) -> Grammar:
    """Keep all plots; of the other rules one option, of some two."""
    draw = random.Random(seed)
    rich = {rule for rule, options in FABLES.items() if len(options) > 2} - {"plot"}
    two = set(draw.sample(sorted(rich), doubled))
    return {
        rule: options if rule == "plot" else draw.sample(list(options), 1 + (rule in two))
        for rule, options in FABLES.items()
    }


def even_and_unambiguous(grammar: Grammar) -> list[str]:
    """Say what is wrong with a grammar: texts with two derivations, odds that do not add up to one."""
    told = list(derivations(grammar))
    wrong = [] if sum(Fraction(1, ways) for _, ways in told) == 1 else ["the probabilities do not sum to 1"]
    return wrong + (["a text is told in two ways"] if len({text for text, _ in told}) < len(told) else [])


STORIES = [tell(3, number) for number in range(1000)]


# ---- the probability


def test_each_of_1000_stories_has_one_derivation_and_the_stated_probability() -> None:
    for story in STORIES:
        assert -story.log2_probability == pytest.approx(bits(story.text), abs=1e-9)


@pytest.mark.parametrize("seed", [1, 4, 7, 8])
def test_the_probabilities_of_a_cut_down_grammar_sum_to_one(seed: int) -> None:
    grammar = cut_down(seed)
    assert even_and_unambiguous(grammar) == []
    told = list(derivations(grammar))
    assert len(told) >= 64
    for text, ways in told[::8]:
        assert parses(grammar, text) == [ways]


def test_options_are_drawn_evenly_whatever_their_number() -> None:
    for n in (1, 2, 3, 5, 12):
        grammar = {"story": ("{a}",), "a": tuple("abcdefghijkl"[:n])}
        told = [tell(0, number, grammar) for number in range(2400)]
        assert {story.log2_probability for story in told} == {-math.log2(n)}
        counts = [sum(story.text == letter for story in told) for letter in grammar["a"]]
        chi_square = sum((count - 2400 / n) ** 2 for count in counts) / (2400 / n)
        assert chi_square < n + 6 * math.sqrt(2 * n)  # the draws are fixed: no luck is involved


@pytest.mark.parametrize(
    "grammar",
    [
        {"story": ("{a}{b}",), "a": ("x", "xy"), "b": ("yz", "z")},
        {"story": ("{a}", "{b}"), "a": ("x", "y"), "b": ("y", "z")},
        {"story": ("{a} {a:too}",), "a": ("x", "x y", "y x")},
    ],
)
def test_an_ambiguous_grammar_is_found(grammar: Grammar) -> None:
    assert even_and_unambiguous(grammar) == ["a text is told in two ways"]
    assert max(len(parses(grammar, text)) for text, _ in derivations(grammar)) == 2


def test_the_words_of_a_rule_are_told_apart_by_where_they_first_differ() -> None:
    """A reading of the tables and no proof; the parses of 1,000 stories and the enumerations stand beside it."""
    for rule, options in FABLES.items():
        said = [option.split("/")[0].split("{")[0] for option in options]
        if any("{" in option for option in options):
            continue
        for one, other in itertools.permutations(said, 2):
            assert not other.startswith(one) or other[len(one)].isalpha(), (rule, one, other)
    for one, other in itertools.combinations(FABLES["plot"], 2):
        parts = list(zip(re.findall(r"\w+", one), re.findall(r"\w+", other), strict=True))
        deed, ending = ([FABLES[rule][0] for rule in parts[i]] for i in (0, 2))
        assert deed[0] != deed[1] or ending[0] != ending[1]


def test_a_broken_tie_is_no_story() -> None:
    """The scorer reads ties: a name, a thing, a place or a moral that does not fit has no derivation at all."""
    for story in STORIES[:40]:
        text, heard = story.text, []
        for rule in ("hero", "other", "small" if "freed" in text else "big", "place", "thing"):
            said = [option.split("/")[0] for option in FABLES[rule]]
            [word] = {w for w in said if re.search(rf"\b{w}\b", text)}
            last = [match.start() for match in re.finditer(rf"\b{word}\b", text)][-1]
            assert text.index(word) < last, f"{rule} does not return"
            heard.append(text[:last] + text[last:].replace(word, said[said.index(word) - 1], 1))
        morals = {m for rule, options in FABLES.items() if re.fullmatch(r"[a-z]+_[a-z]+", rule) for m in options}
        body, _, moral = text.partition("Moral: ")
        others = [m for m in sorted(morals) if parses(FABLES, f"{body}Moral: {m}\n")]
        assert moral.strip() in others and len(others) == 2, "the moral follows from the events"
        assert [parses(FABLES, wrong) for wrong in heard] == [[]] * 5


# ---- the corpus


def test_a_story_depends_on_its_seed_and_number_alone() -> None:
    assert [tell(3, number) for number in (999, 0, 500)] == [STORIES[999], STORIES[0], STORIES[500]]
    assert tell(4, 0) != STORIES[0] and tell(3, 1000).text not in {story.text for story in STORIES}


def test_the_stories_never_change() -> None:
    """A floor that was published holds only for the same text: so this is a number, also in another process."""
    code = "from octlm.corpus.fables import tell; print(''.join(tell(0, n).text for n in range(100)), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.decode() == "".join(tell(0, number).text for number in range(100))
    assert hashlib.sha256(done.stdout).hexdigest() == "dd131e0553f7ad6d19bc3c4fdd2bb6a40c0e46d61047b15a679f5200d79d6a89"


def test_there_are_more_than_10_to_the_12_stories() -> None:
    """Count them: each plot has as many texts as its words have combinations, and no two plots share one."""
    skeletons: Grammar = {r: o if "{" in o[0] else o[:1] for r, o in FABLES.items()}
    number, plots = 0, 0
    for text, _ in derivations(skeletons):
        plots += 1
        number += parses(FABLES, text)[0] // len(FABLES["plot"])
    assert plots == len(FABLES["plot"]) == 8
    assert math.log2(number) > 120 > math.log2(10**12)
    assert len({story.text for story in STORIES}) == len(STORIES)


def test_stories_are_short_english_of_few_words() -> None:
    texts = [story.text for story in STORIES]
    assert 60 <= sum(len(text.split()) for text in texts) / len(texts) <= 200
    found = {word for text in texts for word in re.findall(r"[A-Za-z]+", text)}
    assert len(found) <= 500
    for text in texts:
        assert re.fullmatch(r"One [A-Za-z ,.\":]+\n", text) and "  " not in text
        assert not re.search(r"\ba [aeiou]|[.!?] [a-z]|\b(\w+) \1\b", text), text


@pytest.mark.slow
def test_xz_does_not_beat_the_floor() -> None:
    size, floor, pieces = 0, 0.0, []
    for number in itertools.count():
        story = tell(0, number)
        pieces.append(story.text)
        size, floor = size + len(story.text), floor - story.log2_probability / 8
        if size >= 5_000_000:
            break
    assert len(lzma.compress("".join(pieces).encode())) > 2 * floor


# ---- the data set


def fables(tmp_path: Path, *words: str) -> Config:
    """A tiny recipe on 60 stories."""
    chosen = ("data.source=fables", "data.path=null", "data.stories=60", "data.split=null", *words)
    return tiny(tmp_path, "model.vocab_size=300", "train.steps=10", "train.log_every=5", *chosen)


def test_the_manifest_has_the_floor_of_the_texts_that_the_tokens_spell(tmp_path: Path) -> None:
    dataset = prepare(fables(tmp_path, "data.seed=5"))
    end = dataset.tokenizer.eot_id
    for name, file in zip(SPLITS, (dataset.train, dataset.val), strict=True):
        documents: list[list[int]] = [[]]
        for token in all_ids(file):
            documents.append([]) if token == end else documents[-1].append(token)
        told = [dataset.tokenizer.decode(ids) for ids in documents[:-1]]
        split = dataset.manifest["splits"][name]
        assert len(told) == split["documents"] and split["oracle_bits"] == pytest.approx(sum(map(bits, told)))
        assert split["oracle_bits_per_byte"] == pytest.approx(sum(map(bits, told)) / sum(map(len, told)))
    assert dataset.oracle_bits_per_byte == dataset.manifest["splits"]["val"]["oracle_bits_per_byte"]
    assert "fables" in dataset.describe() and dataset.manifest["source"]["facts"] == {"seed": 5, "stories": 60}


def test_a_source_without_probabilities_has_no_floor(tmp_path: Path) -> None:
    dataset = prepare(tiny(tmp_path))
    assert dataset.oracle_bits_per_byte is None
    assert not any("oracle" in key for split in dataset.manifest["splits"].values() for key in split)


def test_another_seed_is_other_stories_and_a_longer_corpus_begins_alike() -> None:
    def read(**keys: int) -> list[str]:
        return texts(open_source(DataConfig(source="fables", **keys)))  # type: ignore[arg-type]

    assert read(stories=30) == read(stories=40)[:30] and not set(read(stories=30)) & set(read(stories=30, seed=1))
    found = scan(open_source(DataConfig(source="fables", stories=30)))
    assert (-found.log2_probabilities).tolist() == pytest.approx(list(map(bits, read(stories=30))))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["data.source=fables", "data.split=position"], "source=fables is split by document only"),
        (["data.source=fables", "data.path=x"], "source=fables reads no data.path"),
        (["data.source=fables", "data.stories=1"], "stories=1 leaves none to validate; use 2 or more"),
        (["data.source=fables", "data.stories=0"], "greater than or equal to 1"),
        (["data.stories=7"], "stories=7 needs data.source=fables, not stdlib"),
        (["data.seed=7"], "seed=7 needs data.source=fables, not stdlib"),
        (["data.source=text", "data.path=x", "data.seed=7"], "seed=7 needs data.source=fables, not text"),
    ],
)
def test_keys_that_do_not_go_with_the_source_are_refused(words: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        load_config("base", words)
    assert "\n" not in str(caught.value)


# ---- what a run says


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Train a tiny model on fables, stop, go on to the double: evaluations at steps 10 and 20."""
    path = tmp_path_factory.mktemp("fables")
    run(fables(path), path / "run")
    return path / "run", run(fables(path, "train.steps=20"), path / "run")


def test_every_evaluation_states_the_floor_and_the_excess(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    _, records = recorded
    evaluations = [record for record in comparable(records) if record["kind"] == "eval"]
    assert [record["step"] for record in evaluations] == [10, 20]
    for record in evaluations:
        assert record["excess_bits_per_byte"] == record["bits_per_byte"] - record["oracle_bits_per_byte"] > 0
        assert 0.2 < record["oracle_bits_per_byte"] < 0.3
    assert Validation(1.0, 0.5, 9, None).figures() == {"loss": 1.0, "bits_per_byte": 0.5}  # no floor, no word of it


def test_tensorboard_has_one_chart_of_the_curve_and_its_floor(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

    run_dir, records = recorded
    events = EventAccumulator(str(run_dir))
    events.Reload()
    evaluations = [record for record in records if record["kind"] == "eval"]
    for name in ("bits_per_byte", "oracle_bits_per_byte", "excess_bits_per_byte"):
        shown = [event.value for event in events.Scalars(f"eval/{name}")]
        assert shown == pytest.approx([record[name] for record in evaluations], rel=1e-6)
    assert len({event.value for event in events.Scalars("eval/oracle_bits_per_byte")}) == 1  # a level line
    [event] = events.Tensors("custom_scalars__config__")
    [category] = Layout.FromString(event.tensor_proto.string_val[0]).category
    [chart] = category.chart
    assert list(chart.multiline.tag) == [*metrics.CHART]


def test_the_console_says_in_words_that_a_model_is_below_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(10, 0, StopSignal()) as console:
        for bits_per_byte in (0.375, 0.25, 0.125):
            figures = Validation(1.0, bits_per_byte, 9, 0.25).figures()
            console.report(5, [{"kind": "eval", **figures}])
        console.report(6, [{"kind": "eval", **Validation(1.0, 0.125, 9).figures()}])
    above, at, below, without = capsys.readouterr().out.splitlines()
    assert "bits/byte 0.3750  floor 0.2500  excess +0.1250" in above and "excess +0.0000" in at
    assert "excess -0.1250  BELOW THE FLOOR: does it see the answer?" in below
    assert not any("BELOW" in line for line in (above, at, without)) and "floor" not in without


def see_all(query: torch.Tensor, key: torch.Tensor, window: int = 0, stride: int = 0) -> torch.Tensor:
    return (key <= query) | True


def test_preflight_is_left_out_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (masks, attention):
        monkeypatch.setattr(module, "rule", see_all)
    words = ("train.steps=1", "train.sample_every=0", "data.stories=20")
    with pytest.raises(Exception, match="preflight"):
        run(fables(tmp_path, *words), tmp_path / "refused")
    records = run(fables(tmp_path, *words, "train.preflight=false"), tmp_path / "trained")
    assert records[-1]["kind"] == "run_end" and not any(record["kind"] == "audit" for record in records)
