"""Builds a guard tree from Dynamo's sources.

The builder reads each value with the code that a restore uses, so both see the same value.
"""

from __future__ import annotations

import enum
import sys
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions import Check, Conditions, Kind, Node, Step, TensorFact
from npugx_cache.conditions.cpp_paths import CHILDREN, gives_children
from npugx_cache.conditions.data import CALL, columns
from npugx_cache.conditions.evaluate import Scope, prepare, read
from npugx_cache.events import logger
from npugx_cache.portable import (
    NotPortable,
    OnlyHere,
    Plain,
    encode,
    identity,
    is_covered_class,
    name_of,
    ordered_keys,
)
from npugx_cache.portable.pinned import is_compiler, is_covered_module
from npugx_cache.private import process_groups, runtime
from npugx_cache.trace import tracing
from npugx_cache.trace.observe import pure_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

S = tracing.sources

TRANSPARENT_SOURCES = (
    S.NNModuleSource,  # and its subclasses: they say how the module is treated, not where it is
    S.OptimizerSource,
    S.SkipGuardSource,
)


def _is_plain(kind: type[torch.Tensor]) -> bool:
    """Whether operators see a plain tensor: of torch's two types, or of a class of parameters.

    Dynamo interprets what a class of the user's adds: attributes, methods and `__torch_function__`.
    Others of torch's own, such as a parameter without a size, mean something else to operators.
    """
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return True
    leaves_alone = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return leaves_alone and issubclass(kind, torch.nn.Parameter) and not is_covered_class(kind)


