"""Keeps torch from logging what nobody needs during a trace of ours.

The reason of a refusal says what torch would log as an error. And for each call in the graph, torch
makes a line for its log, also where nobody reads the log: torch parses the user's files for that,
which takes a twentieth of a trace. Importing this module loads the compiler.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from torch._dynamo import symbolic_convert

from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.replacements import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.msg not in messages

    source = logging.getLogger(logger)
    source.addFilter(is_wanted)
    try:
        yield
    finally:
        source.removeFilter(is_wanted)


class _Headers(Replacements):
    def _put_all(self) -> None:
        owner: Any = symbolic_convert.InstructionTranslatorBase
        if hasattr(owner, _HEADER) and not any(map(_is_read, _LOGS)):
            self._put(owner, _HEADER, _leave_out, adds=False)


_HEADER = "get_line_of_code_header"
_LOGS = tuple(f"torch._dynamo.{name}.__trace_call" for name in ("output_graph", "symbolic_convert"))
"""The logs that show the headers of lines."""


def _is_read(log: str) -> bool:
    return logging.getLogger(log).isEnabledFor(logging.DEBUG)


@observation.around
def _leave_out(*_: object, **__: object) -> str:
    return ""


without_headers: Callable[[], contextlib.AbstractContextManager[None]] = _Headers().in_place
"""Inside, traces of ours make no header for a line of code that nobody reads."""
