"""Compares what a call gave with what eager gave: bit for bit, then within torch's tolerances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["equal", "close", "as eager", "different"]
_RANK: tuple[Kind, ...] = ("equal", "close", "as eager", "different")


class Outcome(NamedTuple):
    """kind "as eager": it differs, and no more than eager does from itself."""

    kind: Kind
    detail: str = ""


def worst(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    spread: Mapping[str, float] | None = None,
) -> Outcome:
    """The greatest difference of two sets of values by name.

    `spread`: by how much each value differs from one eager run to the next.
    """
    found = Outcome("equal")
    for name in [*expected, *(name for name in actual if name not in expected)]:
        if name not in actual or name not in expected:
            by = "eager" if name in expected else "this stage"
            return Outcome("different", f"{name}: {by} alone gives it")
        outcome = _compare_values(expected[name], actual[name])
        gap = distance(expected[name], actual[name])
        if outcome.kind == "different" and spread and gap <= spread.get(name, -1.0):
            outcome = outcome._replace(kind="as eager")
        if _RANK.index(outcome.kind) > _RANK.index(found.kind):
            found = outcome._replace(detail=f"{name}: {outcome.detail}")
    return found


def distance(expected: Any, actual: Any) -> float:
    """The greatest absolute difference; infinite if the two can't be subtracted."""
    if not _alike(expected, actual):
        return math.inf
    if _same_bits(expected, actual):
        return 0.0  # the gaps of large tensors take many times the memory of the tensors
    return float(_gaps(expected, actual).max()) if expected.numel() else 0.0


def _alike(expected: Any, actual: Any) -> bool:
    both = isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)
    return both and expected.shape == actual.shape and expected.dtype == actual.dtype


def _gaps(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if expected.is_complex() else torch.float64
    first, second = expected.to(wide), actual.to(wide)
    gap = (first - second).abs()
    gap[first == second] = 0.0
    gap[first.isnan() & second.isnan()] = 0.0
    return gap.nan_to_num(math.inf, math.inf)


def _compare_values(expected: Any, actual: Any) -> Outcome:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        # NaN does not equal itself, and its text does.
        if type(expected) is type(actual) and (
            expected == actual or repr(expected) == repr(actual)
        ):
            return Outcome("equal")
        return Outcome(
            "different", f"{_describe_value(actual)}, where eager gives {_describe_value(expected)}"
        )
    if _same_bits(expected, actual):
        return Outcome("equal")
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError as error:
        return Outcome("different", _difference(expected, actual, error))
    return Outcome("close", f"max abs diff {distance(expected, actual):.3g}")


def _same_bits(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    if not _alike(expected, actual):
        return False
    first, second = (each.contiguous().reshape(-1).view(torch.uint8) for each in (expected, actual))
    return torch.equal(first, second)


def _describe_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return repr(value)[:60]


def _difference(expected: torch.Tensor, actual: torch.Tensor, error: AssertionError) -> str:
    if not _alike(expected, actual):  # torch names what is not alike, such as the shape
        return str(error).strip().partition("\n")[0]
    gaps = _gaps(expected, actual)
    at = [int(each) for each in torch.unravel_index(gaps.argmax(), gaps.shape)]
    count = f"{int((gaps > 0).sum())} of {gaps.numel()} elements differ"
    return f"{count}, by up to {float(gaps.max()):.3g} at {at}"
