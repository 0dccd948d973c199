"""Finds, among many graphs of one function, the few whose conditions may hold for a call.

The conditions of most graphs pin facts of the arguments: the sizes and the dtype of a tensor, the
value of a number or a flag, a size that could vary and that the trace compared with a number. An
`Index` looks up by these facts which graphs a call may have. The
index decides nothing: it leaves out a graph only if one of the graph's own conditions certainly
fails, and the conditions of the others are still checked.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch

from npugx_cache.conditions import shapes
from npugx_cache.conditions.data import Kind, Step
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.portable import decode, encode, seal
from npugx_cache.portable.texts import is_sealed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npugx_cache.conditions.data import Conditions, TensorFact
    from npugx_cache.portable import Plain

T = TypeVar("T")

_MAX_PLACES = 16
_INTO = frozenset({int(Step.ITEM), int(Step.INDEX)})
_CONTAINERS = frozenset({dict, list, tuple})
_SCALARS = frozenset({type(None), bool, int, float, str, torch.dtype})
_ENCODED = frozenset({"bool", "int", "float", "torch"})
"""How the encodings of such values begin that are lists."""
_INT = ["class", "builtins", "int"]
_TENSORS: dict[tuple[str, ...], type] = {
    ("class", "torch", "Tensor"): torch.Tensor,
    ("class", "torch.nn.parameter", "Parameter"): torch.nn.Parameter,
}


class Place(NamedTuple):
    """Where a fact is read: an argument by its name, or what a container has under `key`.

    `dims` are the dimensions of a tensor whose sizes count; None means all of them. `sealed`: a
    text is read by its length and digest. `dim`: one size of a tensor is read, and nothing else.
    """

    name: str
    inside: bool = False
    key: Any = None
    dims: tuple[int, ...] | None = None
    sealed: bool = False
    dim: int | None = None


class Pinned(NamedTuple):
    """What conditions demand: at each place one fact, as `_fact` reads it."""

    places: tuple[Place, ...] = ()
    facts: tuple[Any, ...] = ()


class Index(Generic[T]):
    """Items by what their conditions pin. Readers wait for no lock; writers must hold one."""

    def __init__(self) -> None:
        self._groups: tuple[tuple[tuple[Place, ...], dict[Any, tuple[T, ...]]], ...] = ()

    def add(self, item: T, demanded: Pinned) -> None:
        places, facts = demanded
        found = next((items for known, items in self._groups if known == places), None)
        if found is None:
            self._groups = (*self._groups, (places, {facts: (item,)}))
        else:
            found[facts] = (*found.get(facts, ()), item)

    def remove(self, item: T, demanded: Pinned) -> None:
        places, facts = demanded
        for known, items in self._groups:
            if known == places:
                items[facts] = tuple(each for each in items.get(facts, ()) if each is not item)

    def select(self, frame_locals: Mapping[str, Any]) -> list[T]:
        """All items but those of which a condition certainly fails for a call, in no order."""
        found: list[T] = []
        for places, items in self._groups:
            try:
                found += items.get(tuple([_fact(place, frame_locals) for place in places]), ())
            except Exception as error:  # noqa: BLE001 - what can't be read leaves nothing out
                let_through(error)
                found += chain.from_iterable(list(items.values()))
        return found


def pinned_facts(tree: Conditions) -> Pinned:
    """What conditions demand of arguments and of what stands in the usual containers."""
    found = sorted(_pins(tree), key=lambda pin: (pin[0].name, repr(pin[0])))[:_MAX_PLACES]
    facts = tuple(fact for _, fact in found)
    try:
        hash(facts)
    except TypeError:  # what no trace writes, from a damaged entry: the full check refuses it
        return Pinned()
    return Pinned(tuple(place for place, _ in found), facts)


def _pins(tree: Conditions) -> Iterator[tuple[Place, Any]]:
    places = _places(tree)
    for node, arg in zip(*tree.checks.get(Kind.EQUALS, ((), ())), strict=True):
        if node not in places:
            continue
        if type(arg) is list and is_sealed(arg):
            yield places[node]._replace(sealed=True), _flat(arg)
        elif arg is None or type(arg) in (str, int) or (_is_flat(arg) and arg[0] in _ENCODED):
            yield places[node], _flat(arg)
    for node, arg in zip(*tree.checks.get(Kind.TENSOR, ((), ())), strict=True):
        if node in places:
            tensor = tree.tensors[arg]
            ident = tree.idents[tensor.type]
            kind = _TENSORS.get(tuple(ident)) if _is_flat(ident) else None
            if kind is not None:
                yield _of_tensor(places[node], kind, tensor)
    yield from _pins_of_shapes(tree, places)


def _pins_of_shapes(tree: Conditions, places: Mapping[int, Place]) -> Iterator[tuple[Place, Any]]:
    """Sizes and whole numbers for which a graph is symbolic but that must equal a number."""
    whole = {
        node
        for node, arg in zip(*tree.checks.get(Kind.TYPE, ((), ())), strict=True)
        if tree.idents[arg] == _INT
    }
    tensors = {*tree.checks.get(Kind.TENSOR, ((), ()))[0]}
    for condition in tree.arguments(Kind.SHAPE):
        for node, number in shapes.equalities(condition):
            parent, step, arg = tree.node(node)
            # Without a check of its type, a value that equals the number but is no int would do.
            if node in places and node in whole:
                yield places[node], (number,)
            elif step == Step.SIZE and parent in places and parent in tensors:
                yield places[parent]._replace(dim=arg), number


def _places(tree: Conditions) -> dict[int, Place]:
    """The arguments and what they contain, by their nodes."""
    nodes = list(enumerate(zip(tree.parents, tree.steps, tree.args, strict=True)))
    found = {
        node: Place(str(arg))
        for node, (parent, step, arg) in nodes
        if parent < 0 and step == Step.LOCAL
    }
    within = {
        node: Place(found[parent].name, True, arg)
        for node, (parent, step, arg) in nodes
        if parent in found and step in _INTO and type(arg) in (str, int)
    }
    return found | within


def _is_flat(data: Plain) -> bool:
    return type(data) is list and {*map(type, data)} <= {str, int}


def _flat(encoded: Plain) -> tuple[Any, ...]:
    """An encoded value of a type that the index knows as a key of a dict."""
    if type(encoded) is not list:
        return (encoded,)
    return tuple(tuple(part) if type(part) is list else part for part in encoded)


def _of_tensor(place: Place, kind: type, tensor: TensorFact) -> tuple[Place, Any]:
    dims, sizes = None, tensor.size
    if None in sizes:
        dims = tuple(dim for dim, size in enumerate(sizes) if size is not None)
        sizes = (len(sizes), *(sizes[dim] for dim in dims))
    dtype = decode(["torch", tensor.dtype])
    return place._replace(dims=dims), (kind, dtype, tensor.requires_grad, sizes)


def _fact(place: Place, frame_locals: Mapping[str, Any]) -> Any:
    """The fact at a place of a call; raises anything if there is none that the index knows.

    Only values of exactly the known types are read, so that no code of a user's runs.
    """
    name, inside, key, dims, sealed, dim = place
    value = frame_locals[name]
    if inside:
        if type(value) not in _CONTAINERS:
            raise LookupError(name)
        value = value[key]
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        sizes = value.shape
        if dim is not None:
            return sizes[dim]
        if dims is not None:
            count = len(sizes)
            sizes = (count, *[sizes[dim] for dim in dims if dim < count])
        return kind, value.dtype, value.requires_grad, sizes
    if kind not in _SCALARS or dim is not None:
        raise LookupError(name)
    return _flat(seal(value) if sealed and kind is str else encode(value))
