"""The loop trains what it says it trains, stops when it must, and tells it to people, files and TensorBoard."""

import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octlm import loop, probes
from octlm.checkpoint import latest_checkpoint, load_run
from octlm.command import RunFailed
from octlm.config import load_config
from octlm.data import Batch, Dataset, prepare
from octlm.model import Decoder
from octlm.sampling import generate
from tests.runs import run, tiny, write_text
from tests.variants import build

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")


def losses(records: list[dict[str, Any]]) -> list[float]:
    return [r["loss"] for r in records if r["kind"] == "train"]


def test_d15_a_cycle_is_learnt_as_a_cycle(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(48 + k % 64) for k in range(6000)), encoding="utf-8")
    words = (
        "model.dropout=0.0",
        "train.steps=100",
        "train.log_every=100",
        "train.eval_every=0",
        "train.sample_every=0",
    )
    run(tiny(tmp_path, *words, "train.save_every=0"), tmp_path / "run")
    trained = load_run(tmp_path / "run")
    ids = generate(trained.model, [[48 + k] for k in range(64)], max_new_tokens=1, temperature=0.0)
    assert ids == [[48 + (k + 1) % 64] for k in range(64)]


def test_one_block_is_memorised_and_reproduced(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "octlm", tmp_path / "text", ignore=shutil.ignore_patterns("__pycache__"))
    words = [
        f"data.path={tmp_path / 'text'}",
        "data.source=text",
        f"data.cache_dir={tmp_path}",
        "train.threads=1",
    ]
    config = load_config("day1-overfit", words)
    records = run(config, tmp_path / "run")
    assert losses(records)[-1] < 0.01
    block = prepare(config).batch(0, 0).ids[0].tolist()
    trained = load_run(tmp_path / "run", which="latest")
    for use_cache in (True, False):
        settings = {"max_new_tokens": len(block) - 8, "temperature": 0.0, "use_cache": use_cache}
        assert generate(trained.model, [block[:8]], **settings) == [block[8:]]


def test_validation_scores_the_whole_split_in_nats_and_bits(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    dataset = prepare(config)
    torch.manual_seed(0)
    model = Decoder(config.model)
    scores = [probes.validate(model, dataset, rows, device=CPU) for rows in (1, 3, 64)]
    assert all(s is not None and s.tokens == len(dataset.val) for s in scores)
    assert len({round(s.loss, 5) for s in scores if s is not None}) == 1
    # by hand: every token from the window that holds it
    tokens = [dataset.tokenizer.eot_id, *dataset.val.read(0, len(dataset.val)).tolist()]
    nats = 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 16):
            window = torch.tensor([tokens[start : start + 16 + 1]])
            shares = model.eval()(window[:, :-1]).double().log_softmax(-1)[0]
            nats -= float(sum(shares[i, target] for i, target in enumerate(window[0, 1:].tolist())))
    assert scores[0] is not None
    assert scores[0].loss == pytest.approx(nats / (len(tokens) - 1), rel=1e-5)
    assert scores[0].bits_per_byte == pytest.approx(nats / math.log(2) / dataset.val_bytes, rel=1e-5)


QUIET = ("train.eval_every=0", "train.sample_every=0", "train.save_every=0")


def evaluation_changes_no_training_step(folder: Path) -> None:
    words = ("train.steps=10", "model.dropout=0.5")
    often = ("train.eval_every=3", "train.sample_every=3")
    with_evaluations = losses(run(tiny(folder, *words, *often), folder / "often"))
    without = losses(run(tiny(folder, *words, *QUIET), folder / "quiet"))
    assert with_evaluations == without and len(without) == 10


def test_d11_an_evaluation_changes_no_training_step(tmp_path: Path) -> None:
    evaluation_changes_no_training_step(tmp_path)
    config = tiny(tmp_path, "model.dropout=0.5")
    model, dataset = Decoder(config.model), prepare(config)
    assert not torch.equal(model(dataset.batch(0, 0).ids), model(dataset.batch(0, 0).ids)), "dropout has no effect"
    assert probes.validate(model, dataset, 4, device=CPU) == probes.validate(model, dataset, 4, device=CPU)
    assert model.training
    texts = [generate(model, [[1, 2]], max_new_tokens=9, temperature=0.0) for _ in range(2)]
    assert texts[0] == texts[1] and model.training


