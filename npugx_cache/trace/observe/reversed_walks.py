"""Lists and dicts that change while they are walked backwards.

Dynamo walks a copy made at `reversed()`, Python the object itself: what was traced is not what
eager does. Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


class _Backwards(dict[int, tuple[Any, ...]]):
    """What `reversed()` gave or was given and what belongs to it, by the id of the former."""


def _items(walked: Any) -> list[Any]:
    view = getattr(walked, "view_items_vt", None)
    return list(walked.items if view is None else view)


def _has_items(value: Any) -> bool:
    return hasattr(value, "view_items_vt") or hasattr(value, "items")


def _has_more(walk: Any) -> bool:
    if hasattr(walk, "it_index"):  # torch 2.15 walks a list itself, and only dicts as a copy
        return bool(walk.it_index >= 0 and not walk.is_exhausted)
    return bool(walk.index < len(walk.items))


def remembering(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def remembering(self: Any, tx: Any, name: str, *rest: Any) -> Any:
        return _remembered(self, name, method(self, tx, name, *rest))

    return remembering


def remembering_method(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def remembering(method: Any, variable: Any, tx: Any, name: str, *rest: Any) -> Any:
        return _remembered(variable, name, call(method, variable, tx, name, *rest))

    return remembering


def _remembered(walked: Any, name: str, made: Any) -> Any:
    recorder = observation.current()
    if recorder is not None and name == "__reversed__" and _has_items(walked):
        recorder.state(_Backwards)[id(made)] = made, walked, _items(walked)
    return made


def comparing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def comparing(self: Any, *rest: Any) -> Any:
        recorder = observation.current()
        begun = recorder.state(_Backwards).get(id(self)) if recorder is not None else None
        if recorder is not None and begun is not None and _has_more(self):
            _, walked, before = begun
            if list(map(id, _items(walked))) != list(map(id, before)):
                what = "a list or dict that changes while it is walked backwards"
                recorder.refuse(f"{what} is traced as if it did not")
        return method(self, *rest)

    return comparing


def refuse(recorder: Recorder, *_: Any) -> None:
    """For a torch that takes its copy where no object of its own tells of it."""
    what = "what a list or dict that is walked backwards becomes"
    recorder.refuse(f"{what} is not seen with this torch")
