"""`NPUGX_CACHE_VERIFY=recompile`: compiles every hit again, and compares entries and results.

For people who distrust a store or the code that fills it. This costs a compile for each hit and, at
the first call of a restored graph, a deep copy of the arguments with all modules. To compare the
results, both graphs run, the new one on the copy. If a second run could change something besides
the copy, only the entries are compared, and a WARNING says why.
"""

from __future__ import annotations

import builtins
import copy
import dataclasses
import difflib
import dis
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend import inner_tensors
from npugx_cache.backend.capture.layout import Role
from npugx_cache.conditions import Step
from npugx_cache.entry import frame
from npugx_cache.entry.failed_run import effect_of
from npugx_cache.errors import VerificationError
from npugx_cache.events import logger
from npugx_cache.portable import module_of
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.entry.artifact import Artifact
    from npugx_cache.entry.frame import Frame
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


def unrepeatable(artifact: Artifact) -> str | None:
    """Why a call must not run a second time on a copy of its arguments, or None."""
    for operator in artifact.program.operators if artifact.program is not None else ():
        if effect := effect_of(operator):
            return effect
    bindings = artifact.bindings
    if bindings.frame is None:
        return "whoever traced the graph calls it"
    code = frame.load(bindings.frame.code)
    done = [each.opname for each in dis.get_instructions(code)]
    if not _SETS_GLOBALS.isdisjoint(done):
        return "it sets a global"
    # One call is that of the graph; any other function may change the objects that it is given.
    stores = not _STORES.isdisjoint(done) or sum(name.startswith("CALL") for name in done) > 1
    writes = bindings.layout is not None and bool(bindings.layout.positions(Role.WRITTEN))
    shared = next(_besides_arguments(bindings.frame, code), None)
    if shared is not None and (stores or writes):
        return f"it may write to what it reads from {shared}, which is no argument"
    return None


_SETS_GLOBALS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_STORES = frozenset(
    {
        *("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF"),
        *("DELETE_ATTR", "DELETE_SUBSCR", "DELETE_DEREF"),
    }
)


def _besides_arguments(caller: Frame, code: types.CodeType) -> Iterator[str]:
    """Where a caller frame reads values from besides its arguments."""
    yield from (name for name in caller.globals if not hasattr(builtins, name))
    yield from code.co_freevars
    for data in caller.names.values():
        if isinstance(data, list) and data[0] in (Step.MODULE, Step.NAMESPACE, Step.GLOBAL):
            if not is_covered_module(str(data[1])):
                yield str(data[1])
        elif isinstance(data, list) and data[0] in (Step.OBJECT, Step.FUNCTION_GLOBALS):
            yield "an object of a module"


def comparing_results(
    title: str, restored: Specialisation, recompiled: Callable[..., Any], artifact: Artifact
) -> Specialisation:
    """The restored graph, whose first run also runs the recompiled graph and compares the results.

    The recompiled graph runs on a copy of the arguments, and the arguments are compared after both
    runs as well. That first run raises `VerificationError` if something differs. A graph that is
    `unrepeatable` is returned as it is.
    """
    reason = unrepeatable(artifact)
    if reason is not None:
        logger.warning("%s: results not compared: %s", title, reason)
        return restored
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
    """The paths at which two values differ."""
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
    elif isinstance(a, torch.Tensor) or module_of(type(a)).startswith("npugx_cache"):
        return  # other attributes differ anyway: Dynamo marks tensors, and our objects count calls
    else:
        mine, other = (getattr(value, "__dict__", {}) for value in (a, b))
        if mine.keys() != other.keys():
            yield f"vars({path}).keys()"
        parts = [(f".{key}", mine[key], other[key]) for key in mine.keys() & other.keys()]
    for step, ours, theirs in parts:
        yield from _differences(path + step, ours, theirs, seen)


def _same_by_itself(a: Any, b: Any) -> bool:
    """Whether two values of one type are alike, apart from the values inside them."""
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b)
    if isinstance(a, dict):
        return list(a) == list(b)
    if isinstance(a, (str, bytes, int, float, complex)):
        return a == b or (a != a and b != b)  # noqa: PLR0124 - nan equals nan here
    return True


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    if runtime.is_wrapper(a):
        parts = inner_tensors.parts_of(a)
        pairs = zip(inner_tensors.leaves(a, parts), inner_tensors.leaves(b, parts), strict=True)
        return all(_same_tensor(*pair) for pair in pairs)
    # Strides may differ, because a copy of a lazily negated or expanded argument has others.
    if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
        return False
    same = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - nan equals nan here
    return bool(same.all())
