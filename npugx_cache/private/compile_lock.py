"""Takes Dynamo's own lock, so that only one thread of a process traces at a time.

While Dynamo and FX trace, they keep state for the whole process, such as the frame that is traced
and patched methods of `nn.Module`. So one of our traces and a `torch.compile` of the user would
break each other. Importing this module loads no compiler; entering `tracing_alone` does.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

_DYNAMO, _FX = "torch._dynamo.convert_frame", "torch.fx._symbolic_trace"
_lost = False


@contextlib.contextmanager
def tracing_alone() -> Iterator[None]:
    """Hold Dynamo's lock; the same thread may enter again. Call `obstacle` before."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        yield


def obstacle() -> str | None:
    """Why nothing should be traced in this process at this moment, or None."""
    if _lost:
        return (
            "this process was forked while another thread compiled, so the compiler's state is "
            "unknown here; stored entries are still used. To compile here, fork before that"
        )
    return None


class Disturbance:
    """Tells whether another thread traced at the same time, because our trace may then be wrong.

    `torch.export` and `make_fx` take no lock, and patch `nn.Module` for the whole process. We look
    for them at the beginning and in `reason`, and note each trace of FX that begins in between.
    """

    def __init__(self) -> None:
        self._noted = False

    def __enter__(self) -> Self:
        patcher: Any = importlib.import_module(_FX)._Patcher
        here, self._made = threading.get_ident(), patcher.__init__

        def noting(instance: Any) -> None:
            self._noted |= threading.get_ident() != here
            self._made(instance)

        patcher.__init__ = noting
        self._noted = self._is_now()
        return self

    def __exit__(self, *_: object) -> None:
        importlib.import_module(_FX)._Patcher.__init__ = self._made

    def reason(self) -> str | None:
        self._noted = self._noted or self._is_now()
        if self._noted:
            return "another thread traced or exported a model meanwhile; a later call tries again"
        return None

    def _is_now(self) -> bool:
        patches = importlib.import_module(_FX).CURRENT_PATCHER is not None
        return patches or runtime.exports_elsewhere()


def _after_fork() -> None:
    global _lost  # noqa: PLW0603 - a fact about the process
    dynamo: Any = sys.modules.get(_DYNAMO)
    lock = getattr(dynamo, "compile_lock", None)
    if lock is not None and not lock.acquire(blocking=False):
        _lost = True  # the thread that holds the lock does not exist in this process
    elif lock is not None:
        lock.release()


os.register_at_fork(after_in_child=_after_fork)
