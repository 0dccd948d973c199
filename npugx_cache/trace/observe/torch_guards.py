"""Installs torch's own guards where Dynamo reads a value and forgets the guard.

A hook does this, in the place of an observation, where torch has a guard that says what is needed.
The guard must be there while the trace still runs: Dynamo looks at the guards of a dict later, a
graph that only this process may run runs under torch's guards alone (`trace.process_local`), and a
refusal is stored with the guards that the trace had met. Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import dicts


def guard_keys(value: Any) -> None:
    """All keys of a dict from outside, in their order."""
    if isinstance(value, dicts.ConstDictVariable) and value.source:
        value.install_dict_keys_match_guard()


def guard_absent_key(value: Any, tx: Any, key: Any) -> None:
    """That a dict has no such key."""
    if key not in value:
        value.install_dict_contains_guard(tx, [key])


def guard_object_keys(value: Any) -> None:
    """All names in the `__dict__` of an object."""
    if value.source:
        install_guard(value.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))


def guard_object_key(value: Any, key: Any) -> None:
    """Whether a name is in the `__dict__` of an object.

    By what is there before the call: attributes that the traced code sets don't count.
    """
    if not value.source:
        return
    if not key.is_python_constant():
        guard_object_keys(value)
        return
    name, kinds = key.as_python_constant(), type(value)
    kind = kinds.CONTAINS_GUARD if name in value.items.item_dict else kinds.NOT_CONTAINS_GUARD
    install_guard(value.source.make_guard(functools.partial(kind, key=name)))


def guard_attribute(value: Any, name: str) -> None:
    """Whether an object from outside has an attribute."""
    if not value.source:
        return
    if "attr" in inspect.signature(GuardBuilder.HASATTR).parameters:  # since torch 2.12
        kind = functools.partial(GuardBuilder.HASATTR, attr=name)
        install_guard(value.source.make_guard(kind))
    else:
        install_guard(AttrSource(value.source, name).make_guard(GuardBuilder.HASATTR))
