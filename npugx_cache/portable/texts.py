"""Hashes texts, and seals them: stores their length and SHA-256, so that no password is stored.

An argument, a global or an environment variable may hold a password or a token, and whoever may
read a store can read what its guards compare with. Two kinds of texts stay as they are, so that
people can read conditions and reasons: texts in the traced code, because they are no secret of the
caller, and texts of at most three characters, because anybody could find them from the digest by
trying all texts.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

Plain = Any

_TAGS: dict[type, str] = {str: "text", bytes: "octets"}
_KINDS = {tag: kind for kind, tag in _TAGS.items()}
_UNITS = {"text": "characters", "octets": "bytes"}
_SEQUENCES = frozenset({"list", "tuple", "set", "frozenset"})
_GUESSED = 3
_SHOWN_DIGITS = 12
_REMEMBERED = 256  # characters; a memory of longer texts could keep megabytes of prompts alive


def seal(data: Plain, known: Container[object] = frozenset()) -> Plain:
    """Encoded data with length and digest in the place of each text that is not `known`.

    The identity of an object (`["id", ...]`) stays, because another process must find the object.
    """
    tag = _TAGS.get(type(data))
    if tag is not None:
        plain = len(data) <= _GUESSED or data in known
        return data if plain else [tag, [len(data), _digest(data)]]
    if type(data) is not list or not data:
        return data
    kind, *rest = data
    if kind in _SEQUENCES:
        return [kind, [seal(item, known) for item in rest[0]]]
    if kind == "dict":
        return [kind, [[seal(key, known), seal(value, known)] for key, value in rest[0]]]
    return [kind, *(seal(part, known) for part in rest)] if kind == "slice" else data


def same(live: Plain, stored: Plain) -> bool:
    """Whether encoded live data equals stored data, in which texts may be sealed."""
    if live == stored:
        return True
    if type(stored) is not list:
        return False
    if is_sealed(stored):
        kind, (length, digest) = stored
        if not isinstance(live, (str, bytes)) or type(live) is not _KINDS[kind]:
            return False
        return len(live) == length and bool(_digest(live) == digest)
    if type(live) is not list or len(live) != len(stored):
        return False
    return all(map(same, live, stored))


def is_sealed(data: Plain) -> bool:
    # Nothing else has this form, because an encoded value that is a list begins with a text.
    match data:
        case ["text" | "octets", [int(), str()]]:
            return True
    return False


def sealed_words(data: Plain) -> str:
    """A sealed text in words, for people."""
    kind, (length, digest) = data
    return f"a text of {length} {_UNITS[kind]} (sha256 {digest[:_SHOWN_DIGITS]})"


def sealed_expression(data: Plain) -> str:
    """A sealed text in the form of a Python call."""
    kind, (length, digest) = data
    return f"{kind}(length={length}, sha256='{digest[:_SHOWN_DIGITS]}')"


def with_sealed(data: Plain, made: Callable[[Plain], Any]) -> Any:
    """Encoded data in which each sealed text is replaced by what `made` returns for the text."""
    if is_sealed(data):
        return made(data)
    return [with_sealed(item, made) for item in data] if type(data) is list else data


def texts_in(codes: Iterable[types.CodeType]) -> frozenset[str | bytes]:
    """The texts in code objects, and in the code objects inside them: constants and names."""
    found: set[str | bytes] = set()
    for code in codes:
        found |= _texts_of(code)
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def _texts_of(code: types.CodeType) -> frozenset[str | bytes]:
    found: set[str | bytes] = {*code.co_names, *code.co_varnames, *code.co_freevars}
    waiting: list[object] = list(code.co_consts)
    while waiting:
        constant = waiting.pop()
        if isinstance(constant, types.CodeType):
            found |= _texts_of(constant)
        elif isinstance(constant, (tuple, frozenset)):
            waiting += constant
        elif isinstance(constant, (str, bytes)):
            found.add(constant)
    return frozenset(found)


def _digest(text: str | bytes) -> str:
    return _remember_digest(text) if len(text) <= _REMEMBERED else _compute_digest(text)


def _compute_digest(text: str | bytes) -> str:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()


_remember_digest = functools.lru_cache(maxsize=1024)(_compute_digest)


def digest(parts: Iterable[str]) -> str:
    """SHA-256 of texts, as hex digits; ("ab", "c") and ("a", "bc") have different digests.

    One `repr` of all texts is fast: the parts of a key are a hundred, and a restart hashes them.
    """
    return hashlib.sha256(repr([*parts]).encode()).hexdigest()