class TreeBuilder:
    """Collects nodes and checks; values are read through the tree itself, as a restore will."""

    def __init__(self, scope: Scope, root: Callable[[str], Root]) -> None:
        self._scope = scope
        self._root = root
        self.nodes: list[Node] = []
        self.checks: dict[tuple[int, Kind, str], Check] = {}
        self.idents: list[Plain] = []
        self._tensor_nodes: list[int] = []
        self._tensor_index: dict[TensorFact, int] = {}
        self.registries: set[int] = set()
        self.meshes: list[int] = []
        """The nodes of meshes that are guarded in full."""
        self._children: dict[int, tuple[list[str], list[str], list[str]]] = {}
        self._absent: dict[int, set[str]] = {}
        self.described: dict[type, None] = {}
        """The classes of user code of tensors that hold others, and of their attributes."""
        self._node_of: dict[tuple[int, Step, str], int] = {}
        self._node_of_source: dict[Any, int] = {}
        self._values: list[Any] = []
        self._interned: dict[str, int] = {}

    # --- nodes

    def node(self, source: Any) -> int:
        known = self._node_of_source.get(source)
        if known is None:
            known = self._node_of_source[source] = self._add_source(source)
        return known

    def value(self, node: int) -> Any:
        return self._values[node]

    def step(self, parent: int, step: Step, arg: Plain) -> int:
        key = (parent, step, repr(arg))
        if key not in self._node_of:
            node = Node(parent, step, arg)
            self._values.append(self._read(node))
            self._node_of[key] = len(self.nodes)
            self.nodes.append(node)
        return self._node_of[key]

    def _read(self, node: Node) -> Any:
        """The live value of a new node; raises `NotPortable` if the tree can't reach it."""
        try:
            return read(prepare(node), self._values, self._scope)
        except Exception as error:  # noqa: BLE001 - a user's property may raise anything
            raise OnlyHere(
                f"a guarded value can't be read again: {node.step.name} {node.arg!r}: {error!r}"
            ) from None

    def root_name(self, name: str) -> str:
        """What a global stands for, as a text that is the same in every process."""
        try:
            return repr(self._root(name))
        except NotPortable:
            return name

    def in_compiler(self, source: Any) -> bool:
        return in_compiler(source, self._root, self._scope.frame_globals)

    def _add_source(self, source: Any) -> int:
        if type(source) is S.LocalSource:
            return self.step(-1, Step.LOCAL, source.local_name)
        if type(source) is S.GlobalSource:
            return self.step(-1, *self._root(source.global_name))
        if type(source) is getattr(S, "ImportSource", None):
            return self.step(-1, Step.MODULE, source.module_name)
        if type(source) is getattr(S, "TorchSource", None):  # before torch 2.11
            return self.step(-1, Step.MODULE, "torch")
        if not hasattr(source, "base"):
            raise OnlyHere(_without_step(source))
        if type(source) is S.CallFunctionNoArgsSource and _is_subclasses(source.base):
            cls = vars(source.base)["base"]
            return self.step(self.node(cls), Step.SUBCLASSES, None)
        if type(source.base) is S.FloatTensorSource and type(source) is S.CallMethodItemSource:
            return self.node(source.base.base)  # before torch 2.12: the float is that of the tensor
        base = self.node(source.base)
        if isinstance(source, TRANSPARENT_SOURCES):
            return base
        step, arg = _step_of(source)
        if step in (Step.KEY_AT, Step.VALUE_AT):
            arg = _walked_at(self.value(base), arg)
        return self.step(base, step, arg)

    # --- checks

    def check(self, node: int, kind: Kind, arg: Plain) -> None:
        self.checks.setdefault((node, kind, repr(arg)), Check(node, kind, arg))

    def check_type(self, node: int) -> None:
        self.check(node, Kind.TYPE, self.intern(identity(type(self.value(node)))))

    def intern(self, ident: Plain) -> int:
        key = repr(ident)
        if key not in self._interned:
            self._interned[key] = len(self.idents)
            self.idents.append(ident)
        return self._interned[key]

    def check_tensor(self, node: int, size: list[int | None], stride: list[int | None]) -> None:
        value = self.value(node)
        if not (_is_plain(type(value)) or runtime.is_wrapper(value)):
            raise NotPortable(
                f"input of type {type(value).__name__}: tensor subclasses are refused, but for "
                "those of nn.Parameter that leave operators alone and those that say which "
                "tensors they hold (__tensor_flatten__)"
            )
        with runtime.without_torch_function():
            self._check_tensor(node, value, size, stride)

    def _check_tensor(
        self, node: int, value: torch.Tensor, size: list[int | None], stride: list[int | None]
    ) -> None:
        if value.layout is not torch.strided:
            raise NotPortable(f"a {value.layout} tensor: only strided tensors are supported")
        marks = tuple(
            (name, tuple(sorted(vars(value)[name])))
            for name in runtime.DIMENSION_MARKS
            if name in vars(value)
        )
        fact = TensorFact(
            self.intern(identity(type(value))),
            str(value.dtype).removeprefix("torch."),
            str(value.device),
            value.requires_grad,
            runtime.dispatch_keys(value).raw_repr(),
            tuple(size),
            tuple(stride),
            marks,
        )
        index = self._tensor_index.setdefault(fact, len(self._tensor_index))
        self.check(node, Kind.TENSOR, index)
        if node not in self._tensor_nodes:
            self._tensor_nodes.append(node)

    def has_process_group(self) -> bool:
        return any(map(process_groups.is_group, self._values))

    def functions(self) -> Iterator[types.FunctionType | types.BuiltinFunctionType]:
        kinds = (types.FunctionType, types.BuiltinFunctionType)
        yield from (value for value in self._values if isinstance(value, kinds))

    def classes(self) -> set[type]:
        """Classes of user code that are values of the tree, or have objects among the values."""
        met = {value if isinstance(value, type) else type(value) for value in self._values}
        return {cls for cls in met if not is_covered_class(cls)}

    def guarded_classes(self) -> set[type]:
        return {type(self.value(c.node)) for c in self.checks.values() if c.kind is Kind.TYPE}

    def enums(self) -> set[type]:
        """Enumerations that are guarded by their name only: nothing guards what `E["A"]` is."""
        values = [self.value(c.node) for c in self.checks.values() if c.kind is Kind.IDENTITY]
        return {each for each in values if isinstance(each, enum.EnumType)}

    def attribute_lookups(self) -> Iterator[tuple[type, str]]:
        """Names that the trace looked up on objects, and that a class may hold or hide."""
        for absent_from, names in self._absent.items():
            yield from ((type(self.value(absent_from)), name) for name in names)
        for node in self.nodes:
            if node.step in (Step.ATTR, Step.GENERIC_ATTR) and node.parent >= 0:
                yield type(self.value(node.parent)), node.arg

    def check_absent(self, node: int, name: str) -> None:
        """Guard that a name is no key of the `__dict__` of an object."""
        self._absent.setdefault(node, set()).add(name)

    def check_child(self, module: int, name: str) -> None:
        """Guard that a module gives a name from the dict that it gives the name from now."""
        space = vars(self.value(module))
        place = next(i for i, table in enumerate(CHILDREN) if name in (space.get(table) or ()))
        names = self._children.setdefault(module, ([], [], []))[place]
        if name not in names:
            names.append(name)

    def build(self, state: Mapping[str, Plain], threads: int | None) -> Conditions:
        # In the order of the nodes, because equal distances between them compress better.
        for module, names in sorted(self._children.items()):
            own = not gives_children(type(self.value(module)).__getattr__)
            self.check(module, Kind.UNSHADOWED, [*names, own])
        for node, absent in sorted(self._absent.items()):
            self.check(node, Kind.ABSENT_ATTRS, sorted(absent))
        self.check(CALL, Kind.STATE, state)
        if threads is not None:
            self.check(CALL, Kind.THREADS, threads)
        for nodes in (self._tensor_nodes, self._mutable_nodes()):
            self.tell_apart(nodes)
        return Conditions(
            parents=tuple(node.parent for node in self.nodes),
            steps=tuple(int(node.step) for node in self.nodes),
            args=tuple(node.arg for node in self.nodes),
            checks=columns(self.checks.values()),
            idents=tuple(self.idents),
            tensors=tuple(self._tensor_index),
        )

    def tell_apart(self, nodes: Iterable[int]) -> None:
        """Guard which of these nodes are one object, and which are not."""
        first: dict[int, int] = {}
        for node in nodes:
            same = first.setdefault(id(self.value(node)), node)
            if same != node:
                self.check(CALL, Kind.SAME, [same, node])
        if len(first) > 1:
            self.check(CALL, Kind.DIFFERENT, list(first.values()))

    def _mutable_nodes(self) -> list[int]:
        """Arguments, and what is in them, through which one call could write and another read.

        The inside of modules is left out: they own their dicts, and torch guards shared submodules.
        """
        found, inside = [], set()
        for index, node in enumerate(self.nodes):
            if node.parent in inside or isinstance(self.value(index), torch.nn.Module):
                inside.add(index)
            elif self._is_mutable_argument(index):
                found.append(index)
        return found

    def _is_mutable_argument(self, index: int) -> bool:
        node, value = self.nodes[index], self.value(index)
        while node.parent >= 0:
            node = self.nodes[node.parent]
        if node.step is not Step.LOCAL or isinstance(value, _SHARED_BY_NATURE):
            return False
        return isinstance(value, (list, dict, set)) or hasattr(value, "__dict__")


