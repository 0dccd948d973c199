"""Where things lie. Nothing absolute is written inside a store, so its folder can be moved."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls

if TYPE_CHECKING:
    from pathlib import Path

    from npugx_cache.config import TrustMode

VERSION = "v1"
_ATTEMPTS = 8
FOLDERS = ("ac", "cas", "fn", "tmp", "quarantine", "locks")
CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This folder is a cache of npugx_cache. It can be moved or deleted at any time.\n"
)

# Checked by hand: compiling the patterns would cost every start milliseconds.
_HEX = "0123456789abcdef"
_DIGITS = "0123456789"


def _consists(name: str, characters: str, shortest: int, longest: int) -> bool:
    return shortest <= len(name) <= longest and not name.strip(characters)


def is_digest(name: object) -> bool:
    return isinstance(name, str) and _consists(name, _HEX, 64, 64)


def is_key(name: object) -> bool:
    """Tell whether a name can be a key or a function identity."""
    return isinstance(name, str) and _consists(name, _HEX, 32, 128)


def is_shard(name: str) -> bool:
    return _consists(name, _HEX, 2, 2)


def is_temporary(name: str) -> bool:
    process, dash, unique = name.partition("-")
    return dash == "-" and _consists(process, _DIGITS, 1, 10) and _consists(unique, _HEX, 32, 32)


def is_lock(name: str) -> bool:
    stem, dot, kind = name.partition(".")
    return dot + kind == ".lock" and _consists(stem, _HEX, 2, 128)


def is_quarantined(name: str) -> bool:
    digest, _, unique = name.removesuffix(".reason").partition(".")
    return is_digest(digest) and _consists(unique, _HEX, 16, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A store's folder and what this process may do with it.

    `readonly` is the reason why nothing is ever written, or None. `secret` is the signing key,
    there under trust `signed` and only there.
    """

    root: Path
    trust: TrustMode = "private"
    readonly: str | None = None
    secret: bytes | None = field(default=None, repr=False)
    base: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", f"{self.root}/{VERSION}")

    @property
    def file_mode(self) -> int:
        # mkstemp's fixed 0600 would lock others out; the umask trims this one.
        return {"private": 0o600, "group": 0o660, "signed": 0o666}[self.trust]

    @property
    def folder_mode(self) -> int:
        return {"private": 0o700, "group": 0o770, "signed": 0o777}[self.trust]

    def key(self, key: str) -> str:
        return f"{self.base}/ac/{key[:2]}/{key}"

    def manifest(self, key: str, entry: str) -> str:
        return f"{self.base}/ac/{key[:2]}/{key}/{entry}"

    def shard(self, key: str) -> str:
        return f"{self.base}/ac/{key[:2]}"

    def blob(self, digest: str) -> str:
        return f"{self.base}/cas/{digest[:2]}/{digest}"

    def marker(self, identity: str, key: str) -> str:
        return f"{self.base}/fn/{identity}/{key}"

    def lock(self, name: str) -> str:
        return f"{self.base}/locks/{name}.lock"

    def part(self, name: str) -> str:
        return f"{self.base}/{name}"

    def temporary(self) -> str:
        return f"{self.part('tmp')}/{os.getpid()}-{syscalls.random_name()}"

    def look_only(self, reason: str) -> Folder:
        """The same folder, in which nothing is written and no bad file moved away."""
        return replace(self, readonly=self.readonly or reason)

    def relative(self, path: object) -> str:
        """Return the path inside the store: messages must not depend on where it lies."""
        text = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
        return text.removeprefix(f"{self.root}/")

    def explain(self, error: OSError, path: str = "") -> str:
        """Say which error it was and at which file of the store."""
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        where = self.relative(error.filename) or self.relative(path)
        return f"{name} at {where}: {error.strerror}" if where else f"{name}: {error.strerror}"


def make_folder(path: str, mode: int) -> bool:
    """Create one folder unless it is there; tell whether it was created."""
    try:
        syscalls.mkdir(path, mode)
    except FileExistsError:
        return False
    return True


def make_parents(folder: Folder, path: str) -> list[str]:
    """Create what is missing between the store's root and a file; return the folders made."""
    for _ in range(_ATTEMPTS):
        # A cleaner may remove one of them, empty as it is, before the next one is in it.
        with contextlib.suppress(FileNotFoundError):
            return _make_parents(folder, path)
    return _make_parents(folder, path)


def _make_parents(folder: Folder, path: str) -> list[str]:
    made: list[str] = []
    current = str(folder.root)
    for part in folder.relative(path).split("/")[:-1]:
        current = f"{current}/{part}"
        if make_folder(current, folder.folder_mode):
            made.append(current)
    return made


def stamp_shard(folder: Folder, key: str) -> None:
    """Give the shard a new mtime: a change inside a key folder shows there, and nowhere else."""
    with contextlib.suppress(OSError):
        syscalls.touch(folder.shard(key))


def listdir(path: str) -> list[str]:
    """Return the sorted names in a folder, none where it is missing, unreadable or a link.

    Following a link in a folder's place would let a cleaner delete outside the store.
    """
    try:
        fd = syscalls.open_folder(path)
    except OSError:
        return []
    try:
        return sorted(syscalls.names(fd))
    except OSError:
        return []
    finally:
        syscalls.close(fd)


def key_folders(folder: Folder) -> list[str]:
    """Return every key that has a folder."""
    root = folder.part("ac")
    shards = (name for name in listdir(root) if is_shard(name))
    return [
        key
        for shard in shards
        for key in listdir(f"{root}/{shard}")
        if is_key(key) and key[:2] == shard
    ]
