"""Manifest: what one entry is and which blobs it names <-> bytes (msgpack, sealed)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from npugx_cache.store.layout import is_digest, is_key
from npugx_cache.store.plain import Malformed, pack, unpack
from npugx_cache.store.signing import FORMAT, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.store.plain import Plain

Kind: TypeAlias = Literal["graph", "bypass"]
Codec: TypeAlias = Literal["raw", "zlib"]
Factors: TypeAlias = tuple[tuple[str, str, str], ...]

MAX_BYTES = 8 << 20
_MAX_DEPTH = 32
_MAX_BLOBS = 1024
# deflate can't do better: a larger claim is a decompression bomb, not a blob.
_MAX_RATIO = 1032
_MAX_NAME = 128
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-"
_FIELDS = (
    "key",
    "entry",
    "identity",
    "kind",
    "created",
    "cost_seconds",
    "factors",
    "about",
    "blobs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """One blob of an entry. `sha256` is of the stored bytes, which is also its file name."""

    name: str
    sha256: str
    stored_size: int
    logical_size: int
    codec: Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry. `factors` are (name, value, scope) rows, opaque to the store."""

    key: str
    entry: str
    identity: str
    kind: Kind
    created: float
    cost_seconds: float
    factors: Factors
    about: Mapping[str, Plain]
    blobs: tuple[BlobRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a publisher gives. `blobs` are logical bytes.

    The store compresses them where that pays, except those named in `uncompressed`.
    """

    key: str
    identity: str
    kind: Kind
    cost_seconds: float
    factors: Factors
    about: Mapping[str, Plain]
    blobs: Mapping[str, bytes]
    uncompressed: frozenset[str] = frozenset()


def entry_id(key: str, kind: str, factors: Factors, about: Plain, blobs: list[Plain]) -> str:
    """Name an entry by its content, so that equal results of two publishers are one entry."""
    named = [key, kind, blobs, about, [list(row) for row in factors]]
    return hashlib.sha256(FORMAT + pack(named)).hexdigest()


def assemble(draft: Draft, blobs: tuple[BlobRef, ...], created: float) -> Manifest:
    """Make the manifest of a draft; raises `Malformed` saying what of it can't be stored."""
    about = _canonical(dict(draft.about), "about", 0)
    factors = tuple((str(a), str(b), str(c)) for a, b, c in draft.factors)
    refs = tuple(sorted(blobs, key=lambda ref: ref.name))
    manifest = Manifest(
        key=draft.key,
        entry=entry_id(draft.key, draft.kind, factors, about, _blob_rows(refs)),
        identity=draft.identity,
        kind=draft.kind,
        created=float(created),
        cost_seconds=float(draft.cost_seconds),
        factors=factors,
        about=cast("dict[str, Plain]", about),
        blobs=refs,
    )
    # What a reader would refuse must not be written: it would be a miss for ever.
    read_back = decode(encode(manifest), manifest.key)
    if read_back != manifest:
        raise Malformed("about does not survive encoding")
    return manifest


def encode(manifest: Manifest, secret: bytes | None = None) -> bytes:
    body = pack(
        {
            "key": manifest.key,
            "entry": manifest.entry,
            "identity": manifest.identity,
            "kind": manifest.kind,
            "created": manifest.created,
            "cost_seconds": manifest.cost_seconds,
            "factors": [list(row) for row in manifest.factors],
            "about": manifest.about,
            "blobs": _blob_rows(manifest.blobs),
        }
    )
    return seal(body, manifest.key, secret)


def decode(data: bytes, key: str, secret: bytes | None = None) -> Manifest:
    """Check and decode; raises `Malformed` for anything else than what `encode` writes.

    Given a secret, nothing is decoded before its signature for this key is verified
    (`signing.Unsigned`).
    """
    if len(data) > MAX_BYTES:
        raise Malformed(f"{len(data)} bytes can't be a manifest")
    fields = unpack(unseal(data, key, secret))
    if not isinstance(fields, dict) or tuple(fields) != _FIELDS:
        raise Malformed("unexpected fields")
    about = _canonical(fields["about"], "about", 0)
    _require(isinstance(about, dict), "about is no mapping")
    manifest = Manifest(
        key=_checked_key(fields["key"], "key"),
        entry=_checked_digest(fields["entry"], "entry"),
        identity=_checked_key(fields["identity"], "identity"),
        kind=_checked_kind(fields["kind"]),
        created=_checked_seconds(fields["created"], "created"),
        cost_seconds=_checked_seconds(fields["cost_seconds"], "cost_seconds"),
        factors=_checked_factors(fields["factors"]),
        about=cast("dict[str, Plain]", about),
        blobs=_checked_blobs(fields["blobs"]),
    )
    named = entry_id(
        manifest.key, manifest.kind, manifest.factors, about, _blob_rows(manifest.blobs)
    )
    _require(named == manifest.entry, "the entry id does not belong to the content")
    return manifest


def _blob_rows(blobs: tuple[BlobRef, ...]) -> list[Plain]:
    return [[b.name, b.sha256, b.stored_size, b.logical_size, b.codec] for b in blobs]


def _canonical(value: object, where: str, depth: int) -> Plain:
    """Plain data with sorted keys: dict order must not make two entries of one result."""
    if depth > _MAX_DEPTH:
        raise Malformed(f"{where} is nested too deeply")
    if isinstance(value, dict):
        for name in value:
            _require(type(name) is str, f"a key in {where} is no str")
        return {name: _canonical(value[name], where, depth + 1) for name in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_canonical(item, where, depth + 1) for item in value]
    if value is None or type(value) in (bool, int, float, str, bytes):
        # NaN is equal to nothing, itself included: two equal entries would count as different.
        _require(value == value, f"{where} holds a NaN")  # noqa: PLR0124
        return cast("Plain", value)
    raise Malformed(f"{where} holds a {type(value).__name__}")


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise Malformed(reason)


def _checked_key(value: object, name: str) -> str:
    _require(is_key(value), f"{name} is not 32 to 128 lower-case hex digits")
    return cast("str", value)


def _checked_digest(value: object, name: str) -> str:
    _require(is_digest(value), f"{name} is not 64 lower-case hex digits")
    return cast("str", value)


def _checked_kind(value: object) -> Kind:
    _require(value in get_args(Kind), "unknown kind")
    return cast("Kind", value)


def _checked_seconds(value: object, name: str) -> float:
    _require(
        type(value) is float and math.isfinite(value) and value >= 0, f"{name} is no positive time"
    )
    return cast("float", value)


def _checked_factors(value: object) -> Factors:
    rows: list[Any] = value if isinstance(value, list) else [None]
    for row in rows:
        fits = isinstance(row, list) and len(row) == 3 and all(type(cell) is str for cell in row)
        _require(fits, "a factor is not three strings")
    return tuple((row[0], row[1], row[2]) for row in rows)


def _checked_blobs(value: object) -> tuple[BlobRef, ...]:
    rows = value if isinstance(value, list) else [None]
    _require(len(rows) <= _MAX_BLOBS, "too many blobs")
    refs = tuple(_checked_blob(row) for row in rows)
    names = [ref.name for ref in refs]
    _require(names == sorted(set(names)), "blob names are not sorted and distinct")
    return refs


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        return False
    return name[0] not in ".+-" and not name.strip(_NAME)


def _checked_blob(row: object) -> BlobRef:
    _require(isinstance(row, list) and len(row) == 5, "a blob row is odd")
    name, digest, stored, logical, codec = cast("list[object]", row)
    _require(_is_name(name), "a blob name is odd")
    _checked_digest(digest, "a blob's sha256")
    _require(codec in get_args(Codec), "unknown codec")
    for size in (stored, logical):
        _require(type(size) is int and size >= 0, "a blob size is odd")
    ref = BlobRef(
        name=cast("str", name),
        sha256=cast("str", digest),
        stored_size=cast("int", stored),
        logical_size=cast("int", logical),
        codec=cast("Codec", codec),
    )
    bound = ref.stored_size if ref.codec == "raw" else ref.stored_size * _MAX_RATIO
    _require(ref.logical_size <= bound, "a blob claims to be larger than it can be")
    if ref.codec == "raw":
        _require(ref.logical_size == ref.stored_size, "a raw blob has two sizes")
    return ref
