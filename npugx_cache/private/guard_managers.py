"""torch's C++ guard managers, built without importing Dynamo (P3). Checked on torch 2.11 and 2.13.

While C++ makes a manager, it imports two Python modules: `torch._dynamo.guards` for an enum, once
per process, and `torch._dynamo.config` for settings, for every manager. A process that restores has
loaded neither. So during a build, stand-ins have their names in `sys.modules`. A real import that
comes later gets the enum that C++ already holds; otherwise torch.compile would break.
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

from npugx_cache.forks import survive_forks
from npugx_cache.private.runtime import DIMENSION_MARKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RootGuardManager: Any = _c_guards.RootGuardManager
forbid_aliasing: Any = _c_guards.install_no_tensor_aliasing_guard
"""(managers, names, reasons, None): the values of the managers are different objects."""
require_aliasing: Any = _c_guards.install_object_aliasing_guard
"""(manager, manager, reasons, None): the values of the two managers are one object."""


class NotNow(Exception):
    """Managers can't be built at the moment; the Python check goes on."""


class _ManagerType(enum.Enum):
    """What `torch._dynamo.guards.GuardManagerType` is; becomes it if we build first."""

    GUARD_MANAGER = 1
    DICT_GUARD_MANAGER = 2


_PACKAGE, _CONFIG, _GUARDS = "torch._dynamo", "torch._dynamo.config", "torch._dynamo.guards"
_building = threading.RLock()
survive_forks(sys.modules[__name__], "_building")
_import_began = False


class _Settings(types.ModuleType):
    """Dynamo's settings as a build wants them."""

    # With the first two, torch skips tensors and whole modules whose dicts did not change; a
    # parameter that was changed in place (`p.data = ...`) is then not seen.
    skip_tensor_guards_with_matching_dict_tags = False
    use_recursive_dict_tags_for_guards = False
    max_saved_pointers_for_recursive_dict_tags_check = 0


class _SettingsBesideDynamo(_Settings):
    """Stand-in for `torch._dynamo.config` where the real module is loaded.

    If another thread imports `torch._dynamo.config` during a build, it gets this object: attributes
    that we don't override come from the real module. `_Settings` has no `__getattr__`, because C++
    imports the module for every manager and each import looks for names that are not there.
    """

    def __init__(self, real: types.ModuleType) -> None:
        super().__init__(_CONFIG)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_real"), name)


@contextlib.contextmanager
def building() -> Iterator[object]:
    """While it is open managers can be made; gives the enum value they are made with.

    Raises `NotNow` while another thread imports Dynamo, or where torch is not plain files.
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
    """Keeps a real import of Dynamo apart from a build, and gives it our enum."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name == _PACKAGE:
            global _import_began  # noqa: PLW0603 - a fact about the process
            with _building:  # a build in another thread has stand-ins in sys.modules
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
    """The dict behind `vars(cls)`, to be looked at only: guards compare its version."""
    [space] = (each for each in gc.get_referents(vars(cls)) if type(each) is dict)
    return space


def forbid_dimension_marks(manager: Any, tensor: torch.Tensor, source: str, kind: object) -> None:
    """Refuse tensors that carry a mark of `mark_dynamic` and its kin."""
    if hasattr(manager, "add_dimension_marking_guard"):  # since torch 2.12
        manager.add_dimension_marking_guard({}, list(DIMENSION_MARKS), {}, [source], None)
        return
    attributes = manager.get_generic_dict_manager(f"{source}.__dict__", vars(tensor), kind)
    for mark in DIMENSION_MARKS:
        attributes.add_dict_contains_guard(False, mark, [source], None)
