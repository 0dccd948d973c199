"""Fuses `bmm` with the transposes of its result and first argument: `npu_transpose_batchmatmul`.

The fused operator returns the rows of all batches side by side, so its result has other strides
than the transpose. If a value that the caller gets would then have other strides, we restore the
graph.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.npu.matching import Calls, Match, name_of, substitute
from npugx_cache.backend.passes.view_to_reshape import views_to_reshapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_MULTIPLE, _LIMIT = 128, 65536
_KEEPING = ("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::expand")


class Product(NamedTuple):
    """A transposed product. `result` transposes the product `bmm`; `calls` are `bmm` and its views.

    left: the transpose of the first argument and the views between it and `bmm`, or ().
    """

    result: fx.Node
    calls: tuple[fx.Node, ...]
    bmm: fx.Node
    left: tuple[fx.Node, ...]


def fuse_matmuls(graph: fx.Graph) -> int:
    """Fuse all products that fit; returns how many were fused."""
    products = [found for node in graph.nodes if (found := _product(node)) is not None]
    if not products:
        return 0
    module: Any = graph.owning_module
    before, shown = copy.deepcopy(graph), _returned(graph)
    fused = sum(_fuse(graph, product) for product in products)
    if not fused:
        return 0
    views_to_reshapes(graph)
    if _traced_again(graph) and all(map(_same, shown, _returned(graph))):
        return fused
    module.graph = before
    return 0


def _product(node: fx.Node) -> Product | None:
    """The product that `node` transposes, if `node` is a transpose of a product on an NPU."""
    value = layout.tensor(node)
    if value is None or value.device.type != "npu" or not _transposes(node):
        return None
    calls, bmm = _through(node.args[0], ("aten::view", "aten::reshape", "aten::_unsafe_view"))
    if bmm is None or name_of(bmm) != "aten::bmm" or not _fits(bmm):
        return None
    passed, source = _through(bmm.args[0], _KEEPING)
    left: tuple[fx.Node, ...] = ()
    if source is not None and _transposes(source) and _is_short(bmm):
        left = (source, *passed)
    return Product(node, (bmm, *calls), bmm, left)


def _through(node: Any, keeping: tuple[str, ...]) -> tuple[list[fx.Node], fx.Node | None]:
    """Go back from a node through views that keep the layout.

    Returns these views, and the node before them, or None for it if something else uses that node.
    """
    passed: list[fx.Node] = []
    while len(node.users) == 1 and name_of(node) in keeping:
        before, after = layout.tensor(node.args[0]), layout.tensor(node)
        if before is None or after is None or not layout.same_layout(before, after):
            break
        passed.append(node)
        node = node.args[0]
    return passed, node if len(node.users) == 1 else None


def _transposes(node: fx.Node) -> bool:
    """Whether a call swaps the first two of three dimensions."""
    value = layout.tensor(node)
    if name_of(node) != "aten::transpose" or value is None or value.dim() != 3:
        return False
    return {dim % 3 for dim in node.args[1:] if isinstance(dim, int)} == {0, 1}


def _fits(bmm: fx.Node) -> bool:
    values = [layout.tensor(each) for each in bmm.args]
    for value in values:
        last = value.shape[2] if value is not None else 0
        if value is None or value.dtype not in _TYPES:
            return False
        if not isinstance(last, int) or last == 0 or last % _MULTIPLE:
            return False
    return values[0] is not None and values[0].shape[2] < _LIMIT


def _is_short(bmm: fx.Node) -> bool:
    """Whether the operator can transpose the first argument: it limits batches times columns."""
    value = layout.tensor(bmm.args[0])
    row = value.shape[0] * value.shape[2] if value is not None else 0
    return isinstance(row, int) and 1 <= row < _LIMIT


def _fuse(graph: fx.Graph, product: Product) -> bool:
    left, right = product.bmm.args
    order = [0, 1, 2]
    if product.left:
        left, order = product.left[0].args[0], [1, 0, 2]
    match = Match(
        (product.result, *product.calls, *product.left),
        (left, right),  # type: ignore[arg-type]
        (product.result,),
    )

    def build(calls: Calls) -> Mapping[fx.Node, fx.Node]:
        packet = getattr(torch.ops.npu, "npu_transpose_batchmatmul", None)
        fused = getattr(packet, "default", None)
        return {product.result: calls.call(fused, left, right, perm_x1=order)}

    return substitute(graph, match, build, strides=False)


# --- the effect of other strides on later calls


def _traced_again(graph: fx.Graph) -> bool:
    """Trace again all calls that depend on a fused one; False if a call refuses the new strides."""
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        fused = name_of(node) == "npu::npu_transpose_batchmatmul"
        if node.op != "call_function" or not (fused or changed & {*node.all_input_nodes}):
            continue
        changed.add(node)
        if "val" in node.meta and not fused:
            try:
                lowering.trace_value(node)
            except (RuntimeError, ValueError):
                return False
    return True


def _returned(graph: fx.Graph) -> list[torch.Tensor | None]:
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    values: list[torch.Tensor | None] = []
    torch.fx.node.map_arg(output.args, lambda node: values.append(layout.tensor(node)))
    return values


def _same(before: torch.Tensor | None, after: torch.Tensor | None) -> bool:
    if before is None or after is None:
        return before is after
    return layout.same_layout(before, after)
