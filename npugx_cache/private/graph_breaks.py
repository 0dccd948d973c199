"""What Dynamo tells of the lines at which it ends a graph, and how it takes its own errors."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, TypeAlias

import torch._dynamo.config as dynamo_config
from torch._dynamo.utils import graph_break_reasons

if TYPE_CHECKING:
    import traceback
    from collections.abc import Iterator, Sequence

    Break: TypeAlias = tuple[str, Sequence[traceback.FrameSummary]]
    """What Dynamo says of a line at which it gave up, and the stack there."""

_CONVERTS, _RUNS_ON_FAKES = "torch._dynamo.convert_frame", "torch._subclasses.fake_tensor"


@contextlib.contextmanager
def errors_run_eagerly() -> Iterator[list[Break]]:
    """While this is entered, a frame that Dynamo or a backend can't compile runs eagerly.

    Dynamo decides before the frame runs, so nothing of it runs twice. What failed comes into the
    list, and not into torch's log. This thread alone is meant.
    """
    failed: list[Break] = []
    thread = threading.get_ident()

    def wanted(record: logging.LogRecord) -> bool:
        if record.thread != thread or record.levelno < logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.name == _CONVERTS:
            failed.append((str(error), tuple(getattr(error, "real_stack", None) or ())))
        return error is None

    logs = [logging.getLogger(name) for name in (_CONVERTS, _RUNS_ON_FAKES)]
    for log in logs:
        log.addFilter(wanted)
    try:
        with dynamo_config.patch(suppress_errors=True):
            yield failed
    finally:
        for log in logs:
            log.removeFilter(wanted)


def count() -> int:
    """How many graph breaks this process has met."""
    return len(graph_break_reasons)


def since(count: int) -> Iterator[Break]:
    """The later breaks. Where another thread compiles meanwhile, its breaks are among them."""
    for reason in graph_break_reasons[count:]:
        yield str(reason.reason), tuple(reason.user_stack)
