"""`NPUGX_CACHE_VERIFY=recompile`: compiles every hit again, and compares entries and results.

For people who distrust a store or the code that fills it. This costs a compile for each hit. To
compare the results, both graphs run. If anything can be seen of a run but its result, only the
entries are compared, and a WARNING says why.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend import inner_tensors
from npugx_cache.errors import VerificationError
from npugx_cache.portable import module_of
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.entry.restore import Specialisation

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
    """The restored graph, whose first run also runs the recompiled graph and compares the results.

    That first run raises `VerificationError` if something differs.
    """
    pending = [recompiled]

    def run(*args: Any, **kwargs: Any) -> Any:
        if not pending:
            return restored.run(*args, **kwargs)
        expected = pending.pop()(*args, **kwargs)
        result = restored.run(*args, **kwargs)
        for difference in differences("result", result, expected):
            raise VerificationError(title, f"{difference} differs", result, expected)
        return result

    return dataclasses.replace(restored, run=run)


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type and shape hold the same numbers."""
    same = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - nan equals nan here
    return bool(same.all())


def differences(
    path: str,
    a: Any,
    b: Any,
    alike: Callable[[torch.Tensor, torch.Tensor], bool] = same_numbers,
    seen: set[tuple[int, int]] | None = None,
) -> Iterator[str]:
    """The paths at which two values differ; `alike` compares the numbers of two tensors."""
    seen = set() if seen is None else seen
    if a is b or isinstance(a, _OPAQUE) or (id(a), id(b)) in seen:
        return
    seen.add((id(a), id(b)))
    mine, other = _parts(a), _parts(b)
    if type(a) is not type(b) or not _same_by_itself(a, b, alike) or mine.keys() != other.keys():
        yield path
        return
    for step, part in mine.items():
        yield from differences(path + step, part, other[step], alike, seen)


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """The tensors that a value holds, wherever `differences` would find them."""
    seen = set() if seen is None else seen
    if isinstance(value, _OPAQUE) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    for each in _parts(value).values():
        yield from tensors_in(each, seen)


def _parts(value: Any) -> dict[str, Any]:
    """The values inside a value, by the step to each of them."""
    if isinstance(value, (list, tuple)):
        return {f"[{index}]": each for index, each in enumerate(value)}
    if isinstance(value, dict):
        return {f"[{_key(key, at)}]": each for at, (key, each) in enumerate(value.items())}
    # Other attributes differ anyway: Dynamo marks tensors, and our objects count calls.
    if isinstance(value, torch.Tensor) or module_of(type(value)).startswith("npugx_cache"):
        return {}
    return {f".{name}": each for name, each in getattr(value, "__dict__", {}).items()}


def _key(key: object, position: int) -> str:
    """What a key is for people. An object that a call makes is another one in another call."""
    return repr(key) if isinstance(key, _PLAIN) else f"{type(key).__qualname__} {position}"


_PLAIN = (str, bytes, int, float, complex, type(None))


def _same_by_itself(a: Any, b: Any, alike: Callable[[torch.Tensor, torch.Tensor], bool]) -> bool:
    """Whether two values of one type are alike, apart from the values inside them."""
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b, alike)
    if isinstance(a, dict):
        return list(map(_key, a, range(len(a)))) == list(map(_key, b, range(len(b))))
    if isinstance(a, (float, complex)):
        kind = torch.complex128 if isinstance(a, complex) else torch.float64
        return alike(*(torch.tensor(each, dtype=kind) for each in (a, b)))
    return not isinstance(a, (str, bytes, int)) or bool(a == b)


def _same_tensor(
    a: torch.Tensor, b: torch.Tensor, alike: Callable[[torch.Tensor, torch.Tensor], bool]
) -> bool:
    if runtime.is_wrapper(a):
        parts = inner_tensors.parts_of(a)
        pairs = zip(inner_tensors.leaves(a, parts), inner_tensors.leaves(b, parts), strict=True)
        return all(_same_tensor(*pair, alike) for pair in pairs)
    # Strides may differ, because a graph may choose others for a new tensor.
    if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
        return False
    return a.is_meta or alike(a, b)
