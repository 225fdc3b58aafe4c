"""A model has the announced size, shapes, initialisation and first loss."""

import copy
import math

import pytest
import torch
from torch import nn

from octlm.config import ModelConfig, OptimConfig, load_config
from octlm.model import CausalSelfAttention, Decoder, attention_mask, causal_attention
from octlm.optim import build_optimizers
from octlm.preflight import margin, preflight, randomise
from octlm.probes import describe
from tests.variants import AXES, TINY, some_ids

SIZES = {"day1": 541_952, "day2": 3_295_488, "day4": 26_255_872, "day5": 26_255_872}


@pytest.mark.parametrize("day", SIZES)
def test_every_day_has_the_announced_size(day: str) -> None:
    config = load_config(day)
    facts = describe(config)
    assert facts["parameters"] == SIZES[day]
    assert facts["logits_shape"] == [1, config.model.context_length, config.model.vocab_size]


def test_the_baseline_stack_of_day4_has_29_639_680_parameters() -> None:
    words = [
        "positions=learned",
        "norm=layernorm",
        "mlp=gelu",
        "n_kv_heads=8",
        "hidden_dim=null",
        "attention=naive",
    ]
    config = load_config("day4", [f"model.{word}" for word in words])
    assert describe(config)["parameters"] == 29_639_680


def test_flops_count_the_matrices_that_multiply() -> None:
    day1 = describe(load_config("day1"))
    per_layer = 4 * 128 * 128 + 2 * 128 * 512
    assert day1["flops_per_token"] == 6 * (2 * per_layer + 1024 * 128) + 12 * 2 * 128 * 128
    untied = describe(load_config("day1", ["model.tie_head=false"]))
    assert untied["flops_per_token"] == day1["flops_per_token"]
    assert untied["parameters"] == 541_952 + 1024 * 128


def test_the_seed_fixes_the_initialisation() -> None:
    def draw() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return list(Decoder(ModelConfig(**TINY)).parameters())

    assert all(torch.equal(a, b) for a, b in zip(draw(), draw(), strict=True))


