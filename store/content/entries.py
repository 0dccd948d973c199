"""Finds the entries under a key and reads their manifests.

A key is a folder, and each entry under the key is a file in that folder. So one key can have
several entries, and two publishers never read, change and write back the same file.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from npugx_cache.records import NamedTuple
from npugx_cache.store.content.files import Fault, quarantine, read_file
from npugx_cache.store.content.verified import stamp
from npugx_cache.store.format.layout import VERSION, is_digest, is_key, key_folders, listdir
from npugx_cache.store.format.manifest import MAX_BYTES, Manifest, decode
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.format.signing import Unsigned
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import distrust
from npugx_cache.store.results import REMOVED, Candidates, Miss, Refused

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator

    from npugx_cache.store.content.verified import Verified
    from npugx_cache.store.format.layout import Folder

MIN_PREFIX = 4
# How much is read under one key. An honest key stays far below both limits: a manifest has some KB,
# and a function that is compiled for too many shapes is given up. Without the limits, whoever can
# write the folder could make a lookup take minutes, with files that consist of holes.
MAX_ENTRIES = 1024
MAX_KEY_BYTES = 64 << 20
_MAX_NAMES = 4 * MAX_ENTRIES
_MANIFESTS = f"{VERSION}/ac"
_MAX_NAMED = 8
_MAX_MARKERS = 4096


class Entry(NamedTuple):
    """A manifest, and the status of the file that it was read from."""

    manifest: Manifest
    status: os.stat_result


class Allowance:
    """How many bytes may still be read under one key."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_KEY_BYTES


def load(
    folder: Folder,
    key: str,
    entry: str,
    *,
    at: int | None = None,
    verified: Verified | None = None,
    allowance: Allowance | None = None,
) -> Entry | Refused:
    """Read, verify and decode one manifest; a damaged file goes to quarantine.

    `at` is the descriptor of the key's folder, if the caller has it open.
    """
    path = folder.manifest(key, entry)
    left = MAX_BYTES if allowance is None else allowance.left
    refused = None if verified is None else verified.refusal(path)
    found = read_file(folder, path, limit=min(MAX_BYTES, left), refused=refused, at=at)
    if isinstance(found, Fault):
        reason = REMOVED if found.absent else found.reason
        if found.wrong_size and found.status is not None:
            if found.status.st_size > MAX_BYTES:
                quarantine(folder, path, reason, found.status)
            else:
                reason = f"{path} was not read: more than {MAX_KEY_BYTES >> 20} MB under one key"
        return Refused(entry=entry, key=key, reason=reason)
    if allowance is not None:
        allowance.left -= len(found.data)
    try:
        manifest = decode(found.data, key, folder.secret)
        if (manifest.key, manifest.entry) != (key, entry):
            # A renamed or swapped file is intact, but it is not the entry that was asked for.
            raise Malformed("the manifest of another entry")  # noqa: TRY301
    except Unsigned as error:
        # No quarantine: another team, or this team with its earlier key, may need the file.
        reason = f"{path} is not trusted: {error}"
    except Malformed as error:
        reason = f"{path}: {error}"
        quarantine(folder, path, str(error), found.status)
    else:
        return Entry(manifest, found.status)
    if verified is not None:
        verified.note_refusal(path, stamp(found.status), reason)
    return Refused(entry=entry, key=key, reason=reason)


def load_key(
    folder: Folder, key: str, skip: Collection[str] = (), verified: Verified | None = None
) -> list[Entry | Refused]:
    """Read the entries of a key except those in `skip`; raises OSError if the folder is unreadable.

    If every entry was read and none was refused, `verified` keeps the entries for the next lookup.
    """
    at = open_key(folder, key)
    try:
        status = syscalls.fstat(at)
        fault = distrust(status, folder.trust, folder.group)
        if fault is not None:
            reason = f"{folder.key(key)} is not trusted: {fault}"
            return [Refused(entry="", key=key, reason=reason)]
        names = entry_names(at)
        found = _load_names(folder, key, at, [n for n in names if n not in skip], verified)
    finally:
        syscalls.close(at)
    if verified is not None and not skip:
        entries = [item for item in found if isinstance(item, Entry)]
        if len(entries) == len(found):
            verified.note_key(key, stamp(status), entries)
    return found


def open_key(folder: Folder, key: str) -> int:
    """Open the folder of a key, to list it; the caller closes it. Raises OSError."""
    return folder.tree.open_below(_MANIFESTS, [key[:2], key], syscalls.open_folder)


def _load_names(
    folder: Folder, key: str, at: int, names: list[str], verified: Verified | None
) -> list[Entry | Refused]:
    allowance = Allowance()
    found = [
        load(folder, key, name, at=at, verified=verified, allowance=allowance)
        for name in names[:MAX_ENTRIES]
    ]
    found = [item for item in found if isinstance(item, Entry) or item.reason != REMOVED]
    if len(names) > MAX_ENTRIES:
        reason = f"{folder.key(key)} has more than {MAX_ENTRIES} entries; the rest was not read"
        found.append(Refused(entry="", key=key, reason=reason))
    return found