_SHARED_BY_NATURE = (
    torch.Tensor,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    enum.Enum,
)


def _is_subclasses(source: Any) -> bool:
    """Whether it is a method that a restore may call, because the method only tells a fact."""
    return type(source) is S.AttrSource and source.member == "__subclasses__"


def _step_of(source: Any) -> tuple[Step, Plain]:
    """The step that one chained source takes from its base; raises `NotPortable`."""
    kind = type(source)
    if kind is S.GetItemSource or kind is S.ListGetItemSource:
        index = source.unpack_slice() if source.index_is_slice else source.index
        return Step.INDEX, encode(index)
    if kind in (S.DictGetItemSource, S.DictSubclassGetItemSource):
        if isinstance(source.index, S.ConstDictKeySource):
            return Step.VALUE_AT, source.index.index
        return Step.ITEM, encode(source.index)
    if kind is S.DefaultsSource:
        return (Step.KWDEFAULT if source.is_kw else Step.DEFAULT), source.idx_key
    if kind is S.TensorPropertySource:
        return _TENSOR_STEPS[source.prop.name], source.idx
    fixed = _FIXED_STEPS.get(kind.__name__)
    if fixed is not None:
        step, field = fixed
        return step, getattr(source, field) if field else None
    if kind.__name__ == "NamedTupleFieldsSource":
        return Step.ATTR, "_fields"
    if kind is S.NumpyTensorSource:  # torch computes otherwise than NumPy, also in this process
        raise NotPortable("it is an array of NumPy's from outside, and no guard holds its elements")
    raise OnlyHere(_without_step(source))


def _without_step(source: Any) -> str:
    logger.debug("no step of a path to a value stands for a %s", type(source).__name__)
    return "torch reads it in a way that has no condition here"


def _walked_at(mapping: Any, index: int) -> int:
    """Where the key that Dynamo counts as `index` comes when a mapping is walked."""
    if not isinstance(mapping, OrderedDict):
        return index
    key = tracing.dict_key_at(mapping, index)
    return next(i for i, each in enumerate(ordered_keys(mapping)) if each is key)


_TENSOR_STEPS = {
    "SIZE": Step.SIZE,
    "STRIDE": Step.STRIDE,
    "STORAGE_OFFSET": Step.STORAGE_OFFSET,
}
_FIXED_STEPS: dict[str, tuple[Step, str | None]] = {
    "AttrSource": (Step.ATTR, "member"),
    "CellContentsSource": (Step.ATTR, "member"),
    "ParamBufferSource": (Step.ATTR, "member"),
    "UnspecializedParamBufferSource": (Step.ATTR, "member"),
    "GradSource": (Step.ATTR, "member"),
    "GenericAttrSource": (Step.GENERIC_ATTR, "member"),
    "ConstDictKeySource": (Step.KEY_AT, "index"),
    "TypeSource": (Step.TYPE, None),
    "TypeDictSource": (Step.TYPE_DICT, None),
    "TypeMROSource": (Step.MRO, None),
    "ClosureSource": (Step.CLOSURE, None),
    "CodeSource": (Step.CODE, None),
    "WeakRefCallSource": (Step.REFERENT, None),
    "TupleIteratorGetItemSource": (Step.REMAINING, "index"),
    "CallMethodItemSource": (Step.NUMBER, None),
}


