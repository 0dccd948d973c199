"""Refuses traces in which a list or dict changes while the code walks it backwards.

Dynamo walks a copy that it made at `reversed()`, and Python walks the object itself. So the trace
is not what eager does. Importing this module loads the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


class _Backwards(dict[int, tuple[Any, ...]]):
    """What `reversed()` gave, what it was given, and the items at that time; by id of the first."""


def _items(walked: Any) -> list[Any]:
    view = getattr(walked, "view_items_vt", None)
    return list(walked.items if view is None else view)


def _has_items(value: Any) -> bool:
    return hasattr(value, "view_items_vt") or hasattr(value, "items")


def _has_more(walk: Any) -> bool:
    if hasattr(walk, "it_index"):  # torch 2.15 walks a list itself, and only dicts as a copy
        return bool(walk.it_index >= 0 and not walk.is_exhausted)
    return bool(walk.index < len(walk.items))


@observation.around
def remembering(
    recorder: Recorder, method: Callable[..., Any], walked: Any, tx: Any, name: str, *rest: Any
) -> Any:
    return _remembered(recorder, walked, name, method(walked, tx, name, *rest))


@observation.around
def remembering_method(
    recorder: Recorder,
    call: Callable[..., Any],
    method: Any,
    variable: Any,
    tx: Any,
    name: str,
    *rest: Any,
) -> Any:
    return _remembered(recorder, variable, name, call(method, variable, tx, name, *rest))


def _remembered(recorder: Recorder, walked: Any, name: str, made: Any) -> Any:
    if name == "__reversed__" and _has_items(walked):
        recorder.state(_Backwards)[id(made)] = made, walked, _items(walked)
    return made


@observation.around
def comparing(recorder: Recorder, method: Callable[..., Any], walk: Any, *rest: Any) -> Any:
    begun = recorder.state(_Backwards).get(id(walk))
    if begun is not None and _has_more(walk):
        _, walked, before = begun
        if list(map(id, _items(walked))) != list(map(id, before)):
            what = "a list or dict that changes while it is walked backwards"
            recorder.refuse(f"{what} is traced as if it did not")
    return method(walk, *rest)


def refuse(recorder: Recorder, *_: Any) -> None:
    """For a torch that makes its copy in a place that no hook can see."""
    what = "what a list or dict that is walked backwards becomes"
    recorder.refuse(f"{what} is not seen with this torch")
