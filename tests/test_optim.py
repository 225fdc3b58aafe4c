"""The learning rate is a function of the step; decay touches matrices only; every parameter is optimized once."""

import math
from itertools import pairwise

import pytest
import torch

from octlm import optim
from octlm.config import ModelConfig, OptimConfig
from octlm.model import Decoder
from octlm.optim import SCHEDULES, build_optimizers, learning_rate, parameter_groups, set_learning_rate
from tests.variants import TINY


def test_d2_the_rate_rises_to_the_peak_once_and_ends_at_the_minimum() -> None:
    for schedule in ("cosine", "linear", "wsd"):
        optim = OptimConfig(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=4, schedule=schedule)
        rates = [learning_rate(step, optim, 10) for step in range(15)]
        assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
        assert max(rates) == 1.0
        assert all(a >= b for a, b in pairwise(rates[3:]))
        assert rates[9:] == [0.1] * 6
    constant = OptimConfig(learning_rate=1.0, warmup_steps=0, schedule="constant")
    assert {learning_rate(step, constant, 10) for step in range(12)} == {1.0}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("share", [5e-324, 0.2, 1.0])
@pytest.mark.parametrize(("warmup", "steps"), [(0, 10), (10, 10), (0, 1), (1, 1), (20, 10)])
def test_d3_degenerate_lengths_give_finite_positive_rates(schedule: str, share: float, warmup: int, steps: int) -> None:
    optim = OptimConfig(warmup_steps=warmup, schedule=schedule, decay_fraction=share)  # type: ignore[arg-type]
    for step in range(steps + 5):
        rate = learning_rate(step, optim, steps)
        assert math.isfinite(rate) and 0 < rate <= optim.learning_rate


def test_wsd_is_flat_until_its_last_share() -> None:
    optim = OptimConfig(learning_rate=1.0, min_learning_rate=0.0, warmup_steps=0, schedule="wsd", decay_fraction=0.2)
    rates = [learning_rate(step, optim, 100) for step in range(100)]
    assert rates[:80] == pytest.approx([1.0] * 80, rel=1e-12)
    assert rates[89] == pytest.approx(0.5) and rates[99] == 0.0


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_d5_decay_scales_matrices_and_leaves_norms_biases_and_embeddings(name: str, norm: str, tied: bool) -> None:
    model = Decoder(ModelConfig(**TINY, bias=True, qk_norm=True, norm=norm, tie_head=tied))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2)  # a bias of 0 decays to 0
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rates = OptimConfig(name=name, learning_rate=0.1, weight_decay=0.5)  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in build_optimizers(model, rates):
        optimizer.step()
    decayed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert decayed == {n for n in before if n.endswith("_proj.weight") or n == "head.weight"}
    for name in decayed:
        torch.testing.assert_close(model.get_parameter(name).detach(), before[name] * 0.95, rtol=1e-6, atol=0)


def test_d5_mutant_decay_of_all_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "parameter_groups", lambda model: {"matrices": list(model.parameters())})
    with pytest.raises(AssertionError):
        test_d5_decay_scales_matrices_and_leaves_norms_biases_and_embeddings("adamw", "layernorm", True)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_layers", [0, 2])
def test_d5_every_parameter_is_in_exactly_one_group(name: str, tied: bool, n_layers: int) -> None:
    model = Decoder(ModelConfig(**{**TINY, "n_layers": n_layers}, bias=True, tie_head=tied))
    optimizers = build_optimizers(model, OptimConfig(name=name))
    held = [id(p) for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    set_learning_rate(optimizers, 0.5)
    assert all(group["lr"] == 0.5 for o in optimizers for group in o.param_groups)


def test_muon_gets_the_matrices_of_the_layers() -> None:
    model = Decoder(ModelConfig(**TINY, tie_head=False))
    muon, adamw = build_optimizers(model, OptimConfig(name="muon"))
    matrices = parameter_groups(model)["matrices"]
    assert isinstance(muon, torch.optim.Muon) and isinstance(adamw, torch.optim.AdamW)
    assert {id(p) for p in muon.param_groups[0]["params"]} == {id(p) for p in matrices}
    assert len(matrices) == 2 * 6 and all(p.ndim == 2 for p in matrices)
