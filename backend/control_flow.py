"""Runs the graphs inside a program: what its calls of `torch.cond`, `map`, ... mean, as Python.

Each function does what torch's implementation for real tensors does (the one that torch registers
for CompositeExplicitAutograd), which can't be called here because torch's operators dispatch
through modules that a restore must not load. A graph inside the program is a Python function; it
returns a tuple or a list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def cond(
    chosen: Any,
    true_function: Callable[..., Any],
    false_function: Callable[..., Any],
    operands: Sequence[Any],
) -> Any:
    """`torch/_higher_order_ops/cond.py`, `cond_op_dense`: run one branch."""
    return true_function(*operands) if chosen else false_function(*operands)


def map_impl(
    function: Callable[..., Any], mapped: Sequence[torch.Tensor], others: Sequence[Any]
) -> list[Any]:
    """`torch/_higher_order_ops/map.py`, `map_dense`: call for each slice, and stack the results."""
    rows = [function(*each, *others) for each in zip(*map(_slices, mapped), strict=True)]
    return [
        None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)
    ]


def _slices(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The slices of a tensor along its first dimension.

    The graph that they are given to was traced for contiguous slices, so that it may view them in
    other sizes.
    """
    return (each.contiguous() for each in tensor.unbind(0))


OPERATORS: dict[str, Callable[..., Any]] = {"cond": cond, "map_impl": map_impl}
"""By the names in `program.CONTROL_FLOW`."""
