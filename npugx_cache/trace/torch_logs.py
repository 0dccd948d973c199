"""Keeps torch from logging, as an error of its own, what the user's function does wrong."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")
_TOLD = "failed while attempting to run meta for %s"


@contextlib.contextmanager
def without_failed_operators() -> Iterator[None]:
    """Leave out torch's stack of twenty lines for an operator that raises in this thread's trace.

    The trace ends with that error, and the error is told once: by the function itself, or as the
    reason why the function runs uncached.
    """
    thread = threading.get_ident()

    def wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.msg != _TOLD

    _FAKE_TENSORS.addFilter(wanted)
    try:
        yield
    finally:
        _FAKE_TENSORS.removeFilter(wanted)
