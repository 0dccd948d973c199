"""Dynamo's own lock: one trace at a time in a process, ours or the user's.

While Dynamo and FX trace, they keep state for the whole process, such as the frame that is traced
and patched methods of `nn.Module`. So a trace of ours and a `torch.compile` of the user's would
break each other. Importing this module loads no compiler; entering `tracing_alone` does. Checked on
torch 2.13.
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
    """Hold Dynamo's lock; the same thread may enter again. Ask `obstacle` before."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        yield


def obstacle() -> str | None:
    """Why nothing should be traced in this process at this moment, or None."""
    if _lost:
        return (
            "this process was forked while another thread compiled, so the compiler's state is "
            "not known here; what the store has is still used. To change that, fork before"
        )
    return None


class Disturbance:
    """Whether another thread traced while this was open: then a trace may not say what code does.

    `torch.export` and `make_fx` take no lock, and patch `nn.Module` for the whole process. They are
    looked for at the beginning and whenever it is asked, and what begins meanwhile is noted.
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
        _lost = True  # its holder is a thread that this process does not have
    elif lock is not None:
        lock.release()


os.register_at_fork(after_in_child=_after_fork)
