"""A model that leaves octlm says of itself what its tensors say, and comes back bit for bit.

octlm does not export yet. These tests say what an export has to show, through `octlm.interop.hf` and
`octlm.interop.gguf`: `export(run, path)` writes, `load(path)` gives the run back. They are expected to fail for want
of these modules, and at nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from octlm.checkpoint import Run
from octlm.config import Config, DataConfig, ModelConfig, TrainConfig
from octlm.model import Decoder
from octlm.tokenizer import EOT, Tokenizer, build_tokenizer

LLAMA: dict[str, Any] = {
    "vocab_size": 320, "context_length": 16, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2,
    "norm": "rmsnorm", "mlp": "swiglu", "positions": "rope",
}  # fmt: skip


class NotYet(Exception):
    """What is expected to fail: the module is not there."""


not_yet = pytest.mark.xfail(strict=True, raises=NotYet, reason="octlm does not export yet")


def interop(name: str) -> Any:
    if importlib.util.find_spec("octlm.interop") is None:
        raise NotYet(name)
    return importlib.import_module(f"octlm.interop.{name}")


def bpe(size: int = 300) -> Tokenizer:
    text = "it was the best of times, it was the worst of times, it was the age of wisdom " * 9
    return build_tokenizer("bpe", lambda: [text], size, Path("none"))


def made(tokenizer: Tokenizer | None = None, **changed: Any) -> Run:
    """Make a run of random weights, large enough that a wrong constant shows in the logits."""
    torch.manual_seed(0)
    config = Config(
        model=ModelConfig(**LLAMA | changed),
        data=DataConfig(tokenizer="bpe"),
        train=TrainConfig(tokens_per_step=16, micro_batch_size=1),
    )
    model = Decoder(config.model)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return Run(model.eval(), tokenizer or bpe(), config, 1)


def logits(model: nn.Module) -> torch.Tensor:
    ids = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        out = model(ids)
    return getattr(out, "logits", out)


def transformers_model(folder: Path) -> nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def described(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


# ---- config and tensors agree


@not_yet
@pytest.mark.parametrize("tie", [True, False])
def test_h1_the_flag_of_a_tied_head_is_what_the_file_holds(tie: bool, tmp_path: Path) -> None:
    run = made(tie_head=tie)
    interop("hf").export(run, tmp_path / "hf")
    names = load_file(tmp_path / "hf" / "model.safetensors").keys()
    assert described(tmp_path / "hf")["tie_word_embeddings"] is tie
    assert ("lm_head.weight" in names) is not tie and "model.embed_tokens.weight" in names
    back = interop("hf").load(tmp_path / "hf")
    assert (back.model.head.weight is back.model.embed.weight) is tie
    assert torch.equal(logits(back.model), logits(run.model))
    assert torch.allclose(logits(transformers_model(tmp_path / "hf")), logits(run.model), atol=1e-5)
    interop("gguf").export(run, tmp_path / "x.gguf")
    tensors = {tensor.name for tensor in read_gguf(tmp_path / "x.gguf").tensors}
    assert "token_embd.weight" in tensors and ("output.weight" in tensors) is not tie


def read_gguf(path: Path) -> Any:
    from gguf import GGUFReader

    return GGUFReader(path)


@not_yet
def test_h1_a_second_head_or_a_missing_one_is_refused(tmp_path: Path) -> None:
    for tie in (True, False):
        folder = tmp_path / str(tie)
        interop("hf").export(made(tie_head=tie), folder)
        tensors = load_file(folder / "model.safetensors")
        if tie:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
        else:
            del tensors["lm_head.weight"]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=r"lm_head\.weight"):
            interop("hf").load(folder)


# ---- the epsilon of the norms


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_h2_every_norm_uses_the_epsilon_of_the_configuration(norm: str, placement: str) -> None:
    model = made(norm=norm, norm_placement=placement, qk_norm=True, norm_eps=1e-2).model
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
    assert len(norms) == 2 * (2 + 2) + (placement == "pre")  # two of the block, two of the heads; the final one
    assert {m.eps for m in norms} == {1e-2}
    other = made(norm=norm, norm_placement=placement, qk_norm=True, norm_eps=1e-6).model
    for default in norms:  # each one alone is felt in the logits: the one that forgot would show
        default.eps = 1e-6
        assert not torch.equal(logits(model), logits(other)) or default is norms[-1]
    assert torch.equal(logits(model), logits(other))


@not_yet
def test_h2_the_epsilon_is_written_and_read(tmp_path: Path) -> None:
    run = made(norm_eps=1e-2)
    interop("hf").export(run, tmp_path / "hf")
    assert described(tmp_path / "hf")["rms_norm_eps"] == 1e-2
    back = interop("hf").load(tmp_path / "hf")
    assert back.config.model.norm_eps == 1e-2 and torch.equal(logits(back.model), logits(run.model))
    assert torch.allclose(logits(transformers_model(tmp_path / "hf")), logits(run.model), atol=1e-5)
    interop("gguf").export(run, tmp_path / "x.gguf")
    field = read_gguf(tmp_path / "x.gguf").get_field("llama.attention.layer_norm_rms_epsilon")
    assert field.contents() == pytest.approx(1e-2)


# ---- every tensor by name


@not_yet
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_h3_an_export_comes_back_bit_for_bit(bias: bool, tie: bool, n_kv_heads: int, tmp_path: Path) -> None:
    run = made(bias=bias, tie_head=tie, n_kv_heads=n_kv_heads)
    interop("hf").export(run, tmp_path / "hf")
    back = interop("hf").load(tmp_path / "hf").model
    before, after = run.model.state_dict(), back.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert not bias or any(name.endswith("o_proj.bias") and before[name].any() for name in before)


@not_yet
def test_h3_an_unknown_or_missing_tensor_is_refused(tmp_path: Path) -> None:
    interop("hf").export(made(), tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    whole = load_file(path)
    for change in (whole | {"model.layers.0.self_attn.stranger": torch.ones(4)}, dict(list(whole.items())[1:])):
        save_file(change, path, {"format": "pt"})
        [name] = change.keys() ^ whole.keys()
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            interop("hf").load(tmp_path / "hf")


# ---- the tokenizer


@not_yet
def test_h4_gguf_names_a_pre_tokenizer_that_its_readers_know_or_is_refused(tmp_path: Path) -> None:
    interop("gguf").export(made(), tmp_path / "x.gguf")  # our bpe splits as GPT-2 does
    assert read_gguf(tmp_path / "x.gguf").get_field("tokenizer.ggml.pre").contents() == "gpt-2"
    char = build_tokenizer("char", lambda: ["abc"], 300, tmp_path)
    with pytest.raises(ValueError, match=r"data\.tokenizer=char"):
        interop("gguf").export(made(char), tmp_path / "z.gguf")
    assert not (tmp_path / "z.gguf").exists()


@not_yet
def test_h5_the_vocabulary_has_one_size_everywhere(tmp_path: Path) -> None:
    tokenizer = build_tokenizer("char", lambda: ["".join(map(chr, range(32, 81)))], 64, tmp_path)
    assert tokenizer.size == 50
    run = made(tokenizer, vocab_size=64)
    interop("hf").export(run, tmp_path / "hf")
    rows = load_file(tmp_path / "hf" / "model.safetensors")["model.embed_tokens.weight"].shape[0]
    listed = json.loads((tmp_path / "hf" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert described(tmp_path / "hf")["vocab_size"] == rows == 64 and len(listed) <= rows
    run = made(vocab_size=320)
    interop("gguf").export(run, tmp_path / "x.gguf")
    reader = read_gguf(tmp_path / "x.gguf")
    [embedding] = [tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"]
    assert len(reader.get_field("tokenizer.ggml.tokens").contents()) == embedding.shape[-1] == 320


@not_yet
def test_h6_an_exported_model_knows_where_to_stop(tmp_path: Path) -> None:
    run = made()
    interop("hf").export(run, tmp_path / "hf")
    files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "hf").glob("*.json")}
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= files.keys()
    config, eot = files["config.json"], run.tokenizer.eot_id
    assert config["eos_token_id"] == files["generation_config.json"]["eos_token_id"] == eot
    assert files["tokenizer_config.json"]["eos_token"] == EOT
    assert {token["content"]: token["id"] for token in files["tokenizer.json"]["added_tokens"]}[EOT] == eot
    model = run.config.model
    assert config["architectures"] == ["LlamaForCausalLM"] and config["model_type"] == "llama"
    assert config["max_position_embeddings"] == model.context_length and config["hidden_size"] == model.dim
    heads = (config["num_attention_heads"], config["num_key_value_heads"], config["num_hidden_layers"])
    assert heads == (model.n_heads, model.n_kv_heads, model.n_layers)
    dtypes = {str(t.dtype) for t in load_file(tmp_path / "hf" / "model.safetensors").values()}
    assert dtypes == {f"torch.{config.get('dtype', config.get('torch_dtype'))}"}
