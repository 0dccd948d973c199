"""`NPUGX_CACHE_VERIFY=recompile`: every hit is compiled again, and entry and results are compared.

A check for people who distrust a store or the code that fills it. Costs a compile per hit, and at
the first call of a restored graph a deep copy of its arguments, modules included.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.errors import VerificationError
from npugx_cache.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.restore import Specialisation

_SHOWN_LINES = 20
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def compare_artifacts(title: str, restored: str, recompiled: str) -> None:
    """Raise `VerificationError` if the readable texts of two artifacts differ."""
    if restored != recompiled:
        lines = difflib.unified_diff(
            restored.splitlines(), recompiled.splitlines(), "restored", "recompiled", "", "", 1
        )
        shown = "\n".join(line for line, _ in zip(lines, range(_SHOWN_LINES), strict=False))
        raise VerificationError(title, f"its entry differs:\n{shown}", restored, recompiled)


def comparing_results(
    title: str, restored: Specialisation, recompiled: Callable[..., Any]
) -> Specialisation:
    """The restored graph, of which the first run is compared with that of the recompiled one.

    The recompiled one runs on a copy of the arguments; what both leave behind in them is compared
    as well. Raises `VerificationError` from that run.
    """
    pending = [recompiled]

    def run(*args: Any, **kwargs: Any) -> Any:
        if not pending:
            return restored.run(*args, **kwargs)
        other = pending.pop()
        try:
            twins = copy.deepcopy((args, kwargs))
        except Exception as error:  # noqa: BLE001 - a user's __deepcopy__ raises anything
            logger.warning("%s: results not compared: arguments can't be copied: %r", title, error)
            return restored.run(*args, **kwargs)
        expected = other(*twins[0], **twins[1])
        result = restored.run(*args, **kwargs)
        pairs = (("result", result, expected), ("arguments", (args, kwargs), twins))
        for name, ours, theirs in pairs:
            for difference in _differences(name, ours, theirs, set()):
                raise VerificationError(title, f"{difference} differs", ours, theirs)
        return result

    return dataclasses.replace(restored, run=run)


def _differences(path: str, a: Any, b: Any, seen: set[tuple[int, int]]) -> Iterator[str]:
    """Where two values of one structure differ, tensors by every bit."""
    if isinstance(a, _OPAQUE) or (id(a), id(b)) in seen:
        return
    seen.add((id(a), id(b)))
    if type(a) is not type(b) or not _same_by_itself(a, b):
        yield path
        return
    if isinstance(a, (list, tuple)):
        parts = [(f"[{index}]", *pair) for index, pair in enumerate(zip(a, b, strict=True))]
    elif isinstance(a, dict):
        parts = [(f"[{key!r}]", value, b[key]) for key, value in a.items()]
    elif isinstance(a, torch.Tensor) or type(a).__module__.startswith("npugx_cache"):
        return  # Dynamo leaves attributes on tensors, and our own objects count calls
    else:
        mine, other = (getattr(value, "__dict__", {}) for value in (a, b))
        if mine.keys() != other.keys():
            yield f"vars({path}).keys()"
        parts = [(f".{key}", mine[key], other[key]) for key in mine.keys() & other.keys()]
    for step, ours, theirs in parts:
        yield from _differences(path + step, ours, theirs, seen)


def _same_by_itself(a: Any, b: Any) -> bool:
    """Whether two values of one type are alike, apart from what is inside of them."""
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b)
    if isinstance(a, dict):
        return list(a) == list(b)
    if isinstance(a, (str, bytes, int, float, complex)):
        return a == b or (a != a and b != b)  # noqa: PLR0124 - nan is itself here
    return True


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    # Not strides: a copy of a lazily negated or expanded argument has others.
    if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
        return False
    same = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - nan is itself here
    return bool(same.all())
