"""Fast path for detecting monkey-patching, by the version tags of dicts.

C++ compares the version tags of the class and module dicts. Only if a tag has changed do we compare
the names one by one (`names.py`). If all names still mean the same, we record the new tags.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from npugx_cache._compat import guard_managers
from npugx_cache.events import logger
from npugx_cache.guards.names import PinnedNames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.guards.names import Row

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: no attribute of such a class can be set


class SealedNames:
    """What a set of names stood for when this object was made. Safe to use from several threads."""

    def __init__(self, rows: Iterable[Row]) -> None:
        kept = list(rows)
        self._names = PinnedNames(kept)
        self._owners = list({id(owner): owner for owner, _, _ in kept}.values())
        self._seal: Any = None
        self._passed = 0

    def unchanged(self) -> bool:
        if self._seal is not None and self._seal.check(_NO_LOCALS):
            return True
        if not self._names.unchanged():
            return False
        self._passed += 1
        # The 2nd, 4th, 8th, ... time: where a module counts in a global, tags never stay the same.
        if self._passed > 1 and self._passed.bit_count() == 1:
            self._renew()
        return True

    def _renew(self) -> None:
        try:
            seal = _seal(self._owners)
        except Exception as reason:  # noqa: BLE001 - the names can be compared without it
            logger.debug("names are compared one by one: %r", reason)
            return
        # Once more: another thread may have patched something before the versions were read.
        self._seal = seal if self._names.unchanged() else None


_NO_LOCALS: dict[str, Any] = {}


def _seal(owners: list[Any]) -> Any:
    """A guard that holds as long as nobody writes to the dict of one of these owners."""
    root = guard_managers.RootGuardManager()
    with guard_managers.building() as kind:
        above = root.globals_dict_manager({"owners": owners}, "roots", {"owners": owners}, kind)
        every = above.dict_getitem_manager("owners", "owners", owners, kind)
        for position, owner in enumerate(owners):
            if isinstance(owner, type) and owner.__flags__ & _IMMUTABLE:
                continue
            place = every.list_getitem_manager(position, str(position), owner, kind)
            if isinstance(owner, type):
                space = guard_managers.class_dict(owner)
                held = place.type_dict_manager(f"{position}.__dict__", space, kind)
            elif isinstance(owner, types.ModuleType):
                space = vars(owner)
                held = place.get_generic_dict_manager(f"{position}.__dict__", space, kind)
            else:
                raise TypeError(f"no version of {type(owner).__name__}.__dict__")
            held.add_dict_version_guard(space, ["npugx_cache"], None)
    return root
