"""Rules about functions with a `functools.lru_cache`, which Dynamo interprets at each call.

Python gives what the first call with equal arguments gave, and runs nothing. The two are the same
only if the function writes nothing, and computes nothing with tensors, because the caller may write
to a tensor that is remembered. And of what the function reads, Python sees no change, so that the
function itself is asked for its answer, a constant: now, at a restore, and at each later call.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import ObservedException
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
    """Run a call of a function with a cache, and refuse what Python would not do at each call."""
    function = function_of(callee)
    before = _effects_so_far(tx)
    name = f"{function.__qualname__}, which has a functools.lru_cache,"
    try:
        result = run()
    except ObservedException:
        recorder.refuse(f"{name} raises an exception, which Python does not remember")
        raise
    if _effects_so_far(tx) != before:
        recorder.refuse(
            f"{name} computes with tensors or writes, which Python does in the first call alone"
        )
    elif not _gives_the_same_always(function):
        _ask(recorder, function, name, callee, args, kwargs, result)
    return result


_LISTS_OF_TORCH = frozenset({"torch.overrides", "torch.utils._device"})
"""Modules whose functions with a cache list what torch has, which its version tells.

A trace comes by the functions for each subclass of a tensor, and for each default device.
"""


def _gives_the_same_always(function: Any) -> bool:
    """Whether a function with a cache is known to read nothing but its arguments.

    einops computes the sizes of a result with one, from a parsed pattern and from sizes that may
    vary, and writes to no list that it gives. torch knows the function as well (see
    `_EINOPS_LRU_CACHE_WRAPPER_ALLOWLIST` in `torch/_dynamo/decorators.py`).
    """
    einops = sys.modules.get("einops.einops")
    is_of_einops = function is getattr(einops, "_reconstruct_from_shape", None)
    return is_of_einops or getattr(function, "__module__", None) in _LISTS_OF_TORCH


def function_of(callee: StackValue) -> Any:
    """The function with a cache that a call runs, also as a method; or None.

    A partial calls it inside, where that call comes by here.
    """
    value = callee.value
    if isinstance(value, types.MethodType):
        value = value.__func__
    if value is NONE and callee.owner is not None and callee.name is not None:
        classes = classes_of(look_behind(callee.owner))
        holder = next((each for each in classes if callee.name in vars(each)), object)
        value = vars(holder).get(callee.name)
        value = getattr(value, "__func__", value)
    return value if type(value) is source_facts.LRU_CACHE else None


def _effects_so_far(tx: Any) -> tuple[object, ...]:
    """What the trace has computed and written so far."""
    output = tx.output
    computed = sum(not _is_number(node) for node in output.graph.nodes)
    return computed, len(output.random_calls), _writes_by_object(output.side_effects)


def _is_number(node: fx.Node) -> bool:
    """Whether a node computes with symbolic sizes, which no caller can write to."""
    return isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _writes_by_object(effects: Any) -> dict[int, object]:
    """What the trace has written to each object that was there before the call."""
    written: dict[int, object] = {}
    for variable in effects.id_to_variable.values():
        is_new = isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew))
        if not is_new and effects.is_modified(variable):
            table = table_of(variable)
            items = containers.items_of(table) if containers.has_items(table) else []
            items += map(id, getattr(vars(table).get("items"), "values", tuple)())
            names = effects.store_attr_mutations.get(variable, {})
            written[id(variable)] = items, {name: id(each) for name, each in names.items()}
    return written


def _ask(
    recorder: Recorder,
    function: Any,
    name: str,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    result: Any,
) -> None:
    """Ask the function itself; a condition asks again.

    Where the trace is refused already, eager must be the first that asks.
    """
    if any(each.question is Question.UNCHECKABLE for each in recorder.observations()):
        return
    try:
        if callee.value is not function or "obj" in vars(callee.variable):
            # A method, whose object is no constant.
            raise NotPortable(name)  # noqa: TRY301
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
