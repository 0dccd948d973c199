"""Tells whether a call may be made once more: whether nothing can be seen of it but its result."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache.trace.conditions.source_facts import is_covered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.trace.conditions.source_facts import Owners
    from npugx_cache.trace.dynamo import DynamoTrace


def obstacle(trace: DynamoTrace, untraced: Iterable[types.CodeType], owners: Owners) -> str | None:
    """Why neither the function nor its caller frame may run once more, or None.

    `untraced` is code that ran when the graph was lowered, so that no trace knows what it does.
    What the program does is not asked here (`failed_run.lasting_effect`).
    """
    if trace.writes:
        return "it writes to something that was there before the call, or may do so later"
    if not all(is_covered(code, owners[id(code)]) for code in untraced):
        return "an operator or a class of tensors runs code of the user's"
    own = [code for code in trace.code if not is_covered(code, owners[id(code)])]
    own = [code for code in own if not _is_of_transformers(code)]
    if any(not _ASKED.isdisjoint(_names(code, owners[id(code)])) for code in own):
        return "it asks whether it is traced, and may do something else by itself"
    return None


def _names(code: types.CodeType, functions: Iterable[types.FunctionType]) -> Iterator[str]:
    """The names that code uses, and those that functions have which it has by other names."""
    yield from code.co_names
    for space in [each.__globals__ for each in functions]:
        found = [space.get(name) for name in code.co_names]
        yield from (each.__name__ for each in found if isinstance(each, types.FunctionType))


_ASKED = frozenset(
    {
        *("is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling", "is_exporting"),
        *("is_tracing", "is_scripting", "is_in_onnx_export"),
    }
)


def _is_of_transformers(code: types.CodeType) -> bool:
    """Whether code is of transformers: each model asks, about masks and warnings, for no effect."""
    file = getattr(sys.modules.get("transformers"), "__file__", None)
    return file is not None and Path(code.co_filename).is_relative_to(Path(file).parent)
