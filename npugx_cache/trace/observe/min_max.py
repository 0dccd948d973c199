"""Answers min() and max() with a key by code that Dynamo interprets.

Before torch 2.15 Dynamo runs both for real, and the key with them, so that nobody sees what the key
reads and changes. Since then Dynamo walks a copy, which the key may change in Python.
Importing this module loads the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo import variables
from torch._dynamo.variables import VariableTracker

from npugx_cache.trace.stack_value import constant_of, look_behind

if TYPE_CHECKING:
    from collections.abc import Callable


def call(
    tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any], run: Callable[[], Any]
) -> Any:
    """Answer a call of `min` or `max` that names a key."""
    if not args or constant_of(look_behind(kwargs["key"])) is None:
        return run()
    items = args[0] if len(args) == 1 else VariableTracker.build(tx, tuple(args))
    empty = VariableTracker.build(tx, _TEXTS[function])
    default = [kwargs["default"]] if "default" in kwargs else []
    is_smallest = VariableTracker.build(tx, function is min)
    choose: Any = _choose
    return variables.UserFunctionVariable(choose).call_function(
        tx, [is_smallest, items, kwargs["key"], empty, *default], {}
    )


def _text_of_empty(function: Callable[[Any], Any]) -> str:
    """What the exception for no items says, which differs between versions of Python."""
    try:
        function(())
    except ValueError as error:
        return str(error)
    raise AssertionError("min() and max() of nothing raise")


_TEXTS: dict[Any, str] = {each: _text_of_empty(each) for each in (min, max)}


# The function below uses no name of this module: a graph would depend on the name, and a check of
# the graph would import the module, and with it the compiler.


def _choose(is_smallest: bool, items: Any, key: Any, empty: str, *default: Any) -> Any:
    is_empty, best, chosen = True, None, None
    for item in items:
        value = key(item)
        if is_empty or (value < best if is_smallest else value > best):
            is_empty, best, chosen = False, value, item
    if not is_empty:
        return chosen
    if default:
        return default[0]
    raise ValueError(empty)


CODE = _choose.__code__
"""What Dynamo interprets in the place of a call."""
