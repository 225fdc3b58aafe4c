"""Hold what a checkpoint promises: whole or not there, exact, by name, refused in doubt, and nothing run."""

import ast
import hashlib
import json
import os
import pickle
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

from octlm import checkpoint as module
from octlm.checkpoint import (
    best_checkpoint,
    clean,
    latest_checkpoint,
    load_run,
    prune,
    read_checkpoint,
    save_checkpoint,
    write_best,
)
from octlm.config import Config, ModelConfig, OptimConfig, TrainConfig
from octlm.model import Decoder
from octlm.optim import build_optimizers
from octlm.run_directory import open_run
from octlm.tokenizer import Tokenizer, build_tokenizer
from tests import generation
from tests.generation import Call, refused

call = generation.call  # its fixture

SHAPE: dict[str, Any] = {"vocab_size": 260, "context_length": 16, "dim": 32, "n_layers": 2, "n_kv_heads": 2}
CONFIG = Config(model=ModelConfig(**SHAPE), train=TrainConfig(tokens_per_step=32, micro_batch_size=2))
SIX = [*module.FILES, module.MANIFEST]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build_tokenizer("byte", list, 260, tmp_path_factory.mktemp("cache"))


def decoder(seed: int = 0, **changed: Any) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(ModelConfig(**SHAPE | changed))


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizers: Optimizer | Sequence[Optimizer], first: int, last: int) -> None:
    """Take the steps first + 1 .. last, each on data that depends on its number alone."""
    for step in range(first, last):
        ids = torch.randint(260, (2, 17), generator=torch.Generator().manual_seed(step))
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        for one in [optimizers] if isinstance(optimizers, Optimizer) else optimizers:
            one.step()
            one.zero_grad()


