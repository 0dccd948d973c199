"""Writes and reads manifests: what one entry is, and which blobs it names, as sealed msgpack."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from npugx_cache.records import NamedTuple
from npugx_cache.store.format.layout import is_digest, is_key
from npugx_cache.store.format.plain import Malformed, pack, unpack
from npugx_cache.store.format.signing import FORMAT, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.store.format.plain import Plain

Kind: TypeAlias = Literal["graph", "piece", "bypass", "set-up", "kernels"]
Codec: TypeAlias = Literal["raw", "zlib"]
Factors: TypeAlias = tuple[tuple[str, str, str], ...]

MAX_BYTES = 8 << 20
_MAX_DEPTH = 32
_MAX_BLOBS = 1024
# The best ratio that deflate can reach. A blob that claims more is a decompression bomb.
_MAX_RATIO = 1032
MAX_INFLATED = 256 << 20
"""A blob that has more bytes is stored uncompressed, so that one that claims more is a bomb too."""
_MAX_NAME = 128
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-"
_KINDS = get_args(Kind)
_FACTOR = ("name", "value", "scope")


class BlobRef(NamedTuple):
    """One blob of an entry. `sha256`, the digest of the stored bytes, is also the file's name.

    Sizes are in bytes; `logical_size` is the size before compression.
    """

    name: str
    sha256: str
    stored_size: int
    logical_size: int
    codec: Codec


class Manifest(NamedTuple):
    """What one entry is. The store does not interpret `factors`, rows of (name, value, scope).

    `created` is in seconds since the epoch. `cost_seconds` is how long the compile took.
    """

    key: str
    entry: str
    identity: str
    kind: Kind
    created: float
    cost_seconds: float
    factors: Factors
    about: Mapping[str, Plain]
    blobs: tuple[BlobRef, ...]


_FIELDS = Manifest._fields  # in the order in which they are written


class Draft(NamedTuple):
    """An entry to be published. `blobs` hold uncompressed bytes.

    The store compresses a blob where that pays, unless `uncompressed` names the blob.
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
    """Name an entry by the digest of its content: two publishers of one result make one entry."""
    return hashlib.sha256(FORMAT + pack([key, kind, blobs, about, factors])).hexdigest()


def assemble(draft: Draft, blobs: tuple[BlobRef, ...], created: float) -> Manifest:
    """Make the manifest of a draft; raises `Malformed` if a part of it can't be stored."""
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
        about=about,
        blobs=refs,
    )
    # A manifest that readers refuse must not be written: its entry would be a miss for ever.
    read_back = decode(encode(manifest), manifest.key)
    if read_back != manifest:
        raise Malformed("about is not the same after encoding and decoding")
    return manifest


def encode(manifest: Manifest, secret: bytes | None = None) -> bytes:
    fields = manifest._asdict()
    fields["blobs"] = _blob_rows(manifest.blobs)
    return seal(pack(fields), manifest.key, secret)


def decode(data: bytes, key: str, secret: bytes | None = None) -> Manifest:
    """Verify and decode a manifest; raises `Malformed` for bytes that `encode` would not write.

    With a secret, the signature for this key is verified before anything is decoded; raises
    `signing.Unsigned` if that fails.
    """
    if len(data) > MAX_BYTES:
        raise Malformed(f"{len(data)} bytes can't be a manifest")
    fields: Any = unpack(unseal(data, key, secret))
    if type(fields) is not dict or tuple(fields) != _FIELDS:
        raise Malformed("unexpected fields")
    named, entry, identity, kind, created, cost, factors, about, blobs = fields.values()
    if not is_key(named) or not is_key(identity):
        raise Malformed("a key or an identity is not 32 to 128 lower-case hex digits")
    if kind not in _KINDS:
        raise Malformed("unknown kind")
    _check_seconds(created, "created")
    _check_seconds(cost, "cost_seconds")
    if type(about) is not dict:
        raise Malformed("about is not a mapping")
    rows = _checked_factors(factors)
    about = _canonical(about, "about", 0)
    refs = _checked_blobs(blobs)
    if entry_id(named, kind, rows, about, blobs) != entry:
        raise Malformed("the entry id does not belong to the content")
    return Manifest(
        key=named,
        entry=entry,
        identity=identity,
        kind=kind,
        created=created,
        cost_seconds=cost,
        factors=rows,
        about=about,
        blobs=refs,
    )


def _blob_rows(blobs: tuple[BlobRef, ...]) -> list[Plain]:
    return [list(ref) for ref in blobs]


def _canonical(value: Any, where: str, depth: int) -> Any:
    """Return plain data with sorted keys: the order of a dict must not make another entry."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if depth > _MAX_DEPTH:
        raise Malformed(f"{where} is nested too deeply")
    if kind is dict:
        names = list(value)
        for name in names:
            if type(name) is not str:
                raise Malformed(f"a key in {where} is not a str")
        return {name: _canonical(value[name], where, depth + 1) for name in sorted(names)}
    if isinstance(value, (list, tuple)):
        return [_canonical(item, where, depth + 1) for item in value]
    if kind not in (bool, int, float, bytes):
        raise Malformed(f"{where} holds a {kind.__name__}")
    # NaN does not equal itself, so that two equal entries would count as different.
    if value != value:  # noqa: PLR0124
        raise Malformed(f"{where} holds a NaN")
    return value


def _check_seconds(value: object, name: str) -> None:
    if type(value) is not float or not 0 <= value < math.inf:
        raise Malformed(f"{name} is not a number of seconds, 0 or more")


def _checked_factors(value: object) -> Factors:
    rows: Any = value
    if type(rows) is not list:
        raise Malformed("a factor is not three strings")
    found: list[tuple[str, str, str]] = []
    for row in rows:
        if type(row) is not list or len(row) != len(_FACTOR):
            raise Malformed("a factor is not three strings")
        name, text, scope = row
        if not (type(name) is type(text) is type(scope) is str):
            raise Malformed("a factor is not three strings")
        found.append((name, text, scope))
    return tuple(found)


def _checked_blobs(value: object) -> tuple[BlobRef, ...]:
    if type(value) is not list or len(value) > _MAX_BLOBS:
        raise Malformed(f"blobs is not a list, or has more than {_MAX_BLOBS} rows")
    refs = tuple(_checked_blob(row) for row in value)
    names = [ref.name for ref in refs]
    if names != sorted(set(names)):
        raise Malformed("blob names are not sorted and distinct")
    return refs


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        return False
    return name[0] not in ".+-" and not name.strip(_NAME)


def _checked_blob(row: Any) -> BlobRef:
    if type(row) is not list or len(row) != len(BlobRef._fields):
        raise Malformed(f"a blob row does not have {len(BlobRef._fields)} fields")
    name, digest, stored, logical, codec = row
    if not _is_name(name):
        raise Malformed("a blob name is not valid")
    if not is_digest(digest):
        raise Malformed("a blob's sha256 is not 64 lower-case hex digits")
    if type(stored) is not int or type(logical) is not int or stored < 0 or logical < 0:
        raise Malformed("a blob size is not a whole number, 0 or more")
    if codec == "raw":
        if logical != stored:
            raise Malformed("a raw blob has two sizes")
    elif codec != "zlib":
        raise Malformed("unknown codec")
    elif logical > stored * _MAX_RATIO:
        raise Malformed("a blob claims to be larger than it can be")
    elif logical > MAX_INFLATED:
        raise Malformed(f"blob {name} inflates to {logical} bytes, more than {MAX_INFLATED}")
    return BlobRef(name, digest, stored, logical, codec)
