"""Changes of Dynamo's own functions, for the time of a trace of ours.

What Dynamo reads without a guard is seen by functions that stand in the place of Dynamo's. Outside
of our traces nothing of Dynamo is changed. While one runs, other threads may trace for a
torch.compile of the user's: each function that is put in place here asks first whether its own
thread traces for us, and does what Dynamo's does if not.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_ABSENT: Any = object()
_DYNAMO = "torch._dynamo"


class _Change(NamedTuple):
    """What was put in place: where, what the owner had itself (not inherited), what it has now."""

    owner: Any
    name: Any
    before: Any
    now: Any


class _Wanted(NamedTuple):
    """`make` gives what stands for the original; `adds`: also where there is none."""

    owners: Callable[[], Iterable[Any]]
    name: Any
    make: Callable[[Any], Any]
    adds: bool = False


class Hooks:
    """A set of hooks that are put in place together. Safe to use from several threads."""

    def __init__(self) -> None:
        self._wanted: list[_Wanted] = []
        self._changes: list[_Change] = []
        self._lock = threading.Lock()
        self._users = 0

    def replace(self, owner: Any, name: Any, make: Callable[[Any], Any]) -> None:
        """Let `make(original)` stand for an attribute of a class or module, or an item of a dict.

        What a torch does not have is left out: there Dynamo asks in another way.
        """
        self.replace_in(lambda: (owner,), name, make)

    def replace_in(
        self, owners: Callable[[], Iterable[Any]], name: Any, make: Callable[[Any], Any]
    ) -> None:
        """The same for owners that are looked for at each trace."""
        self._wanted.append(_Wanted(owners, name, make))

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Give a class an attribute that it does not have itself."""
        self._wanted.append(_Wanted(lambda: (owner,), name, lambda _: value, adds=True))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the hooks are in place."""
        with self._lock:
            if not self._users:
                self._put()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._take_back()

    def _put(self) -> None:
        try:
            for wanted in self._wanted:
                for owner in wanted.owners():
                    self._put_one(owner, wanted)
        except BaseException:
            self._take_back()
            raise

    def _put_one(self, owner: Any, wanted: _Wanted) -> None:
        name = wanted.name
        before = _own(owner).get(name, _ABSENT)
        original = before if type(owner) is dict else getattr(owner, name, _ABSENT)
        if original is _ABSENT and not wanted.adds:
            return
        now = wanted.make(original)
        if isinstance(before, staticmethod):
            now = staticmethod(now)
        _set(owner, name, now)
        self._changes.append(_Change(owner, name, before, now))

    def _take_back(self) -> None:
        """Not where somebody else has put something of theirs in the meantime."""
        while self._changes:
            owner, name, before, now = self._changes.pop()
            if _own(owner).get(name, _ABSENT) is now:
                _set(owner, name, before)
            if isinstance(
                owner, types.ModuleType
            ):  # modules loaded since may have taken it by name
                for module in dynamo_modules():
                    if vars(module).get(name) is now:
                        _set(module, name, before)


def _own(owner: Any) -> Any:
    return owner if type(owner) is dict else vars(owner)


def _set(owner: Any, name: Any, value: Any) -> None:
    if type(owner) is not dict:
        delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
    elif value is _ABSENT:
        del owner[name]
    else:
        owner[name] = value


def dynamo_modules() -> list[types.ModuleType]:
    """Those that are loaded. Others in `sys.modules` may be anything, even None."""
    return [sys.modules[n] for n in list(sys.modules) if n.startswith(_DYNAMO) and sys.modules[n]]


ON_DYNAMO = Hooks()
"""The hooks that are in place in every trace of ours."""
