"""The values that an option may have: their type, their range in words, and the check.

0 and 1 are not accepted as booleans, and booleans not as numbers, because the vendor's export turns
a 0 into the text "0", which is true. Does not import torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npugx_cache.portable import NotPortable, encode
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_INT = (1 << 63) - 1


class Range(NamedTuple):
    """`accepts` tells whether a value is in range; `words` describe the range in error messages."""

    type: str
    words: str
    accepts: Callable[[Any], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def integers(low: int) -> Range:
    return Range(
        "int",
        f"expected an int, valid range is {low} to {MAX_INT}",
        lambda value: _is_int(value) and low <= value <= MAX_INT,
    )


def choice(*texts: str) -> Range:
    return Range(
        "str",
        f"valid values are {', '.join(map(repr, texts))}",
        lambda value: isinstance(value, str) and value in texts,
    )


def _is_pool(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(_is_int(part) and part >= 0 for part in value)
        and (value[0] == 0) != (value[1] == 0)
    )


def _is_int_list(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple)) and all(map(_is_int, value)))


def _is_settings(value: Any) -> bool:
    if not isinstance(value, dict):
        return value is None
    try:
        encode(value)  # the value becomes part of the fingerprint, so it must be portable
    except NotPortable:
        return False
    return all(isinstance(key, str) for key in value)


BOOLEAN = Range("bool", "valid values are True and False", lambda value: isinstance(value, bool))
CAPTURE_MODE = Range(
    "str or None",
    "valid values are 'global', 'thread_local', 'relaxed' and None",
    lambda value: value in ("global", "thread_local", "relaxed", None),
)
POOL = Range(
    "tuple[int, int] or None",
    "valid values are None and a pool handle: two ints of which exactly one is 0",
    lambda value: value is None or _is_pool(value),
)
INTEGERS = Range(
    "list[int] or None",
    "valid values are None and a list of ints",
    _is_int_list,
)
SETTINGS = Range(
    "dict[str, Any] or None",
    "valid values are None and a dict with str keys and plain values",
    _is_settings,
)
FUNCTION = Range(
    "callable or None",
    "valid values are None and a function (gm, example_inputs, config)",
    lambda value: value is None or callable(value),
)
FOLDER = Range(
    "str",
    "expected the path of an existing folder",
    lambda value: isinstance(value, (str, os.PathLike)) and Path(value).is_dir(),
)