# Recognises guards about the code of a compiler; such guards are left out.
#
# The version of the compiler's package is in the key. A restore could not check such a guard,
# because it must import neither Dynamo (P3) nor torch_npu's compiler.


S = tracing.sources


def in_compiler(source: Any, root: Callable[[str], Root], frame_globals: Mapping[str, Any]) -> bool:
    """Whether a source is in a compiler. `root` says what a global name stands for."""
    while hasattr(source, "base"):
        if getattr(source, "member", "") == "npugraph_ex" and _is_ops(
            source.base, root, frame_globals
        ):
            return True  # operators that torch_npu's compiler registers when it is loaded
        if getattr(source, "index", "") == runtime.ONE_RANK and _is_settings(
            source.base, root, frame_globals
        ):
            return True  # a setting that is part of the key
        source = source.base
    if type(source) is not S.GlobalSource:
        return False
    step, arg = root(source.global_name)
    return step is Step.MODULE and is_compiler(str(arg))


def _is_settings(
    source: Any, root: Callable[[str], Root], frame_globals: Mapping[str, Any]
) -> bool:
    """Whether it is `torch.compiler.config._config`, reached through torch in a global."""
    names = []
    while hasattr(source, "base"):
        names.append(getattr(source, "member", ""))
        source = source.base
    if names[:3] != ["_config", "config", "compiler"] or type(source) is not S.GlobalSource:
        return False
    step, name = root(source.global_name)
    if names[3:] == ["torch"]:  # of a module of torch's
        return step is Step.MODULE and is_covered_module(str(name))
    is_torch = step is Step.GLOBAL and frame_globals.get(str(name)) is torch
    return names[3:] == [] and (is_torch or (step is Step.MODULE and name == "torch"))


def _is_ops(source: Any, root: Callable[[str], Root], frame_globals: Mapping[str, Any]) -> bool:
    """Whether it is `torch.ops`, reached through torch in a global."""
    above = getattr(source, "base", None)
    if getattr(source, "member", "") != "ops" or type(above) is not S.GlobalSource:
        return False
    step, name = root(above.global_name)
    return step is Step.GLOBAL and frame_globals.get(str(name)) is torch


# Maps the names of Dynamo's helper objects to something that any process has.
#
# Dynamo stores helper objects in the globals of the traced function, under generated names that
# hold an `id()` or a counter.


Root = tuple[Step, Plain]

_made: dict[int, set[str]] = {}
"""Names that traces of this process installed, by the id of the (immortal) globals of a module."""


class Roots:
    """Tells the globals that a trace installed from those of the user's module.

    Generated names look like `___module_0x.._c0`, `__import_x` or `__builtins_dict___3`. We
    recognise them by comparing the globals before and after the trace.
    """

    def __init__(self, frame_globals: dict[str, Any], names_before: frozenset[str]) -> None:
        made = _made.setdefault(id(frame_globals), set())
        made &= frame_globals.keys()
        made |= frame_globals.keys() - names_before
        self._installed = {name: frame_globals[name] for name in made if name in frame_globals}

    def of(self, name: str, imports: dict[str, str]) -> Root:
        """The root that a global name stands for; raises `NotPortable`."""
        if name in imports:
            return Step.MODULE, imports[name]
        if name not in self._installed:
            return Step.GLOBAL, name
        return _root_of(self._installed[name])


def _root_of(value: object) -> Root:
    if isinstance(value, types.ModuleType):
        return Step.MODULE, value.__name__
    if isinstance(value, dict):
        return _root_of_dict(value)
    if (asked := pure_calls.origin_of(value)) is not None:
        return Step.CALLED, asked
    return Step.OBJECT, identity(value)


def _root_of_dict(value: dict[str, Any]) -> Root:
    import builtins

    if value is vars(builtins):
        return Step.BUILTINS, None
    for module_name, module in sys.modules.copy().items():
        if isinstance(module, types.ModuleType) and vars(module) is value:
            return Step.NAMESPACE, module_name
    # namedtuple() runs its __new__ in a dict of its own, which no module holds.
    for cls in tuple.__subclasses__():
        if getattr(cls.__new__, "__globals__", None) is value and (name := name_of(cls)):
            return Step.FUNCTION_GLOBALS, f"{cls.__module__}:{name}.__new__"
    raise OnlyHere("its namespace is a dict that no module owns")
