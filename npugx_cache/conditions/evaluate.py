"""Evaluates a guard tree: reads the live value of every node in one pass, parents first."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from npugx_cache import config
from npugx_cache.conditions.data import CALL, Conditions, Node, Step
from npugx_cache.portable import NotPortable, decode, ordered_keys, resolve

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npugx_cache.portable import Plain


class Scope:
    """Where the roots of a guard tree are looked up for one call.

    `frame_locals` are the bound arguments and the contents of the free variables;
    `frame_globals` is the global dict of the module that defines the traced function; `code` is the
    code that the function has now, `switches` are torch's (`key.environment.call_state`). `owner`
    is the object that the function is bound to, if this object lives as long as the function does.
    """

    __slots__ = ("code", "frame_globals", "frame_locals", "owner", "switches")

    def __init__(
        self,
        frame_locals: Mapping[str, object],
        frame_globals: Mapping[str, Any],
        code: types.CodeType | None = None,
        switches: tuple[object, ...] = (),
        owner: object = None,
    ) -> None:
        self.frame_locals, self.frame_globals = frame_locals, frame_globals
        self.code, self.switches, self.owner = code, switches, owner


class Unreachable(Exception):
    """A node of the tree does not exist in the live objects: its index, and why."""


Prepared = tuple[int, int, Any]
"""A node as parent, step and decoded argument: what the inner loop needs."""


def prepare(node: Node) -> Prepared:
    """One node for `read`; arguments of roots and attributes are names and stay as they are."""
    return node.parent, int(node.step), _argument(int(node.step), node.arg)


def plan(tree: Conditions) -> tuple[Prepared, ...]:
    args = [
        arg if type(arg) is not list else _argument(step, arg)
        for step, arg in zip(tree.steps, tree.args, strict=True)
    ]
    return tuple(zip(tree.parents, tree.steps, args, strict=True))


def part_of(
    tree: Conditions, steps: Sequence[Prepared], nodes: Iterable[int]
) -> tuple[tuple[Prepared, ...], dict[int, int]]:
    """The part of a plan that these nodes need, and where in it each node is."""
    needed = tree.with_ancestors(nodes)
    place = {node: position for position, node in enumerate(needed)} | {CALL: CALL}
    part = [(place[p], step, arg) for p, step, arg in map(steps.__getitem__, needed)]
    return tuple(part), place


def _argument(step: int, arg: Plain) -> Any:
    return arg if step <= Step.GENERIC_ATTR else decode(arg)


def read(prepared: Prepared, values: Sequence[Any], scope: Scope) -> Any:
    """The live value of one node, given the values of the nodes before it; raises anything."""
    parent, step, arg = prepared
    if parent < 0:
        return _ROOTS[step](scope, arg)
    return _STEPS[step](values[parent], arg)


def evaluate(steps: Sequence[Prepared], scope: Scope) -> list[Any]:
    """The value at every node; raises `Unreachable` at the first that is missing."""
    values: list[Any] = []
    append = values.append
    attr, item, index = int(Step.ATTR), int(Step.ITEM), int(Step.INDEX)
    try:
        for parent, step, arg in steps:
            if step == attr:
                append(getattr(values[parent], arg))
            elif step == item:
                base = values[parent]
                append(dict.__getitem__(base, arg) if isinstance(base, dict) else base[arg])
            elif step == index:
                append(values[parent][arg])
            else:
                append(read((parent, step, arg), values, scope))
    except Exception as error:  # noqa: BLE001 - user properties may raise anything: a miss
        raise Unreachable(len(values), error) from None
    return values


MISSING = object()
"""Stands for the value of a node that does not exist, when all nodes are wanted."""


def evaluate_all(steps: Sequence[Prepared], scope: Scope) -> list[Any]:
    """The value at every node, `MISSING` where there is none: for explaining a miss."""
    values: list[Any] = []
    for prepared in steps:
        parent = prepared[0]
        if parent >= 0 and values[parent] is MISSING:
            values.append(MISSING)
            continue
        try:
            values.append(read(prepared, values, scope))
        except Exception:  # noqa: BLE001 - as in evaluate()
            values.append(MISSING)
    return values


def _builtins(scope: Scope, _: Plain) -> Any:
    builtins = scope.frame_globals["__builtins__"]
    return builtins if isinstance(builtins, dict) else vars(builtins)


def _function_globals(_: Scope, arg: Plain) -> Any:
    module, _, qualname = arg.partition(":")
    found: Any = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part)
    return found.__globals__


def _resolve_object(_: Scope, arg: Plain) -> Any:
    try:
        return resolve(arg)
    except NotPortable as error:
        raise LookupError(str(error)) from None


def _plain_of(value: Any) -> int | float | str:
    """The value of an object whose class derives from a plain one; runs none of its methods."""
    for kind, convert in ((int, int.__int__), (float, float.__float__), (str, str.__str__)):
        if issubclass(type(value), kind):
            found: int | float | str = convert(value)
            return found
    raise TypeError(f"a {type(value).__name__} in the place of a number or a text")


def _referent(reference: Any) -> Any:
    if type(reference) is not weakref.ref:  # anything else might do more than look
        raise TypeError(f"a {type(reference).__name__} in the place of a weak reference")
    return reference()


def _remaining(iterator: Any, index: int) -> Any:
    from npugx_cache.backend.frame_shims import tuple_iterator_getitem

    return tuple_iterator_getitem(iterator, index)


def _answer(_: Scope, name: Any) -> object:
    from npugx_cache.conditions.process import answer  # needs torch, which `readable` does without

    return answer(name)


def _call_helper(_: Scope, asked: Any) -> object:
    from npugx_cache.conditions import pure_helpers  # few entries need it

    return pure_helpers.call(*asked)


_ROOTS: dict[int, Callable[[Scope, Any], Any]] = {
    Step.LOCAL: lambda scope, name: scope.frame_locals[name],
    Step.GLOBAL: lambda scope, name: scope.frame_globals[name],
    Step.MODULE: lambda _, name: sys.modules[name],
    Step.NAMESPACE: lambda _, name: vars(sys.modules[name]),
    Step.BUILTINS: _builtins,
    Step.OBJECT: _resolve_object,
    Step.FUNCTION_GLOBALS: _function_globals,
    Step.OWN_GLOBALS: lambda scope, _: scope.frame_globals,
    Step.ENVIRONMENT: lambda _, name: config.environment_variable(name),
    Step.ANSWER: _answer,
    Step.CALLED: _call_helper,
}

_STEPS: dict[int, Callable[[Any, Any], Any]] = {
    Step.ATTR: getattr,
    Step.GENERIC_ATTR: object.__getattribute__,
    Step.ITEM: lambda base, key: (
        dict.__getitem__(base, key) if isinstance(base, dict) else base[key]
    ),
    Step.INDEX: lambda base, index: base[index],
    Step.KEY_AT: lambda base, index: ordered_keys(base)[index],
    Step.VALUE_AT: lambda base, index: dict.__getitem__(base, ordered_keys(base)[index]),
    Step.TYPE: lambda base, _: type(base),
    Step.TYPE_DICT: lambda base, _: base.__dict__,
    Step.MRO: lambda base, _: base.__mro__,
    Step.DEFAULT: lambda base, index: base.__defaults__[index],
    Step.KWDEFAULT: lambda base, name: base.__kwdefaults__[name],
    Step.CLOSURE: lambda base, _: base.__closure__,
    Step.CODE: lambda base, _: base.__code__,
    Step.REFERENT: lambda base, _: _referent(base),
    Step.REMAINING: _remaining,
    Step.PLAIN: lambda base, _: _plain_of(base),
    Step.SUBCLASSES: lambda base, _: type.__subclasses__(base),
    Step.SIZE: lambda base, dim: base.size(dim),
    Step.STRIDE: lambda base, dim: base.stride(dim),
    Step.STORAGE_OFFSET: lambda base, _: base.storage_offset(),
    Step.NUMBER: lambda base, _: base.item(),
}
