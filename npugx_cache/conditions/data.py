"""Conditions: a trie of accessors with checks at its nodes. Plain data; knows nothing of torch.

A node is reached from its parent by one `Step`, so a path that many guards share is walked once. A
check compares the live value at a node with what the trace saw. The vocabulary is closed: data that
names an unknown step or kind is refused when it is decoded.
"""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

from npugx_cache.errors import CorruptEntry
from npugx_cache.portable.devices import Accelerator, rename_devices
from npugx_cache.records import IntEnum, NamedTuple, dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npugx_cache.portable import Plain
    from npugx_cache.portable.devices import Rename


class Step(IntEnum):
    """How a value is reached: from the call (parent -1) or from its parent's value.

    The numbers are part of the format of stored entries.
    """

    LOCAL = 0  # an argument or a free variable of the traced function, by name
    GLOBAL = 1  # a global of the module that defines the traced function
    MODULE = 2  # an imported module, by its name in sys.modules
    NAMESPACE = 3  # the global dict of an imported module
    BUILTINS = 4  # the dict of builtins the function sees
    OBJECT = 5  # an object found by its identity (portable.resolve)
    FUNCTION_GLOBALS = 6  # the global dict of a function found by module and qualname
    ENVIRONMENT = 7  # the value of an environment variable, or None
    ANSWER = 8  # what the process answers: its rank, whether it has an accelerator (process.py)
    CALLED = 9  # what a pure helper of a library gives: module, name, arguments (pure_helpers.py)
    ATTR = 10
    GENERIC_ATTR = 11  # object.__getattribute__, past a user's __getattr__
    ITEM = 12  # mapping[key]; dict.__getitem__ on dicts, past overrides
    INDEX = 13  # sequence[i] or sequence[slice]
    KEY_AT = 14  # the i-th key of a dict
    VALUE_AT = 15  # the value under the i-th key of a dict, past overrides of __getitem__
    TYPE = 16
    TYPE_DICT = 17
    MRO = 18
    DEFAULT = 19
    KWDEFAULT = 20
    CLOSURE = 21
    CODE = 22
    REFERENT = 23  # of a weak reference
    REMAINING = 24  # the i-th item that a tuple's iterator has left
    SUBCLASSES = 25  # a list of the classes that are derived from a class, as they were made
    OWN_GLOBALS = 26  # the globals of the traced function, where they are of no module
    PLAIN = 27  # the int, float or str that an object of a derived class is
    SIZE = 30  # of a tensor; only under shape conditions
    STRIDE = 31
    STORAGE_OFFSET = 32
    NUMBER = 33  # the value of a tensor with one element


class Kind(IntEnum):
    """What a check demands. `kinds.KINDS` has one row for each, with all its forms.

    Kinds from `SAME` on are about the call as a whole, not about the value at one node: such a
    check has the node `CALL`. The numbers are part of the format.
    """

    TYPE = 0  # idents[arg] names its exact type
    IDENTITY = 1  # idents[arg] names it
    EQUALS = 2  # its portable encoding equals arg
    TENSOR = 3  # it matches tensors[arg]
    LENGTH = 4
    ABSENT_ATTRS = 5  # none of the names in arg is a key of its __dict__
    HAS_ATTR = 6
    LACKS_ATTR = 7
    CONTAINS = 8
    NOT_CONTAINS = 9
    KEYS = 10  # its keys, in order, encode to arg
    KEY_SET = 11  # its keys, in any order
    NOT_NONE = 12
    ITERATOR = 13  # a tuple, range or count iterator whose remainder reduces to arg
    ATTRIBUTES = 14  # the names in its __dict__, sorted, but for Dynamo's marks on tensors
    UNSHADOWED = 15  # a module gives these names, a list for each dict, from the dicts they are in;
    # with whether its class has a `__getattr__` of its own
    SAME = 32  # the values of two nodes are one object
    DIFFERENT = 33  # the values of these nodes are different objects
    SHAPE = 34  # an expression over sizes and numbers (`shapes.py`)
    ORDER = 35  # a set and the order that it must be walked in (`set_order.py`)
    STATE = 40  # all global torch state, by name
    THREADS = 41  # the number of intra-op threads
    DEVICE = 42  # the accelerator that must be current: kind, index, why
    IMPORT = 43  # a module that the function imports itself, which must be imported by now
    # Source facts: arg is the module, the name, and what was recorded.
    FUNCTION = 50  # the code of the function as it is loaded
    FILE = 51  # all code of the name in a module's file, if no name leads to it: a lambda in a list
    OPERATOR = 52  # the schema of a custom operator; its namespace stands for the module
    LOOKUP = 53  # of a class: each name, and the base that provides the name, or ""
    TENSOR_METHOD = 54  # a method of torch.Tensor
    GROUP = 55  # the ranks of a process group
    SUBCLASS = 56  # whether the class is a subclass of another: `A < other.module:B`
    MEMBERS = 57  # the members of an enumeration
    SPECIAL_NAMES = 58  # what a class defines for Python's own syntax
    METHOD = 59  # code, defaults and closures of `Class.method`, for an object the trace made
    ANSWER = 60  # what a function that is marked as constant gives: `function(arguments)`
    CLASS_VALUE = 61  # the value of `Class.attribute`
    FUNCTION_VALUE = 62  # an attribute of the functions behind `Class.method`: `Class.method.k`
    CONTENTS = 63  # all that stands under the name, such as a class with its tables (contents.py)
    OPERATOR_RULES = 65  # what is registered for a custom operator: its fake, kernels, autocast


