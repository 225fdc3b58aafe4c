"""How do the audits call a model they know nothing of, and how do they look inside it?

A Subject is ids (B, T) -> logits (B, T, V) in eval mode. Its trace is what every module gave out, in the order in which
modules finish (children before parents), so that the first difference between two traces names the guilty one.
"""

import copy
import functools
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

SHORT_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

EMPTY = types.CellType()  # what a function closes over before it has a value

WHOLE = "<model>"  # no module inside it, or none of which hooks see the output

Key = tuple[str, int]  # a module's dotted name, and the number of the tensor among all that it gave out
LOGITS: Key = (WHOLE, -1)
Hook = Callable[[str, nn.Module, Any, Any], None]  # (the module's name, it, its arguments, its output)


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
        self.model = model
        self.call = call or model
        self.modules = modules_of(model)  # by dotted name; the hooks sit here
        parameters = (p for module in self.modules.values() for p in module.parameters(recurse=False))
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
        if logits.is_meta or not logits.is_floating_point():
            raise NotJudged(f"its logits are {logits.dtype} on {logits.device}: no real numbers")
        if bool(logits.isnan().any()):
            raise NotJudged("its logits hold NaN")
        return logits

    def copied(self) -> "Subject | None":
        """Give a copy with a past of its own, that shares no module; None where there is none to be had."""
        try:
            copied = Subject(copy_of(self.model, {}), self.device)
        except Exception:  # a foreign module's copy may raise anything
            return None
        return None if set(self.modules.values()) & set(copied.modules.values()) else copied

    def watch(self, hook: Hook) -> ExitStack:
        """Call a hook after every module, in order of completion, until the context that this gives is left."""
        with ExitStack() as hooks:
            for name, module in self.modules.items():
                with suppress(RuntimeError):  # a compiled script takes no hooks: its parts stay unnamed
                    hooks.callback(module.register_forward_hook(functools.partial(hook, name)).remove)
            return hooks.pop_all()

    def trace(self, ids: Tensor) -> dict[Key, Tensor]:
        """Run once and give a copy of every tensor of floats that a module gave out, in order of completion."""
        seen: dict[Key, Tensor] = {}
        count: Counter[str] = Counter()

        def keep(name: str, module: nn.Module, args: Any, output: Any) -> None:
            for tensor in floats(output):
                seen[name, count[name]] = tensor.clone()  # a later operation may write in place
                count[name] += 1

        with self.watch(keep):
            seen[LOGITS] = self(ids)
        return seen


def parts_of(model: Any) -> list[Any]:
    """List what a callable that is no module calls or holds."""
    if isinstance(model, functools.partial):
        return [model.func, *model.args, *model.keywords.values()]
    if isinstance(model, types.MethodType):
        return [model.__self__]
    if isinstance(model, types.FunctionType):
        cells = [cell.cell_contents for cell in model.__closure__ or () if cell != EMPTY]
        defaults = [*(model.__defaults__ or ()), *(model.__kwdefaults__ or {}).values()]
        return [*cells, *defaults, *global_modules(model).values()]
    return list(vars(model).values()) if hasattr(model, "__dict__") and not isinstance(model, type) else []


def global_modules(function: types.FunctionType) -> dict[str, nn.Module]:
    """Give the modules that a function finds by their global names."""
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {name: value for name, value in named.items() if isinstance(value, nn.Module)}


def modules_of(model: Any, seen: tuple[Any, ...] = ()) -> dict[str, nn.Module]:
    """Give a model's modules by dotted name, itself as <model>; of a function, those that it holds."""
    if isinstance(model, nn.Module):
        return {name or WHOLE: module for name, module in model.named_modules()}
    if any(model is earlier for earlier in seen):  # a function that calls itself
        return {}
    found: dict[str, nn.Module] = {}
    for number, part in enumerate(part for part in parts_of(model) if callable(part)):
        for name, module in modules_of(part, (*seen, model)).items():
            if module not in found.values():
                found[f"{number}:{name}" if name in found else name] = module
    return found


def copy_of(model: Any, memo: dict[int, Any]) -> Any:
    """Copy a callable with all that it holds, as copy.deepcopy does, which takes a function for a constant.

    deepcopy also refuses a tensor that was computed with a graph, as modules keep that store their attention weights.
    """
    if id(model) in memo:
        return memo[id(model)]
    if isinstance(model, functools.partial):
        keywords = {name: copy_of(value, memo) for name, value in model.keywords.items()}
        return functools.partial(copy_of(model.func, memo), *(copy_of(x, memo) for x in model.args), **keywords)
    if not isinstance(model, types.FunctionType):
        kept = (value for module in modules_of(model).values() for value in vars(module).values())
        memo.update({id(x): x.detach().clone() for x in kept if isinstance(x, Tensor) and not x.is_leaf})
        return copy.deepcopy(model, memo)
    cells = tuple(types.CellType() for _ in model.__closure__ or ())
    names = {**model.__globals__, **{name: copy_of(value, memo) for name, value in global_modules(model).items()}}
    copied = types.FunctionType(model.__code__, names, model.__name__, None, cells)
    memo[id(model)] = copied  # before its cells are filled: it may be in one of them
    copied.__defaults__ = model.__defaults__ and tuple(copy_of(x, memo) for x in model.__defaults__)
    copied.__kwdefaults__ = model.__kwdefaults__ and {k: copy_of(x, memo) for k, x in model.__kwdefaults__.items()}
    for cell, original in zip(cells, model.__closure__ or (), strict=True):
        if original != EMPTY:
            cell.cell_contents = copy_of(original.cell_contents, memo)
    return copied


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
    before = {module: module.training for module in modules_of(model).values()}
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
    copied = subject.copied()
    if copied is None:
        raise NotJudged("it cannot be copied")
    model = copied.model
    for module in copied.modules.values():
        module.double()
        for name, value in vars(module).items():  # a table that is no buffer
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(module, name, value.double())

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
