"""Keeps torch from logging, as an error of its own, what the reason of a refusal says."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAILED_OPERATOR = "torch._subclasses.fake_tensor", ("failed while attempting to run meta for %s",)
_FAILED_GUARD = "torch._guards", ("Error while creating guard:\n%s", "Created at:\n%s")


def without_failed_operators() -> contextlib.AbstractContextManager[None]:
    """Leave out torch's stack of twenty lines for an operator that raises in this thread's trace.

    The trace ends with that error, and the error is told once: by the function itself, or as the
    reason why the function runs uncached.
    """
    return _without(*_FAILED_OPERATOR)


def without_failed_guards() -> contextlib.AbstractContextManager[None]:
    """Leave out torch's stack for a guard that torch can't make in this thread."""
    return _without(*_FAILED_GUARD)


@contextlib.contextmanager
def _without(logger: str, messages: tuple[str, ...]) -> Iterator[None]:
    thread = threading.get_ident()

    def wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.msg not in messages

    source = logging.getLogger(logger)
    source.addFilter(wanted)
    try:
        yield
    finally:
        source.removeFilter(wanted)
