"""Builds torch's C++ guard managers without importing Dynamo (P3).

While C++ makes a manager, it imports two Python modules: `torch._dynamo.guards` for an enum, once
per process, and `torch._dynamo.config` for settings, for every manager. A process that only
restores has loaded neither. So during a build, stand-ins take their places in `sys.modules`. If
Dynamo is really imported later, it gets the enum that C++ already holds, because `torch.compile`
would break with two enums.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import sys
import threading
import types
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

import torch
import torch._C._dynamo.guards as _c_guards

from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.private.runtime import BEHIND, DIMENSION_MARKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

RootGuardManager: Any = _c_guards.RootGuardManager
REASON: tuple[Any, ...] = (["npugx_cache"], None)
"""torch wants words for each guard, and since torch 2.11 a place in the user's code.

The words of ours are in `explain.py`, for the full check.
"""
if "arg2" not in str(RootGuardManager.add_type_match_guard.__doc__):
    REASON = REASON[:1]

forbid_aliasing: Any = _c_guards.install_no_tensor_aliasing_guard
"""Called as (managers, names, *REASON): the values of the managers are different objects."""
require_aliasing: Any = _c_guards.install_object_aliasing_guard
"""Called as (manager, manager, *REASON): the values of both managers are one object."""

dict_version: Any = _c_guards.dict_version
"""A number that changes with each write to a dict that is not empty, and differs between dicts."""


def tensor_metadata(tensors: Iterable[torch.Tensor]) -> Any:
    """Its `check(*tensors)` says whether tensors have the types and metadata of these, in order.

    That is what guards on tensors compare: dtype, device, sizes, strides, `requires_grad` and
    dispatch keys. It keeps none of them. They must be different objects.
    """
    return _c_guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)


class NotNow(Exception):
    """No managers can be built at the moment, so conditions are checked in Python."""


class _ManagerType(enum.Enum):
    """A copy of `torch._dynamo.guards.GuardManagerType`, and its replacement if we build first."""

    GUARD_MANAGER = 1
    DICT_GUARD_MANAGER = 2


_PACKAGE, _CONFIG, _GUARDS = "torch._dynamo", "torch._dynamo.config", "torch._dynamo.guards"
_building = threading.RLock()
survive_forks(sys.modules[__name__], "_building")
_import_began = False


class _Settings(types.ModuleType):
    """The settings of Dynamo that C++ reads during a build, with our values."""

    # If one of the first two were on, torch would skip tensors and whole modules whose dicts did
    # not change, and would miss a parameter that was changed in place (`p.data = ...`).
    skip_tensor_guards_with_matching_dict_tags = False
    use_recursive_dict_tags_for_guards = False
    max_saved_pointers_for_recursive_dict_tags_check = 0


class _SettingsBesideDynamo(_Settings):
    """Stand-in for `torch._dynamo.config` where the real module is loaded.

    If another thread imports `torch._dynamo.config` during a build, it gets this object: attributes
    that we don't override come from the real module. `_Settings` has no `__getattr__`, which would
    cost time: C++ imports the module for every manager, and an import looks for missing names.
    """

    def __init__(self, real: types.ModuleType) -> None:
        super().__init__(_CONFIG)
        vars(self)[BEHIND] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)[BEHIND], name)


@contextlib.contextmanager
def building() -> Iterator[object]:
    """Let managers be made inside; yields the kind (an enum value) that C++ wants for each of them.

    Raises `NotNow` while another thread imports Dynamo, or if torch is not imported from files.
    """
    with _building:
        real = sys.modules.get(_GUARDS)
        if real is None:
            _watch_imports()
            if _import_began or _PACKAGE in sys.modules:
                raise NotNow("Dynamo is being imported")
        config = sys.modules.get(_CONFIG)
        settings = _SettingsBesideDynamo(config) if config is not None else _Settings(_CONFIG)
        standing_in: dict[str, Any] = {_CONFIG: settings}
        if real is None:
            standing_in[_GUARDS] = types.SimpleNamespace(GuardManagerType=_ManagerType)
        before = {name: sys.modules.get(name) for name in standing_in}
        sys.modules.update(standing_in)
        try:
            managers: Any = _ManagerType if real is None else vars(real)["GuardManagerType"]
            yield managers.GUARD_MANAGER
        finally:
            for name, module in before.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module


def _watch_imports() -> None:
    if not isinstance(torch.__spec__.loader, SourceFileLoader):
        raise NotNow("torch is not imported from files")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Makes a real import of Dynamo wait for builds in other threads, and gives Dynamo our enum."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name == _PACKAGE:
            global _import_began  # noqa: PLW0603 - a fact about the process
            with _building:  # the import must not find a build's stand-ins in sys.modules
                _import_began = True
        if name != _GUARDS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _GuardsLoader(spec.loader.name, spec.loader.path)
        return spec


class _GuardsLoader(SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        vars(module)["GuardManagerType"] = _ManagerType


def class_dict(cls: type) -> dict[str, Any]:
    """The dict behind `vars(cls)`, of which guards compare the version. Never write to it."""
    [space] = (each for each in gc.get_referents(vars(cls)) if type(each) is dict)
    return space


def forbid_dimension_marks(manager: Any, tensor: torch.Tensor, source: str, kind: object) -> None:
    """Guard that a tensor carries no mark of `mark_dynamic` or the like."""
    if hasattr(manager, "add_dimension_marking_guard"):  # since torch 2.12
        manager.add_dimension_marking_guard({}, list(DIMENSION_MARKS), {}, *REASON)
        return
    attributes = manager.get_generic_dict_manager(f"{source}.__dict__", vars(tensor), kind)
    for mark in DIMENSION_MARKS:
        attributes.add_dict_contains_guard(False, mark, *REASON)
