"""scripts/audit.py tests a run, a recipe, anyone's module or a Hugging Face directory, and fails where a claim does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from octlm.checkpoint import Checkpoint
from octlm.data import Dataset
from octlm.model import Decoder, KVCache, attention, masks
from octlm.model.decoder import Block
from scripts import audit
from tests.runs import run, tiny

ROOT = Path(__file__).parent.parent
FACTORIES = """
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self, leak):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.leak = nn.Embedding(23, 16), nn.Linear(16, 23), leak
        self.reader = nn.GRU(16, 16, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.reader(x)[0]
        return self.head(x + self.leak * x.mean(1, keepdim=True))

clean, leaky = lambda: Reader(0.0), lambda: Reader(0.1)
small = Reader(0.0)

def broken():
    raise KeyError("no weights")

number = lambda: 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "foreign_readers.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "foreign_readers", raising=False)
    return tmp_path


def table(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Run the script and give its exit code and its findings by name."""
    code = audit.main([*words, "--json"])
    return code, {record["audit"]: record for record in json.loads(capsys.readouterr().out)}


def test_a_run_keeps_every_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tiny(tmp_path, "train.steps=5"), tmp_path / "run")
    capsys.readouterr()
    code, found = table(capsys, "--run", str(tmp_path / "run"))
    named = ["causality as trained", "causality", "masks", "cache", "parity of naive and sdpa", "health",
             "targets", "resume"]  # fmt: skip
    assert code == 0 and list(found) == named, found
    assert found["causality"]["cases"] > 100


def test_a_leak_in_the_mask_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = masks.rule
    monkeypatch.setattr(masks, "rule", lambda query, key, window=0, stride=0: right(query + 1, key, window, stride))
    words = ("model.vocab_size=31", "model.context_length=16", "train.tokens_per_step=512")
    only = ("--only", "causality", "--only", "cache")
    code, found = table(capsys, "--config", "day1", *words, *only)
    assert code == 1 and not any(record["ok"] for record in found.values())
    where = found["causality"]["where"]
    assert where.startswith("suffix: layers.0.attention.attend.weights: logits["), where


def broken_masks(patch: pytest.MonkeyPatch) -> None:
    right = masks.rule
    patch.setattr(masks, "rule", lambda query, key, window=0, stride=0: right(query, key, window, stride) & (key != 1))


def broken_fused(patch: pytest.MonkeyPatch) -> None:
    right = attention.F.scaled_dot_product_attention
    patch.setattr(attention.F, "scaled_dot_product_attention", lambda *a, **k: right(*a, **k) * 1.01)


def broken_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decoder, "new_cache", lambda self, *sizes: KVCache(self.config, *sizes, dtype=torch.bfloat16))


def broken_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Block, "residual_writers", lambda self: (self.attention.v_proj, self.mlp.down_proj))


def broken_targets(patch: pytest.MonkeyPatch) -> None:
    right = Dataset.batch
    patch.setattr(Dataset, "batch", lambda *a: right(*a)._replace(targets=right(*a).ids))


def broken_resume(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoint, "load_optimizer", lambda *_: None)


@pytest.mark.parametrize(
    ("name", "fault", "place"),
    [("masks", broken_masks, "logits[2] and token 1"), ("parity of naive and sdpa", broken_fused, "element"),
     ("cache", broken_cache, ""), ("health", broken_start, "o_proj x 2"), ("targets", broken_targets, "not shifted"),
     ("resume", broken_resume, "losses[")],
)  # fmt: skip
def test_each_claim_of_a_run_can_fail(
    name: str, fault: Any, place: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny(tmp_path, "model.dim=64").to_yaml())
    assert table(capsys, "--config", str(path), "--only", name)[0] == 0
    fault(monkeypatch)
    code, found = table(capsys, "--config", str(path), "--only", name)
    assert code == 1 and place in found[name]["where"], found


def test_anyones_module_is_audited_by_its_name(factories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = table(capsys, "--model", "foreign_readers:clean", "--only", "causality")
    assert code == 0 and found["causality"]["ok"]
    code, found = table(capsys, "--model", "foreign_readers:leaky", "--length", "9")
    assert code == 1 and "suffix: head: " in found["causality"]["where"]
    assert table(capsys, "--model", "foreign_readers:small", "--only", "health")[0] == 0
    assert audit.main(["--model", "foreign_readers:leaky"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAILED  causality") and lines[1].strip().startswith("suffix: head")


def test_what_someone_prints_is_no_json_and_what_is_gone_fails_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factories: Path
) -> None:
    (factories / "foreign_readers.py").write_text(
        "print('hello')\n" + FACTORIES + "\ndef leave(): raise SystemExit(7)\n"
    )
    assert table(capsys, "--model", "foreign_readers:clean", "--only", "health")[0] == 0
    with pytest.raises(ValueError, match="SystemExit: 7"):
        audit.main(["--model", "foreign_readers:leave"])
    run(tiny(tmp_path, "train.steps=2"), tmp_path / "run")
    (tmp_path / "text.txt").unlink()
    capsys.readouterr()
    code, found = table(capsys, "--run", str(tmp_path / "run"), "--only", "masks", "--only", "targets")
    assert code == 1 and found["masks"]["ok"] and "not judged: data.path" in found["targets"]["where"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "foreign_readers"], "write package.module:factory"),
        (["--model", "nowhere:made"], "No module named 'nowhere'"),
        (["--model", "foreign_readers:made"], "made"),
        (["--model", "foreign_readers:broken"], "KeyError: 'no weights'"),
        (["--model", "foreign_readers:number"], "int"),
        (["--model", "foreign_readers:clean", "--only", "floor"], "there are causality, health"),
        (["--model", "foreign_readers:clean", "model.dim=3"], "key=value belongs to --config"),
        (["--model", "foreign_readers:clean", "--length", "0"], "--length 0: must be at least 2"),
        (["--hf", "nowhere"], "no config.json"),
        (["--run", "nowhere"], "nowhere"),
        (["--config", "day1", "--length", "129"], "1024 ids and 128 tokens"),
        (["--config", "day1", "--vocab-size", "5"], "1024 ids and 128 tokens"),
        (["--config", "day0"], "day0"),
    ],
)
def test_what_cannot_be_audited_is_refused(factories: Path, words: list[str], message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        audit.main(words)


def test_a_hugging_face_directory_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    code, found = table(capsys, "--hf", str(tmp_path / "gpt2"))
    assert code == 0 and list(found) == ["causality", "cache"], found
    path = tmp_path / "gpt2" / "config.json"
    path.write_text(path.read_text().replace('"n_layer": 2', '"n_layer": 3'))
    with pytest.raises(ValueError, match=r"no weights for transformer\.h\.2"):
        audit.main(["--hf", str(tmp_path / "gpt2")])
    path.write_text('{"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}')
    (tmp_path / "gpt2" / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="--hf"):
        audit.main(["--hf", str(tmp_path / "gpt2")])
    assert not (tmp_path / "ran").exists()


def test_the_command_exits_with_the_verdict(factories: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        script = [sys.executable, str(ROOT / "scripts" / "audit.py"), *words]
        return subprocess.run(script, cwd=factories, capture_output=True, text=True, timeout=120)

    assert command("--model", "foreign_readers:leaky", "--only", "causality").returncode == 1
    refused = command("--model", "foreign_readers:broken")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and not refused.stdout
