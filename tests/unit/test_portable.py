"""Values as plain data: what `==` takes for equal is kept apart, and nothing foreign is decoded."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import struct
import threading
import types
import typing

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend

from npugx_cache.portable import (
    NotPortable,
    code_hash,
    decode,
    describe,
    encode,
    identity,
    is_covered_class,
    is_named,
    resolve,
    stable_text,
)
from npugx_cache.portable.values import class_body_hash

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(codec="utf-8")),
    st.binary(),
    st.just(...),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 4)),
    st.sampled_from([torch.float32, torch.int8, torch.strided, torch.channels_last]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda", 1), torch.Size([2, 3])]),
    st.sampled_from([int, dict, len, math.sqrt, torch.nn.Linear, torch.ops.aten.add.Tensor]),
)
HASHABLE = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
    ),
    max_leaves=12,
)


def exact(value):
    """A form whose `==` keeps apart what Python's does not."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("float", struct.pack("d", value))
    if isinstance(value, complex):
        return "complex", exact(value.real), exact(value.imag)
    if isinstance(value, (list, tuple)):
        return type(value), [exact(item) for item in value]
    if isinstance(value, dict):
        return dict, [(exact(k), exact(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value), {repr(exact(item)) for item in value}
    if isinstance(value, range):  # all empty ranges are equal
        return range, (value.start, value.stop, value.step)
    return type(value), value


@given(value=VALUES)
def test_what_is_decoded_is_what_was_encoded(value):
    assert exact(decode(encode(value))) == exact(value)


@given(value=VALUES)
def test_an_encoding_survives_the_store(value):
    plain = encode(value)
    packed = msgpack.packb(plain, use_bin_type=True)
    assert msgpack.unpackb(packed, raw=False, strict_map_key=True) == plain


@given(left=VALUES, right=VALUES)
def test_encodings_are_equal_exactly_when_values_are(left, right):
    assert (encode(left) == encode(right)) == (exact(left) == exact(right))


APART = [
    (1, True),
    (0, False),
    (1, 1.0),
    (0.0, -0.0),
    (0j, -0j),
    (1, "1"),
    ("a", b"a"),
    ([1], (1,)),
    ((2, 3), torch.Size([2, 3])),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1}, frozenset({1})),
    ({1: 2}, {True: 2}),
    ([1, 2], range(1, 3)),
    (slice(1, 2), (1, 2, None)),
    ("cpu", torch.device("cpu")),
    ("float32", torch.float32),
    (torch.float32, torch.float64),
    (2**63, str(2**63)),
    (["int", "5"], 5),
    (None, "None"),
    (..., "..."),
]


@pytest.mark.parametrize(("left", "right"), APART, ids=map(repr, APART))
def test_these_are_kept_apart(left, right):
    assert encode(left) != encode(right)
    assert encode([left]) != encode([right])
    assert encode((0, {"k": left})) != encode((0, {"k": right}))


def test_lists_that_look_like_encodings_come_back_as_lists():
    for value in (["int", "5"], ["id", ["class", "builtins", "int"]], ["list", []]):
        assert decode(encode(value)) == value


def test_sets_encode_alike_in_any_order():
    one_way, other_way = {8, 0, 16, "a"}, {"a", 16, 0, 8}
    assert encode(one_way) == encode(other_way)


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class OtherColour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


def one(x, n=1):
    return x + n


def two(x, n=2):
    return x + n


def three(x, n=1):
    return x * n


def make(n):
    return lambda x: x + n


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (Colour.RED, Colour.GREEN),
        (Colour.RED, OtherColour.RED),
        (Level.LOW, 1),
        (one, two),
        (make(1), make(2)),
        (functools.partial(one, n=1), functools.partial(one, n=2)),
        (functools.partial(one), functools.partial(two)),
        (len, sum),
        (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar),
        (torch.ops.aten.add.Tensor, torch.ops.aten.add),
        (int, float),
        (collections, enum),
        ("".join, ",".join),
        ([].append, {}.update),
        (list[int], list[str]),
        (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION),
    ],
)
def test_objects_are_told_apart_by_their_identity(left, right):
    try:
        encoded = encode(left), encode(right)
    except NotPortable:
        return  # refused: as good
    assert encoded[0] != encoded[1]


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        SDPBackend.MATH,
        SDPBackend,
        len,
        open,
        math.sqrt,
        int,
        one,
        torch.nn.Linear,
        torch.ops.aten.add.Tensor,
    ],
)
def test_an_object_is_found_again_by_its_identity(value):
    assert resolve(identity(value)) is value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        torch.ones(2),
        torch.nn.Linear(1, 1),
        threading.Lock(),
        (x for x in ()),
        memoryview(b"a"),
        [object()],
        {"k": object()},
        {object(): 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_name_in_another_process_is_refused(value):
    with pytest.raises(NotPortable):
        encode(value)


def test_what_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(NotPortable):
        encode(value)
    table = {}
    table["k"] = (table,)
    with pytest.raises(NotPortable):
        encode(table)


@pytest.mark.parametrize(
    "data",
    [
        [],
        [[]],
        ["unknown", 1],
        [1, 2],
        ["id", ["code", "x"]],
        ["id", ["function", "os", "system", "x", [], [], []]],
        ["id", ["class", "no.such.module", "X"]],
        ["id", ["class", "builtins", "no_such_class"]],
        ["id", ["module", "no.such.module"]],
        ["id", ["op", "aten", "no_such_operator", "default"]],
        ["torch", "load"],
        ["torch", "no_such_dtype"],
        ["id", ["builtin", "builtins", "no_such"]],
    ],
    ids=repr,
)
def test_unknown_data_is_refused(data):
    with pytest.raises(NotPortable):
        decode(data)


def test_a_function_is_resolved_only_if_it_is_the_one_recorded(monkeypatch):
    recorded = identity(one)
    monkeypatch.setattr(one, "__code__", three.__code__)
    with pytest.raises(NotPortable, match="not the one that was recorded"):
        resolve(recorded)


@given(value=VALUES)
@settings(max_examples=50)
def test_every_encoding_can_be_described(value):
    assert isinstance(describe(encode(value)), str)


CLASS = """
def make():
    class Made:
        x = 3
        def __init__(self):
            self.b, self.a, self.c = 1, 2, 3
    return Made
"""
"""A number of the class is the number of the line that the class begins in, here."""


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("\n" + CLASS, (True, True)),
        ("\n" + CLASS.replace("x = 3", "x = 4"), (False, False)),
        (CLASS.replace("x = 3", "x = 4"), (False, False)),
        (CLASS.replace("x = 3", "y = 3"), (False, False)),
        (CLASS.replace("self.c", "self.d"), (False, False)),
        (CLASS.replace("3\n    return", "4\n    return"), (False, False)),
    ],
    ids=["moved", "moved with its number", "number", "name", "attribute", "value"],
)
def test_the_hash_of_code_and_class_does_not_know_where_a_class_stands(text, is_same):
    def hashes(source):
        names = {}
        exec(source, names)
        return code_hash(names["make"].__code__), class_body_hash(names["make"]())

    pairs = zip(hashes(CLASS), hashes(text), strict=True)
    assert tuple(one == other for one, other in pairs) == is_same


