"""Encoded data without its texts: equal to what it was made of, and to nothing else."""

from __future__ import annotations

import itertools

import msgpack
import pytest

from npugx_cache.portable import decode, describe, encode, same, seal, texts_in
from npugx_cache.portable.texts import is_sealed

VALUES = [
    *(
        None,
        True,
        1,
        1.0,
        -0.0,
        1 << 70,
        "",
        "abc",
        "password",
        "passwore",
        "pässwörd",
        "\udcff123",
    ),
    *(b"password", b"abc", ["password"], ("password",), {"password"}, frozenset({"password"})),
    *({"password": "password"}, {"password": "passwore"}, {"passwore": "password"}),
    *({"a": "password", "b": "passwore"}, {"b": "passwore", "a": "password"}),
    *(["text", 8, "password"], ["text", [8, "password"]], ["passwore", ["text", "password"]]),
    *(slice("password", None), slice(None, "password"), [["password", 1], {"k": ("password",)}]),
    *(range(3), ..., 1j, len, str, itertools.chain),
]


def sealed(value, known=frozenset()):
    """As another process reads it."""
    return msgpack.unpackb(msgpack.packb(seal(encode(value), known)), strict_map_key=True)


@pytest.mark.parametrize("known", [frozenset(), {"password"}, {"text", "abc"}])
def test_sealed_data_is_the_same_as_what_was_sealed_and_as_nothing_else(known):
    values = [value for value in VALUES if value != "\udcff123"]  # msgpack takes no surrogates
    for one, other in itertools.product(values, repeat=2):
        equal = encode(one) == encode(other)
        assert same(encode(one), sealed(other, known)) is equal, (one, other)


def test_a_text_with_a_surrogate_is_sealed_too():
    assert same("\udcff123", seal("\udcff123"))
    assert not same("\udcff124", seal("\udcff123"))


def test_nothing_but_what_is_known_and_short_is_left():
    for value in VALUES:
        data = repr(seal(encode(value)))
        assert "password" not in data
        assert "passwore" not in data
    assert seal(encode({"password": "passwore"}), {"password"})[1][0][0] == "password"
    assert seal("abc") == "abc"


def test_a_sealed_text_is_described_and_can_not_be_decoded():
    assert describe(seal("password")) == "a text of 8 characters (sha256 5e884898da28)"
    assert describe(seal(b"password")) == "a text of 8 bytes (sha256 5e884898da28)"
    assert is_sealed(seal("password"))
    assert not any(is_sealed(encode(value)) for value in VALUES)
    with pytest.raises(Exception, match="unknown encoding"):
        decode(seal("password"))


def test_the_texts_of_code_are_its_constants_and_names():
    def function(argument):
        def inner():
            return argument in ("in a tuple", "constant") and {"in a set": 1}

        return inner if argument in {"a member", "another"} else argument.name

    assert texts_in([function.__code__]) >= {
        *("in a tuple", "constant", "in a set", "a member", "another"),
        *("argument", "name"),
    }
