"""Rules about the module `copy`: which objects it meets twice, and what it copies.

`deepcopy` remembers by `id()` what it has copied. A graph that held these numbers would be for one
process alone. So each object gets a number that only the trace knows, and a condition says that
objects which were told apart are still different ones.

Of an object that is no list, dict or tuple, Python's code asks `__reduce_ex__`. Dynamo answers with
the attributes alone.
"""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, Any

from torch._dynamo.variables import constant

from npugx_cache.portable import is_covered_class
from npugx_cache.trace import tracing
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.observe.written_back import builtin_base
from npugx_cache.trace.stack_value import (
    CONSTANTS,
    NONE,
    StackValue,
    is_constant,
    look_behind,
    table_of,
    type_of,
)

if TYPE_CHECKING:
    from npugx_cache.trace.observe.observation import Recorder

_NUMBER = getattr(constant, "FakeIdVariable", None)
"""What Dynamo gives for the `id()` of an object that the trace makes, since torch 2.12."""


class _Copied:
    """The numbers of the objects that were copied, by type and source."""

    def __init__(self) -> None:
        self.numbers: dict[type, dict[Any, int]] = {}


def answer_id(recorder: Recorder, tx: Any, function: Any, args: list[Any]) -> Any:
    """What `id()` gives in the module `copy`, as a value of the trace; None for other calls."""
    if function is not id or tx.f_globals is not vars(copy) or _NUMBER is None or len(args) != 1:
        return None
    if _is_given(tx.symbolic_locals.get("memo")):
        recorder.refuse("copy.deepcopy is given a dict of what is copied already")
    found = look_behind(args[0].realize())
    if found.source is None:
        return _NUMBER(id(found.variable if found.value is NONE else found.value))
    number = id(tracing.value_at(tx, found.source))
    kind = type_of(found)
    if kind is not None and kind not in CONSTANTS:
        known = recorder.state(_Copied).numbers.setdefault(kind, {})
        for source, other in known.items():
            if other != number:
                recorder.note(Question.APART, (source, found.source))
            elif kind is tuple and source != found.source:  # of others torch guards that
                recorder.refuse("one tuple that is copied has two places")
        known[found.source] = number
    return _NUMBER(number)


def _is_given(memo: Any) -> bool:
    """Whether a dict of copies may hold numbers that are not those of the trace."""
    if memo is None:
        return False
    found = look_behind(memo)
    if found.value is None:  # since Python 3.13 the number comes before the dict is made
        return False
    keys = vars(table_of(found.variable)).get("items") or {}
    return found.source is not None or any(is_constant(each.vt) for each in keys)


def obstacle_of_reduce(found: StackValue) -> str | None:
    """Why what Dynamo gives for `__reduce_ex__` is not what the class gives, or None."""
    kind = type_of(found)
    if kind is None or kind in CONSTANTS or isinstance(found.value, type):
        return None
    own = [each for each in kind.__mro__ if not is_covered_class(each)]
    for name in ("__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"):
        if any(name in vars(each) for each in own):
            return f"{kind.__qualname__} is copied without its {name}"
    base = builtin_base(kind)
    if base is object or issubclass(kind, enum.Enum):
        return None
    return f"{kind.__qualname__} is copied without what it holds as a {base.__qualname__}"
