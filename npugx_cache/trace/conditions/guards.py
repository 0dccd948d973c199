"""Turns Dynamo's guards into conditions. A guard kind without a portable form refuses the trace."""

from __future__ import annotations

import collections
import copyreg
import functools
import inspect
import re
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.utils import _pytree as pytree

from npugx_cache import location
from npugx_cache.conditions import Kind, Step, shapes
from npugx_cache.conditions.data import CALL
from npugx_cache.conditions.kinds import iterator_state
from npugx_cache.portable import (
    NotPortable,
    OnlyHere,
    encode,
    identity,
    is_covered_class,
    module_of,
    ordered_keys,
)
from npugx_cache.private import meshes, process_groups
from npugx_cache.trace import refuse, tracing
from npugx_cache.trace.conditions.wrapper_subclasses import add_attributes
from npugx_cache.trace.observe import autocast_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npugx_cache.trace.conditions.builder import TreeBuilder

STATE_KINDS = frozenset(
    {
        "GRAD_MODE",
        "DETERMINISTIC_ALGORITHMS",
        "GLOBAL_STATE",
        "FSDP_TRAINING_STATE",
        "TORCH_FUNCTION_STATE",
        "DEFAULT_DEVICE",
        "AUTOGRAD_SAVED_TENSORS_HOOKS",
        "DUAL_LEVEL",
        "FUNCTORCH_STACK_MATCH",
        "SHAPE_ENV",  # its conditions are added by add_shape_conditions
    }
)
"""Guards on global torch state: all of it is compared at every check, whether guarded or not."""


def add_guards(
    builder: TreeBuilder, rows: list[Any], sizes: Any = (), key_ordered: Any = ()
) -> None:
    """Add torch's guards, which are as in `tracing.Guards`.

    Raises `NotPortable` at the first that has no portable form.
    """
    stacks = {}
    for guard in in_order(builder, rows):
        kind, source, parameters = tracing.guard_row(guard)
        stacks[source] = guard.user_stack
        try:
            # On the stack of modes is a default device, which is state, or the call is refused.
            is_state = kind in STATE_KINDS or tracing.is_on_mode_stack(source)
            # Class and attributes, which are compared, tell which tensors a tensor holds.
            is_implied = is_state or tracing.is_list_of_inner(source)
            if is_implied or builder.in_compiler(source):
                continue
            if kind == "TYPE_MATCH" and tracing.is_current_stream(source):
                continue  # there is one on every device, and a program takes the one of its call
            if kind == "EMPTY_NN_MODULE_HOOKS_DICT" and _without_effect(builder, source):
                continue
            if kind == "TENSOR_MATCH":
                _add_tensor(builder, source, sizes)
            elif kind == "DUPLICATE_INPUT":
                _add_alias(builder, source, parameters["source_b"])
            else:
                _add_guard(builder, kind, builder.node(source), parameters)
        except (NotPortable, refuse.NotEager) as error:
            raise type(error)(_reason(source, error, guard.user_stack)) from None
    # A set: in an order of its own, so that equal traces make equal entries.
    for source in sorted(key_ordered, key=tracing.source_name):
        try:
            _add_keys(builder, source, builder.node(source))
        except NotPortable as error:
            raise type(error)(_reason(source, error, stacks.get(source))) from None
    _add_registrations(builder)


def _reason(source: Any, error: Exception, stack: Any) -> str:
    what = f"{tracing.source_name(source)}: {error}"
    return location.reason(what, location.of_frames(stack), _CHANGE)


_CHANGE = "read it outside the cached function and pass plain values or tensors in"


def add_shape_conditions(
    builder: TreeBuilder, conditions: list[str], variables: dict[str, Any]
) -> None:
    """Add torch's conditions on symbolic sizes, which are Python over `variables`."""
    import re

    for text in conditions:
        used = {name for name in variables if re.search(rf"\b{name}\b", text)}
        nodes = {name: builder.node(variables[name]) for name in sorted(used)}
        builder.check(CALL, Kind.SHAPE, shapes.parse(text, nodes))


