"""How do the audits call a model they know nothing of, and how do they look inside it?

A Subject is ids (B, T) -> logits (B, T, V) in eval mode. Its trace is what every module gave out, in the order in which
modules finish (children before parents), so that the first difference between two traces names the guilty one.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

SHORT_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

Key = tuple[str, int]  # a module's dotted name, and the number of the tensor among all that it gave out


class NotJudged(ValueError):
    """The model cannot be tested in this way; the message says why."""


class Subject:
    """Any callable from ids (B, T) to logits (B, T, V): a tensor, the first of a tuple, `.logits` or ["logits"]."""

    def __init__(
        self,
        model: Callable[..., Any],
        device: torch.device | str | None = None,
        call: Callable[..., Any] | None = None,
    ) -> None:
        self.model = model  # the hooks sit here
        self.call = call or model
        parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
        self.device = device if device is not None else next((p.device for p in parameters), None)

    def __call__(self, ids: Tensor) -> Tensor:
        """Give the logits of ids; raises NotJudged where the model raises or gives something else."""
        try:
            output = self.call(ids.to(self.device))
        except Exception as error:
            reason = (str(error).strip() or "without a message").splitlines()[0]
            raise NotJudged(f"it raises {type(error).__name__}: {reason}") from error
        logits = logits_of(output)
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise NotJudged(f"ids {tuple(ids.shape)} give {got}, not logits (B, T, V)")
        if bool(logits.isnan().any()):
            raise NotJudged("its logits hold NaN")
        return logits

    def copied(self) -> "Subject | None":
        """Give a copy with a past of its own; None where there is none to be had."""
        try:
            return Subject(copy.deepcopy(self.model), self.device) if isinstance(self.model, nn.Module) else None
        except Exception:  # a foreign module's copy may raise anything
            return None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Give the modules by dotted name; empty for a plain function."""
        return dict(self.model.named_modules()) if isinstance(self.model, nn.Module) else {}

    def trace(self, ids: Tensor) -> dict[Key, Tensor]:
        """Run once and give a copy of every tensor of floats that a module gave out, in order of completion."""
        seen: dict[Key, Tensor] = {}
        count: Counter[str] = Counter()

        def keep(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                for tensor in floats(output):
                    seen[name or "<model>", count[name]] = tensor.clone()  # a later operation may write in place
                    count[name] += 1

            return hook

        with ExitStack() as hooks:
            for name, module in self.modules.items():
                hooks.callback(module.register_forward_hook(keep(name)).remove)
            seen["<logits>", 0] = self(ids)
        return seen


def logits_of(output: Any) -> Any:
    """Find the logits in what a model returned."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple | list) and output else output


def floats(output: Any) -> Iterator[Tensor]:
    """Give every tensor of floats in nested tuples, lists and mappings."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, tuple | list | Mapping):
        for item in output.values() if isinstance(output, Mapping) else output:
            yield from floats(item)


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Put every module into eval mode, and back into its own afterwards."""
    before = {m: m.training for m in model.modules()} if isinstance(model, nn.Module) else {}
    for module in before:
        module.training = False
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


class InFloat64(TorchDispatchMode):
    """Let code that asks for a shorter float (norms and softmax often do) have float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in SHORT_FLOATS:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def in_float64(subject: Subject) -> Subject:
    """Give a copy that computes in float64; it, or its calls, raise NotJudged where that cannot be."""
    model: Any = subject.model
    if isinstance(model, nn.Module):
        copied = subject.copied()
        if copied is None:
            raise NotJudged("it cannot be copied")
        model = copied.model
        model.double()

    def call(ids: Tensor) -> Tensor:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with InFloat64():
                logits: Tensor = logits_of(model(ids))
        finally:
            torch.set_default_dtype(default)
        if isinstance(logits, Tensor) and logits.dtype != torch.float64:
            raise TypeError(f"the logits are {logits.dtype}")
        return logits

    return Subject(model, subject.device, call)


def scale(logits: Tensor) -> float:
    """Give the unit of a tolerance: the largest finite logit, at least 1."""
    finite = logits[logits.isfinite()].abs()
    return max(1.0, float(finite.max())) if finite.numel() else 1.0
