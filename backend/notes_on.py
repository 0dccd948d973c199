"""Writes the notes on an aten graph while its nodes still know where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import location
from npugx_cache.backend.notes import Column, Given, Notes

if TYPE_CHECKING:
    from torch import fx

    from npugx_cache.backend.notes import Size


def notes_on(graph_module: fx.GraphModule) -> Notes:
    nodes = list(graph_module.graph.nodes)
    calls = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
    inputs = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    return Notes(
        inputs=tuple(map(_given, inputs)),
        results=Column.of(_words(node.meta.get("val")) for node in calls),
        lines=Column.of(location.lines_of_texts(node.stack_trace for node in calls)),
        modules=Column.of(map(_module, calls)),
        examples=_examples(inputs),
    )


_NUMBERS = {
    torch.SymInt: "int",
    torch.SymFloat: "float",
    torch.SymBool: "bool",
    int: "int",
    float: "float",
    bool: "bool",
}


def _given(value: Any) -> Given:
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        dtype = str(value.dtype).removeprefix("torch.")
        return Given(dtype, str(value.device), _sizes(value.shape), _sizes(strides))
    number = _NUMBERS.get(type(value))
    return Given(number or "", "", _sizes([value]) if number else (), ())


def _sizes(sizes: Any) -> tuple[Size, ...]:
    return tuple(size if type(size) is int else str(size) for size in sizes)


def _words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_words, value))})"
    number = _NUMBERS.get(type(value))
    return f"{number} {value}" if number else ""


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    return str(next(reversed(stack.values()))[0]) if stack else ""


def _examples(inputs: list[Any]) -> dict[str, int | float]:
    """What the symbolic sizes of the inputs were in the call that was traced."""
    found: dict[str, int | float] = {}
    for value in inputs:
        sizes = [value]
        if isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout is torch.strided else ()
            sizes = [*value.shape, *strides]
        for size in sizes:
            hint = size.node.hint if isinstance(size, (torch.SymInt, torch.SymFloat)) else None
            if isinstance(hint, (int, float)):
                found[str(size)] = hint
    return found