def _without_effect(builder: TreeBuilder, source: Any) -> bool:
    """Whether hooks in this dict of a module can't change a result.

    Graphs run without grad, where `Module.__call__` does nothing with backward hooks; and it asks
    which hooks take keyword arguments only when there are hooks, which has a guard of its own.
    """
    name = getattr(source, "member", "")
    if name in ("_backward_hooks", "_backward_pre_hooks"):
        return True
    hooks = name.removesuffix("_with_kwargs")
    return hooks != name and not getattr(builder.value(builder.node(source.base)), hooks)


def in_order(builder: TreeBuilder, guards: Iterable[Any]) -> list[Any]:
    """The guards in the same order in every process, so that equal traces make equal entries.

    Dynamo keeps them in a set, and puts counters and addresses into the names of their sources.
    """
    root_of = functools.cache(builder.root_name)

    def name_of(source: Any) -> str:
        name = tracing.full_name(source)
        return tracing.GLOBAL_IN_NAME.sub(lambda found: root_of(found[1]), name)

    def place(guard: Any) -> tuple[Any, ...]:
        _, source, parameters = tracing.guard_row(guard)
        name, other = name_of(source), parameters.get("source_b")
        about = name_of(other) if other is not None else repr(parameters.get("attr"))
        # As torch has them: those of a source come before those of what the source holds.
        return other is not None, guard.source.value, len(name), name, tracing.line(guard), about

    return sorted(guards, key=place)


def _add_keys(builder: TreeBuilder, source: Any, node: int) -> None:
    """Add the condition on the keys, in their order, of a dict whose keys were walked."""
    if _add_registry(builder, node) or _add_hooks(builder, source, node):
        return
    if isinstance(builder.value(node), dict):
        builder.check(node, Kind.KEYS, encode(ordered_keys(builder.value(node))))


_REGISTRIES = (pytree.SUPPORTED_NODES, copyreg.dispatch_table)


def _add_registry(builder: TreeBuilder, node: int) -> bool:
    """Leave the tables of pytree nodes and of copied classes to `_add_registrations`."""
    if not any(builder.value(node) is each for each in _REGISTRIES):
        return False
    builder.registries.add(node)
    return True


def _add_hooks(builder: TreeBuilder, source: Any, node: int) -> bool:
    """Guard how many hooks a module has, where the trace relied on the keys of the dict of them.

    The keys count the hooks that a process ever registered. They matter only where they lead into
    another dict that says which of the hooks take keywords or run after an exception.
    """
    name = getattr(source, "member", "")
    if name not in ("_forward_hooks", "_forward_pre_hooks"):
        return False
    base = builder.node(source.base)
    others = [f"{name}_with_kwargs", f"{name}_always_called"]
    beside = [(other, vars(builder.value(base)).get(other)) for other in others]
    if not isinstance(builder.value(base), Module) or any(found for _, found in beside):
        return False
    builder.check(node, Kind.LENGTH, len(builder.value(node)))
    for other, found in beside:
        if found is not None:
            builder.check(builder.step(base, Step.ATTR, other), Kind.LENGTH, 0)
    return True


def _add_registrations(builder: TreeBuilder) -> None:
    """Guard which of the classes that the trace met are in such a table.

    Other classes in a table don't matter: every imported library registers some.
    """
    for node in sorted(builder.registries):
        registry = builder.value(node)
        for cls in sorted(builder.classes(), key=lambda cls: (module_of(cls), cls.__qualname__)):
            try:
                key = encode(cls)
            except NotPortable:
                if cls in registry:
                    raise
                continue  # it can't be registered under this name in another process either
            builder.check(node, Kind.CONTAINS if cls in registry else Kind.NOT_CONTAINS, key)


def _add_tensor(builder: TreeBuilder, source: Any, sizes: Any) -> None:
    node = builder.node(source)
    if source not in sizes:
        raise NotPortable("a tensor that is guarded by its address")
    layout = sizes[source]
    size, stride = tracing.concrete(layout["size"]), tracing.concrete(layout["stride"])
    builder.check_tensor(node, size, stride)


def _add_alias(builder: TreeBuilder, source: Any, other: Any) -> None:
    if tracing.is_aliasing_guarded(source, other) and not builder.in_compiler(other):
        builder.check(CALL, Kind.SAME, [builder.node(source), builder.node(other)])


def _add_guard(builder: TreeBuilder, kind: str, node: int, parameters: dict[str, Any]) -> None:
    add = _HANDLERS.get(kind)
    if add is None:
        raise OnlyHere(f"a {kind} guard has no portable form yet")
    add(builder, node, builder.value(node), parameters)


