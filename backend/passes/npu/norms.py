"""Fuses `npu_add_rms_norm` with the quantisation or the cast of its result."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.npu.matching import Calls, Match, name_of, substitute
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

aten = torch.ops.aten

NORM = "npu::npu_add_rms_norm"
_EPSILON = 1e-6
_INT8, _QINT8 = 1, 12
_VIEWS = ("aten::view", "aten::reshape", "aten::_unsafe_view")


class Norm(NamedTuple):
    """A call of `npu_add_rms_norm`. Nothing uses its other result (`rstd`).

    y: the normalised sum. x: the sum, if it is used. unpacking: all getitem calls on its results.
    """

    call: fx.Node
    y: fx.Node
    x: fx.Node | None
    unpacking: tuple[fx.Node, ...]

    @property
    def inputs(self) -> tuple[Any, ...]:
        return tuple(schemas.given(self.call, name) for name in ("x1", "x2", "gamma"))

    @property
    def epsilon(self) -> float:
        given = schemas.given(self.call, "epsilon")
        return _EPSILON if given is None else given

    def fused(self, name: str) -> Any:
        return schemas.sibling(self.call.target, name, "default")


def fuse_norms(graph: fx.Graph) -> int:
    """Fuse each `npu_add_rms_norm` with the call that uses its result; returns how many."""
    fused = 0
    for node in list(graph.nodes):
        norm = _norm(node) if name_of(node) == NORM else None
        if norm is not None:
            fused += any(fuse(graph, norm) for fuse in (_dynamic_quant, _quant, _cast))
    return fused


def _norm(call: fx.Node) -> Norm | None:
    results: dict[int, fx.Node] = {}
    for user in call.users:
        if user.target is not operator.getitem or user.args[1] in results:
            return None
        results[user.args[1]] = user  # type: ignore[index]
    y, rstd, x = (results.get(index) for index in range(3))
    if y is None or (rstd is not None and rstd.users):
        return None
    return Norm(call, y, x, tuple(results.values()))


# --- with npu_dynamic_quant


class Quantised(NamedTuple):
    """A dynamic quantisation of the norm's result, or of a view of it.

    values, scale: its two results, if used. column: the view of `scale` as a column, if `view` is
    not None.
    """

    view: fx.Node | None
    quant: fx.Node
    values: fx.Node | None
    scale: fx.Node | None
    column: fx.Node | None

    @property
    def smooth(self) -> Any:
        return self.quant.kwargs.get("smooth_scales")


def _dynamic_quant(graph: fx.Graph, norm: Norm) -> bool:
    found = _quantised(norm)
    if found is None:
        return False

    def build(calls: Calls) -> Mapping[fx.Node, fx.Node]:
        call = calls.call(
            norm.fused("npu_add_rms_norm_dynamic_quant"),
            *norm.inputs,
            smooth_scale1=found.smooth,
            epsilon=norm.epsilon,
            output_mask=[True, False],
        )
        pairs = {}
        for old, index, view in ((found.values, 0, found.view), (found.scale, 3, found.column)):
            if old is None:
                continue
            new = calls.call(operator.getitem, call, index)
            if view is not None:
                new = calls.call(aten.view.default, new, view.args[1])
            pairs[found.column if old is found.scale and found.column else old] = new
        return _with_sum(calls, call, norm, 2, pairs)

    middle = [each for each in found if each is not None]
    results = [each for each in (found.values, found.column or found.scale, norm.x) if each]
    given = found.smooth, *_sizes(found.view), *_sizes(found.column)
    inputs = [*norm.inputs, *(each for each in given if each is not None)]
    return substitute(graph, _match(norm, middle, inputs, results), build)


def _quantised(norm: Norm) -> Quantised | None:
    first = _only_user(norm.y)
    view = first if name_of(first) in _VIEWS else None
    quant = first if view is None else _only_user(view)
    if quant is None or name_of(quant) != "npu::npu_dynamic_quant":
        return None
    if set(quant.kwargs) - {"smooth_scales"}:  # the fused operator has no other types, no groups
        return None
    values, scale = _element(quant, 0), _element(quant, 1)
    if set(quant.users) != {each for each in (values, scale) if each is not None}:
        return None
    found = Quantised(view, quant, values, scale, None)
    if view is None:
        return found
    column = _only_user(scale)
    flat = found.smooth is None and _is_flat(norm.y, view) and _is_column(column)
    return found._replace(column=column) if flat else None


def _is_flat(y: fx.Node, view: fx.Node) -> bool:
    """Whether a view merges the first two dimensions into one and keeps the others."""
    whole, flat = layout.tensor(y), layout.tensor(view)
    if whole is None or flat is None or whole.dim() != flat.dim() + 1 or whole.dim() < 3:
        return False
    kept = zip(whole.shape[2:], flat.shape[1:], strict=True)
    return layout.same(whole.shape[0] * whole.shape[1], flat.shape[0]) and all(
        layout.same(before, after) for before, after in kept
    )


def _is_column(node: fx.Node | None) -> bool:
    value = layout.tensor(node)
    if node is None or value is None or name_of(node) not in _VIEWS:
        return False
    return value.dim() == 2 and layout.same(value.shape[1], 1)


# --- with npu_quantize


def _quant(graph: fx.Graph, norm: Norm) -> bool:
    quant = _only_user(norm.y)
    if quant is None or name_of(quant) != "npu::npu_quantize" or not _can_quantise(norm, quant):
        return False
    scales, zero_points = (schemas.given(quant, name) for name in ("scales", "zero_points"))
    inputs = [each for each in (*norm.inputs, scales, zero_points) if each is not None]

    def build(calls: Calls) -> Mapping[fx.Node, fx.Node]:
        call = calls.call(
            norm.fused("npu_add_rms_norm_quant"),
            *(*norm.inputs, scales, zero_points),
            axis=-1,
            epsilon=norm.epsilon,
        )
        return _with_sum(calls, call, norm, 2, {quant: calls.call(operator.getitem, call, 0)})

    results = [quant, *([norm.x] if norm.x is not None else [])]
    return substitute(graph, _match(norm, [quant], inputs, results), build)


def _can_quantise(norm: Norm, quant: fx.Node) -> bool:
    """Whether the fused operator computes the same as `quant`.

    The fused operator divides by the scales, one per element of a row, and returns int8.
    """
    given = {name: schemas.given(quant, name) for name in ("dtype", "axis", "div_mode")}
    if given["axis"] != -1 or given["div_mode"] not in (None, True):
        return False
    if given["dtype"] not in (_INT8, _QINT8) or layout.tensor(quant) is None:
        return False
    x1, x2, gamma = (layout.tensor(each) for each in norm.inputs)
    scales = layout.tensor(schemas.given(quant, "scales"))
    zero_points = schemas.given(quant, "zero_points")
    if x1 is None or x2 is None or gamma is None or scales is None or x1.dtype != x2.dtype:
        return False
    if x1.dtype not in (torch.float16, torch.bfloat16) or not layout.same_sizes(gamma, scales):
        return False
    if zero_points is not None and not _are_zero_points(zero_points, scales):
        return False
    last = x1.shape[-1] if x1.dim() else 0
    return isinstance(last, int) and last > 0 and last * x1.element_size() % 32 == 0


def _are_zero_points(node: fx.Node, scales: torch.Tensor) -> bool:
    value = layout.tensor(node)
    if value is None or value.dtype in (torch.uint8, torch.int8):
        return False
    return layout.same_sizes(value, scales)


# --- with a cast to float32


def _cast(graph: fx.Graph, norm: Norm) -> bool:
    for user in norm.y.users:
        view = user if name_of(user) in _VIEWS and _keeps_rows(norm.y, user) else None
        cast = _only_user(user) if view is not None else user
        if cast is None or not _casts(cast):
            continue
        return _fuse_cast(graph, norm, view, cast)
    return False


def _fuse_cast(graph: fx.Graph, norm: Norm, view: fx.Node | None, cast: fx.Node) -> bool:
    y = layout.tensor(norm.y)
    if y is None or y.dtype not in (torch.float16, torch.bfloat16):
        return False

    def build(calls: Calls) -> Mapping[fx.Node, fx.Node]:
        call = calls.call(norm.fused("npu_add_rms_norm_cast"), *norm.inputs, norm.epsilon)
        wide = calls.call(operator.getitem, call, 0)
        pairs = {norm.y: calls.call(operator.getitem, call, 1), cast: wide}
        if view is not None:
            pairs[cast] = calls.call(aten.view.default, wide, view.args[1])
        return _with_sum(calls, call, norm, 3, pairs)

    middle = [cast] if view is None else [view, cast]
    results = [norm.y, cast, *([norm.x] if norm.x is not None else [])]
    return substitute(graph, _match(norm, middle, [*norm.inputs, *_sizes(view)], results), build)


def _casts(node: fx.Node) -> bool:
    if name_of(node) == "npu::_npu_dtype_cast":
        return node.args[1:] == (torch.float32,) and not node.kwargs
    # With any other keyword, such as a device, the call does more than the fused operator.
    return name_of(node) == "aten::_to_copy" and dict(node.kwargs) == {"dtype": torch.float32}


def _keeps_rows(y: fx.Node, view: fx.Node) -> bool:
    whole, rows = layout.tensor(y), layout.tensor(view)
    if whole is None or rows is None or not whole.dim() or rows.dim() != 2:
        return False
    return layout.same(whole.shape[-1], rows.shape[-1])


# --- shared by all fusions


def _match(
    norm: Norm, middle: list[fx.Node], inputs: list[fx.Node], results: list[fx.Node]
) -> Match:
    return Match((norm.call, *norm.unpacking, *middle), tuple(inputs), tuple(results))


def _with_sum(
    calls: Calls, call: fx.Node, norm: Norm, index: int, pairs: dict[fx.Node, fx.Node]
) -> Mapping[fx.Node, fx.Node]:
    if norm.x is not None:
        pairs[norm.x] = calls.call(operator.getitem, call, index)
    return pairs


def _only_user(node: fx.Node | None) -> fx.Node | None:
    users = list(node.users) if node is not None else []
    return users[0] if len(users) == 1 else None


def _sizes(view: fx.Node | None) -> list[fx.Node]:
    """The nodes that compute the sizes of a view."""
    return [] if view is None else [each for each in view.all_input_nodes if each != view.args[0]]


def _element(node: fx.Node, index: int) -> fx.Node | None:
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == index:
            return user
    return None
