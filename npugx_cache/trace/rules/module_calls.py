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
from torch._dynamo.variables import VariableTracker

from npugx_cache.trace.observe import torch_guards
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.rules import names, written_names

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator

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
    if not (changed := set(_find_changed(tx, callee))):
        return run()
    mark, module = len(started), callee.value
    begins: Any = type(module).__call__
    if begins is torch.nn.Module.__call__:
        given = [callee.variable, *args]
        answer = VariableTracker.build(tx, begins).call_function(tx, given, kwargs)
    else:
        answer = run()
    asking = [getattr(getattr(begins, "__code__", None), "co_name", "")]
    if changed == {"forward"}:
        asking.append("_call_impl")
    first = [each.co_name for each in started[mark : mark + 1]]
    if first != asking[:1] and first != asking[1:]:
        recorder.refuse(
            f"{', '.join(sorted(changed))} of a {type(module).__qualname__} was set, and the call "
            "of the module is traced without it"
        )
    return answer


def _find_changed(tx: Any, callee: StackValue) -> Iterator[str]:
    """The names that the traced code has set, and those that are not as torch defines them.

    Dynamo compares the functions of `nn.Module` with those that it has met at its own import.
    """
    effects = tx.output.side_effects
    for name in _OF_MODULE:
        if effects.has_pending_mutation_of_attr(callee.variable, name):
            yield name
    if inspect.getattr_static(callee.value, _COMPILED, None) is not None:
        yield _COMPILED
    for name, own in _OF_TORCH.items():
        function = getattr(torch.nn.Module, name)
        is_of_torch = getattr(function, "__globals__", None) is vars(torch.nn.modules.module)
        if not is_of_torch or function.__code__.co_qualname != own:
            yield name


_OF_TORCH = {"__call__": "Module._wrapped_call_impl", "_call_impl": "Module._call_impl"}


def _note_names(recorder: Recorder, tx: Any, callee: StackValue) -> None:
    names.note_name(recorder, tx, callee.variable, "forward")
    for name in ("__call__", *_OF_CALL):  # Dynamo looks them up in no class, not even in torch's
        recorder.note(Question.NAME, type(callee.value), name)
    for name in _OF_MODULE:
        written_names.look_at_attribute(recorder, callee.variable, name, None)
    if callee.source is not None:
        for name in _OF_CALL:
            if name not in vars(callee.value):
                torch_guards.guard_absence(callee.source, name)
