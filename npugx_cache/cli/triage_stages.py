"""What a stage of a triage came to, read from the events that its process wrote."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.triage.plan import CACHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npugx_cache.triage.plan import Way

TITLES: Mapping[Way, str] = {
    "eager": "eager",
    "eager again": "eager, a second time",
    "dynamo": 'torch.compile(backend="eager")',
    "aot_eager": 'torch.compile(backend="aot_eager")',
    "traced": "cached, no passes, no capture",
    "passes": "cached, passes, no capture",
    "cold": "cached, as you call it",
    "restored": "cached, restored",
    "bisect": "pass by pass",
}
GOOD = ("equal", "close", "as eager", "random")
"""Kinds of outcome that are no finding. "random": it differs, and the call draws random numbers."""


class Ended(NamedTuple):
    """How the process of a stage ended. `code` is None if it was stopped after the timeout."""

    code: int | None
    last_line: str


class Stage(NamedTuple):
    """What a stage came to.

    call: the number of the call that `kind` and `detail` are about, or None. seconds: of each call.
    replays: how often captured graphs ran.
    """

    way: Way
    kind: str
    detail: str
    call: int | None
    function: str
    seconds: tuple[float, ...]
    replays: int
    log: str

    @property
    def good(self) -> bool:
        return self.kind in GOOD


class Call(NamedTuple):
    """A call as it is known: number, function, kind, detail."""

    number: int | None
    function: str
    kind: str
    detail: str


def judge_stage(
    way: Way,
    events: Sequence[Mapping[str, Any]],
    ended: Ended,
    log: str,
    eager: Sequence[Mapping[str, Any]],
) -> Stage:
    """`eager` holds the events of the stage "eager", or nothing if this is that stage."""
    ends = [event for event in events if event["event"] == "end"]
    found = _ending(events, ends, ended) or _worst(way, ends, eager)
    return Stage(
        way=way,
        kind=found.kind,
        detail=found.detail,
        call=found.number,
        function=found.function,
        seconds=tuple(event["seconds"] for event in ends),
        replays=max((event.get("replays", 0) for event in ends), default=0),
        log=log,
    )


def _ending(
    events: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]], ended: Ended
) -> Call | None:
    """How the process ended, if that is a finding by itself."""
    for event in events:
        if event["event"] == "wrong target":
            return Call(None, "", "wrong target", event["reason"])
    done = {event["call"] for event in ends}
    open_calls = [e for e in events if e["event"] == "begin" and e["call"] not in done]
    number = open_calls[-1]["call"] if open_calls else None
    function = open_calls[-1]["function"] if open_calls else ""
    if ended.code is None:
        return Call(number, function, "timed out", "it was stopped")
    if ended.code < 0:
        return Call(number, function, "crashed", _signal(-ended.code))
    if ended.code and not any(event["kind"] == "raised" for event in ends):
        raising = [event for event in ends if event["detail"].startswith("raises ")]
        if not raising:
            return Call(number, function, "failed", ended.last_line)
    if open_calls and not ends:
        return Call(number, function, "failed", "the call ended the process, with exit code 0")
    return None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _worst(way: Way, ends: Sequence[Mapping[str, Any]], eager: Sequence[Mapping[str, Any]]) -> Call:
    drawing = {event["call"] for event in eager if event["event"] == "end" and event["draws"]}
    calls = [_call(event, drawing, way) for event in ends]
    for call in calls:
        if call.kind not in GOOD:
            return call
    expected = sum(event["event"] == "end" for event in eager)
    if len(ends) < expected:
        return Call(None, "", "inputs", f"made {len(ends)} calls, and eager {expected}")
    return max(calls, key=lambda call: GOOD.index(call.kind), default=Call(None, "", "equal", ""))


def _call(event: Mapping[str, Any], drawing: set[int], way: Way) -> Call:
    known = Call(event["call"], event["function"], event["kind"], event["detail"])
    if known.kind == "different" and event["call"] in drawing and way != "eager again":
        return known._replace(kind="random")
    if known.kind not in GOOD or way not in CACHED:
        return known
    reason = "; ".join(event["reasons"][:1])
    if "bypasses" in event["lookup"]:
        return known._replace(kind="uncached", detail=reason)
    if way == "restored" and "misses" in event["lookup"]:
        return known._replace(kind="missed", detail=reason)
    return known


_USERS_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def line_of(detail: str) -> str | None:
    """The line of the user's code that an error of Dynamo's names."""
    _, said, stack = detail.partition("from user code")
    found = _USERS_LINE.findall(stack) if said else []
    return "{}:{} in {}".format(*found[-1]) if found else None
