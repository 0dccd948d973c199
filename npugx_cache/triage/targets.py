"""Loads what is to be run: a callable with its inputs, or a script."""

from __future__ import annotations

import copy
import importlib
import pickle
import random
import runpy
import sys
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.api import CachedFunction, cache_compile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.triage.plan import Plan


class WrongTarget(Exception):
    """What the user named is not there, or can't be called."""


def run(plan: Plan) -> None:
    """Run the program: each call of it that is cached goes to whom `rerouted.reroute` named."""
    _seed(plan.seed)
    if plan.is_script:
        sys.argv = [plan.target, *plan.arguments]
        sys.path[0] = str(Path(plan.target).absolute().parent)
        runpy.run_path(plan.target, run_name="__main__")
        return
    target = cache_target(import_object(plan.target))
    for number in range(plan.calls):
        _seed(plan.seed + number)
        args, kwargs = inputs(plan.inputs)
        if plan.save_inputs and plan.way == "eager" and not number:
            torch.save((args, kwargs), Path(plan.folder) / "inputs.pt")
        target(*args, **kwargs)


def import_object(text: str) -> Any:
    """The object that `module:name` names; raises WrongTarget."""
    module, _, path = text.partition(":")
    if not module or not path:
        raise WrongTarget(f"{text!r} is not module:name")
    if module.startswith("."):
        raise WrongTarget(f"{text!r} is not module:name, with the whole name of the module")
    try:
        return reduce(getattr, path.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module and not module.startswith(f"{error.name}."):
            raise
        raise WrongTarget(f"there is no module {error.name!r} here") from error
    except AttributeError as error:
        raise WrongTarget(f"{text}: {error}") from error


def cache_target(target: Any) -> Any:
    """The target with the cache around it, if it has none yet."""
    if isinstance(target, type) or not callable(target):
        raise WrongTarget(
            f"a {type(target).__qualname__} is no function and no module that is made"
        )
    inner = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        return target if isinstance(inner, CachedFunction) else cache_compile(target)
    except TypeError as error:  # what is written in C, such as `os.system`
        raise WrongTarget(str(error)) from error


def inputs(text: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of one call, made anew for each."""
    return ((), {}) if text is None else arguments_of(value(text))


def value(text: str) -> Any:
    """What a `.pt` file holds, or a name stands for; a function is called for it."""
    if text.endswith(".pt"):
        try:
            return torch.load(text, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            raise WrongTarget(f"{text}: {reason}") from error
    found = import_object(text)
    return found() if callable(found) else copy.deepcopy(found)


def arguments_of(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a value means: a tuple of them, such a tuple and a dict, or one."""
    match value:
        case (tuple() | list() as args, dict() as kwargs) if all(_texts(kwargs)):
            return tuple(args), kwargs
        case tuple():
            return value, {}
    return (value,), {}


def _texts(kwargs: dict[Any, Any]) -> Iterator[bool]:
    return (isinstance(name, str) for name in kwargs)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
