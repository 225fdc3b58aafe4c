"""generate.py prints the text that was made and nothing else, or says in one line what is wrong."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import generate
from octlm import checkpoint
from octlm.config import SampleConfig
from octlm.model import Decoder
from octlm.tokenizer import Tokenizer
from tests import generation
from tests.generation import ROOT, Call, json_lines, refused

call, run_dir, byte_tokenizer = generation.call, generation.run_dir, generation.byte_tokenizer  # its fixtures


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer) -> Callable[..., None]:
    """Replace the run by a model that says what it is told after a prompt of one token; EOT stands for |."""

    def install(*texts: str | bytes, context_length: int = 64, exhausted: str = "eot") -> None:
        sample = SampleConfig(max_new_tokens=20, temperature=0.0, top_k=0)
        config = SimpleNamespace(model=SimpleNamespace(context_length=context_length), sample=sample)
        model = Scripted([said(byte_tokenizer, text) for text in texts], byte_tokenizer.size, context_length)
        model.exhausted = {"eot": byte_tokenizer.eot_id, "nan": None, "interrupt": -1}[exhausted]
        loaded = SimpleNamespace(model=model, tokenizer=byte_tokenizer, config=config, step=1)
        monkeypatch.setattr(checkpoint, "load_run", lambda path, which: loaded)

    return install


def said(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    of_byte = {tokenizer.decode_bytes([i]): i for i in range(tokenizer.size) if i != tokenizer.eot_id}
    raw = text.encode() if isinstance(text, str) else text
    return [tokenizer.eot_id if byte == ord("|") else of_byte[bytes([byte])] for byte in raw]


class Scripted(nn.Module):
    """Say the next script at each new cache; the ids that follow a prompt of one token are the script's."""

    def __init__(self, scripts: list[list[int]], size: int, context_length: int) -> None:
        super().__init__()
        self.scripts, self.size, self.started = scripts, size, 0
        self.exhausted: int | None = None
        self.config = SimpleNamespace(vocab_size=size, context_length=context_length)

    def new_cache(self, batch_size: int, max_length: int) -> SimpleNamespace:
        self.started += 1
        return SimpleNamespace(length=0, script=self.scripts[(self.started - 1) % len(self.scripts)])

    def forward(self, ids: Tensor, cache: Any) -> Tensor:
        logits = torch.zeros(*ids.shape, self.size)
        nexts = dict(enumerate(cache.script)).get(cache.length, self.exhausted)
        if nexts == -1:
            raise KeyboardInterrupt
        logits[..., -1, 0 if nexts is None else nexts] = float("nan") if nexts is None else 9.0
        cache.length += ids.shape[1]
        return logits


# what is printed


def test_text_streams_as_it_is_made_and_ends_with_a_newline(
    scripted: Callable[..., None], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted("one\ntwo")
    written: list[str] = []
    monkeypatch.setattr(generate, "_write", written.append)
    assert call("--run", "x", "--prompt", "p").code == 0
    assert written == [*"one\ntwo", "\n"]
    scripted("line\n")
    written.clear()
    call("--run", "x", "--prompt", "p")
    assert "".join(written) == "line\n"


def test_a_token_is_out_before_the_next_is_made(scripted: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    out: list[bytes] = []
    forward = Scripted.forward

    def watched(*arguments: Any) -> Tensor:
        out.append(raw.getvalue())
        return forward(*arguments)

    scripted("abc")
    monkeypatch.setattr(Scripted, "forward", watched)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(raw)))  # type: ignore[arg-type]
    generate.main(["--run", "x", "--prompt", "p"])
    assert out == [b"", b"a", b"ab", b"abc"]


