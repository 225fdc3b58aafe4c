"""Which text has a loss that is known before any training? Fables from a grammar, each told with its probability.

A rule is a tuple of options, one drawn evenly; an option is text with slots. A slot `{rule}` or `{rule:label}` draws
when the story comes to it first, and says the same again wherever it returns: a name, a thing or a place ties the end
of a story to its beginning, and only attention can read it back. Forms of one option stand behind slashes: `{hero.1}`
is the second form of what `{hero}` drew.

No two derivations give one text, so the probability of a text is that of its draws, and -log2 of it over the bytes is
the floor: the mean loss, in bits per byte, that no model beats (Shannon 1948). Story n of a seed is a function of
both, and of no other story: the corpus has no end and needs no memory.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from octlm.config import DataConfig
from octlm.corpus.document import Document, Source

Grammar = Mapping[str, Sequence[str]]  # rule -> options
Choose = Callable[[Sequence[str]], str]

SLOT = re.compile(r"\{((\w+)(?::\w+)?)(?:\.(\d))?\}")  # what is remembered, its rule, its form


class Story(NamedTuple):
    """One document, and the logarithm of how likely the grammar tells it."""

    text: str
    log2_probability: float


def words(text: str) -> tuple[str, ...]:
    """Give the options of a rule that has single words."""
    return tuple(text.split())


# Every word that follows "a" starts with a consonant; the heroes and the others share neither names nor kinds.
FABLES: Grammar = {
    "story": ("{opening} {find} {plea} {plot}\n",),
    "opening": (
        "One {weather} {season} {hour}, a {trait} {small} named {hero} {went} {softly} to the {size} {hue} {place}.",
    ),
    "find": ("Under a {hue:cover} {cover}, {hero.1} found a {size:thing} {hue:thing} {thing}.",),
    "plea": (
        'Soon a {trait:big} {big} named {other} {went:big} by. "Lend me the {thing}," said {other} {softly:plea}, '
        '"for my {kin} is {trait:kin}."',
    ),
    "plot": (
        "{gave} {danger} {helped} Moral: {gave_helped}",
        "{gave} {danger} {left} Moral: {gave_left}",
        "{kept} {danger} {helped} Moral: {kept_helped}",
        "{kept} {danger} {left} Moral: {kept_left}",
        "{lied} {danger} {helped} Moral: {lied_helped}",
        "{lied} {danger} {left} Moral: {lied_left}",
        "{sold} {danger} {helped} Moral: {sold_helped}",
        "{sold} {danger} {left} Moral: {sold_left}",
    ),
    "gave": ("{hero} {nodded} {softly:deed} and gave the {thing} away.",),
    "kept": ("But {hero} {nodded} {softly:deed} and kept the {thing}.",),
    "lied": ("But {hero} {nodded} {softly:deed} and swore that the {thing} was lost.",),
    "sold": ("So {hero} {nodded} {softly:deed} and sold the {thing} for {number} {hue:price} {food}.",),
    "danger": (
        "In {season.1}, a {wild} {storm} swept the {place}, and {hero} fell into a {size:pit} {hue:pit} {pit}.",
    ),
    "helped": (
        "{other} heard, {went:end} {softly:end} back and freed the {small} with a {size:rope} {hue:rope} {rope}. "
        "Together they ate {number:feast} {hue:feast} {food:feast} by the {place}.",
    ),
    "left": (
        "{other} heard, but the {big} {nodded:end} {softly:end} and {went:end} home. "
        "{hero} lay there {number:end} days, {wet} and alone, and missed the {size:thing} {hue:thing} {thing}.",
    ),
    "gave_helped": ("kindness returns to the kind.", "a gift is never lost."),
    "gave_left": ("not every gift is remembered.", "a gift does not buy a friend."),
    "kept_helped": ("a good heart bears no grudge.", "the noble forgive the mean."),
    "kept_left": ("a closed hand finds no help.", "who shares nothing is left alone."),
    "lied_helped": ("mercy shames the liar.", "goodness is the best answer to a lie."),
    "lied_left": ("nobody trusts a liar.", "a lie wins no friend."),
    "sold_helped": ("a fair trade makes good friends.", "honest trade is remembered."),
    "sold_left": ("a bargain is not a friendship.", "who is paid owes nothing more."),
    "weather": words("misty windy rainy quiet cloudy cold warm mild stormy calm damp fresh breezy foggy gentle lovely"),
    "season": ("spring/summer", "summer/autumn", "autumn/winter", "winter/spring"),
    "hour": words("morning evening afternoon night day dawn noon dusk"),
    "trait": words(
        "patient clever proud lazy gentle greedy merry shy brave vain humble curious weary hungry cheerful stubborn "
        "lonely poor sleepy thirsty foolish wise quiet bold kind grumpy gloomy timid nervous busy hopeful restless"
    ),
    "small": words(
        "hare mouse wren tortoise hedgehog sparrow cricket lamb frog ant squirrel mole duckling robin beetle kitten"
    ),
    "big": words("fox wolf crow bear badger heron goat stork owl raven otter lynx boar stag magpie donkey"),
    "hero": words(
        "Hazel/she Clover/she Daisy/she Juniper/she Poppy/she Tansy/she Nell/she Ivy/she "
        "Pip/he Jasper/he Rowan/he Toby/he Milo/he Felix/he Barley/he Finn/he"
    ),
    "other": words("Greta Vera Maud Sabina Hilda Petra Agnes Flora Bruno Otto Rufus Magnus Silas Boris Hugo Conrad"),
    "went": words(
        "walked wandered hurried strolled crept ran marched skipped trotted hobbled stumbled rambled rushed limped "
        "came raced"
    ),
    "softly": words(
        "softly sweetly boldly sadly gladly gently calmly warmly proudly gravely nobly humbly bravely merrily quietly "
        "shyly"
    ),
    "size": words(
        "little tiny large narrow broken crooked hidden lovely strange plain dusty mossy secret famous forgotten rusty"
    ),
    "hue": words("red green blue white black brown grey golden silver yellow purple pink pale dark bright copper"),
    "place": words(
        "mill river orchard bridge meadow well barn garden hill pond forest lake valley harbour tower market"
    ),
    "cover": words("stone leaf bush log fern root hedge plank"),
    "thing": words("bell ring key lamp comb cup pearl flute mirror coin drum lantern whistle spoon feather crown"),
    "kin": words("mother father sister brother daughter son cousin uncle"),
    "nodded": words("nodded smiled bowed sighed laughed blinked winked shrugged"),
    "number": words("two three four five six seven eight nine"),
    "food": words("pears plums nuts carrots cakes pies figs apples"),
    "wild": words("wild sudden fierce bitter dreadful mighty cruel terrible"),
    "storm": words("storm flood gale wind fog shower tempest squall"),
    "pit": words("pit ditch hole pool swamp trap cellar cave"),
    "rope": words("rope pole ladder vine chain rake stick branch"),
    "wet": words("wet cold sore muddy tired stiff bruised dizzy"),
}


def compose(choose: Choose, grammar: Grammar) -> str:
    """Tell one story; `choose` draws one of a rule's options, and sees every draw in the order of the text."""
    drawn: dict[str, str] = {}

    def fill(slot: re.Match[str]) -> str:
        key, rule, form = slot.groups()
        option = drawn.get(key)
        if option is None:
            option = drawn[key] = choose(grammar[rule])
        if "{" in option:
            return SLOT.sub(fill, option)
        return option.split("/")[int(form or 0)]

    return SLOT.sub(fill, "{story}")


def tell(seed: int, number: int, grammar: Grammar = FABLES) -> Story:
    """Tell story `number` of a seed.

    The draws use raw bits, with rejection: even to the last bit, and the same in every version of Python.
    """
    bits = random.Random(f"{seed}/{number}").getrandbits
    ways = 1  # the story is one of so many that are equally likely

    def choose(options: Sequence[str]) -> str:
        nonlocal ways
        n = len(options)
        ways *= n
        width = (n - 1).bit_length()
        while (index := bits(width)) >= n:
            pass
        return options[index]

    return Story(compose(choose, grammar), -math.log2(ways))


def open_fables(data: DataConfig) -> Source:
    """Return the first `data.stories` stories of `data.seed`."""
    story = lru_cache(maxsize=1)(lambda number: tell(data.seed, number))  # read, then asked for its probability

    def documents() -> Iterator[Document]:
        return (iter((story(number).text,)) for number in range(data.stories))

    facts = {"seed": data.seed, "stories": data.stories}
    where = f"data.stories={data.stories}"
    return Source("fables", "MIT", documents, where, facts, lambda number: story(number).log2_probability)
