"""CPU time by phase: functions of the package are timed from outside, each without its callees.

A phase whose functions are no longer there is an error, not a zero.
"""

from __future__ import annotations

import functools
import importlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Phases:
    """CPU seconds by phase. What a timed function calls and is timed itself counts only there."""

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        """Take the place of the functions named `module:attribute` or `module:Class.attribute`."""
        self.seconds: dict[str, float] = dict.fromkeys(places, 0.0)
        self._inner = [0.0]
        for phase, names in places.items():
            for name in names:
                self._replace(name, phase)

    def _replace(self, place: str, phase: str) -> None:
        module, _, path = place.partition(":")
        owner: Any = importlib.import_module(module)
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        found = vars(owner)[name]
        if isinstance(found, classmethod):
            setattr(owner, name, classmethod(self.timed(found.__func__, phase)))
        else:
            setattr(owner, name, self.timed(found, phase))

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """The function, with its CPU time added to a phase."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.process_time() - started
                self.seconds[phase] += whole - self._inner.pop()
                self._inner[-1] += whole

        return run