def test_characters_are_never_printed_in_halves(
    scripted: Callable[..., None], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted("é😀")
    written: list[str] = []
    monkeypatch.setattr(generate, "_write", written.append)
    call("--run", "x", "--prompt", "p")
    assert written == ["é", "😀", "\n"]


def test_text_that_ends_within_a_character_is_still_utf_8(scripted: Callable[..., None], call: Call) -> None:
    scripted("a😀".encode()[:-1])
    result = call("--run", "x", "--prompt", "p")
    assert result.code == 0
    assert result.out.decode("utf-8") == "a\ufffd\n"


def test_c8_end_of_text_ends_a_sample_unless_ignored(scripted: Callable[..., None], call: Call) -> None:
    scripted("abc|defghijklmnopqrstuvwxyz")
    assert call("--run", "x", "--prompt", "p").out == b"abc\n"
    (sample,) = json_lines(call("--run", "x", "--prompt", "p", "--json"))
    assert (sample["text"], sample["finish_reason"], len(sample["ids"])) == ("abc", "stop", 3)
    (sample,) = json_lines(call("--run", "x", "--prompt", "p", "--json", "--ignore-eot"))
    assert (sample["text"], sample["finish_reason"], len(sample["ids"])) == (
        "abcdefghijklmnopqrs",
        "length",
        20,
    )


def test_c9_text_held_back_is_printed_whatever_ends_the_sample(scripted: Callable[..., None], call: Call) -> None:
    for script, options in (("abX|", ()), ("abXZ", ("--max-new-tokens", "3"))):
        scripted(script)
        assert call("--run", "x", "--prompt", "p", "--stop", "XY", *options).out == b"abX\n"
        (sample,) = json_lines(call("--run", "x", "--prompt", "p", "--stop", "XY", "--json", *options))
        assert sample["text"] == "abX"
    scripted("abX", context_length=4)
    (sample,) = json_lines(call("--run", "x", "--prompt", "p", "--stop", "XY", "--json"))
    assert (sample["text"], sample["finish_reason"]) == ("abX", "context")
    scripted("abX", exhausted="nan")
    result = call("--run", "x", "--prompt", "p", "--stop", "XY")
    assert (result.code, result.out) == (1, b"abX\n")
    assert result.err == "generate.py: error: non-finite logits at step 4, row 0\n"
    scripted("abX", exhausted="interrupt")
    result = call("--run", "x", "--prompt", "p", "--stop", "XY")
    assert (result.code, result.out, result.err) == (130, b"abX\n", "")


def test_stop_strings_span_tokens_and_end_the_sample(scripted: Callable[..., None], call: Call) -> None:
    scripted("héllo, wörld. and more")
    for stops, text, made in (
        (["."], "héllo, wörld", 15),
        (["o, w"], "héll", 9),
        (["ö"], "héllo, w", 11),
        (["zzz", "rld", "llo"], "hé", 6),
        (["<|endoftext|>"], "héllo, wörld. and ", 20),
    ):
        flags = [flag for stop in stops for flag in ("--stop", stop)]
        (sample,) = json_lines(call("--run", "x", "--prompt", "p", "--json", *flags))
        assert sample["text"] == text
        assert len(sample["ids"]) == made
        assert sample["finish_reason"] == ("length" if stops[0].startswith("<|") else "stop")
        assert call("--run", "x", "--prompt", "p", *flags).out == f"{text}\n".encode()
    refused(call("--run", "x", "--prompt", "p", "--stop", ""), "--stop")


def test_several_samples_differ_and_stand_under_separators(run_dir: Path, call: Call) -> None:
    options = ("--run", run_dir, "--temperature", 1, "--top-k", 0, "--top-p", 1, "--ignore-eot")
    samples = json_lines(call(*options, "--num-samples", 3, "--json"))
    assert len({sample["text"] for sample in samples}) == 3
    two = json_lines(call(*options, "--num-samples", 2, "--json"))
    assert [sample["ids"] for sample in two] == [sample["ids"] for sample in samples[:2]]
    assert json_lines(call(*options, "--json", "--seed", 1))[0]["ids"] != samples[0]["ids"]
    expected = "".join(
        f"--- sample {i} of 3\n{sample['text']}\n".replace("\n\n", "\n") for i, sample in enumerate(samples, start=1)
    )
    assert call(*options, "--num-samples", 3).out.decode("utf-8").replace("\n\n", "\n") == expected


def test_json_is_one_ascii_object_a_line_and_nothing_else(run_dir: Path, call: Call) -> None:
    result = call("--run", run_dir, "--prompt", "é\n", "--json", "--num-samples", 2, "--temperature", "inf")
    samples = json_lines(result)
    assert len(samples) == 2 and result.err == ""
    for sample in samples:
        assert set(sample) == {"text", "ids", "finish_reason", "prompt_tokens", "tokens_per_second"}
        assert sample["prompt_tokens"] == 3
        assert sample["tokens_per_second"] > 0
        assert max(sample["ids"]) < 257
    (sample,) = json_lines(call("--run", run_dir, "--json", "--max-new-tokens", 0))
    assert (sample["text"], sample["ids"], sample["finish_reason"]) == ("", [], "length")
    assert sample["tokens_per_second"] == 0


def test_no_cache_gives_the_same_text(run_dir: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (("--temperature", 0), ("--temperature", 1, "--top-k", 40, "--repetition-penalty", 1.3)):
        common = ("--run", run_dir, "--prompt", "abc", "--max-new-tokens", 40, "--num-samples", 2, *options)
        cached = call(*common)
        with monkeypatch.context() as patch:
            patch.delattr(Decoder, "new_cache")
            assert call(*common, "--no-cache") == cached
        assert cached.code == 0


def test_defaults_are_the_runs_own_sample_settings(run_dir: Path, call: Call) -> None:
    own = call("--run", run_dir, "--json", "--ignore-eot")
    said = ("--prompt", "def ", "--max-new-tokens", 12, "--temperature", 0.5, "--top-k", 5, "--top-p", 0.9)
    assert json_lines(own)[0]["ids"] == json_lines(call("--run", run_dir, "--json", "--ignore-eot", *said))[0]["ids"]
    assert len(json_lines(own)[0]["ids"]) == 12


def test_c1_top_k_beyond_the_vocabulary_is_off(run_dir: Path, call: Call) -> None:
    off = call("--run", run_dir, "--top-k", 0)
    assert off.code == 0
    for k in (260, 261, 10**6):
        assert call("--run", run_dir, "--top-k", k) == off


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_c4_a_poisoned_weight_ends_in_one_line(
    poison: float, run_dir: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = checkpoint.load_run(run_dir)
    loaded.model.layers[1].mlp.down_proj.weight.data[0, 0] = poison
    monkeypatch.setattr(checkpoint, "load_run", lambda path, which: loaded)
    for options in ((), ("--no-cache",), ("--top-k", 1), ("--temperature", 0), ("--temperature", 2, "--top-p", 0.5)):
        for more in ((), ("--json",), ("--num-samples", 2)):
            result = call("--run", run_dir, *options, *more)
            assert result.code == 1
            assert result.err == "generate.py: error: non-finite logits at step 1, row 0\n"


def test_which_chooses_the_checkpoint(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_run(path: str, which: str) -> None:
        asked.append((path, which))
        raise ValueError("enough")

    monkeypatch.setattr(checkpoint, "load_run", load_run)
    call("--run", "r")
    call("--run", "r", "--which", "latest")
    assert asked == [("r", "best"), ("r", "latest")]


# refusals


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--run"),
        (["--top-k", "-1"], "top_k"),
        (["--top-k", "1.5"], "--top-k"),
        (["--top-p", "0"], "top_p"),
        (["--top-p", "nan"], "top_p"),
        (["--min-p", "2"], "min_p"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--temperature", "hot"], "--temperature"),
        (["--repetition-penalty", "0"], "repetition_penalty"),
        (["--max-new-tokens", "-1"], "max_new_tokens"),
        (["--seed", "-1"], "seed"),
        (["--seed", "x"], "--seed"),
        (["--num-samples", "0"], "--num-samples"),
        (["--num-samples", "2", "--temperature", "-1"], "temperature"),
        (["--which", "worst"], "--which"),
        (["--prompt", "a", "-"], "--prompt"),
        (["--prompt", "a", "--prompt-file", "b"], "--prompt"),
        (["--prompt-file", "no/such/file"], "no/such/file"),
        (["--prompt-file", "."], "."),
        (["--temp", "1"], "--temp"),
        (["more"], "'more'"),
        (["--promt", "x"], "--promt"),
        (["--prompt", "\ud800"], "--prompt"),
    ],
    ids=str,
)
def test_refusals_are_one_line_and_exit_2(flags: list[str], words: str, run_dir: Path, call: Call) -> None:
    refused(call(*(["--run", run_dir] if flags else []), *flags), words)


def test_a_run_that_is_not_there_is_named(tmp_path: Path, call: Call) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        refused(call("--run", path), str(path))


def test_a_closed_standard_input_is_said(run_dir: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(io, "TextIOWrapper", lambda stream: None)
        refused(call("--run", run_dir, "-"), "standard input")


# the real thing


def environment(**settings: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **settings}


def test_a_c_locale_gets_utf_8_in_and_out(run_dir: Path) -> None:
    arguments = ["--run", str(run_dir), "--temperature", "inf", "--max-new-tokens", "40", "--prompt", "é😀"]
    result = subprocess.run(
        [sys.executable, "generate.py", *arguments],
        cwd=ROOT,
        env=environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
        capture_output=True,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert not result.stdout.isascii()
    result.stdout.decode("utf-8")


def test_a_reader_that_leaves_is_no_error(run_dir: Path) -> None:
    arguments = ["--run", str(run_dir), "--num-samples", "300", "--max-new-tokens", "40"]
    with subprocess.Popen(
        [sys.executable, "generate.py", *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"--- sample 1 of 300\n"  # at once, long before the last is made
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=60)


def test_help_loads_no_torch() -> None:
    code = "import sys, generate\ntry: generate.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "--repetition-penalty" in result.stdout and result.stderr == ""
