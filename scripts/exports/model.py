"""A trained model for the page: its weights in float16, and what PyTorch computes with just these weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.exports.files import Files, about, pack, sha256, to_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octlm import Decoder
    from octlm.checkpoint import Run
    from octlm.config import ModelConfig
    from octlm.tokenizer import Tokenizer

SCHEMA = "octlm-web-model/1"
EXAMPLE_SCHEMA = "octlm-web-example/1"
REFERENCE_SCHEMA = "octlm-web-reference/1"
CONFIG = (
    "vocab_size", "context_length", "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "norm",
    "norm_placement", "norm_eps", "mlp", "positions", "rope_theta", "rope_scale", "windows", "strides", "qk_norm",
    "logit_softcap", "tie_head", "bias",
)  # fmt: skip

OPENING = "One misty autumn morning, a clever wren named Hazel"
PROMPTS = (
    OPENING,  # short, for it is also what the page shows before the model is there
    f"{OPENING} walked softly to the rusty grey mill. Under a mossy stone, she found a tiny golden bell. Soon a proud "
    'fox named Otto came by. "Lend me the',
    "  The 2 otters 🦦\n\tsaid “你好” — twice.\r\n",
)
GREEDY, SAMPLED, ROWS = 50, 50, 8  # new tokens; rows of logits that are kept of each prompt: the last
TOP = 20  # tokens of the example's next-token list
SETTINGS = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 7}


def own_model(path: str) -> Files:
    """Export the page's own model, with its example and the figures that tests hold the page to."""
    from octlm import load_run

    run = load_run(path)
    blob = weights_of(run, path)
    decoder, tokenizer = rebuild_model(blob)
    listing = {key: value for key, value in about(blob).items() if key != "tokenizer"}
    listing |= {"parameters": sum(p.numel() for p in decoder.parameters()), "sha256": sha256(blob), "bytes": len(blob)}
    return {
        "model.safetensors": blob,
        "model.json": to_json(listing),
        "example.safetensors": example(decoder, tokenizer),
        "model-reference.safetensors": reference(decoder, tokenizer),
    }


def any_model(path: str) -> Files:
    """Export a run for the page's button that opens a file."""
    from octlm import load_run

    return {"model.safetensors": weights_of(load_run(path), path)}


def describe(config: ModelConfig) -> dict[str, Any]:
    """Give what the page must know to run a model, every default resolved."""
    return {key: list(value) if isinstance(value := getattr(config, key), tuple) else value for key in CONFIG}


def weights_of(run: Run, path: str) -> bytes:
    """Write a run's weights in float16, with its config and tokenizer beside them; ValueError where that loses it."""
    import torch

    from octlm.tokenizer import NAMED

    name = run.tokenizer.name
    if name in NAMED and NAMED[name][0] != "gpt2":
        raise ValueError(f"{path}: data.tokenizer={name}: the page has bpe, byte, char and GPT-2's")
    tensors = {}
    for key, parameter in run.model.named_parameters():
        tensors[key] = parameter.detach().to(torch.float16).contiguous()
        if not tensors[key].isfinite().all():
            raise ValueError(f"{path}: {key} has a number beyond float16")
    said = {
        "schema": SCHEMA, "config": describe(run.model.config),
        "tokenizer": {"name": name, "vocab": run.tokenizer.vocab}, "run": facts(run, Path(path)),
    }  # fmt: skip
    return pack(tensors, said)


def facts(run: Run, path: Path) -> dict[str, Any]:
    """Say which run a model is of, and how well it did where that was measured."""
    import torch

    from octlm.metrics import read_records

    directory = path if (path / "checkpoints").is_dir() else path.resolve().parent.parent  # else one checkpoint
    scores = [record for record in read_records(directory) if record["kind"] == "eval" and record["step"] == run.step]
    score = scores[-1] if scores else {}
    return {
        "name": directory.resolve().name, "step": run.step, "data": run.config.data.source,
        "torch": torch.__version__.split("+")[0], "val_loss": score.get("loss"),
        "bits_per_byte": score.get("bits_per_byte"), "oracle_bits_per_byte": score.get("oracle_bits_per_byte"),
    }  # fmt: skip