@pytest.fixture
def save(tmp_path: Path, tokenizer: Tokenizer) -> Callable[..., Path]:
    """Return a function that writes one checkpoint of a fresh model into tmp_path/run."""

    def write(step: int = 10, model: nn.Module | None = None, optimizer: Any = None, **changed: Any) -> Path:
        model = decoder(**changed) if model is None else model
        config = CONFIG.model_copy(update={"model": ModelConfig(**SHAPE | changed)})
        return save_checkpoint(
            tmp_path / "run", step, model=model, optimizer=optimizer or adamw(model),
            state={"scaler": {}, "note": "é"}, config=config, tokenizer=tokenizer,
        )  # fmt: skip

    return write


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Compare tensors by name bit for bit, and dtypes with them."""
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def state_of(model: nn.Module, optimizers: Optimizer | Sequence[Optimizer]) -> dict[str, Any]:
    """Name every optimizer tensor as the file does."""
    names = {id(p): n for n, p in model.named_parameters()}
    every = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
    held = [(names[id(p)], state) for one in every for p, state in one.state.items()]
    return {f"{key}/{name}": value for name, state in held for key, value in state.items()}


def sign(path: Path) -> None:
    """Make the manifest vouch for whatever lies in `path`: what is refused now is refused for its meaning."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name in module.FILES:
        data = (path / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (path / "manifest.json").write_text(json.dumps(manifest))


def change_tensors(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite one safetensors file with its metadata kept, and sign the result."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(change({name: tensor.clone() for name, tensor in load_file(path).items()}), path, metadata)
    sign(path.parent)


def refusal(call: Callable[[], object], *words: str) -> None:
    """Expect a ValueError of one line with these words in it."""
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    for word in words:
        assert word in message, message


# ---- exactness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_training_goes_on_bit_for_bit(name: str, save: Callable[..., Path]) -> None:
    def start(seed: int) -> tuple[Decoder, Sequence[Optimizer]]:
        model = decoder(seed)
        if name == "sgd":
            return model, [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]
        return model, build_optimizers(model, OptimConfig(name=name, learning_rate=1e-2))

    model, optimizers = start(0)
    train(model, optimizers, 0, 3)
    path = save(3, model, optimizers)
    train(model, optimizers, 3, 6)
    again, fresh = start(1)
    assert not same(model.state_dict(), again.state_dict())
    checkpoint = read_checkpoint(path)
    checkpoint.load_model(again)
    checkpoint.load_optimizer(fresh, again)
    assert (checkpoint.step, checkpoint.state) == (3, {"scaler": {}, "note": "é"})
    assert checkpoint.config.model == CONFIG.model
    train(again, fresh, 3, 6)
    assert same(model.state_dict(), again.state_dict())
    assert len(state_of(model, optimizers)) >= len(list(model.parameters()))
    assert same(state_of(model, optimizers), state_of(again, fresh))


def test_equal_states_give_equal_files(save: Callable[..., Path]) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    saved = []
    for _ in range(4):  # the same step: the earlier one is replaced
        path = save(1, model, optimizer)
        saved.append({name: (path / name).read_bytes() for name in SIX})
    assert all(files == saved[0] for files in saved)
    assert [entry.name for entry in path.parent.iterdir()] == ["step-000001"]
    assert sorted(entry.name for entry in path.iterdir()) == sorted(SIX)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_e4_every_layout_of_a_tensor_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    base = torch.arange(24).reshape(2, 3, 4).to(dtype)
    tensors = {
        "plain": base, "transposed": base.permute(2, 0, 1), "strided": base[:, ::2], "empty": base[:0].clone(),
        "scalar": base[1, 1, 1].clone(), "odd": torch.ones(3, dtype=torch.uint8), "wide": torch.ones(1).double(),
    }  # fmt: skip
    module._write_tensors(tmp_path / "a", tensors, {"step": 1})
    assert same(load_file(tmp_path / "a"), tensors)
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, tensor in tensors.items():  # numbers lie where a machine likes to read them
        assert (8 + length + header[name]["data_offsets"][0]) % tensor.element_size() == 0, name


def check_moments_keep_their_precision(save: Callable[..., Path]) -> None:
    model = decoder().bfloat16()
    optimizer = adamw(model)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(7.0),
            "exp_avg": torch.randn(parameter.shape),
            "exp_avg_sq": torch.rand(parameter.shape, dtype=torch.float64),
        }
    path = save(1, model, optimizer)
    again = decoder(1).bfloat16()
    fresh = adamw(again)
    read_checkpoint(path).load_optimizer(fresh, again)
    assert same(state_of(model, optimizer), state_of(again, fresh))


def test_e8_moments_keep_their_precision(save: Callable[..., Path]) -> None:
    check_moments_keep_their_precision(save)


def test_e8_catches_a_loader_that_casts(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    load = module.Checkpoint.load_optimizer

    def casting(self: module.Checkpoint, optimizer: Optimizer, model: nn.Module) -> None:
        load(self, optimizer, model)
        optimizer.load_state_dict(optimizer.state_dict())  # what torch does to a state that it is given

    monkeypatch.setattr(module.Checkpoint, "load_optimizer", casting)
    with pytest.raises(AssertionError):
        check_moments_keep_their_precision(save)


def test_e10_the_learning_rate_is_not_restored(save: Callable[..., Path]) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    fresh = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.25)
    read_checkpoint(save(1, model, optimizer)).load_optimizer(fresh, model)
    assert (fresh.param_groups[0]["lr"], fresh.param_groups[0]["weight_decay"]) == (0.5, 0.25)


# ---- names ---------------------------------------------------------------------------------------


def check_strict(save: Callable[..., Path]) -> None:
    def swapped(tensors: dict[str, Any]) -> dict[str, Any]:
        return {"x." + name: tensor for name, tensor in tensors.items()}

    def less(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: tensor for name, tensor in tensors.items() if name != "embed.weight"}

    cases: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], tuple[str, ...]]] = [
        (less, ("missing embed.weight",)),
        (lambda tensors: tensors | {"extra": torch.ones(1)}, ("unexpected extra",)),
        (swapped, ("missing", "unexpected x.", " more")),
        (lambda tensors: tensors | {"embed.weight": torch.ones(9, 32)}, ("embed", "(9, 32)", "(260, 32)")),
        (lambda tensors: tensors | {"embed.weight": torch.ones(260, 32).half()}, ("float16", "float32")),
    ]
    for change, words in cases:
        path = save(1)
        change_tensors(path / "model.safetensors", change)
        model = decoder(1)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        checkpoint = read_checkpoint(path)
        refusal(lambda c=checkpoint, m=model: c.load_model(m), "model.safetensors", *words)
        assert same(before, model.state_dict()), "a refused checkpoint changed the model"
        refusal(lambda path=path: load_run(path), "model.safetensors")


def test_e1_names_shapes_and_dtypes_are_strict(save: Callable[..., Path]) -> None:
    check_strict(save)


