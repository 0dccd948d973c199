"""Reads the schemas of registered operators, and finds variants of an operator."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import _ops

from npugx_cache.private import dispatcher
from npugx_cache.records import NamedTuple


class Argument(NamedTuple):
    """An argument or a result of an operator.

    `aliased`: the schema has an alias annotation for it, such as `Tensor(a)`; it may share memory
    with whatever has the same annotation. `written`: the annotation says that it is written to.
    """

    name: str
    type: str
    default: object
    has_default: bool
    keyword_only: bool
    aliased: bool
    written: bool

    @property
    def holds_tensors(self) -> bool:
        return "Tensor" in self.type


class Schema(NamedTuple):
    """What a schema says. `name` is "namespace::name".

    `composite`: the operator calls other operators, so it may alias or write what the schema does
    not name. `aliased` and `written` are the names of such arguments, and `positions` the position
    of each argument: a compile asks for them many times for each node.
    """

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    composite: bool
    aliased: tuple[str, ...]
    written: tuple[str, ...]
    positions: dict[str, int]

    @property
    def namespace(self) -> str:
        return self.name.partition("::")[0]


def is_operator(target: object) -> bool:
    return isinstance(target, _ops.OpOverload)


def schema_of(target: Any) -> Schema | None:
    """The schema of a node's target; None if the target is not an overload of an operator."""
    return _schema(target) if is_operator(target) else None


@functools.cache
def _schema(operator: Any) -> Schema:
    schema = operator._schema
    maybe = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)
    arguments = tuple(map(_argument, schema.arguments))
    return Schema(
        name=schema.name,
        overload=schema.overload_name,
        arguments=arguments,
        returns=tuple(map(_argument, schema.returns)),
        composite=operator._can_decompose() or maybe in operator.tags,
        aliased=tuple(each.name for each in arguments if each.aliased),
        written=tuple(each.name for each in arguments if each.written),
        positions={each.name: i for i, each in enumerate(arguments)},
    )


def acts(target: Any) -> bool:
    """Whether an operator returns nothing and writes nothing, so that only its effect matters."""
    return is_operator(target) and not (target._schema.returns or target._schema.is_mutable)


def is_custom(operator: Any) -> bool:
    """Whether an operator is outside the namespaces that we know.

    Such an operator may have effects that only its code shows.
    """
    return operator._schema.name.partition("::")[0] not in _KNOWN


_KNOWN = frozenset({"aten", "prims", "streams", "npugx_cache"})


def is_pure(target: Any) -> bool:
    """Whether a node that calls the target may change places with its neighbours.

    So the target neither writes, nor draws random numbers, nor has another effect.
    """
    if is_operator(target):
        seeded = torch.Tag.nondeterministic_seeded in target.tags
        return not (target._schema.is_mutable or seeded or acts(target))
    return getattr(target, "__module__", "") in ("_operator", "math") or target in _SYMBOLIC


def gives_new_memory(target: Any) -> bool:
    """Whether the schema of an operator declares no result to be a view of an argument."""
    schema = schema_of(target)
    return schema is not None and not any(each.aliased for each in schema.returns)


_SYMBOLIC = (torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min, torch.sym_not)


def _argument(argument: Any) -> Argument:
    alias = argument.alias_info
    return Argument(
        name=argument.name,
        type=str(argument.type),
        default=argument.default_value if argument.has_default_value() else None,
        has_default=argument.has_default_value(),
        keyword_only=argument.kwarg_only,
        aliased=alias is not None,
        written=alias is not None and alias.is_write,
    )


def sibling(operator: Any, name: str, overload: str) -> Any:
    """Another operator of the same namespace, or None if that operator is not registered."""
    namespace = operator._schema.name.partition("::")[0]
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, overload or "default", None)


def is_auto_functionalized(target: object) -> bool:
    """Whether a target wraps an operator that writes to its arguments into one that copies them."""
    higher = torch.ops.higher_order
    return target in (higher.auto_functionalized, higher.auto_functionalized_v2)


