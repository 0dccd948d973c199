"""Prints guards: as Python for `readable`, and as a reason for a miss. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.conditions import set_order, shapes
from npugx_cache.conditions.data import Check, GuardTree, Kind, Step, TensorFact
from npugx_cache.portable import describe, encode, expression, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from npugx_cache.portable import Plain

_MAX_VALUE = 120


class Wording:
    """Names the nodes of one guard tree the way a person would write them.

    `known` gives the live texts that may be shown, because reasons go to logs and an argument may
    be a password. `known` is called only when there is a text to show.
    """

    def __init__(self, tree: GuardTree, known: Callable[[], Container[object]] = frozenset) -> None:
        self._tree, self._known = tree, known
        self._paths: dict[int, str] = {}

    def path(self, node: int) -> str:
        known = self._paths.get(node)
        if known is None:
            parent, step, arg = self._tree.node(node)
            base = self.path(parent) if parent >= 0 else ""
            known = self._paths[node] = _PATHS[step](base, arg)
        return known

    def origin(self, node: int) -> str:
        """Where a value comes from and, for a guarded tensor, what it must be."""
        facts, args = self._tree.checks.get(Kind.TENSOR, ((), ()))
        if node not in facts:
            return self.path(node)
        return f"{self.path(node)}: {_tensor_words(self._tree, args[facts.index(node)])}"

    def failure(self, check: Check, live: object) -> str:
        """What a check expected and what it found."""
        path = self.path(check.node)
        if check.kind == Kind.TENSOR:
            return f"{path}: {self._tensor_difference(check.arg, live)}"
        if check.kind == Kind.TYPE:
            expected = describe(self._tree.idents[check.arg])
            return f"type({path}) was {expected}, is {_type_name(live)}"
        if check.kind == Kind.IDENTITY:
            return f"{path} was {describe(self._tree.idents[check.arg])}, is {self._live(live)}"
        if check.kind == Kind.EQUALS:
            return f"{path} was {describe(check.arg)}, is {self._live(live)}"
        if check.kind == Kind.LENGTH:
            size = len(live) if hasattr(live, "__len__") else "without a length"
            return f"len({path}) was {check.arg}, is {size}"
        return f"no longer true: {self.as_python(check)}"

    def shown(self, data: Plain) -> str:
        """Encoded live data, in words."""
        return describe(seal(data, self._known()))[:_MAX_VALUE]

    def _live(self, value: object) -> str:
        try:
            return self.shown(encode(value))
        except Exception:  # noqa: BLE001 - user code (properties, __repr__) raises anything
            return f"an object of type {_type_name(value)}"

    def _tensor_difference(self, index: int, live: object) -> str:
        fact: TensorFact = self._tree.tensors[index]
        if not hasattr(live, "dtype") or not hasattr(live, "stride"):
            return f"was a tensor, is {self._live(live)}"
        return _differences(self._tree, fact, live)

    def as_python(self, check: Check) -> str:
        """The check as an expression, for people to read."""
        path, arg = self.path(check.node), check.arg
        if check.kind == Kind.TYPE:
            return f"type({path}) is {describe(self._tree.idents[arg])}"
        if check.kind == Kind.IDENTITY:
            return f"{path} is {describe(self._tree.idents[arg])}"
        if check.kind == Kind.TENSOR:
            return f"check_tensor({path}, {_tensor_words(self._tree, arg)})"
        return _EXPRESSIONS[check.kind](path, arg)

    def lines(self) -> Iterator[str]:
        """All conditions of the tree, one line each."""
        tree = self._tree
        for name, value in sorted(tree.state.items()):
            yield f"torch_state[{name!r}] == {value!r}"
        if tree.device is not None and tree.device.index is not None:
            yield f"current_device() == {tree.device.name!r}  # {tree.device.why}".rstrip("# ")
        if tree.threads is not None:
            yield f"torch.get_num_threads() == {tree.threads}"
        for check in tree.all_checks():
            yield self.as_python(check)
        for a, b in tree.aliases:
            yield f"{self.path(a)} is {self.path(b)}"
        if len(tree.distinct) > 1:
            yield f"all_distinct({', '.join(map(self.path, tree.distinct))})"
        if len(tree.separate) > 1:
            yield f"all_distinct({', '.join(map(self.path, tree.separate))})"
        for condition in tree.shapes:
            yield shapes.wording(condition, self.path)
        for condition in tree.orders:
            yield set_order.as_python(condition, self.path)


_PATHS: dict[Step, Callable[[str, Any], str]] = {
    Step.LOCAL: lambda _, a: a,
    Step.GLOBAL: lambda _, a: f"globals()[{a!r}]",
    Step.MODULE: lambda _, a: a,
    Step.NAMESPACE: lambda _, a: f"vars({a})",
    Step.BUILTINS: lambda *_: "vars(builtins)",
    Step.OBJECT: lambda _, a: describe(a),
    Step.ANSWER: lambda _, a: f"{a}()",
    Step.ENVIRONMENT: lambda _, a: f"os.environ[{a!r}]",
    Step.FUNCTION_GLOBALS: lambda _, a: f"{a.replace(':', '.')}.__globals__",
    Step.ATTR: lambda base, a: f"{base}.{a}" if a.isidentifier() else f"getattr({base}, {a!r})",
    Step.GENERIC_ATTR: lambda base, a: f"object.__getattribute__({base}, {a!r})",
    Step.ITEM: lambda base, a: f"{base}[{describe(a)}]",
    Step.INDEX: lambda base, a: f"{base}[{describe(a)}]",
    Step.KEY_AT: lambda base, a: f"list({base})[{a}]",
    Step.VALUE_AT: lambda base, a: f"list({base}.values())[{a}]",
    Step.TYPE: lambda base, _: f"type({base})",
    Step.TYPE_DICT: lambda base, _: f"{base}.__dict__",
    Step.MRO: lambda base, _: f"{base}.__mro__",
    Step.DEFAULT: lambda base, a: f"{base}.__defaults__[{a}]",
    Step.KWDEFAULT: lambda base, a: f"{base}.__kwdefaults__[{a!r}]",
    Step.CLOSURE: lambda base, _: f"{base}.__closure__",
    Step.CODE: lambda base, _: f"{base}.__code__",
    Step.REFERENT: lambda base, _: f"{base}()",
    Step.REMAINING: lambda base, a: f"tuple({base})[{a}]",
    Step.SIZE: lambda base, a: f"{base}.size({a})",
    Step.STRIDE: lambda base, a: f"{base}.stride({a})",
    Step.STORAGE_OFFSET: lambda base, _: f"{base}.storage_offset()",
    Step.NUMBER: lambda base, _: f"{base}.item()",
}

_EXPRESSIONS: dict[Kind, Callable[[str, Any], str]] = {
    Kind.EQUALS: lambda path, a: f"{path} == {expression(a)}",
    Kind.LENGTH: lambda path, a: f"len({path}) == {a}",
    Kind.ABSENT_ATTR: lambda path, a: f"{a!r} not in {path}.__dict__",
    Kind.HAS_ATTR: lambda path, a: f"hasattr({path}, {a!r})",
    Kind.LACKS_ATTR: lambda path, a: f"not hasattr({path}, {a!r})",
    Kind.CONTAINS: lambda path, a: f"{describe(a)} in {path}",
    Kind.NOT_CONTAINS: lambda path, a: f"{describe(a)} not in {path}",
    Kind.KEYS: lambda path, a: f"list({path}) == {expression(a)}",
    Kind.KEY_SET: lambda path, a: f"set({path}) == {expression(a)}",
    Kind.NOT_NONE: lambda path, _: f"{path} is not None",
    Kind.ITERATOR: lambda path, a: f"remaining({path}) == {describe(a)}",
}


def _tensor_words(tree: GuardTree, index: int) -> str:
    fact = tree.tensors[index]
    size = ", ".join("*" if n is None else str(n) for n in fact.size)
    stride = ", ".join("*" if n is None else str(n) for n in fact.stride)
    grad = ", requires_grad" if fact.requires_grad else ""
    kind = describe(tree.idents[fact.type])
    return f"{kind}, {fact.dtype}[{size}], stride=({stride}), {fact.device}{grad}"


def _differences(tree: GuardTree, fact: TensorFact, live: Any) -> str:
    found = {
        "type": (describe(tree.idents[fact.type]), _type_name(live)),
        "dtype": (fact.dtype, str(live.dtype).removeprefix("torch.")),
        "device": (fact.device, str(getattr(live, "device", None))),
        "requires_grad": (fact.requires_grad, getattr(live, "requires_grad", None)),
        "size": _masked(fact.size, tuple(getattr(live, "shape", ()))),
        "stride": _masked(fact.stride, tuple(live.stride())),
    }
    parts = [f"{name} was {was}, is {now}" for name, (was, now) in found.items() if was != now]
    return "; ".join(parts) or "dispatch keys or dimension marks differ"


def _masked(want: tuple[int | None, ...], have: tuple[int, ...]) -> tuple[object, object]:
    if len(want) != len(have):
        return want, have
    same = all(w is None or w == h for w, h in zip(want, have, strict=True))
    return (have, have) if same else (want, have)


def _type_name(live: object) -> str:
    return f"{type(live).__module__}.{type(live).__qualname__}"
