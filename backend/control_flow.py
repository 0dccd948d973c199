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


def scan(
    function: Callable[..., Any],
    carried: Sequence[Any],
    scanned: Sequence[torch.Tensor],
    others: Sequence[Any],
) -> list[Any]:
    """`torch/_higher_order_ops/scan.py`, `generic_scan`: carry values from slice to slice.

    The function returns the values that are carried on, and then its results for the slice, which
    are written to one tensor each as soon as they are known.
    """
    count = len(carried)
    kept: list[Any] = []
    for position, each in enumerate(zip(*map(_slices, scanned), strict=True)):
        made = function(*carried, *each, *others)
        carried, results = made[:count], made[count:]
        if position == 0:
            kept = [_room(result, scanned[0].shape[0]) for result in results]
        for room, result in zip(kept, results, strict=True):
            if result is not None:
                room[position].copy_(result)
    return [*carried, *kept]


def _room(result: torch.Tensor | None, count: int) -> torch.Tensor | None:
    """A tensor for that many results like this one."""
    if result is None:
        return None
    return torch.empty((count, *result.shape), dtype=result.dtype, device=result.device)


def while_loop(
    goes_on: Callable[..., Any],
    function: Callable[..., Any],
    carried: Sequence[Any],
    others: Sequence[Any],
) -> Sequence[Any]:
    """`torch/_higher_order_ops/while_loop.py`, `while_loop_dense`: call as long as a test holds.

    If the function is never called, the results are copies.
    """
    if not goes_on(*carried, *others):
        return [each.clone() if isinstance(each, torch.Tensor) else each for each in carried]
    while True:
        carried = function(*carried, *others)
        if not goes_on(*carried, *others):
            return carried


OPERATORS: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "map_impl": map_impl,
    "scan": scan,
    "while_loop": while_loop,
}
"""By the names in `program.CONTROL_FLOW`."""
