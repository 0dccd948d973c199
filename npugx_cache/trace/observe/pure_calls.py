"""Lets Dynamo take what a listed function gives, instead of looking into the function.

`conditions.pure_helpers` lists the functions. Importing this module loads the compiler.
"""

from __future__ import annotations

import ast
import sys
from types import NoneType
from typing import TYPE_CHECKING, Any

from torch._dynamo.source import GlobalSource
from torch._dynamo.variables import VariableTracker

from npugx_cache.conditions import pure_helpers
from npugx_cache.portable import encode
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    from npugx_cache.trace.observe.observation import Recorder

_origins: dict[int, tuple[object, list[str]]] = {}
"""By id: what helpers gave in traces, which is kept alive here, and what was asked."""


def origin_of(value: object) -> list[str] | None:
    """Module, name and arguments of the call of a helper that gave this object, or None."""
    found = _origins.get(id(value))
    return found[1] if found else None


def answer(
    recorder: Recorder, tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """What a listed function gives for constants, as a value of the trace; or None.

    A restore calls the function again: a constant is compared with what it gives then. An object
    gets a name among the globals, so that Dynamo guards what the trace reads of the object.
    """
    asked = _describe_call(function, args, kwargs)
    if asked is None:
        return None
    try:
        value = pure_helpers.call(*asked)
    except Exception:  # noqa: BLE001 - Dynamo raises what the function raises, such as a bad pattern
        return None
    if isinstance(value, (str, NoneType)):
        recorder.note(Question.GENERATED, tuple(asked), encode(value))
        return VariableTracker.build(tx, value)
    _origins[id(value)] = value, asked
    name = tx.output.install_global_by_id("npugx_answer", value)
    return VariableTracker.build(tx, value, GlobalSource(name))


def _describe_call(function: Any, args: list[Any], kwargs: dict[str, Any]) -> list[str] | None:
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    named = name in pure_helpers.HELPERS.get(module, ())
    if not named or vars(sys.modules[module]).get(name) is not function:
        return None
    try:
        given = tuple(each.as_python_constant() for each in args)
        by_name = {key: each.as_python_constant() for key, each in kwargs.items()}
        text = repr((given, by_name))
        if ast.literal_eval(text) != (given, by_name):
            return None
    except Exception:  # noqa: BLE001 - an argument is no constant, such as a symbolic size
        return None
    return [module, name, text]