@pytest.mark.parametrize("mlp", ["gelu", "relu2", "swiglu"])
def test_exactly_the_residual_writers_are_scaled(mlp: str) -> None:
    torch.manual_seed(0)
    model = Decoder(ModelConfig(dim=256, n_layers=8, mlp=mlp))
    scaled = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and abs(module.weight.std().item() / (0.02 / 4) - 1) < 0.05
    }
    rest = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and abs(module.weight.std().item() / 0.02 - 1) < 0.05
    }
    writers = {f"layers.{i}.{part}" for i in range(8) for part in ("attention.o_proj", "mlp.down_proj")}
    assert scaled == writers
    assert scaled | rest == {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_the_attention_layer_alone_keeps_torchs_initialisation() -> None:
    torch.manual_seed(0)
    layer = CausalSelfAttention(ModelConfig(dim=16, n_heads=2, context_length=8))
    torch.manual_seed(0)
    assert torch.equal(layer.q_proj.weight, nn.Linear(16, 16, bias=False).weight)
    assert layer(torch.randn(2, 8, 16)).shape == (2, 8, 16)


@pytest.mark.parametrize("positions", AXES["positions"])
def test_the_attention_layer_alone_equals_the_layer_inside_a_decoder(positions: str) -> None:
    config = ModelConfig(**TINY, positions=positions, attention="naive", window=3, stride=4)
    model = Decoder(config).eval()
    seen = []
    attention = model.layers[0].attention
    attention.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    model(some_ids())
    inside, output = seen[0]
    assert torch.equal(attention(inside), output)


@pytest.mark.parametrize("n_layers", [0, 1, 2])
@pytest.mark.parametrize("positions", AXES["positions"])
@pytest.mark.parametrize("vocab_size", [66, 257, 1024])  # of char, byte and bpe
def test_the_first_loss_keeps_the_bound(positions: str, n_layers: int, vocab_size: int) -> None:
    for norm in ("layernorm", "rmsnorm"):
        for mlp in ("gelu", "swiglu", "relu2"):
            torch.manual_seed(0)
            config = ModelConfig(vocab_size=vocab_size, n_layers=n_layers, positions=positions, norm=norm, mlp=mlp)
            ids = some_ids(8, 129, vocab_size)
            logits = Decoder(config)(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            assert math.log(vocab_size) - 0.1 < loss <= math.log(vocab_size) + margin(config)


def test_preflight_passes_a_good_model_and_names_what_is_wrong() -> None:
    cpu = torch.device("cpu")
    good = Decoder(ModelConfig(**TINY))
    before = [p.clone() for p in good.parameters()]
    assert all(finding.ok for finding in preflight(good, cpu))
    assert all(torch.equal(a, b) for a, b in zip(before, good.parameters(), strict=True)), "it must work on a copy"

    failed = [f for f in preflight(randomise(Decoder(ModelConfig(**TINY)), 1.0), cpu) if not f.ok]
    assert "from ln 31 = " in failed[0].where

    class Unused(Decoder):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config)
            self.spare = nn.Linear(3, 3)

    (finding,) = [f for f in preflight(Unused(ModelConfig(**TINY)), cpu) if not f.ok]
    assert "spare.weight" in finding.where

    class Leaky(Decoder):
        def forward(self, ids: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            logits = super().forward(ids)
            return logits + 0.01 * logits.mean(dim=1, keepdim=True)

    (finding,) = [f for f in preflight(Leaky(ModelConfig(**TINY)), cpu) if not f.ok]
    assert "later token" in finding.claim and finding.where


def test_preflight_passes_every_good_model() -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        findings = preflight(Decoder(ModelConfig(dim=256, n_layers=1)), torch.device("cpu"))
        assert all(finding.ok for finding in findings), findings


def tied(model: Decoder) -> None:
    assert model.head.weight is model.embed.weight
    assert [n for n, p in model.named_parameters() if p.shape == (31, 32)] == ["embed.weight"]
    assert torch.equal(model.head.weight, model.embed.weight)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_d6_the_head_stays_tied(name: str) -> None:
    model = Decoder(ModelConfig(**TINY, tie_head=True))
    saved = copy.deepcopy(model.state_dict())
    with torch.device("meta"):
        empty = Decoder(model.config)
    empty.to_empty(device="cpu").load_state_dict(saved)
    loaded = Decoder(model.config)
    loaded.load_state_dict(saved)
    assigned = Decoder(model.config)
    assigned.load_state_dict({name: value.clone() for name, value in saved.items()}, assign=True)
    cast = copy.deepcopy(model).to(torch.bfloat16).to(torch.float32)
    for same in (model, copy.deepcopy(model), cast, empty, loaded, assigned):
        tied(same)
        optimizers = build_optimizers(same, OptimConfig(name=name))  # type: ignore[arg-type]
        before = same.head.weight.clone()
        for _ in range(3):
            same(some_ids()).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert not torch.equal(same.head.weight, before)
        tied(same)
    untied = Decoder(ModelConfig(**TINY, tie_head=False))
    assert untied.head.weight is not untied.embed.weight


def test_d6_mutant_nothing_ties_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def tie(self: Decoder) -> None:
        if not hasattr(self, "cap"):  # in __init__ alone
            self.head.weight = self.embed.weight

    monkeypatch.setattr(Decoder, "_tie", tie)
    with pytest.raises(AssertionError):
        test_d6_the_head_stays_tied("adamw")


def test_a_softcap_bounds_the_logits() -> None:
    plain, capped = (Decoder(ModelConfig(**TINY, logit_softcap=cap)) for cap in (0.0, 1.5))
    capped.load_state_dict(randomise(plain).state_dict())
    logits = plain(some_ids())
    assert logits.abs().max() > 2
    assert torch.equal(capped.eval()(some_ids()), 1.5 * torch.tanh(logits / 1.5))


def test_a_model_without_layers_is_a_bigram_table() -> None:
    model = randomise(Decoder(ModelConfig(**{**TINY, "n_layers": 0}, positions="none")))
    ids = some_ids(2, 16)
    ids[1, 5] = ids[0, 0]
    logits = model(ids)
    same = ids == ids[0, 0]
    assert same.sum() > 1
    assert torch.allclose(logits[same], model(ids[:1, :1])[0].expand(int(same.sum()), -1))
    assert torch.allclose(model(ids[:, 3:5], model.new_cache(2, 16)), logits[:, 3:5])


def test_attention_mask_states_the_rule() -> None:
    mask = attention_mask(12, window=3, stride=5)[0, 0]
    for q in range(12):
        for k in range(12):
            assert mask[q, k] == (k <= q and (q - k < 3 or k % 5 == 0))
    assert torch.equal(attention_mask(7)[0, 0], torch.ones(7, 7, dtype=torch.bool).tril())
    assert attention_mask(7).shape == (1, 1, 7, 7)
    for wrong in ({"length": 0}, {"length": 3, "window": -1}, {"length": 3, "stride": -1}):
        with pytest.raises(ValueError, match="attention_mask"):
            attention_mask(**wrong)


def test_causal_attention_equals_torch_and_refuses_wrong_shapes() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (4, 9, 9))
    allowed = torch.arange(9) <= torch.arange(4)[:, None] + 5
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    assert (causal_attention(q, k, v, offset=5) - expected).abs().max() < 1e-14
    wrong = [
        (q[0], k, v, 5),
        (q, k, v, 4),
        (q, k, v, -1),
        (q[:, :, :0], k, v, 9),
        (q[:1], k, v, 5),
        (q, k[:, :1], v, 5),
        (q, k, v[..., :4], 5),
        (q[..., :4], k, v, 5),
        (q, k, v[:, :, :5], 5),
        (q.float(), k, v, 5),
    ]
    for a, b, c, offset in wrong:
        with pytest.raises(ValueError, match=r"offset"):
            causal_attention(a, b, c, offset=offset)


def test_repr_of_a_finding_is_one_line() -> None:
    from octlm.audit import Finding

    assert "\n" not in str(Finding("claim", False, 1.0, 0.0, "here", 3))
    assert str(Finding("claim", True, 0.0, 0.0, "", 3)).startswith("ok claim")
