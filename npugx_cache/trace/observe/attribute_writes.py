"""Keeps the writes to attributes that a trace makes after a graph inside the graph.

Dynamo traces a branch or a loop's body with a copy of what it knows of writes, and goes on with
another copy afterwards. Before torch 2.15 the `__dict__` of an object that was written to before
keeps the first copy, and what is written there later is lost.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


@functools.cache
def _make_class(base: Any) -> type:
    class Written(base):  # type: ignore[misc]
        """The `__dict__` of an object, with the writes that Dynamo knows of now."""

        output: weakref.ref[Any]

        @property
        def side_effects(self) -> Any:
            output = self.output()
            return output.side_effects if output is not None else None

    return Written


@observation.around
def following(
    recorder: Recorder, make: Callable[..., None], written: Any, item: Any, tx: Any
) -> None:
    del recorder
    make(written, item, tx)
    # Weak, because a cycle would keep what Dynamo has of the call, its tensors too, until garbage
    # is collected.
    written.output = weakref.ref(tx.output)
    kind: Any = type(written)
    written.__class__ = _make_class(kind)
