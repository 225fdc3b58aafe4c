"""Every audit passes what is right and names what is wrong: dependency, cache, resume, parity, targets, health, floor.

The leaks that causality must find are in test_audit_zoo.py.
"""

import contextlib
import copy
import functools
import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from octlm import audit
from octlm.config import ModelConfig, OptimConfig
from octlm.model import Decoder, attention_mask, masks
from octlm.optim import build_optimizers
from octlm.preflight import margin
from scripts.audit import octlm_step
from tests.variants import AXES, TINY, build, some_ids

MASKS = AXES["window", "stride"]
LENGTH = 16


def declared(config: ModelConfig) -> Tensor:
    """The boolean product of the layers' masks: what can reach each position through them."""
    reached = torch.eye(LENGTH, dtype=torch.bool)
    for window, stride in zip(config.windows, config.strides, strict=True):
        reached = (attention_mask(LENGTH, window, stride)[0, 0].int() @ reached.int()) > 0
    return reached


# ---- dependency


@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("positions", AXES["positions"])
def test_what_is_read_is_what_the_masks_declare(positions: str, mask: tuple[Any, Any], n_layers: int) -> None:
    for path, placement in itertools.product(AXES["attention"], AXES["norm_placement"]):
        window, stride = mask
        section = {**TINY, "positions": positions, "window": window, "stride": stride, "attention": path}
        model = build({**section, "norm_placement": placement, "n_layers": n_layers}, torch.float64)
        assert torch.equal(audit.dependency(model, model.embed, some_ids(1, LENGTH)), declared(model.config))


def test_dependency_shows_a_mask_that_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = masks.rule
    monkeypatch.setattr(masks, "rule", lambda query, key, window=0, stride=0: right(query, key - 1, window, stride))
    model = build({**TINY, "n_layers": 1, "positions": "none", "window": 3}, torch.float64)
    read = audit.dependency(model, None, some_ids(1, LENGTH))
    assert torch.equal(read.nonzero()[0], torch.tensor([0, 0])) and read[0, 1] and not read[4, 1]


def test_dependency_sees_through_isolated_documents() -> None:
    model = build({**TINY, "positions": "rope"}, torch.float64)
    documents = torch.tensor([[0] * 6 + [1] * 10])
    read = audit.dependency(lambda ids: model(ids, documents=documents), model.embed, some_ids(1, LENGTH))
    assert torch.equal(read, declared(model.config) & (documents == documents.T))


# ---- cache


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_right_cache_passes(mask: tuple[Any, Any], dtype: torch.dtype) -> None:
    model = build({**TINY, "positions": "rope", "window": mask[0], "stride": mask[1]}, dtype)
    finding = audit.cache(model, octlm_step(model, LENGTH), some_ids(2))
    assert finding.ok, finding


