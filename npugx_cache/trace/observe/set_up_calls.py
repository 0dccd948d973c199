"""Ends a trace of ours at a call that sets a model up, before the trace meets what it can't do.

`conditions.set_up` says which calls these are. The set-up is done outside of the trace, and then
the call is traced once more. Importing this module loads the compiler.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch._dynamo import exc
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

from npugx_cache.conditions import set_up
from npugx_cache.trace import tracing

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from npugx_cache.conditions.set_up import SetUp
    from npugx_cache.trace.observe.observation import Recorder


@dataclass(frozen=True, slots=True)
class Stopped:
    """Where a trace was ended: the set-up that is due, the source of its model, what was met."""

    set_up: SetUp
    source: tracing.Source
    met: tracing.MetSoFar


class SetUps:
    """What the hook tells the one who runs the trace: `Recorder.state`."""

    def __init__(self) -> None:
        self.stopped: Stopped | None = None


class SetUpIsDue(exc.TorchDynamoException):
    """Ends a trace. Dynamo catches other exceptions, and goes on in another way."""


def call(
    recorder: Recorder,
    tx: Any,
    function: types.FunctionType,
    args: list[Any],
    kwargs: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """End the trace where a library would set a model up."""
    name = set_up.name_of(function)
    if name is None or len(args) != 1 or kwargs:
        return run()
    model = args[0].realize()
    due = set_up.due(name, getattr(model, "value", None))
    if due is None or model.source is None or _has_changed_what_is_read(tx, due.name):
        return run()
    met = tracing.met_so_far(tx.output)
    recorder.state(SetUps).stopped = Stopped(due, model.source, met)
    raise SetUpIsDue(due.name)


def _has_changed_what_is_read(tx: Any, name: str) -> bool:
    """Whether the call has changed an object before, as eager does, that the set-up may read.

    The trace has not done so to the real object, so the set-up would find it as it was.
    """
    effects = tx.output.side_effects
    tracked = list(effects.id_to_variable.values())
    changed = [each for each in tracked if each.mutation_type and effects.is_modified(each)]
    made_here = (AttributeMutationNew, ValueMutationNew)
    return any(
        not isinstance(each.mutation_type, made_here)
        and not _is_of_the_call(tx, each.source)
        and not set_up.is_unrelated(name, getattr(each, "value", None))
        for each in changed
    )


def _is_of_the_call(tx: Any, source: Any) -> bool:
    """Whether it is the dict of the call's keyword arguments, which Python makes for each call."""
    code = tx.output.root_tx.f_code
    has_one, more = code.co_flags & inspect.CO_VARKEYWORDS, code.co_flags & inspect.CO_VARARGS
    if not has_one or type(source) is not tracing.sources.LocalSource:
        return False
    place = code.co_argcount + code.co_kwonlyargcount + bool(more)
    return bool(source.local_name == code.co_varnames[place])
