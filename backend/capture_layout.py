"""Computes the Layout of an optimised aten graph: the role of each input in a captured graph."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_arg

from npugx_cache.backend import lowering, subgraphs
from npugx_cache.backend.capture.layout import Layout, Role
from npugx_cache.backend.capture.tasks import ARITHMETIC
from npugx_cache.backend.capture.updatable import BESIDE, UPDATABLE, key
from npugx_cache.backend.passes import effects
from npugx_cache.backend.program import COLLECTIVES, STREAMS
from npugx_cache.private import runtime, schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the name of an operator

_TRANSFER = torch.ops.aten._to_copy.default  # noqa: SLF001 - the name of an operator

_LOOKS_AT_PLACE = frozenset(
    {
        "aten::as_strided",
        "aten::as_strided_",
        "aten::as_strided_copy",
        "aten::as_strided_scatter",
        "aten::storage_offset",
        "aten::sym_storage_offset",
    }
)
"""Operators whose result depends on a tensor's place in its storage, or on the rest of the storage.

They must be given the original tensor, because a copy has another storage.
"""


def layout_of(graph_module: fx.GraphModule, static: Collection[int] = ()) -> Layout:
    """The layout of a graph. `static`: positions of the inputs whose addresses seldom change."""
    graph = graph_module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    unknown = [node.name for node in graph.nodes if _has_no_value(node)]
    if unknown:
        roles = tuple(Role.UNUSED for _ in inputs)
        return Layout(device="", roles=roles, refusal=f"its input {unknown[0]} has no traced value")
    lengths = lengths_of(graph)
    devices = sorted(set(_devices(graph_module, lengths)))
    memory = _Memory(graph)
    written = memory.inputs_of(memory.writes_of)
    placed = memory.inputs_of(_looks_at_place)
    values = [node.meta["val"] for node in inputs]
    return Layout(
        device=devices[0] if len(devices) == 1 else "",
        roles=tuple(
            _length_role(node) if node in lengths else _role(node, i in static, written, placed)
            for i, node in enumerate(inputs)
        ),
        shaped=tuple(i for i, value in enumerate(values) if _is_shaped(value)),
        refusal=_refusal(graph, memory, devices),
    )


def _length_role(node: fx.Node) -> Role:
    return Role.LENGTHS if isinstance(node.meta["val"], torch.Tensor) else Role.LENGTH


def _role(node: fx.Node, parameter: bool, written: set[fx.Node], placed: set[fx.Node]) -> Role:
    if node in written:
        return Role.WRITTEN
    if not node.users:
        return Role.UNUSED
    if not isinstance(node.meta["val"], torch.Tensor):
        return Role.NUMBER
    if _is_value(node):
        return Role.VALUE
    if _is_transferred(node):
        return Role.HOST
    if parameter:
        return Role.PARAMETER
    return Role.PLACED if node in placed else Role.TENSOR


def _is_value(node: fx.Node) -> bool:
    """Whether a node is an input that is a CPU tensor of which only its one number is read."""
    if node.op != "placeholder":
        return False
    value: Any = node.meta.get("val")
    on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0
    return on_cpu and all(user.target == _READ for user in node.users)


def _is_transferred(node: fx.Node) -> bool:
    """Whether a node is an input that is a CPU tensor which is only copied to another device."""
    value: Any = node.meta.get("val")
    on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return (
        node.op == "placeholder"
        and on_cpu
        and bool(node.users)
        and all(
            user.target == _TRANSFER and user.meta["val"].device.type != "cpu"
            for user in node.users
        )
    )


def _is_shaped(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride()))


def _has_no_value(node: fx.Node) -> bool:
    return node.op == "placeholder" and "val" not in node.meta


def _devices(graph_module: fx.GraphModule, lengths: Collection[fx.Node]) -> Iterator[str]:
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        if node in lengths or _is_value(node) or _is_transferred(node):
            continue
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(graph_module)
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, torch.Tensor):
                yield str(part.device)


# --- which inputs are lengths on the host (docs/glossary.md)
#
# A captured graph can be replayed with other lengths; any other number belongs to the graph's key.


_ARITHMETIC = frozenset(getattr(operator, name) for name in ARITHMETIC)


def lengths_of(graph: fx.Graph) -> set[fx.Node]:
    """Inputs, and integers computed from them, that are used only by updatable parameters.

    The parameters are those of the operators in `capture.updatable`. A length is an integer, used
    directly or through arithmetic, or a tensor on the CPU. An input that anything else uses is no
    length: it becomes part of a captured graph's key.
    """
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if _may_change(node) and node.users and all(_takes(u, node, found) for u in node.users):
            found.add(node)
    return found


def _may_change(node: fx.Node) -> bool:
    value: Any = node.meta.get("val")
    if node.op == "placeholder":
        if isinstance(value, torch.Tensor):
            return value.device.type == "cpu"
        return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
    return node.target in _ARITHMETIC and isinstance(value, (int, torch.SymInt))


def _takes(user: fx.Node, node: fx.Node, found: set[fx.Node]) -> bool:
    """Whether `user` uses the node only as a length, or to compute another length from it."""
    if user in found:
        return True
    schema = schemas.schema_of(user.target)
    if schema is None:
        return False
    namespace, _, name = schema.name.partition("::")
    known = key(namespace, name, schema.overload)
    names = UPDATABLE.get(known) or BESIDE.get(known)
    if names is None:
        return False
    fixed: list[fx.Node] = []
    for argument in schema.arguments:
        if argument.name not in names:
            map_arg(schemas.given(user, argument.name), fixed.append)
    return node not in fixed


# --- which inputs a call works on, directly or through views


class _Memory:
    """What each node of a graph does to memory, and the inputs and constants that it works on.

    A pass must assume that inputs overlap one another; here we assume that they don't, because
    `capture.keys` checks at each call whether they do.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._effects: dict[fx.Node, effects.Effects] = {}
        self._roots: dict[fx.Node, frozenset[fx.Node]] = {}
        by_storage: defaultdict[int, frozenset[fx.Node]] = defaultdict(frozenset)
        for node in graph.nodes:
            done = self._effects[node] = effects.of(node)
            own = {node} if _may_be_memory(node) else set()
            storages = lowering.storages(node.meta.get("val"))
            shared = (by_storage[storage] for storage in storages)
            aliased = (self._roots[other] for other in done.aliased)
            roots = self._roots[node] = frozenset(own).union(*shared, *aliased)
            for storage in storages:
                by_storage[storage] |= roots

    def inputs_of(self, chosen: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
        """The inputs and constants that may share memory with arguments that `chosen` gives."""
        return {
            root for node in self._roots for other in chosen(node) for root in self._roots[other]
        }

    def writes_of(self, node: fx.Node) -> Iterable[fx.Node]:
        return self._effects[node].written

    def reshapes_of(self, node: fx.Node) -> Iterable[fx.Node]:
        tags = getattr(node.target, "tags", ())
        return self.writes_of(node) if torch.Tag.inplace_view in tags else ()

    def is_unknown(self, node: fx.Node) -> bool:
        return self._effects[node].unknown


def _may_be_memory(node: fx.Node) -> bool:
    """Whether it is an input or a constant that is no number, such as a symbolic size."""
    value = node.meta.get("val")
    is_number = isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat))
    return node.op in ("placeholder", "get_attr") and not is_number


