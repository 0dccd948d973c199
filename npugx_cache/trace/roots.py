"""Maps the names of Dynamo's helper objects to something that any process has.

Dynamo stores helper objects in the globals of the traced function, under generated names that hold
an `id()` or a counter.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from npugx_cache.guards import Step
from npugx_cache.portable import NotPortable, Plain, identity

Root = tuple[Step, Plain]

_made: dict[int, set[str]] = {}
"""Names that traces of this process installed, by the id of the (immortal) globals of a module."""


class Roots:
    """Tells the globals that a trace installed from those of the user's module.

    Generated names look like `___module_0x.._c0`, `__import_x` or `__builtins_dict___3`. We
    recognise them by comparing the globals before and after the trace.
    """

    def __init__(self, frame_globals: dict[str, Any], names_before: frozenset[str]) -> None:
        made = _made.setdefault(id(frame_globals), set())
        made |= frame_globals.keys() - names_before
        self._installed = {name: frame_globals[name] for name in made if name in frame_globals}

    def installed(self) -> dict[str, Any]:
        """What traces put into the globals, by name."""
        return dict(self._installed)

    def of(self, name: str, imports: dict[str, str]) -> Root:
        """The root that a global name stands for; raises `NotPortable`."""
        if name in imports:
            return Step.MODULE, imports[name]
        if name not in self._installed:
            return Step.GLOBAL, name
        return _root_of(self._installed[name], name)


def _root_of(value: object, name: str) -> Root:
    if isinstance(value, types.ModuleType):
        return Step.MODULE, value.__name__
    if isinstance(value, dict):
        return _root_of_dict(value, name)
    return Step.OBJECT, identity(value)


def _root_of_dict(value: dict[str, Any], name: str) -> Root:
    import builtins

    if value is vars(builtins):
        return Step.BUILTINS, None
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and vars(module) is value:
            return Step.NAMESPACE, module_name
    # namedtuple() runs its __new__ in a dict of its own, which no module holds.
    for cls in tuple.__subclasses__():
        if (
            getattr(cls.__new__, "__globals__", None) is value
            and "<locals>" not in cls.__qualname__
        ):
            return Step.FUNCTION_GLOBALS, f"{cls.__module__}:{cls.__qualname__}.__new__"
    raise NotPortable(f"the global {name} is a dict that no module owns")