def entry_names(at: int) -> list[str]:
    """Return the names of entries in the open folder of a key, out of the first 4096 names."""
    # .nfs files and other leftovers are no entries.
    return sorted(filter(is_digest, syscalls.some_names(at, _MAX_NAMES)))


def load_all(folder: Folder) -> Iterator[Entry | Refused]:
    """Read every entry of the store; yields `Refused` for what can't be read."""
    for key in key_folders(folder):
        try:
            yield from load_key(folder, key)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Refused(entry="", key=key, reason=folder.explain(error, folder.key(key)))


def candidates(
    folder: Folder, key: str, skip: Collection[str] = (), verified: Verified | None = None
) -> Candidates:
    if not is_key(key):
        return Candidates(missing_reason="the key is not 32 to 128 lower-case hex digits")
    try:
        found = _load_if_changed(folder, key, skip, verified)
    except FileNotFoundError:
        return Candidates(missing_reason="no entry under this key")
    except OSError as error:
        reason = f"folder unreadable: {folder.explain(error, folder.key(key))}"
        return Candidates(
            refused=(Refused(entry="", key=key, reason=reason),), missing_reason=reason
        )
    refused = tuple([item for item in found if isinstance(item, Refused)])
    entries = [item for item in found if isinstance(item, Entry)]
    entries.sort(key=lambda entry: entry.status.st_mtime, reverse=True)
    graphs = tuple([e.manifest for e in entries if e.manifest.kind not in _NOTES])
    bypasses, set_ups = (
        tuple([e.manifest for e in entries if e.manifest.kind == kind]) for kind in _NOTES
    )
    missing = None
    if not graphs:
        missing = _missing_reason(bypassed=bool(bypasses), refused=refused)
    return Candidates(graphs, refused, missing, bypasses, set_ups)


def likely(key: str, signature: str, verified: Verified) -> tuple[Manifest, ...]:
    found = [e for e in verified.likely(key, signature) if e.manifest.kind not in _NOTES]
    found.sort(key=lambda entry: entry.status.st_mtime, reverse=True)
    return tuple([entry.manifest for entry in found])


_NOTES = ("bypass", "set-up")
"""The kinds of entries that hold no graph."""


def _load_if_changed(
    folder: Folder, key: str, skip: Collection[str], verified: Verified | None
) -> list[Entry | Refused]:
    """Return the same as `load_key`, without reading the entries again if nothing has changed."""
    known = None if verified is None else verified.key(key)
    if known is not None:
        return [entry for entry in known if entry.manifest.entry not in skip]
    return load_key(folder, key, skip, verified)


def _missing_reason(*, bypassed: bool, refused: tuple[Refused, ...]) -> str:
    if refused:
        return f"no usable entry under this key: {refused[0].reason}"
    return "only a bypass under this key" if bypassed else "no entry under this key"


def siblings(folder: Folder, identity: str, limit: int) -> tuple[Manifest, ...]:
    """Return the entries of one function under any key, newest first, without bypasses."""
    if not is_key(identity):
        return ()
    root = folder.part(f"fn/{identity}")
    aged: list[tuple[float, str]] = []
    with contextlib.suppress(OSError), folder.tree.place(f"{root}/") as (at, _):
        for key in _markers(folder, root):
            with contextlib.suppress(OSError):
                aged.append((syscalls.lstat(key, at).st_mtime, key))
    found: list[Manifest] = []
    for _, key in sorted(aged, reverse=True)[:limit]:
        found.extend(
            manifest
            for manifest in candidates(folder, key).manifests
            if manifest.identity == identity
        )
    found.sort(key=lambda manifest: manifest.created, reverse=True)
    return tuple(found[:limit])


def _markers(folder: Folder, root: str) -> list[str]:
    fd = folder.tree.enter(root)
    try:
        return sorted(filter(is_key, syscalls.some_names(fd, _MAX_MARKERS)))
    finally:
        syscalls.close(fd)


def find(folder: Folder, prefix: str) -> Manifest | Miss:
    """Return the only entry whose id starts with `prefix`, or a miss if none or several do."""
    wanted = prefix.lower()
    if len(wanted) < MIN_PREFIX or not set(wanted) <= set("0123456789abcdef"):
        return Miss(reason=f"{prefix!r} is not an entry id: give {MIN_PREFIX} or more hex digits")
    matches = sorted(
        (entry, key)
        for key in key_folders(folder)
        for entry in listdir(folder, folder.key(key))
        if is_digest(entry) and entry.startswith(wanted)
    )
    if not matches:
        return Miss(reason=f"no entry starts with {wanted}")
    if len(matches) > 1:
        named = ", ".join(entry[:16] for entry, _ in matches[:_MAX_NAMED])
        more = f" and {len(matches) - _MAX_NAMED} more" if len(matches) > _MAX_NAMED else ""
        return Miss(reason=f"{wanted} is ambiguous: {named}{more}")
    entry, key = matches[0]
    found = load(folder, key, entry)
    return Miss(reason=found.reason) if isinstance(found, Refused) else found.manifest