def test_d11_mutant_an_evaluation_that_leaves_dropout_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(model: Decoder, *args: Any, **kwargs: Any) -> Any:
        scores = probes.validate(model, *args, **kwargs)
        model.eval()
        return scores

    monkeypatch.setattr(loop, "validate", forgetful)
    with pytest.raises(AssertionError):
        evaluation_changes_no_training_step(tmp_path)


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("train.tokens_per_step=64", "train.micro_batch_size=8"), ("64", "8 x context_length=16 = 128")),
        (("train.tokens_per_step=8",), ("8", "4 x context_length=16 = 64")),
        (("train.tokens_per_step=192", "train.micro_batch_size=8"), ("192", "8 x context_length=16 = 128")),
        (("train.tokens_per_step=100",), ("100", "4 x context_length=16 = 64")),
    ],
    ids=["less than a micro-batch", "less than a row", "one and a half", "no whole rows"],
)
def test_d1_a_step_that_is_no_whole_number_of_micro_batches_is_refused_with_both_numbers(
    tmp_path: Path, words: tuple[str, ...], numbers: tuple[str, str]
) -> None:
    with pytest.raises(ValueError, match=f"tokens_per_step={numbers[0]} is not .*micro_batch_size={numbers[1]}"):
        run(tiny(tmp_path, *words), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_d1_every_micro_batch_of_every_step_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[int, int]] = []
    before: list[list[torch.Tensor]] = []
    batch, update = Dataset.batch, loop.update

    def serve(self: Dataset, step: int, slice: int) -> Batch:
        served.append((step, slice))
        return batch(self, step, slice)

    def look(model: Decoder, *rest: Any) -> None:
        old = [p.detach().clone() for p in model.parameters()]
        update(model, *rest)
        assert all((a != b).any() for a, b in zip(old, model.parameters(), strict=True))
        before.append(old)

    monkeypatch.setattr(Dataset, "batch", serve)
    monkeypatch.setattr(loop, "update", look)
    many = "train.tokens_per_step=1024"  # more than the text's 28 windows in one step
    for words, slices in ((("train.micro_batch_size=2",), 4), ((many, "train.micro_batch_size=16"), 4)):
        served.clear(), before.clear()
        records = run(tiny(tmp_path, "train.steps=3", *QUIET, *words), tmp_path / f"run{len(words)}")
        assert served[: 3 * slices] == [(step, part) for step in range(3) for part in range(slices)]
        assert len(before) == len(losses(records)) == 3


def test_d2_the_first_step_changes_every_parameter(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.steps=1", "optim.warmup_steps=4", *QUIET)
    (record,) = [r for r in run(config, tmp_path / "run") if r["kind"] == "train"]
    assert record["learning_rate"] == config.optim.learning_rate / 4
    torch.manual_seed(config.train.seed)
    fresh = Decoder(config.model)
    trained = load_run(tmp_path / "run", which="latest").model
    for name, parameter in trained.named_parameters():
        assert not torch.equal(parameter, fresh.get_parameter(name)), name


def accumulation_equals_one_large_batch(folder: Path) -> None:
    plain = ("model.dropout=0.0", "optim.clip=0.5", "train.steps=5", *QUIET)
    small = run(tiny(folder, *plain, "train.micro_batch_size=2"), folder / "small")
    large = run(tiny(folder, *plain, "train.micro_batch_size=8"), folder / "large")
    pairs = [(a, b) for a, b in zip(small, large, strict=True) if a["kind"] == "train"]
    assert len(pairs) == 5 and all(b["gradient_norm"] > 1 for _, b in pairs), "nothing is clipped"
    for a, b in pairs:
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-3)
    one, other = (load_run(folder / name, which="latest").model for name in ("small", "large"))
    for name, parameter in one.named_parameters():
        assert (parameter - other.get_parameter(name)).abs().max() < 1e-5, name


def test_d10_accumulation_equals_one_large_batch(tmp_path: Path) -> None:
    accumulation_equals_one_large_batch(tmp_path)


def test_d10_mutant_clipping_every_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.loss_sum

    def clipped(model: Decoder, *rest: Any) -> torch.Tensor:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # what the micro-batches before have left
        return real(model, *rest)

    monkeypatch.setattr(loop, "loss_sum", clipped)
    with pytest.raises(AssertionError):
        accumulation_equals_one_large_batch(tmp_path)


