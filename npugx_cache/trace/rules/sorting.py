"""Rules about sorts: Dynamo compares what is sorted, and each key, as constants.

The special methods by which they are compared may be user code, which then runs for real. A key may
also change the list that is sorted, which raises in Python. Importing this module loads the
compiler.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from npugx_cache.trace.rules import by_value, containers, operators
from npugx_cache.trace.stack_value import called_name, look_behind, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue


class _Keys(list[Any]):
    """The functions by whose results lists are sorted now."""


def call(
    recorder: Recorder,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Run a call, which may be a sort or ask for a key of one."""
    keys = recorder.state(_Keys)
    if (name := called_name(callee)) in ("sort", "sorted"):
        listed = args[0] if callee.owner is None else callee.owner
        if (key := kwargs.get("key")) is not None:
            run = partial(_run_with_key, keys, key, run)
        elif name == "sort":  # of the arguments of sorted() there is another rule
            _refuse_comparison(recorder, listed)
        return _sort(recorder, listed, run) if name == "sort" else run()
    result = run()
    if any(callee.variable is each for each in keys):
        _refuse_comparison(recorder, result)
    return result


def _run_with_key(keys: _Keys, key: Any, run: Callable[[], Any]) -> Any:
    keys.append(look_behind(key.realize()).variable)
    try:
        return run()
    finally:
        keys.pop()


def _sort(recorder: Recorder, listed: Any, run: Callable[[], Any]) -> Any:
    """Sort in place; sorted() makes a list of its own first, which no key can change."""
    table = table_of(look_behind(listed.realize()).variable)
    before = sorted(containers.items_of(table)) if containers.has_items(table) else None
    result = run()
    if before is not None and sorted(containers.items_of(table)) != before:
        containers.end_change(recorder, table)
    return result


def _refuse_comparison(recorder: Recorder, compared: Any) -> None:
    reason = operators.obstacle_of_values(by_value.parts([compared]), ("__lt__", "__gt__"), ())
    if reason is not None:
        recorder.refuse(reason)
