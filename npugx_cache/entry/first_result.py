"""Compares the first result of a new graph with what the function itself gives.

Whoever traces a function may mistrace it, and a pass may change its numbers. Some of that shows at
the first call already. So a new graph runs before it is stored, and then the function, on the same
arguments. Nothing is undone: only a call of which nothing can be seen but its result is repeated
(`Compiled.unrepeatable`).

A right graph that is refused costs more than a wrong one that is found later in another way. So
only clear differences count, and none where rounding or another run may change the whole result.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend import subgraphs
from npugx_cache.conditions import process
from npugx_cache.entry.recheck import differences, tensors_in
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.private import eager_run, runtime
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from torch import fx

MOST_BYTES = 1 << 30
"""How much memory a comparison may take: for the constants of the graph, and a second result."""

_RESULT = "result"
_PART = 1 << 22
"""Tensors are compared in parts of so many elements: a comparison takes ten times their memory."""


class Uncompared(NamedTuple):
    """Why two results were not compared."""

    reason: str


class Difference(NamedTuple):
    """The part of the result that differs, and the function's own result."""

    text: str
    expected: Any


class Alike(NamedTuple):
    """What the graph gave; the function's own result is the same, but for rounding."""

    result: Any


class Rounding(NamedTuple):
    """How far a right graph may be from its function.

    `step` is the relative step of the coarsest floating type in the graph. `doubt` says why the
    results may be altogether different, or is None.
    """

    step: float
    doubt: str | None

    @classmethod
    def of(cls, graph: fx.GraphModule | None) -> Rounding:
        step, doubt = 0.0, None
        for node in subgraphs.nodes_of(graph):
            floating = filter(torch.Tensor.is_floating_point, _tensors_of(node))
            step = max(step, *(torch.finfo(each.dtype).eps for each in floating), 0.0)
            doubt = doubt or _doubt_of(node)
        return cls(step, doubt)

    def allows(self, expected: torch.Tensor, actual: torch.Tensor) -> bool:
        """Whether two tensors of one type and shape differ by rounding at most.

        An element may differ by a thousandth, or by 16 steps, of the greatest element that differs
        (or of 1), because the errors of many layers are large beside elements near zero. What the
        function makes infinite may be finite after other rounding.
        """
        if not (expected.is_floating_point() or expected.is_complex()):
            return torch.equal(expected, actual)
        with contextlib.suppress(RuntimeError):  # not for each type on each device
            if torch.equal(expected, actual):
                return True
        wide = torch.complex128 if expected.is_complex() else torch.float64
        gap, size = 0.0, 1.0
        flat = (torch.split(each.reshape(-1), _PART) for each in (expected, actual))
        for pair in zip(*flat, strict=True):
            first, second = (each.cpu().to(wide) for each in pair)  # devices lack these types
            differs = first.isfinite() & (first != second)
            if differs.any():
                gaps = (first - second)[differs].abs().nan_to_num(math.inf, math.inf)
                gap = max(gap, float(gaps.max()))
                size = max(size, float(first[differs].abs().max()))
        return gap <= max(1e-3, 16 * self.step) * size


def _tensors_of(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


def _doubt_of(node: fx.Node) -> str | None:
    """Why what depends on this node may be altogether different in another run, or None."""
    if node.op != "call_function":
        return None
    name = str(node.target)
    if any(word in name for word in _LEAVING_MEMORY):
        return f"{name} leaves memory as it was"
    value = node.meta.get("val")
    from_floating = any(
        map(_is_floating, (n for s in node.all_input_nodes for n in _tensors_of(s)))
    )
    whole = isinstance(value, torch.Tensor) and not _is_floating(value)
    if from_floating and (whole or any(word in name for word in _JUMPING)):
        return f"{name} makes a choice that rounding may change"
    return None


_LEAVING_MEMORY = ("empty", "resize")
_JUMPING = (
    *("round", "floor", "ceil", "trunc", "frac", "fmod", "remainder", "sgn", "sign.", "heaviside"),
    *("quant", "Tensor_mode", "Scalar_mode"),
)


def _is_floating(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def compare(
    function: types.FunctionType,
    run: Callable[..., Any],
    rounding: Rounding,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    held: int,
) -> Difference | Uncompared | Alike:
    """Run a new graph and the function, and compare the two results.

    `run` is the bound graph, which must not capture, and `held` the bytes of its constants. Call it
    under `torch.no_grad()`.
    """
    if process.answer("get_world_size") not in (None, 1):
        return Uncompared("other ranks may not compile, and would not take part in it")
    if reason := rounding.doubt or _lack_of_memory(held):
        return Uncompared(reason)
    try:
        actual = run(*args, **kwargs)
        # The function gives as much again, and comparing may need both contiguous.
        size = sum(each.numel() * each.element_size() for each in tensors_in(actual))
        if reason := _lack_of_memory(held + 3 * size):
            return Uncompared(reason)
        with eager_run.without_compiles():
            expected = function(*args, **kwargs)
        found = next(differences(_RESULT, expected, actual, rounding.allows), None)
        # Somebody else may have written to what both read.
        if found and next(
            differences(_RESULT, actual, run(*args, **kwargs), rounding.allows), None
        ):
            return Uncompared("a second run of the graph gives something else")
    except eager_run.Compiles:
        return Uncompared("the function begins a compile of its own")
    except Exception as error:  # noqa: BLE001 - a user's code raises anything
        let_through(error, memory=False)
        return Uncompared(f"{type(error).__name__} was raised")
    return Difference(found, expected) if found else Alike(actual)


def _lack_of_memory(needed: int) -> str | None:
    """Why a comparison that needs so many bytes can't be made now, or None."""
    most, kind = MOST_BYTES, runtime.accelerator()
    if kind is not None:
        module = torch.get_device_module(kind)
        if module.is_current_stream_capturing():
            return "a graph of the device is being captured"
        most = min(most, module.mem_get_info()[0] // 2)
    if needed > most:
        return f"it would take {needed >> 20} MiB, and {most >> 20} MiB are the most"
    return None
