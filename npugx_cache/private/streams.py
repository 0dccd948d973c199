"""Reads and rewrites what Dynamo's graphs say about streams.

Dynamo numbers the streams and events that a function touches, and notes on each node the number of
the stream that the node was issued to. Number 0 is the stream that is current at the call. Nothing
else in the graph tells that a node stood in a block on a stream, so we must insert the switches.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import fx

_ENTRY = 0


@contextlib.contextmanager
def current_kept() -> Iterator[None]:
    """Make the stream that is current now current again afterwards, also after an exception."""
    if not torch.accelerator.is_available():
        yield
        return
    before = torch.accelerator.current_stream()
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def make_switches_explicit(graph: fx.Graph) -> None:
    """Insert a `streams::fork` wherever a node belongs to another stream than the node before it.

    Afterwards the order of the nodes alone tells passes and programs which stream a node is issued
    to. Without an accelerator there is nothing to switch.
    """
    if not torch.accelerator.is_available():
        return
    current = _ENTRY
    for node in list(graph.nodes):
        label = current if _is_of_no_stream(node) else _label(node)
        if node.op == "output":
            label = _ENTRY
        if label != current:
            _switch(node, current, label)
            current = label


UNNUMBERED = "this torch does not trace which stream is the current one"
"""Why nothing on streams and events can be kept where `unnumbered` finds something."""


def unnumbered(nodes: Iterable[fx.Node]) -> fx.Node | None:
    """A node on a stream or an event of which this torch does not tell which one it is, or None.

    Before torch 2.12 the numbers begin with whatever the function touches first, so the current
    stream may have no number. Nor does that torch have an operator that waits for a device.
    """
    if _numbers_current() or not torch.accelerator.is_available():
        return None
    return next((node for node in nodes if _is_on_streams(node)), None)


def _numbers_current() -> bool:
    made_by = sys.modules.get("torch._dynamo.graph_bytecode_inputs")
    return made_by is None or hasattr(made_by, "CURRENT_STREAM_INDEX")


def _is_on_streams(node: fx.Node) -> bool:
    if node.op == "call_method":
        asked = getattr(next(iter(node.args), None), "meta", {}).get("example_value")
        return isinstance(asked, (torch.Stream, torch.Event))
    if node.op != "call_function":
        return False
    named = str(node.target).startswith("streams.") or _name(node.target) == _BY_NUMBER
    return named or "stream" in (node.meta.get("custom") or {}) or waits_for_device(node.target)


_BY_NUMBER = "getexternalobjectbyindex"


def _is_of_no_stream(node: fx.Node) -> bool:
    """Whether a node needs no switch: it is no call, or an operator that names its stream."""
    return node.op != "call_function" or getattr(node.target, "namespace", "") == "streams"


def _label(node: fx.Node) -> int:
    annotation: dict[str, Any] = node.meta.get("custom") or {}
    return int(annotation.get("stream", _ENTRY))


def _switch(node: fx.Node, current: int, label: int) -> None:
    with node.graph.inserting_before(node):
        switch = node.graph.call_function(torch.ops.streams.fork.default, (current, label))
    switch.meta["stack_trace"] = node.meta.get("stack_trace")


def unpaired_switch(graph: fx.Graph) -> Any:
    """A call in Dynamo's graph that sets the stream without being part of a block, or None.

    A block of torch_npu leaves three calls: `current_stream`, `set_stream`, and `set_stream` back.
    They may stay, because the notes on the nodes say the same.
    """
    for node in graph.nodes:
        if not sets_stream(node):
            continue
        given = node.args[0] if node.args else None
        goes_back = getattr(given, "op", "") == "call_function" and _asks(given)
        if not goes_back and not _asks(node.prev):
            return node
    return None


def sets_stream(node: fx.Node) -> bool:
    return node.op == "call_function" and "setstream" in _name(node.target)


_OF_STREAMS = frozenset(
    {
        *("currentstream", "defaultstream", "setstream"),
        *("exchangedevice", "maybeexchangedevice", "acceleratorexchangedevice"),
        "acceleratormaybeexchangedevice",
    }
)
"""Names of functions, in lower case and without underscores. Each kind of device has its own."""


def is_known(target: Any) -> bool:
    """Whether a function in Dynamo's graph is about streams, events or the current device.

    Such calls are accepted one by one, because `trace/streams.py` judges the graph as a whole.
    """
    if isinstance(target, type) and issubclass(target, (torch.Stream, torch.Event)):
        return True
    return _name(target) in _OF_STREAMS or waits_for_device(target)


def waits_for_device(target: object) -> bool:
    """Whether a function is the accelerator's `synchronize`, such as `torch.npu.synchronize`."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    module = getattr(torch, kind.type, None) if kind is not None else None
    return target is not None and target is getattr(module, "synchronize", None)


