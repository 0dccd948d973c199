"""Decides whether an entry runs on any current device, or only on the device index of its trace.

An entry runs on any current device if everything that the trace touched was on the current device,
and nothing that was traced names an index or looks at one. If we can't tell, we assume that the
entry is tied to the index. The worst case is a needless recompile on other devices.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache._compat import runtime, schemas
from npugx_cache.backend.program import STREAMS
from npugx_cache.guards import Kind, Step
from npugx_cache.portable import devices
from npugx_cache.portable.devices import Accelerator
from npugx_cache.trace.source_facts import is_covered
from npugx_cache.trace.untraced_devices import may_name_index

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

    from npugx_cache._compat.device_values import DeviceUses
    from npugx_cache.frame import Frame
    from npugx_cache.guards import GuardTree
    from npugx_cache.trace.capturing import Capture
    from npugx_cache.trace.source_facts import Owners
    from npugx_cache.trace.tree_builder import TreeBuilder

_INDEXED = re.compile(r"[a-z][a-z0-9_]*:\d+")
_ASKS = frozenset({"current_device", "current_device_index", "get_device_properties"})
_METHODS = frozenset({"to", "cuda", "npu", "xpu", "pin_memory"})
"""Methods of a tensor that take the index of a device."""


def accelerator_of(
    capture: Capture,
    graph: fx.GraphModule | None,
    builder: TreeBuilder,
    tree: GuardTree,
    frame: Frame,
    shaping: Iterable[types.CodeType],
    owners: Owners,
) -> Accelerator | None:
    """The accelerator that a trace is about, with its index if the trace is tied to the index.

    None for a trace that touches no accelerator. `shaping` is user code that ran during the trace
    and was not traced by Dynamo.
    """
    uses, handed = capture.devices, capture.output.backend_input
    touched = {*_devices_of(graph), *_devices_in(tree, frame)} if uses.kind else set()
    touched = {name for name in touched if name.partition(":")[0] == uses.kind}
    index = runtime.current_index(uses.kind) if touched or uses.met else None
    if index is None:
        return None
    others = touched - {uses.kind, devices.name_of(uses.kind, index)}
    reasons = [*(f"it uses {name}" for name in sorted(others)), *uses.fixed]
    reasons += [
        *_unguarded(uses, builder),
        *_in_conditions(tree, uses.kind),
        *_in_graph(handed.graph_module if handed else None),
        *_in_streams(graph),
        *(
            f"{code.co_qualname} may name the index of a device"
            for code in shaping
            if not is_covered(code, owners.get(id(code), [])) and may_name_index(code, owners)
        ),
    ]
    return Accelerator(uses.kind, index, reasons[0] if reasons else "")


def placed(tree: GuardTree, device: Accelerator | None) -> GuardTree:
    """The conditions as they are stored."""
    if device is None or device.index is None or device.why:
        return tree.placed(device, str)
    rename = devices.to_current(device.kind, device.index)
    return tree.placed(replace(device, index=None), rename)


# --- what a trace touches


def _devices_of(graph: fx.GraphModule | None) -> Iterator[str]:
    for node in graph.graph.nodes if graph is not None else ():
        value = node.meta.get("val")
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, torch.Tensor):
                yield str(part.device)
        yield from (str(arg) for arg in _arguments(node) if isinstance(arg, torch.device))


def _arguments(node: fx.Node) -> list[Any]:
    found: list[Any] = []
    fx.node.map_aggregate((node.args, node.kwargs), found.append)
    return found


def _devices_in(tree: GuardTree, frame: Frame) -> set[str]:
    rows = [args for _, args in tree.checks.values()]
    default = tree.state.get("default_device")
    named = devices.names_in([rows, tree.args, tree.idents, tree.orders, frame.constants])
    return {*named, *(fact.device for fact in tree.tensors), *([default] if default else [])}


# --- what ties it to an index


def _unguarded(uses: DeviceUses, builder: TreeBuilder) -> Iterator[str]:
    """A reason if a device was read from a place that has no guard of its own."""
    guarded = {c.node for c in builder.checks.values() if c.kind is Kind.EQUALS}
    if any(builder.node(source) not in guarded for source in uses.sources):
        yield "it reads a device that has no guard"


def _in_conditions(tree: GuardTree, kind: str) -> Iterator[str]:
    """Reasons in the conditions: a device inside another value, or an answer with an index."""
    nested = [
        arg
        for check, (_, args) in tree.checks.items()
        for arg in args
        if check is not Kind.EQUALS or not devices.is_device(arg)
    ]
    named = devices.names_in([nested, tree.args, tree.idents, tree.orders])
    if any(name.partition(":")[0] == kind for name in named):
        yield "a device is part of a value that is guarded as a whole"
    for step, arg in zip(tree.steps, tree.args, strict=True):
        if step == Step.ANSWER and arg in _ASKS:
            yield f"it asks for {arg}"


def _in_graph(graph: fx.GraphModule | None) -> Iterator[str]:
    """Reasons in Dynamo's graph: an index that the code gives, as a text or as a number."""
    for node in graph.graph.nodes if graph is not None else ():
        if any(isinstance(arg, str) and _INDEXED.fullmatch(arg) for arg in _arguments(node)):
            yield "the traced code names the index of a device"
        elif node.target in _METHODS or getattr(node.target, "__name__", "") in _METHODS:
            if any(map(_is_number, _arguments(node))):
                yield "the traced code gives the index of a device"
        elif _is_number(node.kwargs.get("device")):
            yield "the traced code gives the index of a device"
        elif node.op == "call_function" and _takes_index(node):
            yield f"{node.target} may be given the index of a device"


def _is_number(arg: object) -> bool:
    """Whether an argument is a number: a constant, an input, or one that the graph computes."""
    if not isinstance(arg, fx.Node):
        return type(arg) is int
    return not isinstance(arg.meta.get("example_value"), torch.Tensor)


def _takes_index(node: fx.Node) -> bool:
    """Whether a number in its place among the arguments may be a device."""
    if "device" in getattr(node.target, "__name__", ""):
        return True
    if runtime.operator_name(node.target) is None:
        return False
    return any(map(_is_number, _arguments(node))) and _has_device(node.target)


def _has_device(target: Any) -> bool:
    """Whether an operator, with any of its overloads, has a device among its arguments."""
    names = target.overloads() if hasattr(target, "overloads") else ()
    found = [schemas.schema_of(getattr(target, name)) for name in names]
    found = found or [schemas.schema_of(target)]
    return any(each is None or "Device" in str(each.arguments) for each in found)


def _in_streams(graph: fx.GraphModule | None) -> Iterator[str]:
    for node in graph.graph.nodes if graph is not None else ():
        schema = schemas.schema_of(node.target) if node.op == "call_function" else None
        if schema is not None and schema.name.startswith(f"{STREAMS}::"):
            yield "it works on streams, which belong to a device"
            return
