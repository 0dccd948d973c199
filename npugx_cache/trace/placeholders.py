"""Names the inputs of a graph, and says where their values come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.conditions.explain import Wording
    from npugx_cache.trace import tracing
    from npugx_cache.trace.conditions.builder import TreeBuilder


def origins_of(
    placeholders: Iterable[tuple[str, tracing.Source | None]], builder: TreeBuilder
) -> Iterator[tuple[str, int | None]]:
    """The placeholders of a graph, and the nodes of the guard tree that their values come from.

    Call this before the tree is built, because it may add nodes: a size that was symbolic until a
    condition fixed it is an input that no guard names.
    """
    for name, origin in placeholders:
        try:
            yield name, builder.node(origin) if origin is not None else None
        except NotPortable:  # only the description is lost: what was guarded is in the tree
            yield name, None


def described(
    origins: Iterable[tuple[str, int | None]], words: Wording
) -> Iterator[tuple[str, str]]:
    """Short names for the graph's placeholders, and where each of them comes from."""
    for name, node in origins:
        short = name.removeprefix("l_").removeprefix("L_").strip("_")
        for mangled in ("_modules_", "_parameters_", "_buffers_"):
            short = short.replace(mangled, "_")
        yield short or name, "" if node is None else words.origin(node)
