"""Reads what decides about an operator while a graph is traced: fakes, kernels, rules, dtypes.

Everything is taken from where torch looks: its registries, and the dispatcher. The name of a
function tells nothing, because two fakes in one module may both be called `_`. Importing this
module costs a restore nothing where no graph calls an operator of the user's.
"""

from __future__ import annotations

import sys
import types
from operator import is_
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions.contents import Contents, Pinned
from npugx_cache.portable import (
    NotPortable,
    Plain,
    code_hash,
    contents,
    digest,
    is_covered_class,
    resolve_op,
)
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterable


class Registered:
    """What is registered for one operator; raises `NotPortable` for what can't be written down.

    `read` is what was read of the user's functions. `asked` are the keys whose kernel is known to
    the dispatcher alone.
    """

    def __init__(self, namespace: str, name: str) -> None:
        base, _, overload = name.partition(".")
        self.operator: Any = resolve_op(namespace, base, overload)
        self.qualname: str = self.operator.name()
        self.read: list[Contents] = []
        self.codes: dict[types.CodeType, None] = {}
        self.asked: dict[str, types.CodeType] = {}
        self._seen: set[int] = set()
        rules = dispatcher.rules_of(self.operator)
        functions = [[each, self._part(rules.functions[each])] for each in sorted(rules.functions)]
        self.text: Plain = [functions, sorted(rules.words.items()), self._kernels(rules)]

    def hash(self) -> str:
        return digest([repr(self.text)])[:32]

    def _kernels(self, rules: dispatcher.Rules) -> Plain:
        keys = dispatcher.keys_of(self.qualname)
        if "fake" in rules.functions or "Meta" in keys:  # else the kernel is its own fake
            for key in _DEFAULTS:
                keys.pop(key, None)
        return [[key, self._kernel(key) if made else "C++"] for key, made in keys.items()]

    def _kernel(self, key: str) -> Plain:
        try:
            entry = dispatcher.entry_of(self.operator, key)
        except LookupError as error:
            what = f"nobody can tell which function its kernel for {key} is ({error})"
            raise NotPortable(what) from None
        if entry is None:
            return "falls through"
        module = str(entry.space.get("__name__"))
        values = [[name, self._part(each)] for name, each in sorted(entry.values.items())]
        if not is_covered_module(module):
            self.codes[entry.code] = None
            self.asked[key] = entry.code
        return [module, entry.code.co_qualname, code_hash(entry.code), values]

    def _part(self, value: Any) -> Plain:
        """A part of what is registered; torch's own functions count by what they lead to."""
        kind = type(value)
        if dispatcher.is_empty_tensor(value) or kind is dispatcher.KeySet:
            return kind.__qualname__
        if kind in (list, tuple):
            return [kind.__qualname__, *map(self._part, value)]
        if kind is dict:
            return ["dict", *([name, self._part(each)] for name, each in value.items())]
        if kind is types.FunctionType and is_covered_module(str(value.__globals__.get("__name__"))):
            if id(value) in self._seen:
                return "again"
            self._seen.add(id(value))
            held = map(contents, value.__closure__ or ())  # a flag may change at the first call
            kept = (each for each in held if type(each) is not bool)
            return [value.__module__, value.__qualname__, *map(self._part, kept)]
        if kind.__module__.startswith("torch") and is_covered_class(kind) and kind not in _VALUES:
            return kind.__qualname__
        try:
            found = Contents(value)
        except NotPortable as error:
            raise NotPortable(f"its code captured {type(value).__qualname__}: {error}") from None
        self.read.append(found)
        self.codes.update(found.codes)
        return found.text


_DEFAULTS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Tensor)
"""Classes of torch whose objects are values: the name of the class does not say all."""


def registration_hash(namespace: str, name: str) -> str:
    return Registered(namespace, name).hash()


class Watched:
    """What is registered for some operators, compared by identity between two calls."""

    def __init__(self, facts: Iterable[tuple[str, str, str]]) -> None:
        self._facts = list(facts)
        self._found = [Registered(namespace, name) for namespace, name, _ in self._facts]
        self._pinned = Pinned([each for one in self._found for each in one.read])
        self._version = dispatcher.version()
        self._was = self._now()

    def is_unchanged(self) -> bool:
        now = self._now()
        if len(now) != len(self._was) or not all(map(is_, now, self._was)):
            return False
        return self._pinned.is_unchanged() and self._has_no_other_kernels()

    def _now(self) -> list[object]:
        """What torch's registries hold, and what the dispatcher calls where only it knows."""
        found: list[object] = []
        for one in self._found:
            rules = dispatcher.rules_of(one.operator)
            found += [*rules.functions.values(), *map(sys.intern, rules.words.values())]
            for key in one.asked:
                try:
                    entry = dispatcher.entry_of(one.operator, key)
                except LookupError:
                    entry = None
                if entry is None:
                    found.append(None)
                else:
                    values = entry.values.values()
                    found += [entry.code, *(v for v in values if type(v) not in _MADE_BY_A_CALL)]
        return found

    def _has_no_other_kernels(self) -> bool:
        version = dispatcher.version()
        if version != self._version:  # those of other operators may change
            if any(registration_hash(*fact[:2]) != fact[2] for fact in self._facts):
                return False
            self._version = version
        return True


_MADE_BY_A_CALL = frozenset({tuple, list, dict, dispatcher.KeySet})
