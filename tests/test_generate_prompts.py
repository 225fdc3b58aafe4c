"""Any prompt is gone on from, the end of it where it is too long, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from octlm import checkpoint, sampling
from tests import generation
from tests.generation import CONTEXT, Call, json_lines, refused

call, run_dir, byte_tokenizer = generation.call, generation.run_dir, generation.byte_tokenizer  # its fixtures

HOSTILE: dict[str, tuple[bytes, int | str]] = {
    # name: (bytes, tokens of the prompt | what the refusal says)
    "empty": (b"", 1),
    "one byte": (b"x", 1),
    "newline": (b"\n", 1),
    "blanks": (b"   \t ", 5),
    "crlf": (b"a\r\nb\r\n", 6),
    "lone carriage return": (b"a\rb", 3),
    "nul bytes": (b"\x00a\x00", 3),
    "only nul": (b"\x00" * 7, 7),
    "bom": (b"\xef\xbb\xbfabc", 3),
    "only bom": (b"\xef\xbb\xbf", 1),
    "two boms": (b"\xef\xbb\xbf\xef\xbb\xbf", 3),
    "bom inside": (b"a\xef\xbb\xbf", 4),
    "utf-16": ("hi".encode("utf-16"), "byte 0xff at offset 0"),
    "invalid start byte": (b"ab\xffcd", "byte 0xff at offset 2"),
    "truncated character": ("é".encode()[:1], "byte 0xc3 at offset 0"),
    "encoded surrogate": (b"\xed\xa0\x80", "byte 0xed at offset 0"),
    "overlong": (b"a\xc0\xaf", "byte 0xc0 at offset 1"),
    "after a bom": (b"\xef\xbb\xbf\xff", "byte 0xff at offset 3"),
    "emoji": ("👩‍👩‍👧‍👦".encode(), 25),
    "combining": ("e\u0301\u0323".encode(), 5),
    "right to left": ("שלום\u202eabc".encode(), 14),
    "noncharacter": ("\uffff".encode(), 3),
    "special token": (b"<|endoftext|>", 13),
    "other specials": (b"</s>[INST]<unk>", 15),
    "terminal escapes": (b"\x1b[2J\x07", 5),
    "format string": (b"%s{0}$HOME`id`\\n", 16),
    "quotes": (b"'\"'\"", 4),
    "option": (b"--json", 6),
    "dash": (b"-", 1),
    "full context": (b"x" * CONTEXT, CONTEXT),
    "one too long": (b"x" * (CONTEXT + 1), 36),
    "long line": (b"y" * 10**6, 36),
    "long and wide": ("é".encode() * 10**5, 36),
}


WAYS = ("argument", "file", "standard input")
CASES = [(way, name) for way in WAYS for name in HOSTILE if not (way == "argument" and b"\0" in HOSTILE[name][0])]


@pytest.mark.parametrize(("way", "name"), CASES)
def test_hostile_prompts_are_right_or_refused_in_one_line(
    name: str, way: str, run_dir: Path, call: Call, tmp_path: Path
) -> None:
    data, expected = HOSTILE[name]
    options = ("--run", run_dir, "--json", "--ignore-eot")
    if way == "argument":
        if data.startswith(b"\xef\xbb\xbf") and isinstance(expected, int):
            expected = len(data)  # only a file's first bytes say how it is stored
        result = call(*options, "--prompt=" + data.decode("utf-8", "surrogateescape"))
        origin = "--prompt"
    elif way == "file":
        (tmp_path / "prompt.txt").write_bytes(data)
        result = call(*options, "--prompt-file", tmp_path / "prompt.txt")
        origin = str(tmp_path / "prompt.txt")
    else:
        result = call(*options, "-", stdin=data)
        origin = "standard input"
    if isinstance(expected, str):
        refused(result, origin, "not UTF-8", expected)
        return
    (sample,) = json_lines(result)
    assert sample["prompt_tokens"] == expected
    assert sample["finish_reason"] == ("context" if expected == CONTEXT else "length")
    assert len(sample["ids"]) == min(12, CONTEXT - expected)
    assert result.err.count("\n") == (len(data) >= CONTEXT)  # what was cut, or that there is no room


def test_an_empty_prompt_is_the_start_of_a_document(run_dir: Path, call: Call) -> None:
    trained = checkpoint.load_run(run_dir)
    expected = sampling.generate(
        trained.model, [[trained.tokenizer.eot_id]], max_new_tokens=12, temperature=0.5, top_k=5, top_p=0.9
    )
    options = ("--run", run_dir, "--json", "--ignore-eot", "--prompt", "")
    assert json_lines(call(*options))[0]["ids"] == expected[0]


@pytest.mark.parametrize("extra", [1, CONTEXT, 5000])
def test_b3_a_prompt_beyond_the_context_keeps_its_end_and_says_so(extra: int, run_dir: Path, call: Call) -> None:
    text = "".join(chr(97 + i % 26) for i in range(CONTEXT + extra))
    options = ("--run", run_dir, "--json", "--ignore-eot", "--temperature", 0, "--max-new-tokens")
    long = call(*options, 10, "--prompt", text)
    assert long.err == (
        f"generate.py: the context holds {CONTEXT} tokens: the first {extra + 10} of {CONTEXT + extra} "
        f"prompt tokens were cut, {CONTEXT - 10} kept\n"
    )
    kept = call(*options, 10, "--prompt", text[-(CONTEXT - 10) :])
    assert kept.err == ""
    uncached = call(*options, 10, "--prompt", text, "--no-cache")
    assert json_lines(long)[0]["ids"] == json_lines(kept)[0]["ids"] == json_lines(uncached)[0]["ids"]
    (half,) = json_lines(call(*options, 10**9, "--prompt", text))
    assert (half["prompt_tokens"], half["finish_reason"]) == (CONTEXT // 2, "context")


def test_b2_prompts_around_the_context_limit(run_dir: Path, call: Call) -> None:
    options = ("--run", run_dir, "--json", "--ignore-eot", "--max-new-tokens", 5)
    for length, tokens, reason in (
        (CONTEXT - 1, 1, "context"),
        (CONTEXT, 0, "context"),
        (CONTEXT - 5, 5, "length"),
        (1, 5, "length"),
        (CONTEXT + 1, 5, "length"),  # its end is kept
    ):
        result = call(*options, "--prompt", "x" * length)
        (sample,) = json_lines(result)
        assert (len(sample["ids"]), sample["finish_reason"]) == (tokens, reason)
        assert sample["prompt_tokens"] == (length if length <= CONTEXT else CONTEXT - 5)
        assert json_lines(call(*options, "--prompt", "x" * length, "--no-cache"))[0]["ids"] == sample["ids"]
        assert ("were cut" in result.err) == (length > CONTEXT)
