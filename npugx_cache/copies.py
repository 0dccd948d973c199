"""What `copy.copy` takes of a cached module.

A shallow copy has the attributes of the original. The `forward` among them that `cache_compile` has
set is bound to the original, whose layers the copy would run. So a shallow copy does not get that
`forward`, and runs the one of its class, without the cache. A deep copy and an unpickled module get
a `forward` of their own.
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types


class StateOf:
    """The `__getstate__` of a cached module, which every copy and every pickle asks for its state.

    `kind` is the class of the `forward`. A method of the module that was cached by itself is bound
    to the module as well, and is not shared either.
    """

    def __init__(self, module: Any, kind: type[Any]) -> None:
        self.module, self.kind = module, kind

    def __call__(self) -> Any:
        kind: Any = type(self.module)
        state = kind.__getstate__(self.module)
        if not _is_for_a_shallow_copy(sys._getframe(1)):  # noqa: SLF001
            return state
        if isinstance(state, tuple):  # of a class with slots: the second dict holds these
            return (self._without(state[0]), *state[1:])
        return self._without(state)

    def _without(self, state: Any) -> Any:
        if not isinstance(state, dict):
            return state
        return {name: value for name, value in state.items() if not self._is_bound(value)}

    def _is_bound(self, value: Any) -> bool:
        """Whether an attribute is of use to the original alone."""
        if isinstance(value, self.kind):
            return getattr(value.__wrapped__, "__self__", None) is self.module
        return isinstance(value, StateOf)


def _is_for_a_shallow_copy(frame: types.FrameType | None) -> bool:
    """Whether the innermost copy in a stack is a shallow one."""
    while frame is not None:
        if frame.f_code in (copy.copy.__code__, copy.deepcopy.__code__):
            return frame.f_code is copy.copy.__code__
        frame = frame.f_back
    return False