def test_e1_catches_a_loader_that_is_not_strict(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(self: module.Checkpoint, model: nn.Module) -> None:
        model.load_state_dict(load_file(self.path / "model.safetensors"), strict=False)

    monkeypatch.setattr(module.Checkpoint, "load_model", lenient)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_strict(save)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors, ()),
        (lambda tensors: {n: t for n, t in tensors.items() if n != "embed.weight"}, ("missing embed.weight",)),
        (lambda tensors: tensors | {"extra": torch.ones(1)}, ("unexpected extra",)),
        (lambda tensors: {"x." + n: t for n, t in tensors.items()}, ("missing embed.weight", "unexpected x.embed")),
    ],
)
def test_e1_no_text_comes_from_weights_of_other_names(
    change: Callable[[dict[str, Any]], dict[str, Any]], words: tuple[str, ...], save: Callable[..., Path], call: Call
) -> None:
    path = save(1)
    change_tensors(path / "model.safetensors", change)
    result = call("--run", path, "--prompt", "a", "--max-new-tokens", 8, "--ignore-eot", "--temperature", 0)
    if words:
        refused(result, "model.safetensors", *words)
    else:
        assert result.code == 0 and result.out, "the whole file speaks"


@pytest.mark.parametrize("size", [0, 4, 40, -1])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_e4_a_file_cut_short_is_refused_though_its_hash_is_right(
    name: str, size: int, save: Callable[..., Path], call: Call
) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    path = save(1, model, optimizer)
    (path / name).write_bytes((path / name).read_bytes()[:size])
    sign(path)
    refused(call("--run", path, "--prompt", "a"), name, "not a safetensors file")


@pytest.mark.parametrize("tie", [True, False])
def test_e4_a_shared_tensor_is_stored_once_and_tied_again(tie: bool, save: Callable[..., Path]) -> None:
    model = decoder(tie_head=tie)
    optimizer = adamw(model)
    train(model, optimizer, 0, 2)
    path = save(2, model, optimizer, tie_head=tie)
    names = load_file(path / "model.safetensors").keys()
    assert ("head.weight" in names) is not tie and "embed.weight" in names
    run = load_run(path)
    assert (run.model.head.weight is run.model.embed.weight) is tie
    assert same(model.state_dict(), run.model.state_dict())


def test_e5_a_second_copy_of_a_tied_tensor_is_refused(save: Callable[..., Path]) -> None:
    for other in (1, 0):  # another head, or the same one: the file says what the configuration does not
        path = save(1)
        assert load_run(path).config.model.tie_head
        change_tensors(path / "model.safetensors", lambda t, n=other: t | {"head.weight": t["embed.weight"] + n})
        refusal(lambda path=path: load_run(path), "unexpected head.weight")
    path = save(1, tie_head=False)
    change_tensors(path / "model.safetensors", lambda t: t | {"head.weight": t["embed.weight"] + 1})
    run = load_run(path)  # an untied head may be any
    assert torch.equal(run.model.head.weight, run.model.embed.weight + 1)


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"n_layers": 3}, ("missing layers.2.",)), ({"tie_head": False}, ("missing head.weight",))],
)
def test_e7_another_model_is_refused_by_name(
    changed: dict[str, Any], words: tuple[str, ...], save: Callable[..., Path]
) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    checkpoint = read_checkpoint(save(1, model, optimizer))
    other = decoder(**changed)
    fresh = adamw(other)
    refusal(lambda: checkpoint.load_model(other), "model.safetensors", *words)
    refusal(lambda: checkpoint.load_optimizer(fresh, other), "optimizer.safetensors", *words)
    assert not fresh.state


@pytest.mark.parametrize(
    ("section", "changed", "keys"),
    [
        ("model", {"n_layers": 3}, "model.n_layers"),
        ("model", {"tie_head": False}, "model.tie_head"),
        ("model", {"n_heads": 2, "bias": True}, "model.n_heads, model.bias"),
        ("optim", {"learning_rate": 0.5}, "optim.learning_rate"),
        ("optim", {"weight_decay": 0.5, "name": "muon"}, "optim.name, optim.weight_decay"),
        ("train", {"device": "cpu"}, "train.device"),
    ],
)
def test_e7_e10_another_config_is_not_resumed_and_its_keys_are_named(
    section: str, changed: dict[str, Any], keys: str, save: Callable[..., Path], tmp_path: Path
) -> None:
    path = save(10)
    (tmp_path / "run" / "config.yaml").write_text(CONFIG.to_yaml())
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    other = CONFIG.model_copy(update={section: getattr(CONFIG, section).model_copy(update=changed)})

    def resume() -> None:
        with open_run(tmp_path / "run", other, "auto"):
            raise AssertionError("training would begin")

    refusal(resume, str(path), f"another {keys};")
    assert before == {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    with open_run(tmp_path / "run", CONFIG, "auto") as checkpoint:
        assert checkpoint is not None and checkpoint.step == 10


def test_e7_the_order_of_parameters_does_not_matter(save: Callable[..., Path]) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 2)
    path = save(2, model, optimizer)
    backwards = torch.optim.AdamW([{"params": [p]} for p in reversed(list(model.parameters()))], lr=1e-2)
    read_checkpoint(path).load_optimizer(backwards, model)
    assert same(state_of(model, optimizer), state_of(model, backwards))


