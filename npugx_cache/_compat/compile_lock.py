"""Dynamo's own lock: one trace at a time in a process, whoever asks for it.

Dynamo and FX keep process-wide state while they trace (which frame is traced, patched methods of
`nn.Module`), so a trace of ours beside a `torch.compile` of the user's breaks both. Importing this
module loads no compiler; entering `tracing_alone` does. Checked on torch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from npugx_cache._compat import runtime

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


def disturbance() -> str | None:
    """Why a trace that began or ended now may not be what this thread's code says, or None.

    `torch.export` and `make_fx` take no lock. Ask while holding Dynamo's: then only another thread
    can be at work.
    """
    fx: Any = sys.modules.get(_FX)
    if runtime.exports_elsewhere() or (fx is not None and fx.CURRENT_PATCHER is not None):
        return "another thread traces or exports a model at this moment; a later call tries again"
    return None


def _after_fork() -> None:
    global _lost  # noqa: PLW0603 - a fact about the process
    dynamo: Any = sys.modules.get(_DYNAMO)
    lock = getattr(dynamo, "compile_lock", None)
    if lock is not None and not lock.acquire(blocking=False):
        _lost = True  # its holder is a thread that this process does not have
    elif lock is not None:
        lock.release()


os.register_at_fork(after_in_child=_after_fork)
