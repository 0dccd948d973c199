"""Keeps the user's module free of the globals that Dynamo makes for a trace of ours.

Dynamo puts its graph, namespaces and other objects among the globals of the traced function, under
names that no later trace uses again, such as `__compiled_fn_3` and `__builtins_dict___5`. Nobody
needs these names when the call is compiled, unless only this process may run the call.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch._dynamo.utils import CleanupHook

if TYPE_CHECKING:
    from collections.abc import Iterator


class DynamoGlobals:
    """The globals that Dynamo makes while one call is traced, in all tries together.

    Only what Dynamo itself reports as made in this thread counts: names of the user's, and those of
    a `torch.compile` beside, stay whatever they look like.
    """

    def __init__(self) -> None:
        self._made: list[tuple[dict[str, Any], str, Any]] = []
        self._kept = False

    @contextlib.contextmanager
    def collect_globals(self) -> Iterator[None]:
        """Collect what Dynamo makes inside, and remove all of it at the end.

        Needs Dynamo's lock, because a function of Dynamo's is replaced meanwhile.
        """
        dynamos: Any = CleanupHook
        before, here = vars(CleanupHook)["create"], threading.get_ident()

        def create(scope: dict[str, Any], name: str, val: Any) -> CleanupHook:
            hook: CleanupHook = before.__func__(scope, name, val)
            if threading.get_ident() == here:
                self._made.append((scope, name, val))
            return hook

        dynamos.create = staticmethod(create)
        try:
            with self.put_back():
                yield
        finally:
            dynamos.create = before

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """Have the globals there inside, for who still looks at the trace; then remove them."""
        for scope, name, value in self._made:
            scope.setdefault(name, value)
        try:
            yield
        finally:
            if not self._kept:
                _remove(self._made)

    def keep_for(self, owner: Any) -> None:
        """Leave the globals in place until `owner`, which runs by them, is gone."""
        self._kept = True
        weakref.finalize(owner, _remove, self._made).atexit = False


def _remove(made: list[tuple[dict[str, Any], str, Any]]) -> None:
    for scope, name, _ in made:
        scope.pop(name, None)
