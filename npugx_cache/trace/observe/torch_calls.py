"""Compares what two functions ask of torch, without computing anything: on tensors without data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def same_calls(one: Callable[..., Any], other: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether both call the same functions of torch with the same values, and return the same.

    `args` should hold meta tensors; raises what the functions raise.
    """
    return _calls_of(one, args) == _calls_of(other, args)


def _calls_of(function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    met = _Calls()
    met.number_tensors(args)
    with met:
        result = function(*args)
    return [*met.calls, met.number_tensors(result)]


class _Calls(TorchFunctionMode):
    """The calls of torch, with the number of each tensor in the place of the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self._tensors: list[Any] = []  # kept alive, so that no other tensor gets the same id
        self._numbers: dict[int, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "__get__":  # to look at sizes changes no result
            self.calls.append(
                (func, self.number_tensors((args, kwargs or {})), self.number_tensors(result))
            )
        return result

    def number_tensors(self, values: Any) -> Any:
        return pytree.tree_map(self._number, values)

    def _number(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._tensors.append(value)
        return _Number(self._numbers[id(value)])


class _Number(int):
    """The number of a tensor: equal to no number that a call was given."""

    def __eq__(self, other: object) -> bool:
        return type(other) is _Number and int(self) == int(other)

    def __hash__(self) -> int:
        return hash((_Number, int(self)))
