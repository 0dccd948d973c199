"""Lets a function run as it stands, where a compile that it would begin is not wanted.

A function may hold functions that `torch.compile` or `cache_compile` has made. Run by itself, it
would compile each of them, which takes as long as the compile that the run belongs to.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_here = threading.local()


class Compiles(BaseException):
    """Ends a run that begins to compile. No user's `except Exception` takes it for an error."""


def is_wanted_here() -> bool:
    """Whether this thread is in such a run, so that a cached function begins no lookup."""
    return getattr(_here, "runs", False)


@contextlib.contextmanager
def without_compiles() -> Iterator[None]:
    """Run what is inside eagerly; raises `Compiles` where Dynamo would begin to compile."""
    from torch._dynamo.callback import callback_handler

    thread = threading.get_ident()

    def begins(_: Any) -> None:
        if threading.get_ident() == thread:
            raise Compiles

    callback_handler.register_start_callback(begins)
    _here.runs = True
    try:
        yield
    finally:
        _here.runs = False
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed it
            callback_handler.remove_start_callback(begins)