def test_another_kind_of_optimizer_or_a_changed_state_is_refused(save: Callable[..., Path]) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    path = save(1, model, optimizer)
    refusal(lambda: read_checkpoint(path).load_optimizer(torch.optim.SGD(model.parameters()), model), "SGD")
    fresh = adamw(model)
    key = "exp_avg/embed.weight"
    for change, word in [
        (lambda tensors: {name: t for name, t in tensors.items() if name != key}, f"missing {key}"),
        (lambda tensors: tensors | {key: torch.ones(4, 32)}, f"{key} is (4, 32)"),
        (lambda tensors: tensors | {"exp_avg/stranger": torch.ones(1)}, "unexpected exp_avg/stranger"),
    ]:
        path = save(1, model, optimizer)
        change_tensors(path / "optimizer.safetensors", change)  # type: ignore[arg-type]
        checkpoint = read_checkpoint(path)
        refusal(lambda c=checkpoint: c.load_optimizer(fresh, model), "optimizer.safetensors", word)
        assert not fresh.state


# ---- whole or not there --------------------------------------------------------------------------


def hidden(run_dir: Path) -> list[str]:
    return [entry.name for entry in (run_dir / "checkpoints").iterdir() if entry.name.startswith(".")]


class Killed(BaseException):
    """A kill: nothing may tidy up after it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Die in the number-th call of `name`, and let no clean-up happen after that."""
    calls = 0
    original = getattr(module, name)

    def dying(path: Path) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
            raise Killed
        return original(path)

    monkeypatch.setattr(module, name, dying)


@pytest.mark.parametrize("replacing", [False, True])
def test_a_kill_at_any_moment_of_a_save_leaves_whole_checkpoints(
    replacing: bool, save: Callable[..., Path], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    earlier = save(10)
    if replacing:
        save(20)
    before = (earlier / "manifest.json").read_bytes()
    for number in range(1, 20):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, "sync", number)
            try:
                save(20)
                break
            except Killed:
                pass
        latest = latest_checkpoint(run_dir)
        assert latest is not None and read_checkpoint(latest).step in (10, 20)
        assert latest.name == "step-000010" or replacing or number == 9  # after the rename
        clean(run_dir)
        assert hidden(run_dir) == []
        if not replacing:
            shutil.rmtree(run_dir / "checkpoints" / "step-000020", ignore_errors=True)
    assert number == 10, "the parent, five files, the manifest, their directory, the rename"
    assert (earlier / "manifest.json").read_bytes() == before
    assert load_run(run_dir).step == 20


def test_e2_what_a_kill_left_is_never_resumed_from(save: Callable[..., Path], tmp_path: Path) -> None:
    whole = save(10)
    checkpoints = whole.parent
    shutil.copytree(whole, checkpoints / ".step-000020.tmp-1")  # complete but for the rename
    shutil.copytree(whole, checkpoints / ".step-000030.old-77")
    (checkpoints / ".best.json.tmp-5").write_text("{")
    (checkpoints / "step-000040").mkdir()  # no manifest
    (checkpoints / "step-0000000050").mkdir()
    (checkpoints / "notes.txt").write_text("mine")
    assert latest_checkpoint(tmp_path / "run") == whole
    clean(tmp_path / "run")
    assert hidden(tmp_path / "run") == [] and (checkpoints / "notes.txt").exists()
    assert latest_checkpoint(tmp_path / "run") == whole
    clean(tmp_path / "nothing there")


LEFT_BEHIND = [".config.yaml.tmp-7", ".env.json.tmp-7", ".metrics.jsonl.tmp-7", ".events.tmp",
               "samples/.step-000010.txt.tmp-7", "checkpoints/.best.json.tmp-7"]  # fmt: skip


