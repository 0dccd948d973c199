"""Copies entries between a remote tier and a folder, as they are stored, signatures included.

Objects have the names that files have in a folder (`format/layout`). An engine that can't list has
one more object for each key, `v1/ac/<aa>/<key>/index`, with the names of the key's entries.
"""

from __future__ import annotations

import hashlib
import random
import time
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store.content import blobs, publish
from npugx_cache.store.format.layout import is_digest
from npugx_cache.store.format.manifest import MAX_BYTES, Manifest, decode
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.format.signing import Unsigned
from npugx_cache.store.remote.engine import Fault
from npugx_cache.store.results import Miss

if TYPE_CHECKING:
    from collections.abc import Collection

    from npugx_cache.store.content.blobs import Packed
    from npugx_cache.store.folder_store import FolderStore
    from npugx_cache.store.format.layout import Folder
    from npugx_cache.store.remote.connection import Connection
    from npugx_cache.store.remote.engine import Engine

_MAX_ENTRIES = 64  # of one key; see `content/entries`
_MAX_INDEX = 1 << 20
MAX_KEY_BYTES = 16 << 20
"""How much is read of all manifests of one key: honest ones have some KB, and a call waits."""
_ATTEMPTS = 4


class Found(NamedTuple):
    """The manifests that a tier has for a key, as they are stored, and what was wrong there."""

    entries: tuple[tuple[Manifest, bytes], ...] = ()
    faults: tuple[str, ...] = ()


def manifests(engine: Engine, folder: Folder, key: str, skip: Collection[str]) -> Found:
    """Read and verify the manifests of a key, except those in `skip`. Raises `Fault`."""
    listed = _names(engine, folder, key)
    names = [name for name in listed if is_digest(name) and name not in skip]
    wanted = [(folder.manifest(key, name), MAX_BYTES + 1) for name in names[:_MAX_ENTRIES]]
    entries: list[tuple[Manifest, bytes]] = []
    faults: list[str] = []
    if not engine.lists and not all(map(is_digest, listed)):
        faults.append("an index of the remote tier is damaged")
    read = engine.read_all(wanted, MAX_KEY_BYTES) if wanted else ()
    for name, data in zip(names, read, strict=False):
        if isinstance(data, Fault):
            if not (data.is_absent or data.is_too_much):
                raise data
            why = f"was not read: more than {MAX_KEY_BYTES >> 20} MB under one key"
            why = "is not there any more" if data.is_absent else why
            faults.append(f"entry {name[:12]} of the remote tier {why}")
            continue
        try:
            manifest = decode(data, key, folder.secret)
            if (manifest.key, manifest.entry) != (key, name):
                raise Malformed("the manifest of another entry")  # noqa: TRY301
        except (Malformed, Unsigned) as error:
            faults.append(f"entry {name[:12]} of the remote tier is not used: {error}")
        else:
            entries.append((manifest, data))
    return Found(tuple(entries), tuple(faults))


def _names(engine: Engine, folder: Folder, key: str) -> list[str]:
    if engine.lists:
        return sorted(engine.names(f"{folder.key(key)}/"))
    return _read_index(engine, f"{folder.key(key)}/index")


def _read_index(engine: Engine, path: str) -> list[str]:
    try:
        text = engine.read(path, _MAX_INDEX)
    except Fault as fault:
        if fault.is_absent:
            return []
        raise
    return sorted({*text.decode("ascii", "replace").split("\n")})


def bring(
    connection: Connection, store: FolderStore, manifest: Manifest, data: bytes
) -> str | None:
    """Copy the blobs of an entry, then the entry, to the folder; return why not. Raises `Fault`."""
    folder = store.folder
    missing = [ref for ref in manifest.blobs if not blobs.is_there(folder, ref)]
    wanted = [(folder.blob(ref.sha256), ref.stored_size + 1) for ref in missing]
    packed: list[Packed] = []
    wrong: list[str] = []
    together = sum(limit for _, limit in wanted)
    read = connection.engine.read_all(wanted, together) if wanted else []
    for ref, stored in zip(missing, read, strict=True):
        if isinstance(stored, Fault):
            if not stored.is_absent:
                raise stored
            wrong.append(f"blob {ref.name} is not there")
        elif hashlib.sha256(stored).hexdigest() != ref.sha256:
            wrong.append(f"blob {ref.name} has a wrong digest")
            connection.wrong_blobs.add(ref.sha256)
        else:
            packed.append(blobs.Packed(ref, stored))
    if wrong:
        return f"entry {manifest.entry[:12]} of the remote tier: {wrong[0]}"
    return store.add(publish.Prepared(manifest, data, tuple(packed), durable=False))


def send(connection: Connection, folder: Folder, key: str, entry: str) -> str | None:
    """Copy an entry of the folder to the tier: blobs first; return why not. Raises `Fault`."""
    engine = connection.engine
    prepared = publish.take(folder, key, entry)
    if isinstance(prepared, Miss):
        return prepared.reason
    for blob in prepared.blobs:
        path, digest = folder.blob(blob.ref.sha256), blob.ref.sha256
        # A blob never changes, so one that is there is not sent again.
        if digest in connection.wrong_blobs or engine.size(path) != blob.ref.stored_size:
            engine.write(path, blob.stored)
            connection.wrong_blobs.discard(digest)
    engine.write(folder.manifest(key, entry), prepared.data)
    if not engine.lists:
        _add_to_index(engine, f"{folder.key(key)}/index", entry)
    return None


def _add_to_index(engine: Engine, path: str, entry: str) -> None:
    """Add a name to an index. The last of two writers wins, so each looks whether its name is in.

    A name that is lost nevertheless costs another host a compile.
    """
    for _ in range(_ATTEMPTS):
        names = _read_index(engine, path)
        if entry in names:
            return
        kept = [entry, *filter(is_digest, names)][:_MAX_ENTRIES]
        engine.write(path, "\n".join(kept).encode("ascii"))
        time.sleep(random.uniform(0.0, 0.05))  # noqa: S311
