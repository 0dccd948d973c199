"""Whole entries from one store to another: the stored bytes as they are, signatures included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.store import blobs, publish
from npugx_cache.store.files import Fault, read_file
from npugx_cache.store.manifest import MAX_BYTES, decode
from npugx_cache.store.plain import Malformed
from npugx_cache.store.results import Miss
from npugx_cache.store.signing import Unsigned

if TYPE_CHECKING:
    from npugx_cache.store.layout import Folder
    from npugx_cache.store.publish import Prepared


def take(folder: Folder, key: str, entry: str) -> Prepared | Miss:
    """Read an entry in its stored form, everything verified."""
    data = manifest_bytes(folder, key, entry)
    if isinstance(data, Miss):
        return data
    packed: list[blobs.Packed] = []
    manifest = decode(data, key, folder.secret)
    for ref in manifest.blobs:
        stored = blobs.stored(folder, ref)
        if isinstance(stored, Miss):
            return stored
        packed.append(blobs.Packed(ref=ref, stored=stored))
    return publish.Prepared(manifest=manifest, data=data, blobs=tuple(packed), durable=False)


def manifest_bytes(folder: Folder, key: str, entry: str) -> bytes | Miss:
    """Read the stored form of a manifest, verified for this place."""
    found = read_file(folder, folder.manifest(key, entry), limit=MAX_BYTES)
    if isinstance(found, Fault):
        return Miss(reason=found.reason)
    try:
        manifest = decode(found.data, key, folder.secret)
    except (Malformed, Unsigned) as error:
        return Miss(reason=str(error))
    if manifest.entry != entry:
        return Miss(reason="the manifest of another entry")
    return found.data
