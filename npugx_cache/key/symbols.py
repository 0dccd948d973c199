"""The symbols in the sizes of a graph's inputs, under names that every process gives them.

Torch names a symbol after the place that the size comes from. Here the symbols are `n0`, `n1` and
so on, in the order in which the inputs mention them, so equal graphs of different functions have
equal symbols. Importing this module loads sympy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from npugx_cache.conditions import shapes
from npugx_cache.portable import NotPortable
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.portable import Plain


class Symbols:
    """The symbols of one graph's inputs. `env` is torch's record of what is known of them."""

    def __init__(self, inputs: Iterable[Any]) -> None:
        self.env: Any = None
        self._named: dict[sympy.Symbol, sympy.Symbol] = {}
        for value in inputs:
            for number in numbers_of(value):
                self._meet(number)

    def _meet(self, number: Any) -> None:
        if not isinstance(number, torch.SymInt):
            return
        env = number.node.shape_env
        if self.env is not None and env is not self.env:
            raise NotPortable("the sizes of its inputs belong to different traces")
        self.env = env
        for symbol in sorted(number.node.expr.free_symbols, key=str):
            if symbol not in self._named:
                if symbol not in runtime.values_of_symbols(env):
                    raise NotPortable("a size of an input is known only when the graph runs")
                name = f"n{len(self._named)}"
                self._named[symbol] = sympy.Symbol(name, integer=True, positive=symbol.is_positive)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self._named.values()))

    def text(self, number: Any) -> str:
        """A size, stride, offset or number as text."""
        if not isinstance(number, torch.SymInt):
            return str(int(number))
        named = number.node.expr.xreplace(self._named)
        if not named.free_symbols <= set(self._named.values()):
            raise NotPortable("the graph has a size that is no size of an input")
        return str(named)

    def describe_symbols(self) -> Iterator[str]:
        """What is known of the symbols, besides the guards: a graph is lowered by all of that."""
        if self.env is None:
            return
        for symbol, name in self._named.items():
            known = self.env.var_to_range[symbol]
            yield f"{known.lower} <= {name} <= {known.upper}"
        yield repr(self.env.settings)

    def values(self) -> dict[str, int]:
        """The sizes of the call that the graph was traced for. Reading them adds no guard."""
        return {
            str(name): int(runtime.values_of_symbols(self.env)[symbol])
            for symbol, name in self._named.items()
        }

    def symbolic(self) -> list[Any]:
        """The symbols as numbers: a comparison of one of them becomes a guard of the trace."""
        known = runtime.values_of_symbols(self.env) if self.env is not None else {}
        return [self.env.create_symintnode(each, hint=int(known[each])) for each in self._named]

    def conditions(self) -> list[Plain]:
        """All guards on these symbols, those from before included, in the form of `shapes`.

        The guards from before count, because torch adds no guard for what follows from them. The
        variables are the places of the symbols in `names`. Raises `NotPortable`.
        """
        if self.env is None:
            return []
        printer, places = PythonPrinter(), {name: n for n, name in enumerate(self.names)}
        texts = {printer.doprint(each.xreplace(self._named)): None for each in self._guards()}
        return [shapes.parse(text, places) for text in texts]

    def _guards(self) -> Iterator[Any]:
        """The guards that speak of no other symbol; others are about values that nobody reads."""
        own = self._named.keys()
        for guard in self.env.guards:
            for form in (guard.expr, self.env.replace(guard.expr)):
                if form.free_symbols and form.free_symbols <= own:
                    # Some torch adds a part of a guard again, as a guard by itself.
                    yield from form.args if form.func.__name__ == "And" else (form,)
                    break


def numbers_of(value: Any) -> tuple[Any, ...]:
    """The numbers in an input that may be symbolic: itself, or the layout of a tensor."""
    if not isinstance(value, torch.Tensor):
        return (value,)
    if value.layout is not torch.strided:
        return tuple(value.shape)
    return (*value.shape, *value.stride(), value.storage_offset())