def test_a_cache_that_belongs_to_the_model_is_found() -> None:
    model = build(TINY)
    shared: list[Any] = []

    def step(new: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is None:
            shared[:] = [model.new_cache(len(new), 64)]
        return model(new, shared[0]), True

    finding = audit.cache(model, step, some_ids(2))
    assert not finding.ok


def test_a_cache_that_forgets_or_raises_is_found() -> None:
    model = build(TINY)
    forgetful = audit.cache(model, lambda new, state: (model(new), None), some_ids(2))
    assert not forgetful.ok and "row" in forgetful.where
    short = audit.cache(model, lambda new, state: (model(new)[:, -1], None), some_ids(2))
    assert not short.ok and "not judged" in short.where


# ---- resume


class Session:
    """A tiny training with dropout and momentum whose data and randomness depend on the step alone."""

    fault = ""

    def __call__(self, state: Any, steps: int) -> tuple[Any, list[float]]:
        torch.manual_seed(0)
        model = Decoder(ModelConfig(**TINY, dropout=0.1))
        optimizers = build_optimizers(model, OptimConfig(learning_rate=1e-2))
        begin = 0
        if state is not None:
            begin = state["step"]
            model.load_state_dict(state["model"])
            if self.fault != "the optimizer starts afresh":
                for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
                    optimizer.load_state_dict(kept)
        losses = []
        for step in range(begin, begin + steps):
            if self.fault != "randomness of the process":
                torch.manual_seed(step)
            seed = 0 if self.fault == "the data starts over" and state is not None and step == begin else step
            ids = some_ids(2, LENGTH + 1, seed=seed)
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        kept = model.state_dict()
        if self.fault == "weights are rounded":
            kept = {name: value.bfloat16().float() for name, value in kept.items()}
        steps_done = begin + steps
        return {"model": kept, "optimizers": [o.state_dict() for o in optimizers], "step": steps_done}, losses


def test_an_exact_resume_passes() -> None:
    finding = audit.resume(Session(), 5, 2)
    assert finding.ok and finding.cases == 5, finding


@pytest.mark.parametrize(
    "fault",
    ["the optimizer starts afresh", "the data starts over", "randomness of the process", "weights are rounded"],
)
def test_resume_finds(fault: str) -> None:
    session = Session()
    session.fault = fault
    finding = audit.resume(session, 5, 2)
    assert not finding.ok and finding.worst > 0 and finding.where, finding


def test_resume_wants_an_interruption_in_the_middle() -> None:
    for n, k in ((2, 2), (2, 0), (1, 3)):
        with pytest.raises(ValueError, match="0 < k < n"):
            audit.resume(Session(), n, k)


# ---- parity and targets


def test_parity_holds_within_its_tolerance_and_names_the_worst_element() -> None:
    naive = build({**TINY, "attention": "naive"})
    fused = Decoder(ModelConfig(**{**TINY, "attention": "sdpa"})).eval()
    fused.load_state_dict(naive.state_dict())
    inputs = [some_ids(2, 7), some_ids(1, 3)]
    assert audit.parity(fused, naive, inputs, 1e-4, 1e-5).ok

    def wrong(ids: Tensor) -> Tensor:
        logits = naive(ids)
        logits[0, 2, 5] += 0.5
        return logits

    finding = audit.parity(wrong, naive, inputs, 1e-4, 1e-5)
    assert not finding.ok and "element [0, 2, 5]" in finding.where and finding.worst == pytest.approx(0.5, rel=1e-3)


def test_parity_refuses_other_shapes_nan_and_nothing() -> None:
    x = torch.ones(2, 3)
    assert "shapes" in audit.parity(lambda t: t, lambda t: t[:1], [x], 1.0, 1.0).where
    assert not audit.parity(lambda t: t, lambda t: t * float("nan"), [x], 1.0, 1.0).ok
    assert not audit.parity(lambda t: t, lambda t: t, [], 1.0, 1.0).ok
    assert audit.parity(lambda a, b: (a, b), lambda a, b: [a, b], [(x, x)], 0.0, 0.0).ok


def test_targets_are_shifted_once() -> None:
    text = some_ids(3, 12)
    x, y = text[:, :-1], text[:, 1:]
    assert audit.targets(x, y).ok
    masked = y.clone()
    masked[:, :4] = -1
    assert audit.targets(x, masked).ok
    for wrong, word in ((x, "not shifted"), (x.roll(-2, 1), "shifted twice"), (x.roll(1, 1), "backwards")):
        assert word in audit.targets(x, wrong).where
    assert "not the next token" in audit.targets(x, y.flip(0)).where
    assert "not judged" in audit.targets(x, torch.full_like(x, -1)).where
    with pytest.raises(ValueError, match="same"):
        audit.targets(x, y[:, :-1])


# ---- health


def checked(model: nn.Module, **options: Any) -> audit.Finding:
    """The health of a tiny model."""
    return audit.health(model, 31, 16, **{"loss_margin": margin(ModelConfig(**TINY)), **options})


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("mlp", AXES["mlp"])
@pytest.mark.parametrize("norm", AXES["norm"])
def test_octlms_models_are_fit(norm: str, mlp: str, placement: str) -> None:
    torch.manual_seed(0)
    model = Decoder(ModelConfig(**TINY, norm=norm, mlp=mlp, norm_placement=placement, bias=True, dropout=0.1))
    before = copy.deepcopy(model.state_dict())
    bound = math.inf if placement == "post" else margin(model.config)
    finding = checked(model, residual_scale=0.5, loss_margin=bound)
    assert finding.ok, finding
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_health_names_what_is_wrong() -> None:
    def made(change: Any) -> Decoder:
        torch.manual_seed(0)
        model = Decoder(ModelConfig(**TINY))
        with torch.no_grad():
            change(model)
        return model

    def wrong_matrix(model: Any) -> None:
        for block in model.layers:
            block.attention.v_proj.weight.mul_(0.5)
            block.attention.o_proj.weight.mul_(2.0)

    def noisy(model: Any) -> None:
        model.layers[1].register_forward_hook(lambda module, args, output: output + torch.rand_like(output))

    def deaf(model: Any) -> None:
        model.norm.register_forward_pre_hook(lambda module, args: (args[0] * 0,))

    loud = checked(made(lambda model: model.embed.weight.mul_(100)))
    assert "loss:" in loud.where and "ln 31" in loud.where
    scaled = checked(made(wrong_matrix), residual_scale=0.5)
    assert scaled.where.startswith("residual:") and "v_proj (no writer) x 0.50" in scaled.where
    assert "o_proj x 2.0" in scaled.where or "o_proj x 1.9" in scaled.where
    assert "eval:" in checked(made(noisy)).where
    blind = checked(made(deaf)).where
    assert "memory:" in blind and "gradient: none in" in blind and "q_proj" in blind


def test_health_refuses_a_part_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="loos"):
        checked(Decoder(ModelConfig(**TINY)), parts=["loos"])


