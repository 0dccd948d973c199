"""Puts `linear` back, which eager calls once, in the place of the calls that a trace makes of it.

A trace takes `linear` apart into a transpose, a view, a product and a view, and the graph would
call each of these from Python. `linear` is put back only where torch, asked to take apart `linear`
of these very values, makes exactly the calls that stand in the graph. So the same kernels run on
the same layouts, and the results have the same bits. On a device that has a kernel of its own for
`linear`, the calls stay.

The pass runs after the fusions, whose patterns are written for the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.fx.node import map_arg

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.aliasing import known
from npugx_cache.events import logger
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.private import dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

aten = torch.ops.aten
_LINEAR = aten.linear.default
_VIEWS = (aten.view.default, aten._unsafe_view.default)  # noqa: SLF001 - the name of an operator
_PARTS = (*_VIEWS, aten.t.default, aten.mm.default, aten.addmm.default)


class _Parts(NamedTuple):
    """The parts of a call of `linear`: the product, what is given to `linear`, and its result."""

    product: fx.Node
    given: tuple[fx.Node, ...]
    result: fx.Node


def restore_linear(graph: fx.Graph) -> int:
    """Replace the parts of each `linear` by one call; returns how many calls were put back."""
    aliasing, memory = known(graph), _Decompositions()
    restored = 0
    for node in list(graph.nodes) if aliasing is not None else ():
        for parts in _candidates(node):
            alike = memory.of(parts.given)
            if alike is not None and alike == _expression(parts.result, parts.given):
                _replace(parts)
                restored += 1
                break
    return restored


def _candidates(node: fx.Node) -> Iterator[_Parts]:
    """What `linear` may have been given where a product stands; first with what is not flat yet."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return
    arguments: Any = node.args
    *bias, rows, transposed = arguments
    weight = _source(transposed, (aten.t.default,))
    if weight is None or not all(isinstance(each, fx.Node) for each in (rows, *bias)):
        return
    users = list(node.users)
    whole = _source(rows, _VIEWS)
    if whole is not None and len(users) == 1 and users[0].target in _VIEWS:
        yield _Parts(node, (whole, weight, *bias), users[0])
    yield _Parts(node, (rows, weight, *bias), node)


def _source(value: Any, targets: tuple[Any, ...]) -> Any:
    """What a call of one of the operators was given; None for any other value."""
    return value.args[0] if isinstance(value, fx.Node) and value.target in targets else None


def _replace(parts: _Parts) -> None:
    """Call `linear` where its product stood, because the product is what reads the memory."""
    with parts.product.graph.inserting_before(parts.product):
        node = parts.product.graph.call_function(_LINEAR, parts.given)
    node.meta = dict(parts.result.meta)
    parts.result.replace_all_uses_with(node)
    unused = [parts.result, parts.product, *parts.product.all_input_nodes]
    for each in dict.fromkeys(unused):
        if each.target in _PARTS and not each.users:
            parts.product.graph.erase_node(each)


class _Decompositions:
    """What torch makes of `linear`, by what is known of its arguments: layers are alike."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, given: Sequence[fx.Node]) -> Any:
        """The parts as an expression of the arguments; None where the parts must stay."""
        values = [value for each in given if (value := layout.tensor(each)) is not None]
        if len(values) < len(given) or not all(map(_is_plain, values)) or not _is_dense(values[0]):
            return None
        form = tuple(map(_form, values))
        if form not in self._known:
            self._known[form] = _taken_apart(values)
        return self._known[form]


def _is_plain(value: torch.Tensor) -> bool:
    device = value.device.type
    return value.layout is torch.strided and not dispatcher.has_kernel(_LINEAR, device)


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the rows follow each other without gaps.

    Of other rows torch makes one product or several, as a flag of the weight says that a later call
    may not have (`requires_grad`).
    """
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not layout.same(stride, expected):
            return False
        expected = expected * size
    return True


def _form(value: torch.Tensor) -> tuple[Any, ...]:
    sizes = tuple(map(str, (*value.shape, *value.stride())))
    flags = (value.is_conj(), value.is_neg(), value.requires_grad)
    return value.dtype, value.device, value.dim(), sizes, flags


def _taken_apart(values: list[Any]) -> Any:
    if dispatcher.is_replaced(_LINEAR):
        return None
    try:
        traced = lowering.lower(torch.nn.functional.linear, values, None).graph
    except Exception as error:  # noqa: BLE001 - torch refuses arguments with various errors
        let_through(error)
        logger.debug("linear is not put back: %s", error)
        return None
    results: list[fx.Node] = []
    map_arg(traced.output_node().args[0], results.append)
    [result] = results
    return _expression(result, traced.find_nodes(op="placeholder"))


def _expression(value: Any, given: Sequence[fx.Node]) -> Any:
    """A value as what it is computed from: operators, sizes, and positions in `given`."""
    if isinstance(value, (list, tuple)):
        return tuple(_expression(each, given) for each in value)
    if not isinstance(value, fx.Node):
        return value
    if value in given:
        return "given", given.index(value)
    size = value.meta.get("val")
    if isinstance(size, (int, torch.SymInt)):
        return str(size)
    if value.target not in _PARTS or value.kwargs:
        return value
    return value.target, _expression(value.args, given)