def test_d8_a_batch_without_targets_contributes_nothing() -> None:
    model = build({"vocab_size": 31, "context_length": 16, "dim": 32})
    ids = torch.zeros(2, 16, dtype=torch.int64)
    loss = probes.loss_sum(model, Batch(ids, torch.full_like(ids, -1), None, None), CPU)
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def an_empty_micro_batch_is_dropped(folder: Path, dtype: torch.dtype) -> None:
    config = tiny(folder, "model.dropout=0.0")
    dataset = prepare(config)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    found = []
    for part in (1, 0, None):  # which of the two has no target
        torch.manual_seed(0)
        model = Decoder(config.model)
        full = dataset.batch(0, 0)
        empty = full._replace(targets=torch.full_like(full.targets, -1))
        window = [empty if i == part else full for i in range(2)]
        served = SimpleNamespace(batch=lambda step, i, window=window: window[i])
        loss = loop.accumulate(model, served, 0, config, CPU, dtype, scaler)  # type: ignore[arg-type]
        norm = loop.clip_gradients(model, [torch.optim.SGD(model.parameters(), lr=1.0)], scaler, 0.0)
        assert math.isfinite(loss) and math.isfinite(norm) and norm > 0
        found.append((loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    for loss, gradients in found[:2]:
        assert loss == pytest.approx(found[2][0] / 2, rel=1e-6)
        for a, b in zip(gradients, found[2][1], strict=True):
            torch.testing.assert_close(a, b / 2, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_d8_a_micro_batch_without_targets_is_as_if_dropped(tmp_path: Path, dtype: torch.dtype) -> None:
    an_empty_micro_batch_is_dropped(tmp_path, dtype)


def test_d8_mutant_a_mean_over_no_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mean(model: Decoder, batch: Batch, device: torch.device) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            model(batch.ids).flatten(0, 1), batch.targets.flatten(), ignore_index=-1
        )

    monkeypatch.setattr(loop, "loss_sum", mean)
    with pytest.raises(AssertionError):
        an_empty_micro_batch_is_dropped(tmp_path, torch.float32)


def clipping_acts_on_unscaled_gradients() -> None:
    model = build({"vocab_size": 31, "dim": 32})
    ids = torch.zeros(1, 4, dtype=torch.int64)
    model(ids).square().sum().backward()
    exact = math.hypot(*(p.grad.norm().item() for p in model.parameters() if p.grad is not None))
    model.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    scaler.scale(model(ids).square().sum()).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert exact > 0.5
    assert loop.clip_gradients(model, [optimizer], scaler, 0.5) == pytest.approx(exact, rel=0.01)
    norm = math.hypot(*(p.grad.norm().item() for p in model.parameters() if p.grad is not None))
    assert norm == pytest.approx(0.5, rel=1e-4)


def test_d9_clipping_acts_on_unscaled_gradients(tmp_path: Path) -> None:
    plain = ("model.dropout=0.0", "train.steps=3", *QUIET)
    full = [r for r in run(tiny(tmp_path, *plain), tmp_path / "fp32") if r["kind"] == "train"]
    half = [r for r in run(tiny(tmp_path, *plain, "train.precision=fp16"), tmp_path / "fp16") if r["kind"] == "train"]
    assert len(full) == len(half) == 3
    for a, b in zip(full, half, strict=True):
        assert b["gradient_norm"] == pytest.approx(a["gradient_norm"], rel=0.01)
    clipping_acts_on_unscaled_gradients()


def test_d9_mutant_clipping_before_unscaling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "unscale_", lambda self, optimizer: None)
    with pytest.raises(AssertionError):
        clipping_acts_on_unscaled_gradients()


def test_an_overflow_in_one_optimizer_skips_the_step_of_all() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    model = torch.nn.ParameterList(parameters)
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in parameters]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for clip in (0.0, 1.0):
        scaler.scale(sum(p.sum() for p in parameters)).backward()
        parameters[0].grad[0] = math.inf  # type: ignore[index]
        before = scaler.get_scale()
        loop.update(model, optimizers, scaler, loop.clip_gradients(model, optimizers, scaler, clip))
        assert all(torch.equal(p, torch.ones(2)) for p in parameters)
        assert scaler.get_scale() < before


