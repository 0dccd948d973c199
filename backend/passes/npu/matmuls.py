"""bmm and the transpose of its result, and of its first argument: `npu_transpose_batchmatmul`.

The fused operator returns rows of all batches side by side: other strides than the transpose had.
Where a value that the caller gets would have other strides for that, the graph is put back.
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
    """`left` is a transpose of the first argument, and what it goes through; empty without one."""

    result: fx.Node
    calls: tuple[fx.Node, ...]
    bmm: fx.Node
    left: tuple[fx.Node, ...]


def fuse_matmuls(graph: fx.Graph) -> int:
    """Fuse what fits; returns how many there were."""
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
    """What ends in a node, if that transposes a product on an NPU."""
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
    """Back through calls that leave everything as it is: those calls, and what they begin with.

    None if something else uses one of them.
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
    """Whether the operator can transpose the first argument: a row of all batches has a limit."""
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


# --- other strides, further down


def _traced_again(graph: fx.Graph) -> bool:
    """Give all values after a fusion those that they have now; False where there is none."""
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
