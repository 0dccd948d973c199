"""Tells when two values are certainly the same memory; `aliasing` tells when they may be.

We follow views to the value that they are views of. Offsets are relative to that value, because
guards don't check where in its storage an input starts.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import effects, layout
from npugx_cache.private import schemas


def base_of(node: fx.Node) -> fx.Node:
    """The value at the start of a chain of views and calls in place."""
    while True:
        below = _viewed(node)
        if below is None:
            return node
        node = below


def _viewed(node: fx.Node) -> fx.Node | None:
    """The argument whose memory the result of a call certainly is in; None if not certain."""
    schema = schemas.schema_of(node.target)
    if (
        schema is None
        or schema.composite
        or effects.asks_for_position(node)
        or len(schema.returns) != 1
    ):
        return None
    done = effects.of(node)
    if not schema.returns[0].aliased or len(done.aliased) != 1:
        return None
    (source,) = done.aliased
    if done.written:  # an operator in place returns its argument, also if a pass made it in place
        return source
    before, after = (lowering.storages(each.meta.get("val")) for each in (source, node))
    return source if len(before) == 1 and before == after else None


def same_memory(left: Any, right: Any) -> bool:
    """Whether two values are the same elements of the same memory in the same order."""
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return False
    if left is right:
        return True
    one, other = layout.tensor(left), layout.tensor(right)
    return (
        base_of(left) is base_of(right)
        and one is not None
        and other is not None
        and layout.same_layout(one, other)
    )


def same_elements(view: Any, whole: fx.Node) -> bool:
    """Whether a view of `whole` holds all of its elements, in any order."""
    if view is whole:
        return True
    one, other = layout.tensor(view), layout.tensor(whole)
    return (
        base_of(view) is whole
        and one is not None
        and other is not None
        and layout.same_numel(one, other)
        and layout.is_dense(one)
        and layout.is_dense(other)
    )


def same_position(target: Any, source: fx.Node, result: Any, value: fx.Node) -> bool:
    """Whether `target` lies relative to `source` as `result` lies relative to `value`.

    `target` and `source` must have the same base, and so must `result` and `value`.
    """
    if target is source and result is value:
        return True
    if base_of(target) is not base_of(source) or base_of(result) is not base_of(value):
        return False
    one, two, three, four = map(layout.tensor, (target, source, result, value))
    if one is None or two is None or three is None or four is None:
        return False
    distance = one.storage_offset() - two.storage_offset()
    other = three.storage_offset() - four.storage_offset()
    return layout.same_strided(one, three) and layout.same(distance, other)
