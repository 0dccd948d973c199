"""Encodes plain data as msgpack and decodes it within limits. Decoding never runs code."""

from __future__ import annotations

from typing import TypeAlias, cast

import msgpack

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"

_MAX_ITEMS = 1 << 17
_MAX_BYTES = 1 << 26


class Malformed(ValueError):  # caught inside this package; users never see it
    """Bytes or values that are not what they should be."""


def pack(value: object) -> bytes:
    try:
        return cast("bytes", msgpack.packb(value, use_bin_type=True))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Malformed(f"can't be encoded: {error}") from None


def unpack(data: bytes, *, max_bytes: int = _MAX_BYTES, max_items: int = _MAX_ITEMS) -> object:
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=max_bytes,
            max_bin_len=max_bytes,
            max_array_len=max_items,
            max_map_len=max_items,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise Malformed(f"not msgpack: {error}") from None
