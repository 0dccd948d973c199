"""Rules about functions with a `functools.lru_cache`, which Dynamo interprets at each call.

Python gives what the first call with equal arguments gave, and runs nothing. The two are the same
only if the function writes nothing, and computes nothing with tensors, because the caller may write
to a tensor that is remembered. And of what the function reads, Python sees no change, so that the
function itself is asked for its answer: now, at a restore, and at each later call, as eager asks.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

from npugx_cache.conditions import source_facts
from npugx_cache.portable import NotPortable
from npugx_cache.trace.observe import objects
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.rules import containers
from npugx_cache.trace.stack_value import NONE, classes_of, look_behind, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue


def call(
    recorder: Recorder,
    tx: Any,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Run a call, and refuse what Python would not do at each call."""
    function = _cached(callee)
    if function is None:
        return run()
    before = _done(tx)
    result = run()
    name = f"{function.__qualname__}, which has a functools.lru_cache,"
    if _done(tx) != before:
        recorder.refuse(
            f"{name} computes with tensors or writes, which Python does in the first call alone"
        )
    elif not _reads_arguments_alone(function.__wrapped__):
        _ask(recorder, function, name, args, kwargs, result)
    return result


def _cached(callee: StackValue) -> Any:
    """The function with a cache that a call runs, or None."""
    value = callee.value
    while isinstance(value, (functools.partial, types.MethodType, staticmethod, classmethod)):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    if value is NONE and callee.owner is not None and callee.name is not None:
        classes = classes_of(look_behind(callee.owner))
        holder = next((each for each in classes if callee.name in vars(each)), object)
        value = vars(holder).get(callee.name)
        value = getattr(value, "__func__", value)
    return value if type(value) is source_facts.LRU_CACHE else None


def _done(tx: Any) -> tuple[object, ...]:
    """What the trace has computed and written so far."""
    output = tx.output
    computed = sum(not _is_number(node) for node in output.graph.nodes)
    return computed, len(output.random_calls), _written(output.side_effects)


def _is_number(node: fx.Node) -> bool:
    """Whether a node computes with symbolic sizes, which no caller can write to."""
    return isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _written(effects: Any) -> dict[int, object]:
    """What the trace has written to each object that was there before the call."""
    written: dict[int, object] = {}
    for variable in effects.id_to_variable.values():
        is_new = isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew))
        if not is_new and effects.is_modified(variable):
            table = table_of(variable)
            items = containers.items_of(table) if containers.has_items(table) else []
            names = effects.store_attr_mutations.get(variable, {})
            written[id(variable)] = items, {name: id(each) for name, each in names.items()}
    return written


def _reads_arguments_alone(function: Any) -> bool:
    """Whether code names nothing outside of it, as one that does arithmetic.

    The functions of `torch.overrides` list names of torch's, and are called for each subclass.
    """
    if getattr(function, "__module__", None) == "torch.overrides":
        return True
    code = getattr(function, "__code__", None)
    return code is not None and not (code.co_names or code.co_freevars)


def _ask(
    recorder: Recorder,
    function: Any,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    result: Any,
) -> None:
    """Ask the function itself; a condition asks again."""
    try:
        arguments = objects.arguments_of(args, kwargs)
        traced = look_behind(result).variable.as_python_constant()
        if not objects.is_fixed(traced):
            raise NotPortable(arguments)  # noqa: TRY301
        asked = source_facts.asked_again(function, arguments)
        is_same = source_facts.answer_text(traced) == asked
    except Exception:  # noqa: BLE001 - no constant, no name leads to it, or code of the user's raises
        recorder.refuse(f"{name} is not asked with constants for a constant")
        return
    if not is_same:
        recorder.refuse(f"{name} remembers an answer that is no longer what it would compute")
    recorder.note(Question.CONSTANT, function, (arguments, asked))
