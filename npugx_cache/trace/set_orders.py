"""Adds conditions to a guard tree: the order of each set that the trace walked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache import location
from npugx_cache.guards import orders
from npugx_cache.portable import NotPortable, code_hash
from npugx_cache.trace.source_facts import names_of

if TYPE_CHECKING:
    from npugx_cache._compat.set_history import Leaf, Walk, Walks
    from npugx_cache.portable import Plain
    from npugx_cache.trace.source_facts import Owners
    from npugx_cache.trace.tree_builder import TreeBuilder


def add_orders(builder: TreeBuilder, walks: Walks, owners: Owners) -> None:
    """Raises `NotPortable` for a walk whose order can't be checked in another process."""
    for key, walk in walks.noted.items():
        if walk.made is None:
            raise NotPortable(_reason(walk))
        if key == walks.indifferent or orders.is_same_everywhere(walk.made):
            continue

        def leaf(place: int, walk: Walk = walk) -> Plain:
            return _leaf(builder, walks.leaves[place], owners, walk)

        builder.orders.append([orders.replaced(walk.made, leaf), walk.order])


def to_flip(walks: Walks) -> str | None:
    """The one set of two elements that the trace itself filled, if there is but one.

    A trace that walks it the other way round shows whether its order matters at all.
    """
    keys = [
        key
        for key, walk in walks.noted.items()
        if walk.made is not None
        and not orders.is_same_everywhere(walk.made)
        and not orders.nodes_in([walk.made, walk.order])
    ]
    return keys[0] if len(keys) == 1 and len(walks.noted[keys[0]].order) == 2 else None


def _reason(walk: Walk) -> str:
    what = "a set is walked, the order of which can't be checked in another process"
    return location.reason(what, walk.place, "walk sorted(...) of it")


def _leaf(builder: TreeBuilder, leaf: Leaf, owners: Owners, walk: Walk) -> Plain:
    if leaf.code is None:
        return ["node", builder.node(leaf.source)]
    code = code_hash(leaf.code)
    for module, name in names_of(leaf.code, owners.get(id(leaf.code), [])):
        try:
            if orders.constant(module, name, code, leaf.place) is leaf.value:
                return ["constant", module, name, code, leaf.place]
        except NotPortable:
            continue
    raise NotPortable(_reason(walk))