CALL = -1
"""The node of a check on the call as a whole."""


class Node(NamedTuple):
    parent: int
    step: Step
    arg: Plain


class Check(NamedTuple):
    node: int
    kind: Kind
    arg: Plain


class TensorFact(NamedTuple):
    """What a graph was specialised on for one tensor input.

    `type` indexes `Conditions.idents`; `size` and `stride` hold None where the graph is symbolic;
    `marks` are the dimension marks (`mark_dynamic`) present when it was traced.
    """

    type: int
    dtype: str
    device: str
    requires_grad: bool
    dispatch_keys: int
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    marks: tuple[tuple[str, tuple[int, ...]], ...]


_OWN_TENSORS = (["class", "torch", "Tensor"], ["class", "torch.nn.parameter", "Parameter"])

Rows = tuple[tuple[int, ...], tuple[Any, ...]]
"""The checks of one kind: the nodes, and for each of them the argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All conditions under which one traced graph may run.

    Nodes and checks are kept as columns, which decode several times faster than rows. `idents` and
    `tensors` are what the arguments of some checks index.
    """

    parents: tuple[int, ...]
    steps: tuple[int, ...]
    args: tuple[Plain, ...]
    checks: Mapping[Kind, Rows]
    idents: tuple[Plain, ...]
    tensors: tuple[TensorFact, ...]

    @property
    def state(self) -> Mapping[str, Plain]:
        """The global torch state at the trace."""
        (state,) = self.arguments(Kind.STATE)
        return dict(state)

    @property
    def device(self) -> Accelerator | None:
        """The accelerator that must be current; None for a graph that touches none."""
        return next((Accelerator(*row) for row in self.arguments(Kind.DEVICE)), None)

    @property
    def holds_derived_tensors(self) -> bool:
        """Whether an input is of another class of tensors than torch's own two."""
        return any(self.idents[fact.type] not in _OWN_TENSORS for fact in self.tensors)

    def arguments(self, kind: Kind) -> tuple[Any, ...]:
        return self.checks.get(kind, ((), ()))[1]

    def plus(self, checks: Iterable[Check]) -> Conditions:
        return replace(self, checks=columns((*self.all_checks(), *checks)))

    def node(self, index: int) -> Node:
        return Node(self.parents[index], _STEPS[self.steps[index]], self.args[index])

    def all_checks(self) -> Iterator[Check]:
        for kind, rows in self.checks.items():
            for node, arg in zip(*rows, strict=True):
                yield Check(node, kind, arg)

    def with_ancestors(self, nodes: Iterable[int]) -> list[int]:
        """These nodes and all above them, parents first."""
        found: set[int] = set()
        for node in nodes:
            while node >= 0 and node not in found:
                found.add(node)
                node = self.parents[node]  # noqa: PLW2901 - walks up
        return sorted(found)

    def place_on_device(self, device: Accelerator | None, rename: Rename) -> Conditions:
        """The same conditions, with `device` as the current device and its name filled in."""
        checks = dict(self.checks)
        if Kind.EQUALS in checks:
            nodes, args = checks[Kind.EQUALS]
            checks[Kind.EQUALS] = nodes, tuple(rename_devices(arg, rename) for arg in args)
        if default := self.state.get("default_device"):
            checks[Kind.STATE] = (CALL,), ({**self.state, "default_device": rename(default)},)
        if device is not None:
            checks[Kind.DEVICE] = (CALL,), ([device.kind, device.index, device.why],)
        tensors = tuple(fact._replace(device=rename(fact.device)) for fact in self.tensors)
        return replace(self, checks=checks, tensors=tensors)

    def to_plain(self) -> dict[str, Plain]:
        return {
            "parents": _distances(self.parents),
            "steps": bytes(self.steps),
            "args": list(self.args),
            "checks": [
                [int(kind), _distances(nodes), [*_args_by_distance(kind, args)]]
                for kind, (nodes, args) in self.checks.items()
            ],
            "idents": list(self.idents),
            "tensors": [list(t) for t in self.tensors],
        }

    @classmethod
    def from_plain(cls, data: Any) -> Conditions:
        """Decode; raises `CorruptEntry` for anything that `to_plain` can't have written."""
        try:
            tree = cls(
                parents=tuple(accumulate(data["parents"])),
                steps=tuple(data["steps"]),
                args=tuple(data["args"]),
                checks={
                    _KINDS[k]: (tuple(accumulate(nodes)), tuple(_args_by_number(k, args)))
                    for k, nodes, args in data["checks"]
                },
                idents=tuple(data["idents"]),
                tensors=tuple(_tensor_fact(row) for row in data["tensors"]),
            )
            _validate(tree)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise CorruptEntry(f"guard tree: {error!r}") from error
        return tree