def has_wait_operator() -> bool:
    """Whether torch has the operator that `wait_operator` gives. Torch 2.10 and 2.11 have not."""
    return hasattr(torch.ops.streams, "synchronize_device")


def wait_operator(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[str, int]]:
    """The operator of Dynamo that stands for a call of `synchronize`, and its arguments.

    A graph needs the operator, because a trace would run `torch.npu.synchronize()` at once, and
    lowering would drop the call, which computes nothing.
    """
    device = _device(next(iter([*args, *kwargs.values()]), None))
    return torch.ops.streams.synchronize_device, (device.type, device.index)


def make_waits_operators(graph_module: fx.GraphModule) -> None:
    """Replace each call of `synchronize` by the operator, in a graph that the user has traced.

    A torch without the operator keeps the calls, and `unnumbered` finds them.
    """
    if not has_wait_operator():
        return
    nodes = graph_module.graph.nodes
    found = [n for n in nodes if n.op == "call_function" and waits_for_device(n.target)]
    for node in found:
        with node.graph.inserting_before(node):
            wait = node.graph.call_function(*wait_operator(node.args, node.kwargs))
        wait.meta = dict(node.meta)
        graph_module.graph.erase_node(node)
    if found:
        graph_module.recompile()


def _device(given: Any) -> torch.device:
    """The device that an argument of `synchronize` means, with its index."""
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    device = kind if given is None else torch.device(given)
    index = _current_index() if device.index is None else device.index
    return torch.device(device.type, index)


def wait_for_another(graph: fx.Graph) -> Any:
    """A wait for device 0 although another device is current, or None.

    Dynamo writes device 0 into the graph if the code names no device, which is then wrong.
    """
    if _current_index() in (None, 0):
        return None
    found = (n for n in graph.nodes if str(n.target).startswith("streams.synchronize_device"))
    return next((node for node in found if node.args[1] == 0), None)


def call_without_streams(graph: fx.Graph) -> Any:
    """A call on streams or events in Dynamo's graph although there is no accelerator, or None."""
    if torch.accelerator.is_available():
        return None
    found = (node for node in graph.nodes if str(node.target).startswith("streams."))
    return next(found, None)


def other_device(graph: fx.Graph) -> Any:
    """A call in Dynamo's graph that makes another device current than the caller's, or None.

    Dynamo does not model such a change, so it traces the code after the call for the wrong device.
    """
    for node in graph.nodes:
        stream = node.meta.get("example_value")
        elsewhere = isinstance(stream, torch.Stream) and stream.device.index != _current_index()
        if elsewhere or (node.op == "call_function" and "exchangedevice" in _name(node.target)):
            return node
    return None


def _current_index() -> int | None:
    return torch.accelerator.current_device_index() if torch.accelerator.is_available() else None


def _asks(node: Any) -> bool:
    return _name(node.target) == "currentstream"


def _name(target: object) -> str:
    return str(getattr(target, "__name__", "")).replace("_", "").lower()
