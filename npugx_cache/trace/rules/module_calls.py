"""Rules about calls of modules: what Python looks up before it comes to `forward`.

`nn.Module.__call__` asks the module for `_compiled_call_impl` and for `_call_impl`, and the latter
asks for hooks and for `forward`. To save time, Dynamo begins with the `forward` of the class where
it finds nothing else. It looks for that in the module as it was before the trace, leaves
`_compiled_call_impl` out, and installs guards for `forward` and hooks alone. Importing this module
loads the compiler.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.trace.observe import torch_guards
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.rules import names

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue

_COMPILED = "_compiled_call_impl"
_OF_CALL = (_COMPILED, "_call_impl")
_OF_MODULE = (*_OF_CALL, "forward")
"""The names that a call looks up in the module itself, in this order."""


def call(
    recorder: Recorder,
    tx: Any,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    started: list[types.CodeType],
    run: Callable[[], Any],
) -> Any:
    """Run the call of a module, from its `__call__` on where one of the names was set.

    `started` is the code that Dynamo has begun to interpret so far.
    """
    _note_names(recorder, tx, callee)
    effects, module = tx.output.side_effects, callee.value
    changed = {
        name
        for name in _OF_MODULE
        if effects.has_pending_mutation_of_attr(callee.variable, name)
        or (name == _COMPILED and inspect.getattr_static(module, name, None) is not None)
    }
    if not changed:
        return run()
    mark, begins = len(started), type(module).__call__
    if begins is torch.nn.Module.__call__:
        answer = callee.variable.call_method(tx, begins.__name__, list(args), kwargs)
    else:
        answer = run()
    first = [each.co_name for each in started[mark : mark + 1]]
    asking = [begins.__name__]
    if changed == {"forward"}:
        asking.append("_call_impl")
    if first != asking[:1] and first != asking[1:]:
        recorder.refuse(
            f"{', '.join(sorted(changed))} of a {type(module).__qualname__} was set, and the call "
            "of the module is traced without it"
        )
    return answer


def _note_names(recorder: Recorder, tx: Any, callee: StackValue) -> None:
    for name in _OF_MODULE:
        names.note_name(recorder, tx, callee.variable, name)
    for name in ("__call__", *_OF_CALL):  # Dynamo looks them up in no class, not even in torch's
        recorder.note(Question.NAME, type(callee.value), name)
    if callee.source is not None:
        for name in _OF_CALL:
            if name not in vars(callee.value):
                torch_guards.guard_absence(callee.source, name)
