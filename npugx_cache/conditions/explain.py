"""Names the nodes and values of a guard tree for people. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.data import CALL, Conditions, Kind, Step, TensorFact
from npugx_cache.portable import describe, encode, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from npugx_cache.portable import Plain

_MAX_VALUE = 120


class Wording:
    """Names the nodes of one guard tree the way a person would write them.

    `known` gives the live texts that may be shown, because reasons go to logs and an argument may
    be a password. `known` is called only when there is a text to show.
    """

    def __init__(
        self, tree: Conditions, known: Callable[[], Container[object]] = frozenset
    ) -> None:
        self._tree, self._known = tree, known
        self._paths: dict[int, str] = {}

    def path(self, node: int) -> str:
        if node == CALL:
            return ""
        known = self._paths.get(node)
        if known is None:
            parent, step, arg = self._tree.node(node)
            known = self._paths[node] = _PATHS[step](self.path(parent), arg)
        return known

    def origin(self, node: int) -> str:
        """Where a value comes from and, for a guarded tensor, what it must be."""
        facts, args = self._tree.checks.get(Kind.TENSOR, ((), ()))
        if node not in facts:
            return self.path(node)
        return f"{self.path(node)}: {self.tensor(args[facts.index(node)])}"

    def describe_data(self, data: Plain) -> str:
        """Encoded live data, in words."""
        return describe(seal(data, self._known()))[:_MAX_VALUE]

    def live(self, value: object) -> str:
        try:
            return self.describe_data(encode(value))
        except Exception:  # noqa: BLE001 - user code (properties, __repr__) raises anything
            return f"an object of type {type_name(value)}"

    def ident(self, index: int) -> str:
        return describe(self._tree.idents[index])

    def ident_at(self, index: int) -> Plain:
        return self._tree.idents[index]

    def fact(self, index: int) -> TensorFact:
        return self._tree.tensors[index]

    def tensor(self, index: int) -> str:
        """What a guarded tensor must be."""
        fact = self.fact(index)
        size = ", ".join("*" if n is None else str(n) for n in fact.size)
        stride = ", ".join("*" if n is None else str(n) for n in fact.stride)
        grad = ", requires_grad" if fact.requires_grad else ""
        kind = self.ident(fact.type)
        return f"{kind}, {fact.dtype}[{size}], stride=({stride}), {fact.device}{grad}"


_PATHS: dict[Step, Callable[[str, Any], str]] = {
    Step.LOCAL: lambda _, a: a,
    Step.GLOBAL: lambda _, a: f"globals()[{a!r}]",
    Step.MODULE: lambda _, a: a,
    Step.NAMESPACE: lambda _, a: f"vars({a})",
    Step.BUILTINS: lambda *_: "vars(builtins)",
    Step.OBJECT: lambda _, a: describe(a),
    Step.ANSWER: lambda _, a: f"{a}()",
    Step.CALLED: lambda _, a: f"{a[0]}.{a[1]}({a[2]})",
    Step.ENVIRONMENT: lambda _, a: f"os.environ[{a!r}]",
    Step.OWN_GLOBALS: lambda *_: "globals()",
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
    Step.PLAIN: lambda base, _: base,
    Step.SUBCLASSES: lambda base, _: f"{base}.__subclasses__()",
    Step.SIZE: lambda base, a: f"{base}.size({a})",
    Step.STRIDE: lambda base, a: f"{base}.stride({a})",
    Step.STORAGE_OFFSET: lambda base, _: f"{base}.storage_offset()",
    Step.NUMBER: lambda base, _: f"{base}.item()",
}


def tensor_difference(words: Wording, index: int, live: Any) -> str:
    fact = words.fact(index)
    if not hasattr(live, "dtype") or not hasattr(live, "stride"):
        return f"was a tensor, is {words.live(live)}"
    found = {
        "type": (words.ident(fact.type), type_name(live)),
        "dtype": (fact.dtype, str(live.dtype).removeprefix("torch.")),
        "device": (fact.device, str(getattr(live, "device", None))),
        "requires_grad": (fact.requires_grad, getattr(live, "requires_grad", None)),
        "size": _mask_symbolic(fact.size, tuple(getattr(live, "shape", ()))),
        "stride": _mask_symbolic(fact.stride, tuple(live.stride())),
    }
    parts = [
        f"{name} was {str(was).replace('None', '*')}, is {now}"
        for name, (was, now) in found.items()
        if was != now
    ]
    return "; ".join(parts) or "dispatch keys or dimension marks differ"


def _mask_symbolic(want: tuple[int | None, ...], have: tuple[int, ...]) -> tuple[object, object]:
    if len(want) != len(have):
        return want, have
    same = all(w is None or w == h for w, h in zip(want, have, strict=True))
    return (have, have) if same else (want, have)


def type_name(live: object) -> str:
    return f"{type(live).__module__}.{type(live).__qualname__}"
