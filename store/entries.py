"""Key -> manifests.

A key is a folder and an entry a file in it: one key names several entries, and two publishers
never read, change and write back the same file.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store import syscalls
from npugx_cache.store.files import Fault, quarantine, read_file
from npugx_cache.store.layout import is_digest, is_key, key_folders, listdir
from npugx_cache.store.manifest import MAX_BYTES, Manifest, decode
from npugx_cache.store.plain import Malformed
from npugx_cache.store.results import Candidates, Miss, Refused
from npugx_cache.store.signing import Unsigned
from npugx_cache.store.trust import distrust
from npugx_cache.store.verified import stamp

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator

    from npugx_cache.store.layout import Folder
    from npugx_cache.store.verified import Verified

MIN_PREFIX = 4
_MAX_NAMED = 8
_MAX_MARKERS = 4096


class Entry(NamedTuple):
    """A manifest as it lies on disk, and the file that it was read from."""

    manifest: Manifest
    status: os.stat_result


def load(folder: Folder, key: str, entry: str) -> Entry | Refused:
    """Read, verify and decode one manifest; a bad one goes to quarantine."""
    path = folder.manifest(key, entry)
    found = read_file(folder, path, limit=MAX_BYTES)
    if isinstance(found, Fault):
        if found.wrong_size:
            quarantine(folder, path, found.reason, found.status)
        return Refused(entry=entry, key=key, reason=found.reason)
    try:
        manifest = decode(found.data, key, folder.secret)
        if (manifest.key, manifest.entry) != (key, entry):
            # A renamed or swapped file is intact in itself and still not what was asked for.
            raise Malformed("the manifest of another entry")  # noqa: TRY301
    except Unsigned as error:
        # Left where it is: another team, or this one before it changed its key, may need it.
        reason = f"{folder.relative(path)} is not trusted: {error}"
        return Refused(entry=entry, key=key, reason=reason)
    except Malformed as error:
        reason = f"{folder.relative(path)}: {error}"
        quarantine(folder, path, str(error), found.status)
        return Refused(entry=entry, key=key, reason=reason)
    return Entry(manifest, found.status)


def load_key(
    folder: Folder, key: str, status: os.stat_result, skip: Collection[str] = ()
) -> Iterator[Entry | Refused]:
    """Read the entries of a key but those in `skip`; OSError where its folder can't be read.

    `status` is the folder's.
    """
    path = folder.key(key)
    fault = distrust(status, folder.trust, folder.group)
    if not syscalls.is_folder(status):
        yield Refused(entry="", key=key, reason=f"{folder.relative(path)} is not a folder")
        return
    if fault is not None:
        yield Refused(entry="", key=key, reason=f"{folder.relative(path)} is not trusted: {fault}")
        return
    for name in sorted(syscalls.names(path)):
        # .nfs files and other leftovers are nobody's entries.
        if is_digest(name) and name not in skip:
            yield load(folder, key, name)


def load_all(folder: Folder) -> Iterator[Entry | Refused]:
    """Read every entry of the store; what can't be read is a refusal."""
    for key in key_folders(folder):
        try:
            yield from load_key(folder, key, syscalls.lstat(folder.key(key)))
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
        found = _known(folder, key, skip, verified)
    except FileNotFoundError:
        return Candidates(missing_reason="no entry under this key")
    except OSError as error:
        reason = f"folder unreadable: {folder.explain(error, folder.key(key))}"
        return Candidates(missing_reason=reason)
    refused = tuple([item for item in found if isinstance(item, Refused)])
    entries = [item for item in found if isinstance(item, Entry)]
    entries.sort(key=lambda entry: entry.status.st_mtime, reverse=True)
    graphs = tuple([e.manifest for e in entries if e.manifest.kind != "bypass"])
    bypasses = tuple([e.manifest for e in entries if e.manifest.kind == "bypass"])
    missing = None
    if not graphs:
        missing = _missing_reason(bypassed=bool(bypasses), refused=refused)
    return Candidates(graphs, refused, missing, bypasses)


def _known(
    folder: Folder, key: str, skip: Collection[str], verified: Verified | None
) -> list[Entry | Refused]:
    """Return what `load_key` would, without reading it again where nothing has changed."""
    if verified is None:
        return list(load_key(folder, key, syscalls.lstat(folder.key(key)), skip))
    known = verified.key(key)
    if known is not None:
        return [entry for entry in known if entry.manifest.entry not in skip]
    status = syscalls.lstat(folder.key(key))
    found = list(load_key(folder, key, status, skip))
    entries = [item for item in found if isinstance(item, Entry)]
    if len(entries) == len(found) and not skip:
        verified.note_key(key, stamp(status), entries)
    return found


def _missing_reason(*, bypassed: bool, refused: tuple[Refused, ...]) -> str:
    if refused:
        return f"no usable entry under this key: {refused[0].reason}"
    return "only a bypass under this key" if bypassed else "no entry under this key"


def siblings(folder: Folder, identity: str, limit: int) -> tuple[Manifest, ...]:
    """Return the graphs of one function under any key, newest first."""
    if not is_key(identity):
        return ()
    root = folder.part(f"fn/{identity}")
    aged: list[tuple[float, str]] = []
    for key in listdir(root)[:_MAX_MARKERS]:
        if is_key(key):
            with contextlib.suppress(OSError):
                aged.append((syscalls.lstat(f"{root}/{key}").st_mtime, key))
    found: list[Manifest] = []
    for _, key in sorted(aged, reverse=True)[:limit]:
        found.extend(
            manifest
            for manifest in candidates(folder, key).manifests
            if manifest.identity == identity
        )
    found.sort(key=lambda manifest: manifest.created, reverse=True)
    return tuple(found[:limit])


def find(folder: Folder, prefix: str) -> Manifest | Miss:
    """Return the entry whose id starts with `prefix`, where that is exactly one."""
    wanted = prefix.lower()
    if len(wanted) < MIN_PREFIX or not set(wanted) <= set("0123456789abcdef"):
        return Miss(reason=f"{prefix!r} is not an entry id: give {MIN_PREFIX} or more hex digits")
    matches = sorted(
        (entry, key)
        for key in key_folders(folder)
        for entry in listdir(folder.key(key))
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
