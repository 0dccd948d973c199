"""Describes the inputs of a graph for people: a short name, and where the value comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.portable import NotPortable
from npugx_cache.trace import tracing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npugx_cache.backend.inner_tensors import Parts
    from npugx_cache.conditions.explain import Wording
    from npugx_cache.trace.conditions.builder import TreeBuilder


def taken_apart(
    placeholders: Sequence[tuple[str, tracing.Source | None]], parts: Sequence[Parts]
) -> Iterator[tuple[str, tracing.Source | None]]:
    """The inputs of the lowered graph, which takes the tensors that a tensor holds."""
    for position, (name, origin) in enumerate(placeholders):
        paths = parts[position] if parts else ()
        if not paths:
            yield name, origin
        for path in paths:
            yield f"{name}_{path.replace('.', '_')}", tracing.inner(origin, path)


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


def describe_placeholders(
    origins: Iterable[tuple[str, int | None]], words: Wording
) -> Iterator[tuple[str, str]]:
    """Short names for the graph's placeholders, each with words for where its value comes from."""
    for name, node in origins:
        short = name.removeprefix("l_").removeprefix("L_").strip("_")
        for mangled in ("_modules_", "_parameters_", "_buffers_"):
            short = short.replace(mangled, "_")
        yield short or name, "" if node is None else words.origin(node)