# ---- floor


def test_the_floor_is_a_bet_that_an_honest_model_does_not_win() -> None:
    """E[q / p] = 1 exactly, over all texts of a tiny language, and the e-value follows from the sums."""
    p = {"a": 0.5, "b": 0.25, "c": 0.25}
    q = {"a": 0.1, "b": 0.2, "c": 0.7}
    mean = sum(p[x] * p[y] * audit.floor([math.log(q[x]), math.log(q[y])], [math.log(p[x]), math.log(p[y])]).worst
               for x in p for y in p)  # fmt: skip
    assert mean == pytest.approx(1.0)


def test_an_honest_guesser_is_rarely_accused_and_a_cheat_always() -> None:
    """A tenth of the honest at most, at alpha 0.1; the guess is close to the truth, so that some are."""
    draw, p, q = random.Random(0), [0.25] * 4, [0.3, 0.2, 0.28, 0.22]
    accused = 0
    for _ in range(1000):
        texts = draw.choices(range(4), p, k=50)
        verdict = audit.floor([math.log(q[x]) for x in texts], [math.log(p[x]) for x in texts], alpha=0.1)
        accused += not verdict.ok
    assert 0 < accused <= 100
    cheat = audit.floor([math.log(0.9)] * 50, [math.log(0.25)] * 50)
    assert not cheat.ok and cheat.worst > 1e6 and "e-value 10^27.8" in cheat.where
    assert audit.floor([-1.0] * 3000, [-900.0] * 3000).worst == math.inf
    assert audit.floor([-math.inf, -1.0], [-900.0] * 2).ok


def test_looks_divide_the_evalue() -> None:
    log_q, log_p = [-1.0], [-1.0 - math.log(2e6)]
    assert audit.floor(log_q, log_p).worst == pytest.approx(2e6) and not audit.floor(log_q, log_p).ok
    assert audit.floor(log_q, log_p, looks=3).ok


@pytest.mark.parametrize(
    ("log_q", "log_p", "options"),
    [([], [], {}), ([-1.0], [-1.0, -2.0], {}), ([math.nan], [-1.0], {}), ([-1.0], [1.0], {}), ([1.0], [-1.0], {}),
     ([-1.0], [-math.inf], {}),
     ([-1.0], [-1.0], {"alpha": 0.0}), ([-1.0], [-1.0], {"alpha": 1.0}), ([-1.0], [-1.0], {"looks": 0})],
)  # fmt: skip
def test_the_floor_refuses_what_is_no_probability(log_q: Any, log_p: Any, options: Any) -> None:
    with pytest.raises(ValueError, match="floor:"):
        audit.floor(log_q, log_p, **options)


