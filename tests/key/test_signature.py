"""What a listing says of the arguments of a graph: the traced values, and `*` where others fit."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from npugx_cache.conditions import Conditions, Kind, Step
from npugx_cache.conditions.data import CALL, TensorFact
from npugx_cache.key.signature import Signature, kinds_of_arguments, read_arguments, without_texts


def conditions(nodes, checks, *sizes):
    """Nodes are (parent, step, argument); a row of sizes is one tensor, None is symbolic."""
    facts = [TensorFact(0, "int64", "cpu", False, 0, row, (None,) * len(row), ()) for row in sizes]
    return Conditions(
        parents=tuple(parent for parent, _, _ in nodes),
        steps=tuple(int(step) for _, step, _ in nodes),
        args=tuple(arg for _, _, arg in nodes),
        checks={**checks, Kind.STATE: ((CALL,), ({},))},
        idents=(),
        tensors=tuple(facts),
    )


def local(*names):
    return [(-1, Step.LOCAL, name) for name in names]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((1, 7), "x: int64[1, 7]"),
        ((1, None), "x: int64[1, *]"),
        ((None, None), "x: int64[*, *]"),
    ],
)
def test_symbolic_sizes_are_stars(sizes, text):
    tree = conditions(local("x"), {Kind.TENSOR: ((0,), (0,))}, sizes)
    assert read_arguments({"x": torch.ones(1, 7, dtype=torch.int64)}, tree) == text


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        ({Kind.TYPE: ((0,), (0,))}, "n: *"),
        ({Kind.TYPE: ((0,), (0,)), Kind.EQUALS: ((0,), (3,))}, "n: 3"),
        ({Kind.IDENTITY: ((0,), (0,))}, "n: 3"),
    ],
)
def test_a_number_is_a_star_if_nothing_compares_its_value(checks, text):
    assert read_arguments({"n": 3}, conditions(local("n"), checks)) == text


def test_a_number_in_a_list_that_is_compared_as_a_whole_is_shown():
    nodes = [*local("sizes"), (0, Step.INDEX, 0)]
    both = {Kind.TYPE: ((1,), (0,))}
    assert read_arguments({"sizes": [3]}, conditions(nodes, both)) == "sizes[0]: *"
    both[Kind.EQUALS] = ((0,), ([3],))
    assert read_arguments({"sizes": [3]}, conditions(nodes, both)) == "sizes[0]: 3"


@pytest.mark.parametrize(
    ("value", "expected", "text"),
    [
        ("alice", {"length": 5}, "name: {'length': 5}"),  # a user's text is in no listing
        ("alice", None, "name: str"),
        ("alice", "a" * 99, f"name: '{'a' * 79}"),
        (7, 7, "name: 7"),
        (7, "seven", "name: 7"),
    ],
)
def test_a_text_is_shown_as_it_is_compared(value, expected, text):
    checks = {Kind.TYPE: ((0,), (0,)), Kind.EQUALS: ((0,), (expected,))}
    assert read_arguments({"name": value}, conditions(local("name"), checks)) == text


@pytest.mark.parametrize("value", [True, 2.5, None, torch.float16])
def test_what_is_no_whole_number_is_never_a_star(value):
    tree = conditions(local("flag"), {Kind.TYPE: ((0,), (0,))})
    assert read_arguments({"flag": value}, tree) == f"flag: {value!r}"


def test_modules_come_last_because_listings_are_cut_at_the_end():
    text = kinds_of_arguments({"self": torch.nn.Linear(2, 2).eval(), "x": torch.ones(3)})
    assert text == "x: float32[3], self: Linear (eval, float32)"


def test_a_reason_shows_no_rest_of_a_text_that_has_another_in_it():
    texts = {"name": "alice", "user": ["alice smith", "mrs alice smith"], "short": "at"}
    reason = "no rule for 'alice smith' at alice, mrs alice smith"
    assert without_texts(reason, texts) == (
        "no rule for <a text of 11 characters> at <a text of 5 characters>, "
        "<a text of 15 characters>"
    )


def test_a_signature_runs_no_code_of_a_tensor_class():
    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    made = Signature({"x": torch.ones(2, 3).as_subclass(Asked)})

    assert made.device_types == {"cpu"}
    assert made.leaves == (("x", "float32[2, 3]"),)
    assert made.exact != made.kind


class Endless(list):
    def __iter__(self):
        return itertools.cycle((1, 2))


class Asking(dict):
    def values(self):
        pytest.fail("asked for values")

    items = keys = __iter__ = values


@dataclasses.dataclass
class Field:
    a: int

    def __getattribute__(self, name):
        return pytest.fail(name) if name == "a" else object.__getattribute__(self, name)


@dataclasses.dataclass(slots=True)
class Slot:
    a: int


class Text(str):
    __slots__ = ()

    def __repr__(self):
        return pytest.fail("asked for a text")


class Number(int):
    __repr__ = Text.__repr__


def test_no_code_of_the_users_runs_for_a_signature():
    given = {
        "x": Endless([3]),
        "y": Asking(a=4),
        "z": Field(5),
        "s": Slot(6),
        "t": {Text("k"): Number(7)},
    }
    leaves = Signature(given).leaves
    assert leaves == (
        ("x[0]", "3"),
        ("y['a']", "4"),
        ("z.a", "5"),
        ("s.a", "6"),
        ("t[?]", "Number 7"),
    )