def check_that_a_start_removes_what_a_kill_left(run_dir: Path) -> None:
    """A new run that was killed at its first file, and one with a checkpoint: both go on, without the rest."""
    (run_dir.parent / "new").mkdir()
    (run_dir.parent / "new" / ".config.yaml.tmp-7").write_bytes(b"mod")
    for resume in ("never", "auto"):
        with open_run(run_dir.parent / "new", CONFIG, resume) as checkpoint:
            assert checkpoint is None and (run_dir.parent / "new" / "config.yaml").exists()
        assert sorted(path.name for path in (run_dir.parent / "new").iterdir()) == [".lock", "config.yaml"]
        (run_dir.parent / "new" / "config.yaml").rename(run_dir.parent / "new" / ".config.yaml.tmp-7")
    (run_dir / "config.yaml").write_text(CONFIG.to_yaml())
    (run_dir / "samples").mkdir()
    for name in (*LEFT_BEHIND, ".mine", "samples/.step-000010.txt.swp"):
        (run_dir / name).write_bytes(b"torn")
    with open_run(run_dir, CONFIG, "auto") as checkpoint:
        assert checkpoint is not None and checkpoint.step == 10
    assert [name for name in LEFT_BEHIND if (run_dir / name).exists()] == []
    assert (run_dir / ".mine").exists() and (run_dir / "samples/.step-000010.txt.swp").exists()


def test_e2_the_next_start_removes_what_a_kill_left_anywhere(save: Callable[..., Path], tmp_path: Path) -> None:
    save(10)
    check_that_a_start_removes_what_a_kill_left(tmp_path / "run")


def test_e2_catches_a_start_that_looks_at_the_checkpoints_only(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(10)
    monkeypatch.setattr("octlm.run_directory.clean", lambda run_dir: None)
    with pytest.raises(AssertionError):
        check_that_a_start_removes_what_a_kill_left(tmp_path / "run")


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("size", [0, 10, 3000, 100_000, 150_000])
def test_a_full_disk_is_named_and_harmless(size: int, save: Callable[..., Path], tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN, "else the limit kills the process"
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    earlier = save(10, model, optimizer)
    files = {name: (earlier / name).read_bytes() for name in SIX}
    with file_size_limit(size), pytest.raises(OSError) as caught:
        save(20, model, optimizer)
    assert str(tmp_path / "run" / "checkpoints" / "step-000020") in str(caught.value)
    assert caught.value.filename and caught.value.errno
    assert [entry.name for entry in earlier.parent.iterdir()] == ["step-000010"]
    assert {name: (earlier / name).read_bytes() for name in SIX} == files
    assert load_run(tmp_path / "run").step == 10
    write_best(tmp_path / "run", 10, 2.0)
    with file_size_limit(0), pytest.raises(OSError, match=r"best\.json"):
        write_best(tmp_path / "run", 10, 1.0)
    assert json.loads((earlier.parent / "best.json").read_text()) == {"step": 10, "loss": 2.0}


def test_a_read_only_directory_is_named_and_harmless(tokenizer: Tokenizer) -> None:
    model = decoder()
    optimizer = adamw(model)

    def save_to(run_dir: Path, step: int) -> Path:
        return save_checkpoint(
            run_dir, step, model=model, optimizer=optimizer, state={}, config=CONFIG, tokenizer=tokenizer
        )

    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        run_dir = Path(name)
        save_to(run_dir, 10)
        run_dir.chmod(0o755)
        (run_dir / "checkpoints").chmod(0o555)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(65534)  # root may write anywhere
            with pytest.raises(OSError) as caught:
                save_to(run_dir, 20)
        finally:
            if root:
                os.seteuid(0)
            (run_dir / "checkpoints").chmod(0o755)
        assert str(run_dir / "checkpoints") in str(caught.value)
        assert load_run(run_dir).step == 10 and hidden(run_dir) == []


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIX)
def test_damage_is_refused_and_the_file_named(name: str, save: Callable[..., Path], tmp_path: Path) -> None:
    path = save(10)
    whole = (path / name).read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for data in [b"", whole[:4], whole[:40], whole[:-2], flipped, whole + b"\0"]:
        (path / name).write_bytes(data)
        if name == module.MANIFEST and data == flipped:
            refusal(lambda: read_checkpoint(path), str(path))  # it accuses the file whose hash it was
        else:
            refusal(lambda: read_checkpoint(path), name)
        refusal(lambda: load_run(tmp_path / "run"), str(path))
    (path / name).unlink()
    refusal(lambda: read_checkpoint(path), name)
    (path / name).mkdir()
    refusal(lambda: read_checkpoint(path), name)


def test_a_damaged_latest_checkpoint_is_not_passed_over(save: Callable[..., Path], tmp_path: Path) -> None:
    save(10)
    path = save(20)
    (path / "state.json").write_text("{}")
    assert latest_checkpoint(tmp_path / "run") == path
    refusal(lambda: load_run(tmp_path / "run", which="latest"), "step-000020/state.json")


def test_e3_files_of_two_checkpoints_are_refused(save: Callable[..., Path]) -> None:
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "config.yaml"):
        new = save(20)
        shutil.copy(save(10, dropout=0.5 if name == "config.yaml" else 0.0) / name, new / name)
        refusal(lambda new=new: read_checkpoint(new), name, "damaged")
        sign(new)  # now every hash is right
        refusal(lambda new=new: read_checkpoint(new), name)
    path = save(10)
    shutil.copytree(path, path.with_name("step-000030"))
    refusal(lambda: read_checkpoint(path.with_name("step-000030")), "step 10")
    shutil.copytree(path, path.with_name("kept for the paper"))
    assert read_checkpoint(path.with_name("kept for the paper")).step == 10