def _distances(numbers: Iterable[int]) -> list[int]:
    """Each number as its distance from the one before, from which `accumulate` gives the numbers.

    The numbers of a layer differ from those of the layer before; the distances are the same, so
    that they compress to little.
    """
    return [number - before for before, number in pairwise(chain((0,), numbers))]


def _args_by_distance(kind: int, args: Iterable[Any]) -> Iterable[Any]:
    return map(_distances, args) if kind == Kind.DIFFERENT else args


def _args_by_number(kind: int, args: Iterable[Any]) -> Iterable[Any]:
    return (list(accumulate(arg)) for arg in args) if kind == Kind.DIFFERENT else args


_STEPS = {int(step): step for step in Step}
_KINDS = {int(kind): kind for kind in Kind}


def _validate(tree: Conditions) -> None:
    count = len(tree.parents)
    if not len(tree.steps) == len(tree.args) == count or not set(tree.steps) <= _STEPS.keys():
        raise CorruptEntry("guard tree: malformed nodes")
    if any(not -1 <= parent < index for index, parent in enumerate(tree.parents)):
        raise CorruptEntry("guard tree: a node before its parent")
    for kind, (nodes, args) in tree.checks.items():
        first, last = (0, count) if kind < Kind.SAME else (CALL, CALL + 1)
        if len(nodes) != len(args) or (nodes and not first <= min(nodes) <= max(nodes) < last):
            raise CorruptEntry("guard tree: malformed checks")
        if kind >= Kind.FUNCTION and not _are_facts(kind, args):
            raise CorruptEntry("guard tree: malformed source facts")
    if len(tree.arguments(Kind.STATE)) != 1:
        raise CorruptEntry("guard tree: no global torch state")


def _are_facts(kind: int, args: Iterable[Any]) -> bool:
    sizes = set(map(len, args))
    is_sized = sizes <= {3} if kind != Kind.LOOKUP else all(n >= 4 and n % 2 == 0 for n in sizes)
    return is_sized and set(map(type, chain.from_iterable(args))) <= {str}


def columns(checks: Iterable[Check]) -> dict[Kind, Rows]:
    """Checks as a tree keeps them: those at nodes first, because others rely on their types."""
    found: dict[Kind, list[Check]] = {}
    for check in checks:
        found.setdefault(check.kind, []).append(check)
    return {
        kind: (tuple(c.node for c in found[kind]), tuple(c.arg for c in found[kind]))
        for kind in sorted(found, key=lambda kind: kind >= Kind.SAME)
    }


def _tensor_fact(row: list[Any]) -> TensorFact:
    type_, dtype, device, requires_grad, keys, size, stride, marks = row
    return TensorFact(
        int(type_),
        str(dtype),
        str(device),
        bool(requires_grad),
        int(keys),
        tuple(size),
        tuple(stride),
        tuple((str(name), tuple(dims)) for name, dims in marks),
    )
