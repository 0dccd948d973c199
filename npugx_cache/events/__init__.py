"""Tells what happened: reasons, one log line for each lookup, and spans."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING

from npugx_cache import config
from npugx_cache.errors import OptionError
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    import types
    from collections.abc import Callable
    from contextlib import AbstractContextManager

logger = logging.getLogger("npugx_cache")
_heeded = threading.Lock()
"""Held from the first `heed_environment` on."""
_warned: set[str] = set()


def heed_environment() -> None:
    """Do once in a process what the environment asks of our logger. Raises nothing.

    Variables that look like ours and are none are named, because whoever set one waits for it to
    change something.
    """
    if not _heeded.acquire(blocking=False):
        return
    try:
        level = config.log_level()
    except OptionError as error:
        logger.warning("%s; it is ignored", error)
        level = None
    if level is not None:
        from npugx_cache.events import log_output

        log_output.show(logger, level)
    if config.unknown_variables():
        from npugx_cache.config import misspellings

        for sentence in misspellings.sentences().values():
            logger.warning("%s", sentence)


def warn_once(text: str) -> None:
    """Log a WARNING once in a process, because what is tried again must not be told again.

    Later ones, such as of another function, are at DEBUG.
    """
    if text in _warned:
        logger.debug("%s", text)
    else:
        _warned.add(text)
        logger.warning("%s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a lookup found about one stored entry: in most cases, why it was not used.

    `entry` is the id of the entry, or empty where the reasons are about no entry. `kind` says what
    the first reason is about, as one of `counters.MISS_REASONS`; it is empty for other reasons.
    """

    entry: str
    reasons: tuple[str, ...]
    kind: str = ""

    def __str__(self) -> str:
        reasons = "; ".join(self.reasons)
        return f"{self.entry[:12]}: {reasons}" if self.entry else reasons


# Spans of OpenTelemetry. A program that collects spans has loaded the API; otherwise nothing of it
# is imported.


def _spans() -> types.ModuleType | None:
    """What makes spans, if the program traces with OpenTelemetry."""
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    try:
        from npugx_cache.events import spans
    except (ImportError, OSError):  # no file can be opened now: the call goes on without spans
        return None
    return spans


_NO_SPAN: AbstractContextManager[None] = contextlib.nullcontext()


def lookup_span(function: str) -> AbstractContextManager[None]:
    """The span of one lookup, if the program traces with OpenTelemetry."""
    spans = _spans()
    return _NO_SPAN if spans is None else spans.lookup(function)


def tell_span(outcome: str, kind: str) -> None:
    """Write into the span of the lookup that goes on in this thread how the lookup ended."""
    spans = _spans()
    if spans is not None:
        spans.tell(outcome, kind)


def phase_span(phase: str, function: str) -> Callable[[], None] | None:
    """Begin the span of one phase of a compile; the result ends it. None if nobody traces."""
    spans = _spans()
    return None if spans is None else spans.phase(phase, function)
