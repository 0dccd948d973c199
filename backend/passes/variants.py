"""Rewrites a call so that it writes its result over its first argument.

`add` becomes `add_`, `slice_scatter` becomes a write to a slice, `clone` disappears. The caller
must know that the first argument may be overwritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten

_SCATTERS = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
"""`scatter(base, source, *where)` is a copy of `base` with `view(base, *where)` replaced."""


def overwritable(node: fx.Node) -> fx.Node | None:
    """The first argument of a call, if the call can be rewritten to write over it; else None."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0] if _rewrite_of(node) is not None else None


def overwrite(node: fx.Node) -> None:
    """Rewrite a call, for which `overwritable` gave an argument, to write over that argument."""
    rewrite = _rewrite_of(node)
    assert rewrite is not None
    rewrite(node)


def _rewrite_of(node: fx.Node) -> Callable[[fx.Node], None] | None:
    if node.target == aten.clone.default:
        return _drop
    if node.target in _SCATTERS:
        return _write_to_view
    return _swap if schemas.in_place_variant(node.target) is not None else None


def _swap(node: fx.Node) -> None:
    node.target = schemas.in_place_variant(node.target)


def _drop(node: fx.Node) -> None:
    source: Any = node.args[0]
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)


def _write_to_view(node: fx.Node) -> None:
    base: Any = node.args[0]
    source, *where = node.args[1:]
    view_of: Any = _SCATTERS[node.target]  # type: ignore[index]
    with node.graph.inserting_before(node):
        view = node.graph.call_function(view_of, (base, *where), dict(node.kwargs))
        write = node.graph.call_function(aten.copy_.default, (view, source))
    for new in (view, write):
        lowering.trace_value(new)
    _drop(node)