def rebuild_model(blob: bytes) -> tuple[Decoder, Tokenizer]:
    """Make decoder and tokenizer of model.safetensors alone, as the page does; with attention that hooks can read."""
    import torch
    from safetensors.torch import load

    from octlm import Decoder, ModelConfig
    from octlm.tokenizer import rebuild

    said = about(blob)
    known = {key: value for key, value in said["config"].items() if key not in ("head_dim", "windows", "strides")}
    windows, strides = tuple(said["config"]["windows"]) or 0, tuple(said["config"]["strides"]) or 0
    decoder = Decoder(ModelConfig(**known, window=windows, stride=strides, attention="naive")).eval()
    weights = {key: tensor.to(torch.float32) for key, tensor in load(blob).items()}
    decoder.load_state_dict({"head.weight": weights["embed.weight"], **weights})  # a tied head is written once
    return decoder, rebuild({"model": said["tokenizer"]})


def forward(decoder: Decoder, ids: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Give the logits (T, V) of one text, and the attention (H, T, T) of each layer."""
    import torch

    seen: list[Tensor] = []
    hooks = [
        layer.get_submodule("attention.attend.weights").register_forward_hook(lambda *call: seen.append(call[2][0]))
        for layer in decoder.layers
    ]
    with torch.no_grad():
        logits = decoder(torch.tensor([ids]))[0]
    for hook in hooks:
        hook.remove()
    return logits, seen


def example(decoder: Decoder, tokenizer: Tokenizer) -> bytes:
    """What the model does with one text: on the page before any model is loaded."""
    import torch

    ids = tokenizer.encode(PROMPTS[0])
    logits, attention = forward(decoder, ids)
    top = logits[-1].double().softmax(-1).topk(TOP)
    tensors = {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "attention": torch.stack(attention).to(torch.float16),
        "next.ids": top.indices.to(torch.int32), "next.probabilities": top.values.to(torch.float32),
    }  # fmt: skip
    pieces = [tokenizer.decode([i]) for i in ids]
    following = [tokenizer.decode([i]) for i in top.indices.tolist()]
    return pack(tensors, {"schema": EXAMPLE_SCHEMA, "prompt": PROMPTS[0], "pieces": pieces, "next_pieces": following})


def reference(decoder: Decoder, tokenizer: Tokenizer) -> bytes:
    """What tests hold the page to: logits, attention, and texts, of a few prompts.

    Logits and attention are computed in float64: trained scores are large, and what float32 loses in PyTorch's own
    (1e-5 of a weight) is as much as the page is allowed.
    """
    import torch

    from octlm import generate

    exact = copy.deepcopy(decoder).double()
    tensors: dict[str, torch.Tensor] = {}
    for n, prompt in enumerate(PROMPTS):
        ids = tokenizer.encode(prompt)
        logits, attention = forward(exact, ids)
        greedy = generate(decoder, [ids], max_new_tokens=GREEDY, temperature=0)[0]
        sampled = generate(decoder, [ids], max_new_tokens=SAMPLED, **SETTINGS)[0]  # type: ignore[arg-type]
        tensors |= {f"p{n}.logits": logits[-ROWS:].float(), f"p{n}.attention": torch.stack(attention).float()}
        lists = {"ids": ids, "greedy": greedy, "sampled": sampled}
        tensors |= {f"p{n}.{name}": torch.tensor(each, dtype=torch.int32) for name, each in lists.items()}
    said = {"schema": REFERENCE_SCHEMA, "prompts": PROMPTS, "settings": SETTINGS}
    return pack(dict(sorted(tensors.items())), said)
