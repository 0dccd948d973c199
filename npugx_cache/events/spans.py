"""Spans of OpenTelemetry: one for each lookup, and in it one for each phase of a compile.

Loaded only where the program has loaded OpenTelemetry's API itself (`events.lookup_span`). Without
a tracer provider the API's spans do nothing. A span has no text of an exception, because such a
text may quote an argument.
"""

from __future__ import annotations

import contextlib
import logging
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG = logging.getLogger("npugx_cache")
_OUTCOMES = {"hits": "hit", "misses": "miss", "bypasses": "bypass"}
_looking_up: ContextVar[trace.Span | None] = ContextVar("npugx_cache.lookup", default=None)
"""The span of the lookup that goes on here: the current span may be one of the user's."""


@contextlib.contextmanager
def lookup(function: str) -> Iterator[None]:
    """The span of one lookup; what begins in it has it for a parent."""
    span = _start_span("lookup", function)
    if span is None:
        yield
        return
    token = _looking_up.set(span)
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        _harmless(span.set_status, trace.StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        _looking_up.reset(token)
        _harmless(span.end)


def tell(outcome: str, kind: str) -> None:
    """Write into the span of the lookup how the lookup ended."""
    span = _looking_up.get()
    if span is not None:
        _harmless(span.set_attribute, "npugx_cache.outcome", _OUTCOMES[outcome])
        if kind:
            _harmless(span.set_attribute, "npugx_cache.reason", kind)


def phase(name: str, function: str) -> Callable[[], None] | None:
    """The span of one phase of a compile, which has begun; the result ends it."""
    span = _start_span(name, function)
    return None if span is None else partial(_harmless, span.end)


def _start_span(name: str, function: str) -> trace.Span | None:
    """A span that must be ended; None if tracing has a fault."""

    def start() -> trace.Span:
        tracer = trace.get_tracer("npugx_cache", VERSION)
        about = {"npugx_cache.function": function}
        return tracer.start_span(f"npugx_cache.{name}", attributes=about)

    span: trace.Span | None = _harmless(start)
    return span


def _harmless(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call something of the user's tracing, whose faults must not reach a call of the model."""
    try:
        return call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - samplers and processors are the user's own
        let_through(error)
        _LOG.debug("a fault of the program's tracing: %r", error)
        return None