def _marks_stream(node: fx.Node) -> Iterable[fx.Node]:
    schema = schemas.schema_of(node.target)
    return node.all_input_nodes if schema and schema.name == f"{STREAMS}::record_stream" else ()


def _looks_at_place(node: fx.Node) -> Iterable[fx.Node]:
    schema = schemas.schema_of(node.target)
    return node.all_input_nodes if schema and schema.name in _LOOKS_AT_PLACE else ()


# --- what can't be captured


def _is_on_cpu(value: object) -> bool:
    return any(
        isinstance(part, torch.Tensor) and part.device.type == "cpu"
        for part in (value if isinstance(value, (list, tuple)) else (value,))
    )


def _reads_data(node: fx.Node) -> bool:
    """Whether a call reads a number from a tensor. A replay would reuse the number of the capture.

    An input of which only the number is read is no problem: the number is part of the graph's key.
    """
    if node.target == _READ and _is_value(node.all_input_nodes[0]):
        return False
    schema = schemas.schema_of(node.target)
    if schema is None or not schema.returns or schema.name.startswith("aten::sym_"):
        return False
    from_tensors = any(each.holds_tensors for each in schema.arguments)
    return from_tensors and not any(each.holds_tensors for each in schema.returns)


def _refusal(graph: fx.Graph, memory: _Memory, devices: list[str]) -> str:
    if len(devices) > 1:
        return f"it works on more than one device: {', '.join(devices)}"
    for node in graph.nodes:
        if reason := _reason(node, memory):
            return reason
    if reshaped := memory.inputs_of(memory.reshapes_of):
        return f"it changes the sizes of {min(n.name for n in reshaped)} in place"
    if freed := memory.inputs_of(_marks_stream):
        return f"it calls record_stream on {min(n.name for n in freed)}, which it does not own"
    if constants := {n.name for n in memory.inputs_of(memory.writes_of) if n.op == "get_attr"}:
        return f"it writes to {min(constants)}, a constant of the graph"
    return ""


def _data_reason(node: fx.Node) -> str:
    if _reads_data(node):
        return f"{node.target} reads a number from a tensor"
    if runtime.depends_on_data(node.meta.get("val")):
        return f"the size of what {node.target} returns depends on data"
    return ""


def _reason(node: fx.Node, memory: _Memory) -> str:
    value: Any = node.meta.get("val")
    if node.op == "placeholder" and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return f"its input {node.name} is a {value.layout} tensor"
        if value.is_conj() or value.is_neg():
            return f"its input {node.name} is lazily conjugated or negated"
    if getattr(node.target, "namespace", "") == COLLECTIVES and _is_on_cpu(value):
        return f"it calls {node.target}, which a CPU would run once more while it captures"
    schema = schemas.schema_of(node.target) if node.op == "call_function" else None
    if schema is not None and schema.name.startswith(f"{STREAMS}::synchronize_"):
        return f"{node.target} makes the host wait"
    if schema is not None and schemas.acts(node.target) and schemas.is_custom(node.target):
        return f"{node.target} is called for an effect that a replay would not repeat"
    if str(node.target) in ("cond", "while_loop") and subgraphs.runs_graphs(node):
        return f"{node.target} chooses at each call which graph to run"
    if reason := _data_reason(node):
        return reason
    is_call = node.op in ("call_function", "call_method", "call_module")
    if is_call and memory.is_unknown(node):
        return f"it calls {node.target}, whose effects are unknown"
    return ""