def given(node: Any, name: str) -> Any:
    """What a node passes for an argument, by position or by name; None if it passes nothing."""
    if name in node.kwargs:
        return node.kwargs[name]
    position = _schema(node.target).positions[name]
    return node.args[position] if position < len(node.args) else None


def in_place_variant(operator: Any) -> Any:
    """`add.Tensor` -> `add_.Tensor`: the operator that writes its result over its first argument.

    None if no such operator takes the same arguments. We look only in the namespaces of torch and
    of the NPU, because a user's `foo` and `foo_` may be unrelated.
    """
    return _unreplaced(operator, _in_place_variant(operator))


@functools.cache
def _in_place_variant(operator: Any) -> Any:
    schema = schema_of(operator)
    if schema is None or schema.namespace not in ("aten", "npu") or _is_excluded(operator):
        return None
    name = schema.name.partition("::")[2]
    variant = sibling(operator, f"{name}_", schema.overload)
    other = schema_of(variant)
    if other is None or _is_excluded(variant):
        return None
    alike = _names_and_types(schema.arguments) == _names_and_types(other.arguments)
    first, *rest = other.arguments or schema.arguments
    writes_first_only = first.written and not any(each.aliased for each in rest)
    returns = [each.written for each in other.returns] == [True]
    is_functional = not any(each.aliased for each in (*schema.arguments, *schema.returns))
    single = len(schema.returns) == 1 and is_functional
    return variant if alike and writes_first_only and returns and single else None


def _unreplaced(operator: Any, variant: Any) -> Any:
    """None if one of the two has a Python kernel that the other has not: results may differ."""
    replaced = variant is not None and any(map(dispatcher.is_replaced, (operator, variant)))
    return None if replaced else variant


def _is_excluded(operator: Any) -> bool:
    return bool({torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded} & set(operator.tags))


def _names_and_types(arguments: tuple[Argument, ...]) -> list[tuple[str, str, bool]]:
    return [(each.name, each.type, each.keyword_only) for each in arguments]


def mutating_variant(operator: Any) -> Any:
    """`foo_functional` -> `foo`: the operator that writes to arguments instead of copies of them.

    The functional form returns the results of `foo`, and then a new copy of each argument that
    `foo` writes to, in the order of the arguments. None if there is no such pair of operators.
    """
    return _unreplaced(operator, _mutating_variant(operator))


@functools.cache
def _mutating_variant(operator: Any) -> Any:
    schema = schema_of(operator)
    if schema is None or schema.namespace not in ("aten", "npu"):
        return None
    name = schema.name.partition("::")[2]
    variant = sibling(operator, name.removesuffix("_functional"), schema.overload)
    other = schema_of(variant)
    if other is None or not name.endswith("_functional") or _is_excluded(operator):
        return None
    alike = _names_and_types(schema.arguments) == _names_and_types(other.arguments)
    written = [each for each in other.arguments if each.written]
    copies = len(schema.returns) - len(other.returns)
    plain = not any(each.aliased for each in (*schema.arguments, *schema.returns, *other.returns))
    if alike and plain and copies == len(written) and all(e.type == "Tensor" for e in written):
        return variant
    return None


def out_variant(operator: Any) -> Any:
    """`mm.default` -> `mm.out`: the operator that writes its one result to the argument `out`.

    None if there is no such operator.
    """
    return _unreplaced(operator, _out_variant(operator))


@functools.cache
def _out_variant(operator: Any) -> Any:
    schema = schema_of(operator)
    if schema is None or _is_excluded(operator) or len(schema.returns) != 1:
        return None
    if any(each.aliased for each in (*schema.arguments, *schema.returns)):
        return None
    packet = operator._overloadpacket
    for overload in packet.overloads():
        variant = getattr(packet, overload)
        *inputs, out = _schema(variant).arguments or schema.arguments
        takes_out = out.name == "out" and out.written and out.keyword_only and out.type == "Tensor"
        if takes_out and _names_and_types(tuple(inputs)) == _names_and_types(schema.arguments):
            return variant
    return None
