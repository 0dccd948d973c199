"""Lets Dynamo take the sizes of sharded tensors as fixed, because a graph takes only their parts.

Dynamo would make a size symbolic that differs from that of an earlier trace. The size of a part
then follows from the symbol and the place of this rank, which no condition can say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo.source import AttrSource

from npugx_cache.private import meshes
from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


@observation.around
def fixing(
    _: Recorder,
    original: Callable[..., Any],
    tensor: Any,
    tx: Any,
    source: Any,
    static_shapes: Any,
    *more: Any,
    **by_name: Any,
) -> Any:
    is_part = isinstance(source, AttrSource) and source.member == meshes.PART
    fixed = static_shapes or is_part or meshes.is_sharded(tensor)
    return original(tensor, tx, source, fixed, *more, **by_name)