def _constant(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    if meshes.is_mesh(value):  # before torch 2.12
        _mesh(builder, node)
        return
    builder.check(node, Kind.EQUALS, encode(value))


def _plain_value(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    """Guard the number or text that an object is. Other guards are on its class and attributes."""
    if is_covered_class(type(value)):  # such as torch.__version__
        _constant(builder, node, value, None)
        return
    plain = builder.step(node, Step.PLAIN, None)
    if (name := _replaced_name(type(value), type(builder.value(plain)))) is not None:
        # Dynamo asks the class for the value, and computes with the value.
        what = f"a {type(value).__qualname__} is traced as a plain value without its {name}"
        raise NotPortable(what)
    builder.check(plain, Kind.EQUALS, encode(builder.value(plain)))


def _replaced_name(cls: type, plain: type) -> str | None:
    """A member of a plain class that a class derived from it, or a base of this, replaces."""
    bodies = [vars(base) for base in cls.__mro__ if base not in (plain, object)]
    names = {name for body in bodies for name in body} - _FREE_NAMES
    return min(names & {*vars(plain), *vars(object)}, default=None)


_FREE_NAMES = frozenset({"__new__", "__init__", "__init_subclass__", "__doc__"})
"""What a class derived from a plain one may have of its own: an object that is there needs none."""


def _identity(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    step = builder.nodes[node].step
    # All that a trace can ask of these is in their encoding. Of a frozenset before torch 2.12.
    if type(value) in (frozenset, re.Pattern):
        builder.check_type(node)
        _constant(builder, node, value, None)
        return
    if step == Step.MODULE:
        # sys.modules[name] is that module by the way it is reached. None there forbids the import.
        builder.check(node, Kind.NOT_NONE, None)
        return
    if type(value) in autocast_objects.KNOWN:
        builder.check_type(node)
        for name in autocast_objects.FIELDS:
            field = builder.step(node, Step.ATTR, name)
            builder.check(field, Kind.EQUALS, encode(builder.value(field)))
        return
    builder.check(node, Kind.IDENTITY, builder.intern(identity(value)))


def _callable(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    """Guard what is called.

    Torch has this guard, on identity, for functions, and for the `forward` that somebody gave to a
    module. If that is a partial, or an object whose `__call__` is traced, such as one that
    `cache_compile` made, then what the trace reads of the object has guards of its own, and a
    comparison of the object has conditions of its own (`observe.identity`). A partial often holds
    the module itself, which has no name across processes.
    """
    runs = inspect.getattr_static(type(value), "__call__", None)
    is_traced = isinstance(runs, types.FunctionType) and not tracing.is_in_table(value)
    is_traced = is_traced or type(value) is functools.partial
    if is_traced and _is_forward(builder, node):
        builder.check_type(node)
    else:
        _identity(builder, node, value, None)


def _is_forward(builder: TreeBuilder, node: int) -> bool:
    at = builder.nodes[node]
    if at.step is Step.ATTR and at.arg == "__func__":
        at = builder.nodes[at.parent]
    found = at.step in (Step.ATTR, Step.GENERIC_ATTR) and at.arg == "forward"
    return found and isinstance(builder.value(at.parent), Module)


def _opaque(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    """Guard a process group by name, backend and ranks, and a mesh by its shape and groups.

    torch has two guards on such an opaque object: on its type, and on what its author says matters.
    Neither is enough, because a trace makes the size and the ranks of a group constants.
    """
    if meshes.is_mesh(value):
        _mesh(builder, node)
    elif process_groups.is_group(value):
        _identity(builder, node, value, None)
    else:
        raise NotPortable(f"a {type(value).__qualname__}, which Dynamo does not look into")


def _mesh(builder: TreeBuilder, node: int) -> None:
    """Guard a mesh by its shape, names and groups, or that it is one which is guarded so."""
    value = builder.value(node)
    for other in builder.meshes:
        if builder.value(other) is value:
            if other != node:
                builder.check(CALL, Kind.SAME, [other, node])
            return
    builder.meshes.append(node)
    builder.check(node, Kind.IDENTITY, builder.intern(identity(value)))


def _layout(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    """Guard how a tensor is sharded, which Dynamo compares without the sizes."""
    builder.check(node, Kind.IDENTITY, builder.intern(identity(value)))
    _mesh(builder, builder.step(node, Step.ATTR, "mesh"))


def _type(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    builder.check_type(node)
    if isinstance(value, torch.Stream):  # torch guards nothing else of a stream
        builder.check(builder.step(node, Step.ATTR, "device"), Kind.EQUALS, encode(value.device))


def _length(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    builder.check_type(node)
    if isinstance(value, collections.deque):
        if value.maxlen is not None:  # Dynamo forgets it, and lets the deque grow
            raise refuse.NotEager("a deque with a maxlen is traced as one without")
        builder.check(builder.step(node, Step.ATTR, "maxlen"), Kind.EQUALS, None)
    if not isinstance(value, collections.abc.Sized):  # Dynamo took the items of an iterator first
        raise NotPortable(f"a {type(value).__qualname__} has no length that can be compared")
    builder.check(node, Kind.LENGTH, len(value))


def _keys(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    if _add_registry(builder, node):
        return
    builder.check_type(node)
    # In order: `[*d]`, `f(**d)`, `d | e` and others use it, which torch's guard does not say.
    builder.check(node, Kind.KEYS, encode(ordered_keys(value)))


def _ordered_keys(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    builder.check(node, Kind.KEYS, encode(list(value.keys())))


def _has_attribute(builder: TreeBuilder, node: int, value: Any, parameters: Any) -> None:
    name = parameters["attr"]
    builder.check(node, Kind.HAS_ATTR if hasattr(value, name) else Kind.LACKS_ATTR, name)


def _contains(builder: TreeBuilder, node: int, value: Any, parameters: Any) -> None:
    key = parameters["key"]
    builder.check(node, Kind.CONTAINS if key in value else Kind.NOT_CONTAINS, encode(key))


def _iterator(builder: TreeBuilder, node: int, value: Any, _: Any) -> None:
    builder.check(node, Kind.ITERATOR, iterator_state(value))


_HANDLERS: dict[str, Callable[[TreeBuilder, int, Any, Any], None]] = {
    "TYPE_MATCH": _type,
    "CONSTANT_MATCH": _constant,
    "EQUALS_MATCH": _constant,
    "CONSTANT_SUBCLASS_MATCH": _plain_value,
    "BOOL_MATCH": _constant,
    "NONE_MATCH": _constant,
    "CLOSURE_MATCH": _callable,
    "FUNCTION_MATCH": _identity,
    "CLASS_MATCH": _identity,
    "MODULE_MATCH": _identity,
    "BUILTIN_MATCH": _identity,
    "ID_MATCH": _identity,
    "FAKE_SCRIPT_TYPE_MATCH": _opaque,
    "OPAQUE_OBJ_GUARD_FN_MATCH": _opaque,
    "DTENSOR_SPEC_MATCH": _layout,
    "SEQUENCE_LENGTH": _length,
    "TENSOR_SUBCLASS_METADATA_MATCH": lambda builder, node, *_: add_attributes(builder, node),
    # torch skips these unless asked to look; a hook added later would silently not run.
    "EMPTY_NN_MODULE_HOOKS_DICT": lambda builder, node, value, _: builder.check(
        node, Kind.LENGTH, len(value)
    ),
    "DICT_KEYS_MATCH": _keys,
    "MAPPING_KEYS_CHECK": _ordered_keys,
    "HASATTR": _has_attribute,
    "NOT_PRESENT_IN_GENERIC_DICT": lambda builder, node, _, parameters: builder.check_absent(
        node, parameters["attr"]
    ),
    "DICT_CONTAINS": _contains,
    "DICT_NOT_CONTAINS": _contains,
    "SET_CONTAINS": _contains,
    "SET_NOT_CONTAINS": _contains,
    "NOT_NONE_MATCH": lambda builder, node, *_: builder.check(node, Kind.NOT_NONE, None),
    "WEAKREF_ALIVE": lambda builder, node, *_: builder.check(node, Kind.NOT_NONE, None),
    "TUPLE_ITERATOR_LEN": _iterator,
    "RANGE_ITERATOR_MATCH": _iterator,
    "COUNT_ITERATOR_MATCH": _iterator,
}
