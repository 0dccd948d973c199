"""Puts functions of ours in the place of Dynamo's for a time, for all threads together.

Outside of our traces nothing of Dynamo is changed. While one runs, other threads may trace for a
torch.compile of the user's: each function of ours asks first whether its own thread traces for us
(`observation.around`), and does what Dynamo's does if not.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ABSENT: Any = object()
DYNAMO = "torch._dynamo"


class _Change(NamedTuple):
    """What was put in place: where, what the owner had itself (not inherited), what it has now."""

    owner: Any
    name: Any
    before: Any
    now: Any


class Replacements:
    """Functions that are put in place together. Safe to use from several threads.

    A derived class says in `_put_all` what to put where, with `_put`.
    """

    def __init__(self) -> None:
        self._changes: list[_Change] = []
        self._lock = threading.Lock()
        self._users = 0

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the functions are in place."""
        with self._lock:
            if not self._users:
                self._put_all_or_none()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._take_back()

    def _put_all(self) -> None:
        raise NotImplementedError

    def _put_all_or_none(self) -> None:
        try:
            self._put_all()
        except BaseException:
            self._take_back()
            raise

    def _put(self, owner: Any, name: Any, make: Callable[[Any], Any], *, adds: bool) -> None:
        """Let what `make` gives stand for `owner.name`; with `adds`, the name may be new there."""
        before = own_names(owner).get(name, ABSENT)
        original = before if type(owner) is dict else getattr(owner, name, ABSENT)
        if original is ABSENT and not adds:
            raise RuntimeError(f"{name} was removed from Dynamo while the process ran")
        if before is ABSENT and isinstance(original, types.FunctionType):
            original = _inherit(owner, name, original)
        now = make(original)
        if isinstance(before, (staticmethod, classmethod)):  # the original is bound to its class
            now = staticmethod(now)
        _set(owner, name, now)
        self._changes.append(_Change(owner, name, before, now))

    def _take_back(self) -> None:
        """Not where somebody else has put something of theirs in the meantime."""
        loaded = dynamo_modules()
        while self._changes:
            owner, name, before, now = self._changes.pop()
            if own_names(owner).get(name, ABSENT) is now:
                _set(owner, name, before)
            if isinstance(owner, types.ModuleType):
                for module in loaded:  # those loaded in the meantime may have taken it by name
                    if vars(module).get(name) is now:
                        _set(module, name, before)


def _inherit(owner: type, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that a class inherits, found at each call: its base may get a hook as well."""

    @functools.wraps(original)
    def call_inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return call_inherited


def dynamo_modules() -> list[types.ModuleType]:
    """Those that are loaded. Others in `sys.modules` may be anything, even None."""
    return [m for name, m in sys.modules.copy().items() if name.startswith(DYNAMO) and m]


def own_names(owner: Any) -> Any:
    """What an owner holds itself, by name; a dict is an owner as well."""
    return owner if type(owner) is dict else vars(owner)


def _set(owner: Any, name: Any, value: Any) -> None:
    if type(owner) is not dict:
        delattr(owner, name) if value is ABSENT else setattr(owner, name, value)
    elif value is ABSENT:
        del owner[name]
    else:
        owner[name] = value