# ---- how the audits treat a model


class Reader(nn.Module):
    """A small recurrent model."""

    def __init__(self, vocab_size: int = 31) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(vocab_size, 16), nn.Linear(16, vocab_size)
        self.reader, self.calls, self.last = nn.GRU(16, 16, batch_first=True), 0, 10**9

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > self.last:
            raise KeyboardInterrupt
        return self.head(self.reader(self.embed(ids))[0])


READER = Reader()


def test_a_model_may_be_wrapped_in_what_calls_it() -> None:
    inner = Reader()

    def plain(ids: Tensor) -> Tensor:
        return inner(ids)

    def itself(ids: Tensor, deep: bool = True) -> Tensor:
        return itself(ids, False) if deep else inner(ids)

    def unfinished(ids: Tensor) -> Tensor:
        return never(ids)  # noqa: F821  deleted before it is called

    never = plain
    del never  # what `unfinished` closes over is gone
    assert "not judged: it raises NameError" in audit.causality(unfinished, 31, 9).where

    wrapped = [
        plain,
        itself,
        inner.forward,
        lambda ids: plain(ids),
        lambda ids, model=inner: model(ids),
        lambda ids: (READER(ids),),
        functools.partial(plain),
        functools.partial(lambda model, ids: model(ids), inner),
        nn.DataParallel(inner),
    ]
    for model in wrapped:
        finding = audit.causality(model, 31, 9)
        assert finding.ok, finding
        assert {p.dtype for m in (inner, READER) for p in m.parameters()} == {torch.float32}, "the copy shares a module"
    leaky = audit.causality(lambda ids: inner(ids) + 0.1 * READER(ids.flip(1)).flip(1), 31, 9)
    assert not leaky.ok and "suffix" in leaky.where


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_context_of_the_caller_does_not_matter(context: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model = Reader().to(dtype).requires_grad_(False)
        with context():
            assert audit.causality(model, 31, 9).ok


def test_an_audit_leaves_nothing_behind_even_when_it_is_interrupted() -> None:
    for last in (10**9, 1, 2, 5, 9, 14, 20, 26, 30, 33):
        model = Reader()
        model.head.eval()
        model.last = last
        before = copy.deepcopy(model.state_dict())
        random_state = torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt) if last < 10**9 else contextlib.nullcontext():
            audit.causality(model, 31, 9)
        assert [m.training for m in (model, model.embed, model.head)] == [True, True, False]
        assert not any(m._forward_hooks for m in model.modules()) and torch.get_default_dtype() == torch.float32
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert torch.equal(random_state, torch.get_rng_state()) and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "reason"),
    [(lambda ids: None, "NoneType"), (lambda ids: READER(ids)[:, -1], "not logits (B, T, V)"),
     (lambda ids: READER(ids).long(), "torch.int64"), (lambda ids: READER(ids).to(torch.complex64), "complex64"),
     (Reader().to("meta"), "on meta"), (Reader(7), "IndexError"), (lambda: None, "TypeError")],
)  # fmt: skip
def test_what_gives_no_logits_is_not_judged(model: Any, reason: str) -> None:
    finding = audit.causality(model, 31, 9)
    assert not finding.ok and "not judged" in finding.where and reason in finding.where, finding


def test_health_wants_parameters_that_learn() -> None:
    finding = audit.health(Reader().requires_grad_(False), 31, 9)
    assert "gradient: not judged: no parameter takes a gradient" in finding.where


# ---- findings


def test_a_finding_is_one_line() -> None:
    assert str(audit.Finding("it holds", True, 0.0, 1e-9, "", 3)) == "ok it holds: worst 0, tolerance 1e-09, 3 cases"
    failed = str(audit.Finding("it holds", False, 2.0, 0.0, "here", 3))
    assert failed == "FAILED it holds: worst 2, tolerance 0, 3 cases at here"
