"""Facts about kinds: of which class a value is, whether it can be called, and what makes objects.

Dynamo answers such a question once and for all. Classes are edited later, and registered with
others. Importing this module loads the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.trace.observe import classes, enumerations, objects
from npugx_cache.trace.rules import written_names

if TYPE_CHECKING:
    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue


def note_call(recorder: Recorder, tx: Any, callee: StackValue, args: list[Any]) -> None:
    """Before a call."""
    function = callee.value
    if function is isinstance and len(args) == 2:
        objects.note_isinstance(recorder, tx, *args)
    elif function is issubclass and len(args) == 2:
        objects.note_issubclass(recorder, *args)
    elif function is callable and args:
        objects.note_callable(recorder, args[0])
    elif function is vars and args:
        written_names.note_dict(recorder, args[0])
    elif isinstance(function, type):
        classes.refuse_to_make(recorder, function)
        enumerations.note_call(recorder, function, args)
