"""Which faults of other people's language-model code are tested here, where, and with what result?

    python -m tests.faults          # write tests/FAULTS.md anew

The faults come from public reports on training, sampling, checkpointing and exporting small language models. A test
belongs to a fault if its name says so: `test_d5_...`, or `test_h1_h5_...` for two. The tests are found in the sources,
nothing is imported or run. tests/test_faults.py holds that the table is up to date and that no fault lacks a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
TABLE = TESTS / "FAULTS.md"
NAME = re.compile(r"test_((?:[a-j][0-9]+_)+)")
GROUPS = {
    "a": "Masks: who sees whom", "b": "The cache and positions", "c": "Sampling", "d": "Training", "e": "Checkpoints",
    "f": "Tokenizers and data preparation", "g": "Several processes", "h": "Export and import",
    "i": "Configuration and command lines", "j": "Records and resources",
}  # fmt: skip
CLAIMS = {
    "a1": "A masked key has exactly no weight, however large the scores are.",
    "a2": "All attention backends give the same logits, at every length, with padding, grouped heads and a cache.",
    "a3": "Positions and documents have one documented meaning, and nothing takes a mask of the opposite polarity.",
    "a4": "A row that is all padding has finite outputs, losses and gradients.",
    "a5": "What lies in unused slots of a cache, NaN included, changes nothing.",
    "a6": "A window of W tokens counts the current one, in the prompt and in decoding alike.",
    "a7": "A packed document gives the logits that it gives alone.",
    "a8": "With isolated documents, no token is trained to predict the next document's first one from this document.",
    "a9": "Query head h reads key-value head h // (heads per key-value head).",
    "b1": "Decoding with the cache gives the logits of the full pass: to rounding in fp32, to a stated bound below it.",
    "b2": "Positions are checked against the whole sequence: every prompt length ends cleanly at the context limit.",
    "b3": "A prompt longer than the context keeps its end, says what was cut, and answers as without the cache.",
    "b4": "Appending past a cache's size is refused with both numbers, and changes nothing.",
    "b5": "A cache cut back to its valid length goes on as one that never held more.",
    "b6": "Rows of different lengths in a batch get the text that each gets alone.",
    "b7": "A cache of another dtype than the model's is converted, not reinterpreted.",
    "b8": "A compiled model decodes the same tokens, with a bounded number of compilations.",
    "b9": "Rotary angles are exact in a model of bfloat16.",
    "b10": "There is no rotary scaling that changes at a length: unknown keys are refused by name.",
    "b11": "No prompt length is special, one that fills the context included.",
    "c1": "A top-k beyond the vocabulary is the whole of it.",
    "c2": "Top-k 0 is off, a negative one is refused, and ties leave exactly k ids.",
    "c3": "The filters are renormalised in a documented order: top-k 1 is argmax beside any other setting.",
    "c4": "Logits that are not finite end the run with the step and the row, in greedy decoding, too.",
    "c5": "An id of probability zero is never drawn, whatever number the generator gives.",
    "c6": "The repetition penalty makes positive and negative logits less likely, once for each id.",
    "c7": "Every row of a batch ends at its own stop id, and the loop when all have ended.",
    "c8": "Text ends at the end-of-text token unless that is ignored, and the reason is told.",
    "c9": "Text held back for a stop string is printed, whatever ends the sample.",
    "d1": "A step that is not a whole number of micro-batches is refused before it begins, with the numbers.",
    "d2": "The first learning rate is above zero, the peak is reached once, and the minimum exactly.",
    "d3": "Degenerate warm-ups and lengths give finite rates or a refusal.",
    "d4": "The learning rate is a function of the step: a resume in the warm-up changes none.",
    "d5": "Weight decay scales matrices and leaves norms and biases as they are.",
    "d6": "A tied head stays tied through initialisation, casts, training, saving and loading.",
    "d7": "A padding id that is also the end of text hides no target: padding is known by its position.",
    "d8": "A micro-batch without targets contributes nothing, and no NaN.",
    "d9": "Gradients are clipped and logged unscaled.",
    "d10": "Gradients are clipped once a step: accumulation equals one large batch.",
    "d11": "Evaluation and sampling run without dropout, and training goes on with it.",
    "d12": "A run resumed any number of times ends as the uninterrupted one.",
    "d13": "Training goes on into the next epoch.",
    "d14": "An id beyond the vocabulary is refused before the first step, with both numbers.",
    "d15": "Targets are shifted once: a cycle is learnt as a cycle.",
    "e1": "Missing and unexpected tensors are fatal and named, and no text is made.",
    "e2": "What a kill left half-written is never resumed from and is removed at the next start, anywhere in the run.",
    "e3": "Files of two steps do not make a checkpoint, though every hash be right.",
    "e4": "A tied tensor is stored once and tied again; any layout is kept; a file cut short is refused in one line.",
    "e5": "A second copy of a tied tensor is refused.",
    "e6": "The newest checkpoints and the best one stay; -1 keeps all, and 0 cannot be asked for.",
    "e7": "Optimizer state is matched by name; another model or configuration is refused with its keys.",
    "e8": "Optimizer moments come back bit for bit, in the precision that they had.",
    "e9": "A checkpoint knows no device: one from an accelerator loads without it.",
    "e10": "A resume refuses another learning rate by name; --init-from takes the weights and nothing else.",
    "f1": "Without a network all but the published tokenizers work, and those say in one line which file to put where.",
    "f2": "Text is UTF-8 with its line ends kept, whatever the locale; a bad byte is named by its offset.",
    "f3": "Text is streamed: memory does not grow with it, and ids do not depend on the chunks.",
    "f4": "A megabyte without a break is encoded in bounded time.",
    "f5": "Threads, forks and concurrent preparations change no byte and hang nothing.",
    "f6": "Ids without a token are never drawn and decode to nothing.",
    "g1": "Tokens per step do not depend on the number of processes; what does not divide is refused with the numbers.",
    "g2": "Processes start from the same weights and share each epoch's rows without overlap, each with its own noise.",
    "g3": "A logged loss is weighted by tokens over all processes.",
    "g4": "One process writes, the others wait, and there is one set of records.",
    "g5": "Nothing needs a GPU or a launcher's variables.",
    "g6": "The gradient norm is that of all parameters, however they are divided.",
    "h1": "An export's flag for a tied head is what the file holds.",
    "h2": "The epsilon of the norms reaches every norm, and is written and read.",
    "h3": "Every tensor is mapped by name and comes back bit for bit; an unknown one is refused.",
    "h4": "An exported tokenizer has a pre-tokenizer that its readers know, or is refused at export.",
    "h5": "Vocabulary, embedding rows and listed tokens agree in every export.",
    "h6": "An exported model knows the end-of-text id in every file that names it.",
    "i1": "A misspelt or misplaced key is refused with the nearest right one, and nothing is written.",
    "i2": "Only true and false are booleans; words mean what YAML 1.2 says.",
    "i3": "Words on the command line are read by the type of their key, null and booleans included.",
    "i4": "A broken recipe is refused in one line with file, line and column.",
    "i5": "Any path survives in a saved configuration, and a relative one starts where it was written.",
    "i6": "Every --help works, at once and without a network.",
    "j1": "No tensor and no graph is kept by the records.",
    "j2": "Reading batches maps no file: memory does not grow with what was read.",
    "j3": "Threads are as many as the cores that the process may use, and the number is printed.",
}


class Check(NamedTuple):
    """A test that names faults, and the reason for which it is expected to fail; "" = it is expected to hold."""

    where: str  # file::name
    ids: tuple[str, ...]
    reason: str
    slow: bool


def found(folder: Path = TESTS) -> Iterator[Check]:
    """Yield the tests of a folder whose names begin with ids, in the order of files and lines."""
    for path in sorted(folder.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # marks that a module gives a name: `not_yet = pytest.mark.xfail(...)`
        marks = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        everywhere = [marks["pytestmark"]] if "pytestmark" in marks else []
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in sorted(functions, key=lambda node: node.lineno):
            if match := NAME.match(node.name):
                own = [marks.get(d.id, d) if isinstance(d, ast.Name) else d for d in node.decorator_list]
                ids = tuple(match[1].strip("_").split("_"))
                whole = [*own, *everywhere]
                slow = any(ast.unparse(mark).startswith("pytest.mark.slow") for mark in whole)
                yield Check(f"{path.name}::{node.name}", ids, reason_of(whole), slow)


def reason_of(marks: list[ast.expr]) -> str:
    """Return the reason of the first xfail among the marks, of single parameters, too."""
    for mark in marks:
        for node in ast.walk(mark):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.xfail"):
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                reason = given.get("reason")
                return str(reason.value) if isinstance(reason, ast.Constant) else "no reason given"
    return ""


def table(tests: list[Check]) -> str:
    """Write the faults, group by group, with their tests and states, as Markdown."""
    held = [i for i in CLAIMS if any(i in test.ids and not test.reason for test in tests)]
    waits = [i for i in CLAIMS if any(i in test.ids and test.reason for test in tests)]
    lines = [
        f"# {len(CLAIMS)} known faults: none of them here",
        "",
        "Each line is a fault that public reports tell of other language-model code, put as what holds here instead,",
        "and the tests that hold it. Made by `python -m tests.faults` from the names of the tests: `make test-all`",
        f"runs them all, `make test` those without *(slow)*. {len(held)} of the {len(CLAIMS)} have a test that holds",
        f"today; {len(waits)} have one that is expected to fail until octlm has what it is about.",
    ]
    group = ""
    for i, claim in CLAIMS.items():
        if i[0] != group:
            group = i[0]
            lines += ["", f"## ({group}) {GROUPS[group]}", "", "| id | claim | test | state |", "|---|---|---|---|"]
        theirs = [test for test in tests if i in test.ids]
        names = "<br>".join(f"`{test.where}`{' *(slow)*' * test.slow}" for test in theirs)
        states = [f"xfail: {test.reason}" if test.reason else "holds" for test in theirs]
        state = states[0] if len(set(states)) == 1 else "<br>".join(states)
        lines.append(f"| {i} | {claim} | {names} | {state} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(list(found())), encoding="utf-8", newline="\n")
