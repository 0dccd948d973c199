"""A graph that somebody else traced as canonical text: what the key of a piece is made of.

Two graphs have equal texts exactly if lowering them gives equal programs. So the text has what a
lowering looks at: the nodes with their targets and arguments, and the inputs as the lowering gets
them. It has no name of a node, no path, no address and no number of this process. A call whose code
the text does not cover is refused. Importing this module loads sympy.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.key.symbols import Symbols, numbers_of
from npugx_cache.portable import NotPortable, devices, encode
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npugx_cache.portable import Plain
    from npugx_cache.portable.devices import Rename

_PROCESS_LOCAL = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
"""Operators whose arguments are places in a table of this process."""
_MOST_NAMED = 4
_MOST_INPUTS = 8


class GraphText:
    """The text of one graph, for these inputs; raises `NotPortable` for what no text can cover.

    `inputs` are fake tensors and numbers, as the graph will be lowered with. `static` are the
    positions of those that stay in their place. `rename` names devices as they are stored.
    `held` are the names of the tensors that the graph holds, in order of use: they are lifted to
    inputs, so their values are in no key and in no entry.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        static: Sequence[int],
        rename: Rename,
    ) -> None:
        self._rename = rename
        self._storages: dict[int, int] = {}
        self._called: Counter[str] = Counter()
        self._inputs = len(inputs)
        self.held: list[str] = []
        self.methods: set[str] = set()
        self.device_types: set[str] = set()
        self.symbols = Symbols(inputs)
        is_static = set(static)
        self.inputs = tuple(
            self._value(value) + (", stays in its place" if position in is_static else "")
            for position, value in enumerate(inputs)
        )
        self.nodes = "\n".join(self._module(graph_module, ""))

    @property
    def title(self) -> str:
        """The graph in a few words, which follow from the graph alone: `17 inputs: mm x7, silu`."""
        often = self._called.most_common(_MOST_NAMED)
        words = [f"{name} x{count}" if count > 1 else name for name, count in often]
        words += ["..."] if len(self._called) > _MOST_NAMED else []
        return f"{self._inputs} inputs: {', '.join(words) or 'no calls'}"

    def described(self) -> list[tuple[str, str]]:
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
        if not runtime.is_plain(value):
            raise NotPortable(f"an input is a {type(value).__qualname__}")
        if value.layout is not torch.strided or value.is_quantized:
            raise NotPortable(f"an input is a {value.layout} tensor")
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

    def _plain(self, value: object) -> Plain:
        return devices.renamed(encode(value), self._rename)

    # --- nodes

    def _module(self, module: fx.GraphModule, indent: str) -> Iterator[str]:
        numbers: dict[fx.Node, int] = {}
        for node in module.graph.nodes:
            numbers[node] = len(numbers)
            if node.op == "placeholder":
                yield f"{indent}input"
            elif node.op == "get_attr":
                yield from self._attribute(module, node, indent)
            elif node.op == "call_module":
                inner = module.get_submodule(str(node.target))
                if not isinstance(inner, fx.GraphModule):
                    raise NotPortable(f"the graph calls a module, {type(inner).__qualname__}")
                yield f"{indent}call of a graph {self._arguments(node, numbers)}"
                yield from self._module(inner, indent + " ")
            else:
                target = "" if node.op == "output" else f" {self._target(node)}"
                arguments = self._arguments(node, numbers)
                yield f"{indent}{node.op}{target} {arguments}{_stream(node)}"

    def _attribute(self, module: fx.GraphModule, node: fx.Node, indent: str) -> Iterator[str]:
        name = str(node.target)
        value = operator.attrgetter(name)(module)
        if isinstance(value, fx.GraphModule):
            yield f"{indent}graph"
            yield from self._module(value, indent + " ")
            return
        if not isinstance(value, torch.Tensor):
            raise NotPortable(f"the graph holds a {type(value).__name__}")
        if indent:
            raise NotPortable("a graph inside the graph holds a tensor")
        if name not in self.held:
            self.held.append(name)
        yield f"held {self.held.index(name)} {self._value(value)}"

    def _target(self, node: fx.Node) -> str:
        target: Any = node.target
        if node.op == "call_method":
            self.methods.add(target)
            self._called[target] += 1
            return str(target)
        self._called[_short_name(target)] += 1
        named = runtime.operator_name(target)
        if named is not None:
            if named[0] == "hop" and named[1] in _PROCESS_LOCAL:
                raise NotPortable(f"{named[1]} takes places in a table of this process")
            return repr(named)
        module = getattr(target, "__module__", None) or ""
        is_builtin = type(target).__name__ in ("builtin_function_or_method", "method_descriptor")
        if not is_builtin and not is_covered_module(module):
            name = getattr(target, "__qualname__", str(target))
            raise NotPortable(f"the graph calls {module}.{name}, whose code is not in the graph")
        return repr(encode(target))

    def _arguments(self, node: fx.Node, numbers: dict[fx.Node, int]) -> str:
        return f"{self._argument(node.args, numbers)} {self._argument(node.kwargs, numbers)}"

    def _argument(self, value: Any, numbers: dict[fx.Node, int]) -> str:
        if isinstance(value, fx.Node):
            return f"%{numbers[value]}"
        if isinstance(value, torch.SymInt):
            return self.symbols.text(value)
        if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
            items = ", ".join(self._argument(each, numbers) for each in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if isinstance(value, dict):
            rows = (f"{self._plain(k)!r}: {self._argument(v, numbers)}" for k, v in value.items())
            return f"{{{', '.join(rows)}}}"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(self._argument(each, numbers) for each in parts)})"
        return repr(self._plain(value))


def _stream(node: fx.Node) -> str:
    """The stream that Dynamo has noted for a node, of which nothing else in the graph tells."""
    label = (node.meta.get("custom") or {}).get("stream")
    return "" if label is None else f" on stream {int(label)}"


def _short_name(target: Any) -> str:
    name = getattr(target, "__name__", None) or str(target)
    return str(name).removesuffix(".default")
