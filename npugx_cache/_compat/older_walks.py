"""Walks that torch before 2.13 traces otherwise than eager, or unseen. Checked on torch 2.11.

Sets are kept there in a module that `set_walks` does not know, and `reversed` takes a copy at once.
So what walks a set, or changes what it has reversed, is not compiled. `sorted`, unions and whatever
folds a set into a constant walk it too, and are taken for walks. Importing this loads the compiler.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import side_effects
from torch._dynamo.variables import builtin, constant, dicts

from npugx_cache._compat import unguarded
from npugx_cache._compat.runtime import torch_version

_SET = "this torch walks sets in an order that no guard sees"
_REVERSED = "this torch walks a list backwards as it was before it changed"


def _is_set(value: Any) -> bool:
    if isinstance(value, constant.ConstantVariable):
        return isinstance(value.value, (set, frozenset)) and len(value.value) > 1
    kinds = (vars(dicts)["SetVariable"], vars(dicts)["FrozensetVariable"])
    return type(value) in kinds and len(value.items) > 1


def _note_walk(asked: unguarded.Asked, value: Any, *_: Any) -> None:
    if _is_set(value):
        asked.refuse(_SET)


def _note_pop(asked: unguarded.Asked, value: Any, tx: Any, name: str, *_: Any) -> None:
    del tx
    if name == "pop":
        _note_walk(asked, value)


def _note_reversed(asked: unguarded.Asked, builtin_: Any, tx: Any, value: Any) -> None:
    del builtin_, tx
    value = value.realize()
    for each in (value, getattr(value, "dv_dict", None)):
        asked.walked_backwards[id(each)] = (each,)


def _note_change(asked: unguarded.Asked, effects: Any, changed: Any) -> None:
    del effects
    if id(changed) in asked.walked_backwards:
        asked.refuse(_REVERSED)


if torch_version() < (2, 13):
    _set_variable = vars(dicts)["SetVariable"]
    for _kind in (_set_variable, vars(dicts)["FrozensetVariable"]):
        unguarded.note_before(_kind, "as_python_constant", _note_walk)
    for _owner in (_set_variable, constant.ConstantVariable):
        unguarded.note_before(_owner, "unpack_var_sequence", _note_walk)
    unguarded.note_before(_set_variable, "call_method", _note_pop)
    unguarded.note_before(builtin.BuiltinVariable, "call_reversed", _note_reversed)
    unguarded.note_before(side_effects.SideEffects, "mutation", _note_change)
