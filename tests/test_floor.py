"""An honest model stays above the floor of the fables; one that sees its targets falls through it and is convicted."""

import math
from pathlib import Path

import pytest
import torch

from octlm.audit import Finding, floor
from octlm.config import Config, load_config
from octlm.corpus.fables import tell
from octlm.data import Dataset, prepare
from octlm.loop import accumulate, clip_gradients, train, update
from octlm.metrics import read_records
from octlm.model import Decoder, masks
from octlm.optim import build_optimizers, learning_rate, set_learning_rate
from octlm.probes import log_probabilities
from scripts import audit

SMALL = (
    "data.stories=400", "model.context_length=64", "model.dim=32", "model.n_layers=1", "train.tokens_per_step=1024",
    "train.micro_batch_size=16", "train.steps=40", "optim.warmup_steps=4",
)  # fmt: skip
FRESH = [tell(0, number) for number in range(10**6, 10**6 + 50)]  # of the same seed, and in no training


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Dataset]:
    cache = tmp_path_factory.mktemp("cache")
    config = load_config("fables", [*SMALL, f"data.cache_dir={cache}"])
    return config, prepare(config)


def trained_verdict(config: Config, dataset: Dataset, seed: int, steps: int) -> tuple[Finding, float]:
    """Train one small model; give the verdict on fresh stories, and the last loss in nats per token."""
    torch.manual_seed(seed)
    model = Decoder(config.model)
    optimizers = build_optimizers(model, config.optim)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    loss = math.inf
    for step in range(steps):
        set_learning_rate(optimizers, learning_rate(step, config.optim, steps))
        loss = accumulate(model, dataset, seed * steps + step, config, torch.device("cpu"), torch.float32, scaler)
        update(model, optimizers, scaler, clip_gradients(model, optimizers, scaler, config.optim.clip))
    log_q = log_probabilities(model.eval(), dataset.tokenizer, [story.text for story in FRESH])
    return floor(log_q, [story.log2_probability * math.log(2) for story in FRESH]), loss


def reads_ahead(query: torch.Tensor, key: torch.Tensor, window: int = 0, stride: int = 0) -> torch.Tensor:
    """The mask with one more diagonal."""
    return key <= query + 1


def reads_all(query: torch.Tensor, key: torch.Tensor, window: int = 0, stride: int = 0) -> torch.Tensor:
    """No mask at all."""
    return (key <= query) | True


def test_a_model_that_reads_ahead_is_convicted_and_an_honest_one_is_not(
    small: tuple[Config, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, dataset = small
    honest, loss = trained_verdict(config, dataset, 0, 60)
    assert honest.ok and honest.worst < 1e-6 and loss < 4, (honest, loss)
    monkeypatch.setattr(masks, "rule", reads_ahead)
    leaky, _ = trained_verdict(config, dataset, 0, 200)
    assert not leaky.ok and leaky.worst > 1e6, leaky


@pytest.mark.slow
def test_no_honest_model_of_100_seeds_is_accused(small: tuple[Config, Dataset]) -> None:
    for seed in range(100):
        finding, _ = trained_verdict(*small, seed, 40)
        assert finding.ok, (seed, finding)


@pytest.mark.slow
def test_an_honest_day_1_ends_above_the_floor_by_a_quarter_at_most(tmp_path: Path) -> None:
    """In half of the recipe's steps: a minute on two cores."""
    words = ("train.steps=300", "train.eval_every=0", f"data.cache_dir={tmp_path / 'cache'}")
    train(load_config("fables", words), tmp_path / "run")
    (scores,) = (record for record in read_records(tmp_path / "run") if record["kind"] == "eval")
    assert 0 < scores["excess_bits_per_byte"] <= 0.25 * scores["oracle_bits_per_byte"]


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "steps"), [("learned", 400), ("rope", 200)])
def test_day_1_without_its_mask_falls_below_the_floor(
    positions: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """AdamW at 3e-3; the records, the terminal and the script all say so."""
    monkeypatch.setattr(masks, "rule", reads_all)
    words = ("optim.name=adamw", "optim.learning_rate=3e-3", f"model.positions={positions}", "train.preflight=false",
             f"train.steps={steps}", "train.eval_every=0", "train.save_every=0", "train.sample_every=0",
             f"data.cache_dir={tmp_path / 'cache'}")  # fmt: skip
    train(load_config("fables", words), tmp_path / "run")
    (scores,) = (record for record in read_records(tmp_path / "run") if record["kind"] == "eval")
    assert scores["bits_per_byte"] < scores["oracle_bits_per_byte"] and scores["excess_bits_per_byte"] < 0
    assert "BELOW THE FLOOR" in capsys.readouterr().out
    assert audit.main(["--run", str(tmp_path / "run"), "--only", "floor"]) == 1
    assert "e-value 10^" in capsys.readouterr().out


def test_every_token_of_a_text_is_scored(small: tuple[Config, Dataset]) -> None:
    """A uniform model scores every token of every text, the end included, at ln V."""
    config, dataset = small
    model = Decoder(config.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    texts = [story.text for story in FRESH[:3]]
    expected = [-(len(dataset.tokenizer.encode(text)) + 1) * math.log(config.model.vocab_size) for text in texts]
    assert log_probabilities(model, dataset.tokenizer, texts) == pytest.approx(expected, rel=1e-12)