def test_a_checkpoint_of_an_octlm_with_fewer_keys_is_read(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(config: Config) -> dict[str, Any]:
        sections = dump(config)
        del sections["train"]["preflight"], sections["data"]["stories"]
        return sections

    dump = Config.model_dump
    with monkeypatch.context() as patch:
        patch.setattr(Config, "model_dump", older)
        path = save(10)
    assert "preflight" not in (path / "config.yaml").read_text()
    assert read_checkpoint(path).config.train.preflight


class Trap:
    """An object whose unpickling leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["evil.pkl", "model.pt", "model.bin", ".hidden", "__init__.py"])
def test_a_foreign_file_is_named_and_not_run(name: str, save: Callable[..., Path], tmp_path: Path) -> None:
    path, mark = save(10), tmp_path / "ran"
    (path / name).write_bytes(pickle.dumps(Trap(mark)))
    refusal(lambda: load_run(path), f"unexpected {name}")
    (path / name).unlink()
    os.mkfifo(path / name)  # who opens it waits for ever
    refusal(lambda: load_run(path), f"unexpected {name}")
    (path / name).unlink()
    assert load_run(path).step == 10 and not mark.exists()
    for real in module.FILES:
        whole = (path / real).read_bytes()
        (path / real).write_bytes(pickle.dumps(Trap(mark)))
        refusal(lambda: load_run(path), real)
        sign(path)
        refusal(lambda: load_run(path), real)
        (path / real).write_bytes(whole)
        sign(path)
    assert load_run(path).step == 10 and not mark.exists()


@pytest.mark.parametrize("name", SIX)
def test_a_link_is_refused(name: str, save: Callable[..., Path], tmp_path: Path) -> None:
    path = save(10)
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    refusal(lambda: read_checkpoint(path), name, "not a regular file")


HOSTILE = [
    "", "[]", "null", "1e999", "NaN", '{"format": 1', "[" * 100_000, '{"a":' * 100_000, "9" * 10_000,
    "\0" * 64, '"' + "a" * 2_000_000 + '"', '{"format": 2}', '{"format": 1}', "\ud800",
    '{"format": 1, "step": true, "config_sha256": "a", "files": {}}',
    '{"format": 1, "step": -1, "config_sha256": "a", "files": {}}',
    '{"format": 1, "step": 1.0, "config_sha256": "a", "files": {}}',
    '{"format": 1, "step": 10, "config_sha256": ["a"], "files": {}}',
    '{"format": 1, "step": 10, "config_sha256": "a", "files": []}',
    '{"format": 1, "step": 10, "config_sha256": "a", "files": {"../../../etc/passwd": {}}}',
    '{"format": 1, "step": 10, "config_sha256": "a", "files": {"a\\nb": 1, "/etc/passwd": {}}}',
    '{"format": 1, "step": 10, "config_sha256": "a", "files": {"model.safetensors": 7,'
    ' "state.json": null, "optimizer.safetensors": [], "config.yaml": {"size": {}},'
    ' "tokenizer.json": {"sha256": 1, "size": "1"}}}',
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_refused(text: str, save: Callable[..., Path], tmp_path: Path) -> None:
    data = text.encode(errors="surrogatepass")
    path = save(10)
    for name in ("state.json", "config.yaml", "tokenizer.json"):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(data)
        sign(path)
        refusal(lambda: load_run(path), name)
        (path / name).write_bytes(whole)
    (path / "manifest.json").write_bytes(data)
    refusal(lambda: load_run(path), str(path))
    (path.parent / "best.json").write_bytes(data.replace(b'"step": 10', b'"step": "10"'))
    refusal(lambda: load_run(tmp_path / "run"), "best.json")


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "config.yaml"])
def test_a_huge_file_is_refused_before_it_is_parsed(name: str, save: Callable[..., Path]) -> None:
    path = save(10)
    (path / name).write_bytes((path / name).read_bytes() + b"\n" * 2_000_000)
    if name != "manifest.json":
        sign(path)
    refusal(lambda: read_checkpoint(path), name, "larger")


def with_header(header: str, data: bytes = b"", length: int | None = None) -> bytes:
    text = header.encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def one_tensor(entry: str, data: bytes = b"") -> bytes:
    return with_header("{" + METADATA + ',"a":' + entry + "}", data)


METADATA = r'"__metadata__":{"octlm":"{\"step\":10,\"config_sha256\":\"SHA\",\"parameters\":PARAMETERS}"}'
BOMBS = [
    with_header("{}", length=2**63), with_header("{}", length=2**64 - 1), with_header("{}", length=3),
    with_header("{}"), with_header("[" * 50_000), with_header('{"a":' * 50_000),
    one_tensor('{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
    one_tensor('{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}', b"1234"),
    one_tensor('{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}'),
    one_tensor('{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}', b"1234"),
    one_tensor('{"dtype":"OBJ","shape":[1],"data_offsets":[0,4]}', b"1234"),
    with_header('{"__metadata__":{"octlm":"7"}}'), with_header("{" + METADATA + "}"),
    with_header("{" + METADATA.replace("PARAMETERS", "[" * 9999) + "}"),
    with_header("{" + METADATA.replace("PARAMETERS", '{\\"embed.weight\\": 7}') + "}"),
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_hostile_tensor_file_is_refused(bomb: bytes, name: str, save: Callable[..., Path]) -> None:
    path = save(10)
    sha256 = json.loads((path / "manifest.json").read_text())["config_sha256"]
    header = int.from_bytes(bomb[:8], "little")
    if b"SHA" in bomb:
        bomb = (header + len(sha256) - 3).to_bytes(8, "little") + bomb[8:].replace(b"SHA", sha256.encode())
    (path / name).write_bytes(bomb)
    sign(path)
    model = decoder()

    def load() -> None:
        checkpoint = read_checkpoint(path)
        checkpoint.load_model(model)
        checkpoint.load_optimizer(adamw(model), model)

    refusal(load, name)


def unpicklers(text: str) -> list[str]:
    """Name what in this source can run a file: modules that unpickle, torch.load, allow_pickle."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
        found += [name for name in names if name.split(".")[0] in modules]
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.jit.load"):
            found.append(ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            found += [name for name in names if name == "load"]
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            found.append(node.arg)
    return found


def test_nothing_is_ever_unpickled() -> None:
    root = Path(__file__).parent.parent
    sources = [*(root / "octlm").rglob("*.py"), *root.glob("*.py"), *(root / "scripts").rglob("*.py")]
    assert root / "octlm" / "checkpoint.py" in sources
    for path in sources:
        assert unpicklers(path.read_text(encoding="utf-8")) == [], path
    for bad in ("import pickle", "from pickle import loads", "import dill as d", "x = torch.load(y)",
                "from torch import load", "np.load(x, allow_pickle=True)"):  # fmt: skip
        assert len(unpicklers(bad)) >= 1, bad


# ---- which one -----------------------------------------------------------------------------------


def planted(run_dir: Path, *steps: int) -> None:
    """Make directories that look like complete checkpoints."""
    for step in steps:
        (run_dir / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
        (run_dir / "checkpoints" / f"step-{step:06d}" / "manifest.json").write_text("{}")


def steps_in(run_dir: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step-*"))


def test_the_latest_is_the_highest_number(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None and best_checkpoint(tmp_path) is None
    planted(tmp_path, 999_999, 1_000_000, 5)
    (tmp_path / "checkpoints" / "step-2000000").mkdir()
    latest = latest_checkpoint(tmp_path)
    assert latest is not None and latest.name == "step-1000000"


def check_the_best_stays(run_dir: Path) -> None:
    planted(run_dir, 100, 200, 300, 400, 500)
    write_best(run_dir, 200, 1.5)
    prune(run_dir, -1)
    assert steps_in(run_dir) == [100, 200, 300, 400, 500]
    prune(run_dir, 2)
    assert steps_in(run_dir) == [200, 400, 500] and hidden(run_dir) == []
    prune(run_dir, 9)
    write_best(run_dir, 400, 1.0)
    prune(run_dir, 1)
    assert steps_in(run_dir) == [400, 500]
    for keep in (0, -2):
        refusal(lambda keep=keep: prune(run_dir, keep), f"train.keep={keep}")
    assert steps_in(run_dir) == [400, 500]
    for keep in (0, -2):  # and nobody can ask for it
        with pytest.raises(ValueError, match=r"keep"):
            TrainConfig(keep=keep)


def test_e6_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    check_the_best_stays(tmp_path)


def test_e6_catches_a_prune_that_deletes_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "best_checkpoint", lambda run_dir: None)
    with pytest.raises(AssertionError):
        check_the_best_stays(tmp_path)


def test_a_kill_while_pruning_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(tmp_path, 1, 2, 3)

    def dying(path: Path, **options: Any) -> None:
        if path.exists():
            (path / "manifest.json").unlink()
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dying)
        with pytest.raises(Killed):
            prune(tmp_path, 1)
    assert steps_in(tmp_path) == [2, 3] and len(hidden(tmp_path)) == 1
    clean(tmp_path)
    assert hidden(tmp_path) == []


def test_a_run_loads_its_best_or_latest_anywhere(save: Callable[..., Path], tmp_path: Path) -> None:
    first, second = decoder(1), decoder(2)
    run_dir = tmp_path / "run"
    save(10, first)
    assert load_run(run_dir).step == 10  # no evaluation yet
    save(20, second)
    assert load_run(str(run_dir)).step == 20
    write_best(run_dir, 10, 3.25)
    assert json.loads((run_dir / "checkpoints" / "best.json").read_text()) == {"step": 10, "loss": 3.25}
    moved = run_dir.rename(tmp_path / "a run, moved é")
    best, latest = load_run(moved), load_run(moved, which="latest")
    assert (best.step, latest.step, load_run(moved / "checkpoints" / "step-000020").step) == (10, 20, 20)
    assert same(best.model.state_dict(), first.state_dict())
    assert same(latest.model.state_dict(), second.state_dict())
    assert best.model.unused_ids == (257, 258, 259) and not best.model.training
    assert best.config.model == CONFIG.model and best.tokenizer.decode([104, 105]) == "hi"
    shutil.rmtree(moved / "checkpoints" / "step-000010")
    refusal(lambda: load_run(moved), "best.json", "10")


def test_a_path_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file", tmp_path / "empty"):
        refusal(lambda path=path: load_run(path), str(path))
        refusal(lambda path=path: read_checkpoint(path), str(path))
    refusal(lambda: load_run(tmp_path, which="newest"), "newest")


def test_e9_no_file_knows_a_device(save: Callable[..., Path]) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    path = save(1, model, optimizer)
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        data = (path / name).read_bytes()
        header = data[8 : 8 + int.from_bytes(data[:8], "little")] if name.endswith("safetensors") else data
        assert not any(word in header for word in (b"cuda", b"cpu", b"mps", b"device"))


def test_e9_a_run_of_another_device_loads_here(save: Callable[..., Path], tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = decoder()
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    config = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"device": "cuda:3"})})
    path = save_checkpoint(
        tmp_path / "cuda", 1, model=model, optimizer=optimizer, state={"device": "cuda:3"}, config=config,
        tokenizer=tokenizer,
    )  # fmt: skip
    for name in ("model.safetensors", "optimizer.safetensors"):
        with safe_open(path / name, "pt") as file:
            metadata = file.metadata()
        save_file(load_file(path / name), path / name, metadata | {"device": "cuda:3", "map_location": "cuda:3"})
    sign(path)
    run = load_run(path)
    assert run.config.train.device == "cuda:3" and same(run.model.state_dict(), model.state_dict())
    fresh = adamw(run.model)
    read_checkpoint(path).load_optimizer(fresh, run.model)
    held = state_of(run.model, fresh)
    assert len(held) == 3 * len(list(model.parameters())) and same(held, state_of(model, optimizer))
    assert {tensor.device.type for tensor in [*run.model.state_dict().values(), *held.values()]} == {"cpu"}
