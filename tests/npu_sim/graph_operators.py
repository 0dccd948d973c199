"""Operators of the graph engine (GE) on CPU tensors: those of the graphs that the tests convert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from wire_format import attribute

if TYPE_CHECKING:
    from collections.abc import Callable

IN_GRAPHS = {
    1: torch.float32,
    2: torch.float16,
    3: torch.int8,
    4: torch.uint8,
    5: torch.int16,
    7: torch.int32,
    8: torch.int64,
    11: torch.bool,
    12: torch.float64,
    27: torch.bfloat16,
}
"""The types of `ge.proto.DataType`."""

OF_TENSORS = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    4: torch.uint8,
    6: torch.int16,
    9: torch.int64,
    11: torch.float64,
    12: torch.bool,
    27: torch.bfloat16,
}
"""The types of `ge::DataType`."""


class Operator:
    """One operator of a graph: its name, its type, its attributes."""

    def __init__(self, plain: dict[str, Any]) -> None:
        self.name, self.type = plain["name"], plain["type"]
        self.inputs: list[str] = [each for each in plain["input"] if not each.endswith(":-1")]
        self._attributes = plain["attr"]
        self.described = plain["output_desc"]

    def __getitem__(self, name: str) -> Any:
        return attribute(self._attributes, name)

    def __contains__(self, name: str) -> bool:
        return name in self._attributes


def constant(op: Operator) -> torch.Tensor:
    stored = op["value"]["t"]
    dtype, size = IN_GRAPHS[stored["desc"]["dtype"]], stored["desc"]["shape"]["dim"]
    count = int(torch.Size(size).numel())
    if not count:
        return torch.empty(size, dtype=dtype)
    return torch.frombuffer(bytearray(stored["data"]), dtype=dtype)[:count].reshape(size).clone()


def _whole(size: torch.Tensor) -> list[int]:
    """A size; GE infers its type, which the converters leave open where they compute with sizes."""
    assert torch.equal(size, size.round()), "a size that is no whole number"
    return [int(each) for each in size.reshape(-1).tolist()]


def _slices(op: Operator, x: Any, begin: Any, end: Any, axes: Any, strides: Any) -> Any:
    masks = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    assert not any(op[name]["i"] for name in masks), "StridedSliceV2 with a mask"
    numbers = (each.reshape(-1).long().tolist() for each in (begin, end, axes, strides))
    for first, last, axis, step in zip(*numbers, strict=True):
        x = torch.ops.aten.slice.Tensor(x, axis, first, last, step)
    return x


def _unsqueezed(op: Operator, x: Any) -> Any:
    for axis in op["axes"]["list"]["i"]:
        x = x.unsqueeze(axis)
    return x


def _squeezed(op: Operator, x: Any) -> Any:
    axes = op["axis"]["list"]["i"]
    return x.squeeze(tuple(axes)) if axes else x.squeeze()


def _indexed(op: Operator, x: Any, *indices: Any) -> Any:
    rest = iter(indices)
    return x[tuple(next(rest) if mask else slice(None) for mask in op["indices_mask"]["list"]["i"])]


def _product(op: Operator, a: Any, b: Any, bias: Any = None, *_: Any) -> Any:
    batched = op.type.startswith("Batch")
    first, second = ("adj_x1", "adj_x2") if batched else ("transpose_x1", "transpose_x2")
    a = a.transpose(-1, -2) if op[first]["b"] else a
    b = b.transpose(-1, -2) if op[second]["b"] else b
    return a @ b if bias is None else a @ b + bias


def _gathered(op: Operator, x: Any, index: Any, axis: Any) -> Any:
    assert not op["batch_dims"]["i"], "GatherV2 with batches"
    at = int(axis)
    chosen = x.index_select(at, index.reshape(-1))
    return chosen.reshape(*x.shape[:at], *index.shape, *x.shape[at + 1 :])


def _summed_up(op: Operator, x: Any, axis: Any) -> Any:
    assert not op["exclusive"]["b"], "Cumsum that leaves the first out"
    assert not op["reverse"]["b"], "Cumsum from the end"
    return x.cumsum(int(axis)).to(x.dtype)


def _layer_norm(op: Operator, x: Any, size: Any, weight: Any, bias: Any) -> Any:
    made = torch.nn.functional.layer_norm(x, size.tolist(), weight, bias, op["epsilon"]["f"])
    return made, None, None


def _range(op: Operator, first: Any, last: Any, step: Any) -> Any:
    del op
    dtype = torch.promote_types(torch.promote_types(first.dtype, last.dtype), step.dtype)
    return torch.arange(first.item(), last.item(), step.item(), dtype=dtype)


def _mean(op: Operator, x: Any, axes: Any) -> Any:
    return x.mean(axes.reshape(-1).tolist(), op["keep_dims"]["b"] != 0)


def _sum(op: Operator, x: Any, axes: Any) -> Any:
    return x.sum(axes.reshape(-1).tolist(), op["keep_dims"]["b"] != 0).to(x.dtype)


def _stacked(op: Operator, *x: Any) -> Any:
    return torch.stack([torch.as_tensor(each).reshape(x[0].shape) for each in x], op["axis"]["i"])


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda _, a, b: a + b,
    "AddV2": lambda _, a, b: a + b,
    "Adds": lambda op, x: x + op["value"]["f"],
    "BatchMatMul": _product,
    "BatchMatMulV2": _product,
    "BroadcastTo": lambda _, x, size: x.broadcast_to(_whole(size)),
    "Cast": lambda op, x: x.to(OF_TENSORS[op["dst_type"]["i"]]),
    "ConcatV2": lambda _, *x: torch.cat(x[:-1], int(x[-1])),
    "Cos": lambda _, x: x.cos(),
    "Cumsum": _summed_up,
    "Equal": lambda _, a, b: a == b,
    "Fill": lambda _, size, value: torch.full(_whole(size), value.item(), dtype=value.dtype),
    "Gather": lambda _, x, index: x[index],
    "GatherV2": _gathered,
    "Gelu": lambda _, x: torch.nn.functional.gelu(x),
    "Greater": lambda _, a, b: a > b,
    "Identity": lambda _, x: x,
    "IndexByTensor": _indexed,
    "LayerNormV4": _layer_norm,
    "Less": lambda _, a, b: a < b,
    "LessEqual": lambda _, a, b: a <= b,
    "LogicalAnd": lambda _, a, b: a & b,
    "MatMul": _product,
    "MatMulV2": _product,
    "Maximum": lambda _, a, b: torch.maximum(a, b),
    "Mul": lambda _, a, b: a * b,
    "Muls": lambda op, x: x * op["value"]["f"],
    "Neg": lambda _, x: -x,
    "NotEqual": lambda _, a, b: a != b,
    "Pack": _stacked,
    "Pow": lambda _, a, b: a**b,
    "Range": _range,
    "RealDiv": lambda _, a, b: a / b,
    "ReduceMean": _mean,
    "ReduceSum": _sum,
    "Relu": lambda _, x: x.relu(),
    "Reshape": lambda _, x, size: x.reshape(_whole(size)),
    "Rsqrt": lambda _, x: x.rsqrt(),
    "SelectV2": lambda _, mask, a, b: torch.where(mask, a, b),
    "Shape": lambda op, x: torch.tensor(x.shape, dtype=IN_GRAPHS[op.described[0]["dtype"]]),
    "Sigmoid": lambda _, x: x.sigmoid(),
    "Sin": lambda _, x: x.sin(),
    "SoftmaxV2": lambda op, x: x.softmax(op["axes"]["list"]["i"][0]),
    "Squeeze": _squeezed,
    "StridedSliceV2": _slices,
    "Sub": lambda _, a, b: a - b,
    "Swish": lambda op, x: x * torch.sigmoid(x * op["scale"]["f"]),
    "Tanh": lambda _, x: x.tanh(),
    "TensorMove": lambda _, x: x,
    "Transpose": lambda _, x, order: x.permute(order.tolist()),
    "Unsqueeze": _unsqueezed,
}
