"""Describes the inputs of a graph for people: a short name, and where the value comes from."""

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
    """The names of a graph's placeholders, each with the node of the guard tree for its value.

    Call this before the tree is built, because this may add nodes: no guard names an input that
    is a size which was symbolic until a condition fixed it.
    """
    for name, origin in placeholders:
        try:
            yield name, builder.node(origin) if origin is not None else None
        except NotPortable:  # only the description is lost, because guards have their nodes already
            yield name, None


def described(
    origins: Iterable[tuple[str, int | None]], words: Wording
) -> Iterator[tuple[str, str]]:
    """Short names for the graph's placeholders, each with words for where its value comes from."""
    for name, node in origins:
        short = name.removeprefix("l_").removeprefix("L_").strip("_")
        for mangled in ("_modules_", "_parameters_", "_buffers_"):
            short = short.replace(mangled, "_")
        yield short or name, "" if node is None else words.origin(node)
