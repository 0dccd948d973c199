"""A graph that somebody else traced, and fake inputs for it, apart from the trace that made it.

A serving engine traces a model once, cuts the graph into pieces, and hands each piece over with the
fakes of that trace. The engine then drops the guards of the trace. If a piece were lowered with
these fakes, the lowering would rely on guards that nobody checks, and what one piece demands of a
size would count for the next piece.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint

from npugx_cache.portable import NotPortable
from npugx_cache.private.runtime import is_plain, values_of_symbols

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

_OF_THE_TRACE = ("example_value", "unbacked_bindings")
_SOME_SIZE = 8192
"""The example of a size that the engine gives none for: no small number, which a graph may have."""


def graph_apart(graph_module: fx.GraphModule, left_out: Container[fx.Node] = ()) -> fx.GraphModule:
    """A copy with nodes of its own, without the values of the trace that made the graph.

    The tensors that the graph holds are not copied. The copy takes and returns flat values.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node not in left_out:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            for name in _OF_THE_TRACE:
                copies[node].meta.pop(name, None)
    return fx.GraphModule(graph_module, graph)


@contextlib.contextmanager
def fakes_apart(
    inputs: Sequence[Any],
    example: int | None = None,
    *,
    is_size: bool = False,
    ranges_hold: bool = False,
) -> Iterator[list[Any]]:
    """Inputs, real or fake, as fakes of a new trace, under which the piece is to be lowered.

    Of its symbols nothing is known, except that they are two or more. `example` is a value for
    the symbol, if there is only one; `is_size` says that no other value is ever met, so that
    numbers take the place of the symbol. `ranges_hold`: somebody checks at each call that sizes
    are in the ranges that the old trace knew, so the new one knows them too.
    The fakes keep layouts, and say which inputs share memory.
    They are no parameters, and need no gradients: nothing is captured or trained where these are
    used. Raises `NotPortable` for inputs that can't be made anew.
    """
    with unset_fake_temporarily(), tracing(None), torch.inference_mode(mode=False), torch.no_grad():
        made = _Fakes(inputs, example, is_size=is_size, ranges_hold=ranges_hold)
        yield [made.of(value) for value in inputs]


class _Fakes:
    def __init__(
        self, inputs: Sequence[Any], example: int | None, *, is_size: bool, ranges_hold: bool
    ) -> None:
        self._env = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._env)
        self._symbols: dict[sympy.Symbol, Any] = {}
        self._hints: dict[sympy.Symbol, int] = {}
        found = {symbol: env for value in inputs for symbol, env in _symbols_of(value)}
        for symbol, env in found.items():
            hint = int(values_of_symbols(env).get(symbol, _SOME_SIZE))
            if example is not None and len(found) == 1:
                hint = example
                if is_size:
                    self._symbols[symbol] = sympy.Integer(example)
                    break
            source = ConstantSource(f"size{len(self._symbols)}")
            known = StrictMinMaxConstraint(vr=env.var_to_range[symbol], warn_only=False)
            new = self._env.create_symbol(
                hint, source, DimDynamic.DYNAMIC, known if ranges_hold else None
            )
            self._symbols[symbol], self._hints[new] = new, hint
        storages = [_storage(value) for value in inputs if isinstance(value, torch.Tensor)]
        self._shared = {storage for storage in storages if storages.count(storage) > 1}
        self._memory: dict[int, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._number(value)
        sizes = [self._number(each) for each in value.shape]
        strides = [self._number(each) for each in value.stride()]
        offset = self._number(value.storage_offset())
        if _storage(value) in self._shared or not isinstance(offset, int) or offset:
            with self._mode:
                return self._memory_of(value).as_strided(sizes, strides, offset)
        # Under the mode, empty_strided takes six times as long, and an engine has many pieces.
        layout = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
        return FakeTensor(self._mode, layout, value.device)

    def _memory_of(self, value: torch.Tensor) -> torch.Tensor:
        memory = self._memory.get(_storage(value))
        if memory is None:
            elements = self._number(value.untyped_storage().nbytes() // value.element_size())
            memory = torch.empty(elements, dtype=value.dtype, device=value.device)
            self._memory[_storage(value)] = memory
        if memory.dtype is not value.dtype:
            raise NotPortable("two inputs of different types share memory")
        return memory

    def _number(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        expression = value.node.expr.xreplace(self._symbols)
        if not expression.free_symbols:
            return int(expression)
        hint = int(expression.xreplace(self._hints))
        return self._env.create_symintnode(expression, hint=hint)


def _symbols_of(value: Any) -> Iterator[tuple[sympy.Symbol, Any]]:
    """The symbols in an input, each with torch's record of it."""
    if isinstance(value, torch.Tensor):
        if not is_plain(value) or value.layout is not torch.strided or value.is_quantized:
            raise NotPortable(f"an input is a {type(value).__qualname__}, {value.layout}")
        if value.is_conj() or value.is_neg():
            raise NotPortable("an input is conjugated or negated")
    numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    for number in numbers:
        if isinstance(number, torch.SymInt):
            for symbol in sorted(number.node.expr.free_symbols, key=str):
                yield symbol, number.node.shape_env


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)
