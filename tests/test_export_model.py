"""The model that the web page runs is octlm's, and what the page's tests are held to is what octlm computes with it."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save_file

from octlm import Decoder, ModelConfig, generate, load_run
from octlm.command import RunFailed
from octlm.tokenizer import build_tokenizer
from scripts.export import main
from scripts.exports.files import about, pack, sha256
from scripts.exports.model import SETTINGS, describe, forward, rebuild_model, weights_of
from tests.runs import run, tiny

ROOT = Path(__file__).parent.parent
DATA, FIXTURES = ROOT / "web" / "public" / "data", ROOT / "web" / "test" / "fixtures"
MODEL, REFERENCE = DATA / "model.safetensors", FIXTURES / "model-reference.safetensors"


def test_the_page_s_model_is_small_and_its_listing_describes_it() -> None:
    blob = MODEL.read_bytes()
    said, listing = about(blob), json.loads((DATA / "model.json").read_text("utf-8"))
    decoder, _ = rebuild_model(blob)
    assert len(blob) <= 2_000_000 and listing["bytes"] == len(blob) and listing["sha256"] == sha256(blob)
    assert sum(p.numel() for p in decoder.parameters()) == listing["parameters"] <= 1_000_000
    assert listing["config"] == said["config"] and listing["run"] == said["run"]
    assert said["run"]["data"] == "fables" and said["run"]["bits_per_byte"] > said["run"]["oracle_bits_per_byte"]
    assert all(tensor.dtype == torch.float16 for tensor in load(blob).values())


def test_what_the_page_is_held_to_is_what_the_decoder_gives() -> None:
    decoder, tokenizer = rebuild_model(MODEL.read_bytes())
    tensors, said = load_file(REFERENCE), about(REFERENCE.read_bytes())
    for n, prompt in enumerate(said["prompts"]):
        ids = tokenizer.encode(prompt)
        assert tensors[f"p{n}.ids"].tolist() == ids and tokenizer.decode(ids) == prompt
        logits, attention = forward(copy.deepcopy(decoder).double(), ids)
        kept = tensors[f"p{n}.logits"]
        assert torch.allclose(logits[-len(kept) :].float(), kept, rtol=0, atol=1e-5)
        assert torch.allclose(torch.stack(attention).float(), tensors[f"p{n}.attention"], rtol=0, atol=1e-6)
        assert generate(decoder, [ids], max_new_tokens=50, temperature=0)[0] == tensors[f"p{n}.greedy"].tolist()
        text = generate(decoder, [ids], max_new_tokens=50, **said["settings"])[0]
        assert said["settings"] == SETTINGS and text == tensors[f"p{n}.sampled"].tolist()
    example = load_file(DATA / "example.safetensors")
    attention = torch.stack(forward(decoder, example["ids"].tolist())[1])
    assert torch.allclose(example["attention"].float(), attention, rtol=0, atol=1e-3)  # float16


def test_the_fixtures_are_what_the_script_writes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fixtures", "--check"])
    assert capsys.readouterr().out.startswith(("fixtures: identical", "fixtures: equal within"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    run(tiny(folder, "train.preflight=false"), folder / "run")
    return folder / "run"


def test_any_run_exports_to_a_model_that_goes_on_as_it_does(trained: Path, tmp_path: Path) -> None:
    main(["model", str(trained), "--out", str(tmp_path)])
    first = (tmp_path / "model.safetensors").read_bytes()
    main(["model", str(trained), "--out", str(tmp_path)])
    assert (tmp_path / "model.safetensors").read_bytes() == first
    decoder, tokenizer = rebuild_model(first)
    own = load_run(trained)
    assert tokenizer.fingerprint == own.tokenizer.fingerprint
    for name, parameter in own.model.named_parameters():
        assert torch.equal(parameter.half().float(), decoder.get_parameter(name)), name
    said = about(first)["run"]
    assert said["name"] == "run" and said["step"] == own.step and said["bits_per_byte"] > 0
    [checkpoint] = (trained / "checkpoints").glob(f"step-{own.step:06d}")
    main(["model", str(checkpoint), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == first


def test_a_model_without_tied_head_keeps_both() -> None:
    torch.manual_seed(0)
    decoder = Decoder(ModelConfig(vocab_size=257, dim=16, n_layers=0, tie_head=False))
    tokenizer = build_tokenizer("byte", list, 257, Path())
    said = {"config": describe(decoder.config), "tokenizer": {"name": "byte", "vocab": tokenizer.vocab}}
    again, _ = rebuild_model(pack({name: p.detach().half() for name, p in decoder.named_parameters()}, said))
    assert torch.equal(again.head.weight, decoder.head.weight.half().float())
    assert not torch.equal(again.head.weight, again.embed.weight)


def test_what_cannot_be_exported_is_refused_in_a_line(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a checkpoint nor a run directory"):
        main(["model", str(tmp_path), "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="say with --out DIR"):
        main(["model", str(trained)])
    with pytest.raises(ValueError, match="model takes at most 1 RUN"):
        main(["model", str(trained), str(trained), "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="attention takes at most 0 RUN"):
        main(["attention", str(trained)])
    for fault, message in ((65520.0, "beyond float16"), (float("nan"), "beyond float16")):
        broken = load_run(trained)
        with torch.no_grad():
            broken.model.embed.weight[3, 2] = fault
        with pytest.raises(ValueError, match=message):
            weights_of(broken, str(trained))


@pytest.mark.parametrize("fault", ["weight", "listing", "missing", "numbers"])
def test_check_finds_a_planted_difference(tmp_path: Path, fault: str) -> None:
    for name in ("variants.safetensors", "ops.json"):
        shutil.copy(FIXTURES / name, tmp_path)
    file, operations = tmp_path / "variants.safetensors", tmp_path / "ops.json"
    if fault == "missing":
        operations.unlink()
    elif fault == "weight":
        tensors = load_file(file)
        tensors["post-norm.logits"][0, 0] += 0.01
        save_file(tensors, file)
    elif fault == "listing":
        tensors = load_file(file)
        del tensors["post-norm.logits"]
        save_file(tensors, file)
    else:
        operations.write_text(operations.read_text("utf-8").replace('"id": 1', '"id": 2', 1), "utf-8")
    with pytest.raises(ValueError if fault == "missing" else RunFailed, match=r"variants|ops"):
        main(["fixtures", "--check", "--out", str(tmp_path)])
