"""A graph that somebody else traced as canonical text: what the key of a piece is made of.

Two graphs have equal texts exactly if lowering them gives equal programs. So the text has what a
lowering looks at: the nodes with their targets and arguments, and the inputs as the lowering gets
them. It has no name of a node, no path, no address and no number of this process. A call whose code
the text does not cover is refused. Importing this module loads sympy.
"""

from __future__ import annotations

import operator
import types
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend import inner_tensors, subgraphs
from npugx_cache.key.symbols import Symbols, numbers_of
from npugx_cache.portable import NotPortable, devices, encode, is_covered_class
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import meshes, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npugx_cache.portable import Plain
    from npugx_cache.portable.devices import Rename

_PROCESS_LOCAL = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
"""Operators whose arguments are places in a table of this process."""
_MOST_NAMED = 4
_MOST_INPUTS = 8


class GraphText:
    """The text of one graph, for these inputs; raises `NotPortable` for what no text can cover.

    `inputs` are fake tensors and numbers, as the graph will be lowered with. `static` are the
    positions of those that stay in their place. `rename` names devices as they are stored. `fake`
    makes the fake tensor of one that the graph holds, beside those of the inputs.
    `held` are the names of the tensors that the graph holds, in order of use: they are lifted to
    inputs, so their values are in no key and in no entry. `named_devices` are the kinds of device
    that arguments of calls may mean; most of these words mean something else. `has_wrappers`: an
    input holds other tensors, and the text says nothing of its other attributes.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        static: Sequence[int],
        rename: Rename,
        fake: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._rename = rename
        self._fake = fake
        self._storages: dict[int, int] = {}
        self._called: Counter[str] = Counter()
        self._inputs = len(inputs)
        self._fakes: list[torch.Tensor] = []
        self.held: list[str] = []
        self.methods: set[str] = set()
        self.device_types: set[str] = set()
        self.named_devices: set[str] = set()
        self.has_wrappers = False
        self.symbols = Symbols(inputs)
        is_static = set(static)
        self.inputs = tuple(
            self._value(value) + (", stays in its place" if position in is_static else "")
            for position, value in enumerate(inputs)
        )
        placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        if len(placeholders) != len(inputs):
            counts = f"{len(placeholders)} inputs, and is given {len(inputs)}"
            raise NotPortable(f"the graph has {counts}")
        self.nodes = "\n".join(self._module(graph_module, ""))

    @property
    def title(self) -> str:
        """The graph in a few words, which follow from the graph alone: `17 inputs: mm x7, silu`."""
        often = self._called.most_common(_MOST_NAMED)
        words = [f"{name} x{count}" if count > 1 else name for name, count in often]
        words += ["..."] if len(self._called) > _MOST_NAMED else []
        return f"{self._inputs} inputs: {', '.join(words) or 'no calls'}"

    def describe_inputs(self) -> list[tuple[str, str]]:
        """A name and a description of each input, those for held tensors last.

        The names follow from the graph alone, because equal graphs of two functions share an entry.
        """
        named = self.symbols.names
        rows = []
        for position, text in enumerate(self.inputs):
            symbol = text.removeprefix("int ")
            rows.append((symbol if symbol in named else f"arg{position}", text))
        held = (f"a tensor that the graph holds, number {place}" for place in range(len(self.held)))
        return [*rows, *((f"held{place}", text) for place, text in enumerate(held))]

    @property
    def signature(self) -> str:
        """The types and sizes of the first inputs, as `npugx-cache ls` shows them."""
        short = [text.partition("] ")[0] + "]" if "] " in text else text for text in self.inputs]
        more = [f"and {len(short) - _MOST_INPUTS} more"] if len(short) > _MOST_INPUTS else []
        return ", ".join([*short[:_MOST_INPUTS], *more])

    # --- values

    def _value(self, value: Any) -> str:
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            return f"int {self.symbols.text(value)}"
        if not isinstance(value, torch.Tensor):
            return f"value {self._plain(value)!r}"
        check_input(value)
        if runtime.is_wrapper(value):
            return self._wrapper(value)
        self.device_types.add(value.device.type)
        storage = self._storages.setdefault(
            value.untyped_storage()._cdata,  # noqa: SLF001 - torch has no other name for it
            len(self._storages),
        )
        *layout, offset = map(self.symbols.text, numbers_of(value))
        sizes, strides = layout[: value.dim()], layout[value.dim() :]
        marks = [
            word
            for word, is_marked in (
                ("parameter", isinstance(value, torch.nn.Parameter)),
                ("requires grad", value.requires_grad),
                ("conjugated", value.is_conj()),
                ("negated", value.is_neg()),
                ("made in inference mode", value.is_inference()),
            )
            if is_marked
        ]
        dtype, device = str(value.dtype).removeprefix("torch."), self._rename(str(value.device))
        text = f"{dtype}[{', '.join(sizes)}] {device}, strides ({', '.join(strides)})"
        return ", ".join([text, f"offset {offset}", f"memory {storage}", *marks])

    def _wrapper(self, value: torch.Tensor) -> str:
        self.has_wrappers = True
        inner = (f"{name}: {self._value(each)}" for name, each in inner_tensors.held_by(value))
        sizes = ", ".join(map(self.symbols.text, value.shape))
        strides = ", ".join(map(self.symbols.text, value.stride()))
        kind, dtype = type(value), str(value.dtype).removeprefix("torch.")
        text = f"{dtype}[{sizes}] {self._rename(str(value.device))}, strides ({strides})"
        text += ", parameter" * isinstance(value, torch.nn.Parameter)
        text += ", requires grad" * value.requires_grad
        return f"{text}, {kind.__module__}.{kind.__qualname__} of ({'; '.join(inner)})"

    def _plain(self, value: object) -> Plain:
        if isinstance(value, torch.device):
            self.named_devices.add(value.type)
        elif isinstance(value, str):
            self.named_devices.add(value.partition(":")[0])
        data = encode(value)
        is_object = isinstance(data, list) and data[:1] == ["id"]
        if is_object and (isinstance(value, _CODE) or not _has_covered_class(value)):
            raise NotPortable(f"an argument is {value!r:.80}, whose code is not in the graph")
        return devices.rename_devices(data, self._rename)

    # --- nodes

    def _module(self, module: fx.GraphModule, indent: str) -> Iterator[str]:
        numbers: dict[fx.Node, int] = {}
        if runtime.packs_values(module.graph):
            raise NotPortable("the graph packs its inputs or results into other values")
        for node in module.graph.nodes:
            numbers[node] = len(numbers)
            if node.op == "placeholder":
                if node.args or str(node.target).startswith("*"):
                    raise NotPortable("an input of the graph has a default, or is a list")
                yield f"{indent}input{self._notes(node)}"
            elif node.op == "get_attr":
                yield from self._attribute(module, node, indent)
            elif node.op == "call_module":
                # A module may have hooks, and its code need not be that of its graph.
                kind = type(module.get_submodule(str(node.target))).__qualname__
                raise NotPortable(f"the graph calls a module, {kind}")
            else:
                target = "" if node.op == "output" else f" {self._target(node)}"
                arguments = self._arguments(node, numbers)
                yield f"{indent}{node.op}{target} {arguments}{self._notes(node)}"

    def _notes(self, node: fx.Node) -> str:
        """What Dynamo and `torch.fx.traceback.annotate` noted for a node: streams, for example.

        The lowering follows streams, and hands all notes on to passes.
        """
        noted = node.meta.get("custom")
        return f" noted {self._argument(noted, {})}" if noted else ""

    def _attribute(self, module: fx.GraphModule, node: fx.Node, indent: str) -> Iterator[str]:
        name = str(node.target)
        value = operator.attrgetter(name)(module)
        if isinstance(value, fx.GraphModule):
            yield f"{indent}graph"
            yield from self._module(value, indent + " ")
            return
        if not isinstance(value, torch.Tensor) or runtime.is_fake(value):
            raise NotPortable(f"the graph holds a {type(value).__name__}")
        if indent:
            raise NotPortable("a graph inside the graph holds a tensor")
        check_input(value)
        if name not in self.held:
            self.held.append(name)
            # Kept, because the next fake might get the address of one that is gone.
            self._fakes.append(self._fake(value))
        place = self.held.index(name)
        yield f"held {place} {self._value(self._fakes[place])}{self._notes(node)}"

    def _target(self, node: fx.Node) -> str:
        target: Any = node.target
        if node.op == "call_method":
            if subgraphs.asks_tensor(node):
                self.methods.add(target)
            self.named_devices.add(target)
            self._called[target] += 1
            return str(target)
        self._called[_short_name(target)] += 1
        named = runtime.operator_name(target)
        if named is not None and named[0] == "hop" and named[1] in _PROCESS_LOCAL:
            raise NotPortable(f"{named[1]} takes places in a table of this process")
        is_torchs = is_covered_class(type(target)) if named is not None else _is_covered(target)
        if not is_torchs:
            name = f"{getattr(target, '__module__', '')}.{_short_name(target)}"
            raise NotPortable(f"the graph calls {name}, whose code is not in the graph")
        return repr(named if named is not None else encode(target))

    def _arguments(self, node: fx.Node, numbers: dict[fx.Node, int]) -> str:
        return f"{self._argument(node.args, numbers)} {self._argument(node.kwargs, numbers)}"

    def _argument(self, value: Any, numbers: dict[fx.Node, int]) -> str:
        if isinstance(value, fx.Node):
            return f"%{numbers[value]}"
        if isinstance(value, torch.SymInt):
            return self.symbols.text(value)
        # The words tell a list of texts from what `encode` makes of another value.
        if isinstance(value, (list, tuple)) and type(value) in _SEQUENCES:
            items = ", ".join(self._argument(each, numbers) for each in value)
            return f"list({items})" if isinstance(value, list) else f"tuple({items})"
        if isinstance(value, dict) and type(value) in _MAPPINGS:
            rows = (f"{self._plain(k)!r}: {self._argument(v, numbers)}" for k, v in value.items())
            return f"dict({', '.join(rows)})"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(self._argument(each, numbers) for each in parts)})"
        return repr(self._plain(value))


def check_input(value: object) -> None:
    """Raises `NotPortable` for a tensor that is more than memory with sizes and strides.

    One that holds others by torch's protocol is as good as these. But a sharded one depends on its
    mesh, which no graph names.
    """
    if not isinstance(value, torch.Tensor):
        return
    is_wrapper = runtime.is_wrapper(value) and not meshes.is_sharded(value)
    if not (is_wrapper or runtime.is_plain(value)) and runtime.runs_code(value):
        raise NotPortable(f"an input is a {type(value).__qualname__}")
    if is_wrapper and not value.is_nested:
        inner_tensors.parts_of(value)
        for _, inner in inner_tensors.held_by(value):
            check_input(inner)
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
        raise NotPortable(f"an input is a {kind} tensor")


_CODE = (types.FunctionType, types.MethodType, types.ModuleType, types.CodeType, partial)
"""What may run as part of a call, though the text would not have all of its code."""
_SEQUENCES = (list, tuple, fx.immutable_collections.immutable_list)
_MAPPINGS = (dict, fx.immutable_collections.immutable_dict)


def _has_covered_class(value: object) -> bool:
    """Whether torch or Python define the class of a value, or the class that is the value."""
    classes = (type(value), value) if isinstance(value, type) else (type(value),)
    return all(map(is_covered_class, classes))


def _is_covered(target: Any) -> bool:
    """Whether torch or Python define what a call names, and a name is all there is to know.

    Of a function its globals tell, because `functools.wraps` sets `__module__`. What is bound to an
    object depends on the object.
    """
    if isinstance(target, types.FunctionType):
        return is_covered_module(str(target.__globals__.get("__name__")))
    if isinstance(target, type):
        return is_covered_class(target)
    if not isinstance(target, _COMPILED):
        return False
    owner = getattr(target, "__self__", None) or getattr(target, "__objclass__", None)
    module = getattr(target, "__module__", None) or getattr(owner, "__module__", None)
    is_bound = not (owner is None or isinstance(owner, (type, types.ModuleType)))
    if is_bound and type(owner).__module__ != "builtins" and not runtime.is_of_pybind(owner):
        return False
    return is_covered_module(str(module or "builtins"))


_COMPILED = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    types.MethodWrapperType,
)


def _short_name(target: Any) -> str:
    name = getattr(target, "__name__", None) or str(target)
    return str(name).removesuffix(".default")
