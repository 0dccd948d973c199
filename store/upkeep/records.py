"""Records: small data that may change after an entry is published, such as a capture plan.

There is one file per entry, `rec/<aa>/<entry>`, sealed like a manifest and replaced as a whole: of
several writers the last one wins. Reads and writes are best effort: a bad record counts as missing,
and no record decides whether its entry is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from npugx_cache.store.content.files import Fault, quarantine, read_file, write_file
from npugx_cache.store.format.layout import is_digest, make_parents
from npugx_cache.store.format.plain import Malformed, pack, unpack
from npugx_cache.store.format.signing import Unsigned, seal, unseal
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import distrust
from npugx_cache.store.upkeep.derived import debug

if TYPE_CHECKING:
    from npugx_cache.store.format.layout import Folder
    from npugx_cache.store.format.plain import Plain

PART = "rec"
MAX_BYTES = 1 << 20
_FORMAT = "npugx_cache record 1"


def _path(folder: Folder, entry: str) -> str:
    return f"{folder.part(PART)}/{entry[:2]}/{entry}"


def read(folder: Folder, entry: str) -> Plain:
    """The record of an entry, or None."""
    path = _path(folder, entry)
    if not is_digest(entry) or not _is_trusted(folder, path):
        return None
    found = read_file(folder, path, limit=MAX_BYTES)
    if isinstance(found, Fault):
        if not found.absent:
            debug(f"record not read: {found.reason}")
        return None
    try:
        match unpack(unseal(found.data, entry, folder.secret)):
            case [format_, about, data] if (format_, about) == (_FORMAT, entry):
                return cast("Plain", data)
        quarantine(folder, path, "the record of another entry", found.status)
    except Unsigned as error:
        debug(f"record {entry[:12]} not trusted: {error}")
    except Malformed as error:
        quarantine(folder, path, str(error), found.status)
    return None


def write(folder: Folder, entry: str, data: Plain) -> str | None:
    """Replace the record of an entry; return why that failed, or None."""
    if folder.readonly is not None:
        return folder.readonly
    if not is_digest(entry):
        return "not an entry id"
    path = _path(folder, entry)
    try:
        sealed = seal(pack([_FORMAT, entry, data]), entry, folder.secret)
        if len(sealed) > MAX_BYTES:
            return f"the record has {len(sealed)} bytes, and at most {MAX_BYTES} are stored"
        make_parents(folder, path)
        if not _is_trusted(folder, path):
            return f"{folder.relative(path)} is not trusted"
        write_file(folder, path, sealed, durable=False)
    except Malformed as error:
        return str(error)
    except OSError as error:
        return folder.explain(error, path)
    return None


def _is_trusted(folder: Folder, path: str) -> bool:
    """Whether only trusted users can have put a file there, by the owners of its folders."""
    try:
        for part in (folder.part(PART), path.rpartition("/")[0]):
            status = folder.tree.lstat(part)
            if not syscalls.is_folder(status) or distrust(status, folder.trust, folder.group):
                return False
    except OSError:
        return False
    return True