def test_a_reader_that_leaves_stops_the_run_after_a_checkpoint(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.steps=100000", "train.save_every=0", "train.eval_every=0")
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    words = [sys.executable, ROOT / "train.py", "--config", tmp_path / "config.yaml", "--run-dir", tmp_path / "run"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        for _ in range(3):
            process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
    assert latest_checkpoint(tmp_path / "run") is not None


def test_closed_standard_streams_do_no_harm(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.steps=2")
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    command = f"'{sys.executable}' '{ROOT / 'train.py'}' --config '{tmp_path / 'config.yaml'}'"
    done = subprocess.run(f"{command} --run-dir '{tmp_path / 'run'}' <&- >&- 2>&-", shell=True, timeout=60)
    assert done.returncode == 0 and latest_checkpoint(tmp_path / "run") is not None
    shell = f"{command} --run-dir '{tmp_path / 'no'}' data.path=- <&-"
    done = subprocess.run(shell, shell=True, timeout=60, capture_output=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and b"standard input is closed" in done.stderr


def test_d13_training_goes_on_into_the_next_epoch(tmp_path: Path) -> None:
    config = tiny(tmp_path, f"data.path={write_text(tmp_path / 'short.txt', 85)}", *QUIET)
    dataset = prepare(config)
    assert -(-dataset.windows // dataset.rows_per_step) == 3, "three batches an epoch"

    def late(*args: Any) -> None:
        raise TimeoutError("it hangs after one pass over the data")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    try:
        found = losses(run(config, tmp_path / "run"))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert len(found) == 20
    assert [dataset.epoch(step) for step in (0, 20)] == [0, 20 * 8 // dataset.windows] and dataset.epoch(20) >= 6


def test_d14_ids_beyond_the_vocabulary_are_refused_before_step_1(tmp_path: Path) -> None:
    characters = "".join(chr(48 + i) for i in range(60))  # and EOT: ids 0 to 60
    (tmp_path / "ids.txt").write_text(characters * 40, encoding="utf-8")
    words = ("data.tokenizer=char", f"data.path={tmp_path / 'ids.txt'}", *QUIET)
    dataset = prepare(tiny(tmp_path, *words, "model.vocab_size=61"))
    assert dataset.tokenizer.size == 61
    with pytest.raises(ValueError, match=r"61 ids, more than the vocabulary of 50"):
        run(tiny(tmp_path, *words, "model.vocab_size=50"), tmp_path / "run")
    given = f"data.tokenizer_file={dataset.folder / 'tokenizer.json'}"
    with pytest.raises(ValueError, match=r"61 ids, more than the vocabulary of 50"):
        run(tiny(tmp_path, *words, given, "model.vocab_size=50"), tmp_path / "run")
    with pytest.raises(ValueError, match=r"ids up to 60, but model\.vocab_size=50"):
        Dataset(dataset.folder, tiny(tmp_path, "model.vocab_size=50"), "here")
    assert latest_checkpoint(tmp_path / "run") is None
    with pytest.raises(ValueError, match=r"from 0 to 49; got 60"):
        generate(build({"vocab_size": 50}), [[60]], max_new_tokens=1)
    with pytest.raises(IndexError):
        build({"vocab_size": 50})(torch.tensor([[60]]))


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    name = {"loss": "accumulate", "gradient": "clip_gradients"}[where]
    real, calls = getattr(loop, name), iter(range(1, 100))
    monkeypatch.setattr(loop, name, lambda *args: real(*args) if next(calls) != 8 else math.nan)
    with pytest.raises(RunFailed, match=r"step 8.*not finite.*step-000005"):
        run(tiny(tmp_path), tmp_path / "run")
    weights = load_run(tmp_path / "run", which="latest").model.state_dict()
    assert latest_checkpoint(tmp_path / "run") == tmp_path / "run/checkpoints/step-000005"
    assert all(torch.isfinite(w).all() for w in weights.values())


def test_a_leaking_model_is_stopped_before_step_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaky(Decoder):
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            logits = super().forward(*args, **kwargs)
            return logits + 0.001 * logits.mean(dim=1, keepdim=True)

    monkeypatch.setattr(loop, "Decoder", Leaky)
    with pytest.raises(RunFailed, match=r"preflight.*later token"):
        run(tiny(tmp_path), tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run") is None


def test_early_stop_ends_after_evaluations_without_a_better_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = iter([3.0, 2.0, 2.5, 2.6, 2.7, 1.0])
    monkeypatch.setattr(loop, "validate", lambda *args, **kwargs: probes.Validation(next(values), 1.0, 1))
    words = ("train.eval_every=2", "train.early_stop=2")
    records = run(tiny(tmp_path, *words), tmp_path / "run")
    assert (records[-1]["kind"], records[-1]["reason"], records[-1]["step"]) == ("run_end", "early_stop", 8)
    assert load_run(tmp_path / "run").step == 4
    capsys.readouterr()
    longer = tiny(tmp_path, *words, "train.steps=50")
    assert run(longer, tmp_path / "run") == records, "an early end is an end"
    assert "finished at step 8: no better loss" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_every_optimizer_and_attention_path_learns(tmp_path: Path, name: str, attention: str) -> None:
    words = (
        f"optim.name={name}",
        f"model.attention={attention}",
        "train.steps=30",
        "data.isolate_documents=true",
    )
    found = losses(run(tiny(tmp_path, *words), tmp_path / "run"))
    assert found[-1] < found[0] - 1.5


def test_tensorboards_reader_finds_the_curves_with_rising_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    real, calls = loop.update, iter(range(1, 100))

    def dying(*args: Any) -> None:
        if next(calls) == 13:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(loop, "update", dying)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(tmp_path), tmp_path / "run")
    run(tiny(tmp_path), tmp_path / "run")
    reader = EventAccumulator(str(tmp_path / "run"))
    reader.Reload()
    wanted = {"train/loss", "train/learning_rate", "train/gradient_norm", "train/tokens_per_second"}
    assert set(reader.Tags()["scalars"]) == wanted | {"eval/loss", "eval/bits_per_byte"}
    assert reader.Tags()["images"] == ["attention"]
    for tag in wanted:
        assert [event.step for event in reader.Scalars(tag)] == list(range(1, 21))
    assert [event.step for event in reader.Scalars("eval/bits_per_byte")] == [10, 20]


def test_piped_output_is_plain_lines_at_most_two_a_log_interval(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    words = [
        "--config",
        str(tmp_path / "config.yaml"),
        "--run-dir",
        str(tmp_path / "run"),
        "train.log_every=5",
    ]
    done = subprocess.run([sys.executable, ROOT / "train.py", *words], capture_output=True, timeout=60, check=True)
    output = (done.stdout + done.stderr).decode()
    assert "\r" not in output
    lines = output.splitlines()
    begun = next(i for i, line in enumerate(lines) if line.startswith("step 5/20"))
    assert begun <= 2, "at most two lines before the first step"
    assert len(lines) - begun <= 2 * 4 + 1
    assert [line.split()[1] for line in lines if line.startswith("step ")] == [
        "5/20",
        "10/20",
        "15/20",
        "20/20",
    ]
    assert any(line.startswith("sample: ") for line in lines)


def test_compile_auto_falls_back_to_eager_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Decoder, **kwargs: Any) -> Any:
        def fail(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(UserWarning, match=r"train\.compile: auto: running eagerly") as caught:
        records = run(tiny(tmp_path, "train.compile=auto", "train.steps=3"), tmp_path / "auto")
    assert len(caught) == 1
    assert losses(records) == losses(run(tiny(tmp_path, "train.steps=3"), tmp_path / "off"))
    with pytest.raises(RuntimeError, match="no compiler"):
        run(tiny(tmp_path, "train.compile=on"), tmp_path / "on")


def test_a_long_prompt_and_a_foreign_one_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sample\.prompt: 20 tokens.*16"):
        run(tiny(tmp_path, "sample.prompt=" + "x" * 20), tmp_path / "run")
    with pytest.raises(ValueError, match=r"sample\.prompt: "):
        run(tiny(tmp_path, "sample.prompt=Q", "data.tokenizer=char"), tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run") is None


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path) -> None:
    from octlm.run_directory import open_run

    config = tiny(tmp_path)
    with open_run(tmp_path / "run", config, "auto"), pytest.raises(ValueError, match="another process"):
        run(config, tmp_path / "run")


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE is 2"):
        run(tiny(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