class SaysItIsOfTorch:
    def scaled(self, x):
        return x


SaysItIsOfTorch.__module__, SaysItIsOfTorch.__qualname__ = "torch.nn", "NoSuchClass"


@pytest.mark.parametrize(
    ("cls", "covered"),
    [
        (torch.nn.Linear, True),
        (torch.Tensor, True),
        (type(torch.float32), True),
        (types.FunctionType, True),  # builtins.function leads nowhere
        (types.NoneType, True),
        (type(torch.nn.Module().state_dict()), True),
        (type(torch.ones(2, 2).max(0)), True),
        (type(torch.nn.Module().load_state_dict({})), True),
        (Colour, False),
        (types.new_class("Made"), False),
        (type("Made", (torch.nn.Module,), {}), False),
        (SaysItIsOfTorch, False),
    ],
)
def test_a_class_is_covered_if_a_version_in_the_key_says_what_it_is(cls, covered):
    assert is_covered_class(cls) is covered
    assert is_named(cls) is (covered or cls is Colour)


@pytest.mark.parametrize("value", [(), (4,), (4, 5), [4], ((4,),)])
def test_tuples_and_lists_are_described_as_python_writes_them(value):
    assert describe(encode(value)) == repr(value)


def test_a_version_of_torch_is_its_text():
    version = type(torch.__version__)
    assert encode(torch.__version__) == ["torch_version", str(torch.__version__)]
    assert encode(version("2.5")) != encode(version("2.5.0"))
    assert type(decode(encode(torch.__version__))) is version
    assert describe(encode(version("2.5.0"))) == "'2.5.0'"


BODY = """
import json, typing
from npugx_cache.portable import stable_text
from npugx_cache.portable.values import class_body_hash

def made(kinds, value):
    class Inputs(typing.TypedDict):
        data: int
    class Holder:
        groups = (frozenset(kinds), (value,), len)
    return Inputs, Holder

print(json.dumps([*map(class_body_hash, made("abcdefgh", 1)), class_body_hash(made("abc", 1)[1]),
                  class_body_hash(made("abcdefgh", 2)[1])]))
"""


def test_the_hash_of_a_class_body_is_the_same_in_every_process(surroundings):
    first, second = (surroundings.run("-c", BODY, PYTHONHASHSEED=seed) for seed in "12")
    assert first == second
    assert len(set(first)) == 4


class Bag(set):
    pass


@dataclasses.dataclass
class Choice:
    names: object


def anything():
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, (2,), {"b": {"y", "x"}}, set()], "[1, (2,), {'b': {'x', 'y'}}, set()]"),
        (frozenset({frozenset("ba")}), "frozenset(frozenset('a', 'b'))"),
        (Bag("ba"), "Bag('a', 'b')"),
        (Choice(names={"b", "a"}), "Choice(names={'a', 'b'})"),
        ((typing.TypedDict, anything), f"(<function typing.TypedDict>, {anything!r})"),
    ],
    ids=["nested", "frozen", "a set of a class", "in a dataclass", "functions"],  # no address
)
def test_a_stable_text_is_a_repr_with_sets_in_order(value, text):
    assert stable_text(value) == text


class Counting(enum.EnumMeta):
    """A metaclass that runs code of its own when a member is asked for by its value."""

    def __call__(cls, *args, **kwargs):
        raise AssertionError("code of the user's runs")


class Combined(enum.Flag, metaclass=Counting):
    A = 1
    B = 2


def test_a_combined_flag_is_resolved_without_code_of_the_users():
    with pytest.raises(NotPortable, match="is no member"):
        resolve(["enum", identity(Combined), "A|B", 3])
