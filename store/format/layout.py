"""Names every file of a store. No absolute path is written inside, so the folder can be moved.

    CACHEDIR.TAG                     tells backup tools to leave the folder out
    v1/                              this format; a later one lies beside it, in a folder of its own
      ac/<aa>/<key>/<entry>          manifests: what an entry is, and which blobs it names by digest
      cas/<aa>/<sha256>              blobs, named by the digest of their stored bytes; never changed
      fn/<function>/<key>            empty markers: which keys a function has, to explain a miss and
                                     to bind entries ahead of a call
      rec/<aa>/<entry>               records: which device graphs workers captured for an entry;
                                     replaced as a whole, the last writer wins
      tmp/<pid>-<random>             unfinished files; a rename puts them in their place
      locks/<name>.lock              one for each graph that is compiled, one for the cleaner
      quarantine/<sha256>.<random>   bad files, with a `.reason` beside each
      size                           an estimate of bytes and entries: what the last full scan
                                     found, and what was published since

What one host derives lies in the state folder of the user (`config.state_folder`) instead:

    usage/<root>/cache.db            hits of each entry, and of each hour
    index/<root>/cache.db            what listings need to know of each entry
    journal/<root>/misses.jsonl      lookups that were no hits, and why; when it is full it becomes
                                     `misses.older.jsonl`

`<root>` is a digest of the store's path. `<aa>` is the first two digits of the name that follows,
which gives 256 shards. Keys, entries and digests are hexadecimal. No absolute path, host or user is
in any name.

Paths in this module are relative to the store, such as `v1/tmp`; `Folder.tree` opens them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from npugx_cache.store.io import syscalls
from npugx_cache.store.io.tree import tree_of
from npugx_cache.store.io.trust import share, share_folder

if TYPE_CHECKING:
    from npugx_cache.config import TrustMode
    from npugx_cache.store.io.tree import Tree

VERSION = "v1"
_ATTEMPTS = 8
FOLDERS = ("ac", "cas", "fn", "tmp", "quarantine", "locks")
CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This folder is a cache of npugx_cache. It can be moved or deleted at any time.\n"
)

# No regular expressions, because compiling them would cost every start milliseconds.
_HEX = "0123456789abcdef"
_DIGITS = "0123456789"


def _consists(name: str, characters: str, shortest: int, longest: int) -> bool:
    return shortest <= len(name) <= longest and not name.strip(characters)


def is_digest(name: object) -> bool:
    return isinstance(name, str) and len(name) == 64 and not name.strip(_HEX)


def is_key(name: object) -> bool:
    """Tell whether a name can be a key or a function identity."""
    return isinstance(name, str) and 32 <= len(name) <= 128 and not name.strip(_HEX)


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


class Folder:
    """A store's folder and what this process may do with it. Never changed once it is made.

    `readonly` says why nothing is ever written, or is None. `secret` is the signing key, set under
    trust `signed` only. `group` is the group whose members are trusted under trust `group`; it is
    None until the folder is opened, and then no member is trusted. `sharing` are the permission
    bits of group and others that a signed store gives to new folders (`opening.sharing_of`).
    """

    # No dataclass: its repr would show the secret, and defining it would slow down every start.
    __slots__ = (
        "file_mode",
        "folder_mode",
        "group",
        "readonly",
        "root",
        "secret",
        "sharing",
        "tree",
        "trust",
    )

    def __init__(
        self,
        root: str,
        *,
        trust: TrustMode = "private",
        readonly: str | None = None,
        secret: bytes | None = None,
        group: int | None = None,
        sharing: int = 0,
        tree: Tree | None = None,
    ) -> None:
        self.root = root
        self.trust = trust
        self.readonly = readonly
        self.secret = secret
        self.group = group
        self.sharing = sharing
        # mkstemp's fixed 0600 would lock others out. The umask removes bits from these modes.
        self.folder_mode = {"private": 0o700, "group": 0o770, "signed": 0o700 | sharing}[trust]
        self.file_mode = self.folder_mode & 0o666
        self.tree = tree_of(root, trust) if tree is None else tree

    def key(self, key: str) -> str:
        return f"{VERSION}/ac/{key[:2]}/{key}"

    def manifest(self, key: str, entry: str) -> str:
        return f"{VERSION}/ac/{key[:2]}/{key}/{entry}"

    def shard(self, key: str) -> str:
        return f"{VERSION}/ac/{key[:2]}"

    def blob(self, digest: str) -> str:
        return f"{VERSION}/cas/{digest[:2]}/{digest}"

    def marker(self, identity: str, key: str) -> str:
        return f"{VERSION}/fn/{identity}/{key}"

    def lock(self, name: str) -> str:
        return f"{VERSION}/locks/{name}.lock"

    def part(self, name: str) -> str:
        return f"{VERSION}/{name}"

    def temporary(self) -> str:
        return f"{self.part('tmp')}/{os.getpid()}-{syscalls.random_name()}"

    def look_only(self, reason: str) -> Folder:
        """Return the same folder as read-only: no bad file is moved to quarantine either."""
        return self.but(readonly=self.readonly or reason)

    def but(
        self, *, readonly: str | None, group: int | None = None, sharing: int | None = None
    ) -> Folder:
        """Return the same folder with what was found out when it was opened."""
        return Folder(
            self.root,
            trust=self.trust,
            readonly=readonly,
            secret=self.secret,
            group=self.group if group is None else group,
            sharing=self.sharing if sharing is None else sharing,
            tree=self.tree,
        )

    def open_new(self, path: str) -> int:
        """Create a file and open it to write; the caller closes the descriptor."""
        with self.tree.place(path) as (at, name):
            return self.create(name, at)

    def create(self, name: str, at: int) -> int:
        """Create a file in the open folder `at`; the caller closes the descriptor.

        Under trust `group` the group can write the file, whatever the umask is.
        """
        fd = syscalls.open_new(name, self.file_mode, at)
        if self.group is not None and self.trust == "group":
            share(fd, self.file_mode, self.group)
        return fd

    def make_folder(self, path: str) -> bool:
        """Create one folder unless it exists; tell whether it was created.

        Under trust `group` the group can write the folder, whatever the umask is, because otherwise
        the folders of the first member would keep the other members from storing anything.
        """
        with self.tree.place(path) as (at, name):
            try:
                syscalls.mkdir(name, self.folder_mode, at)
            except FileExistsError:
                return False
            if self.group is not None and self.trust == "group":
                share_folder(name, at, self.folder_mode, self.group)
        return True

    def has(self, path: str) -> bool:
        """Tell whether a file is there, as far as this process can see."""
        try:
            self.tree.lstat(path)
        except OSError:
            return False
        return True

    def relative(self, path: object) -> str:
        """Return the path inside the store, because no message may depend on where it lies."""
        text = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
        return text.removeprefix(f"{self.root}/")

    def explain(self, error: OSError, path: str = "") -> str:
        """Return an error as text, with the file of the store that it concerns."""
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        where = self.relative(error.filename) or self.relative(path)
        return f"{name} at {where}: {error.strerror}" if where else f"{name}: {error.strerror}"


def make_parents(folder: Folder, path: str) -> set[str]:
    """Create the missing folders between the store's root and a file.

    Returns the folders in which a folder was created.
    """
    for _ in range(_ATTEMPTS):
        # A cleaner may remove a new folder while it is still empty.
        with contextlib.suppress(FileNotFoundError):
            return _make_parents(folder, path)
    return _make_parents(folder, path)


def _make_parents(folder: Folder, path: str) -> set[str]:
    changed: set[str] = set()
    current = ""
    for part in folder.relative(path).split("/")[:-1]:
        current, parent = f"{current}/{part}" if current else part, current
        if folder.make_folder(current):
            changed.add(parent)
    return changed


def stamp_shard(folder: Folder, key: str) -> None:
    """Set the mtime of the key's shard to now, so that indexes see a change in a key folder."""
    with contextlib.suppress(OSError):
        folder.tree.touch(folder.shard(key))


def listdir(folder: Folder, path: str) -> list[str]:
    """Return the sorted names in a folder, none if it is missing, unreadable or a link.

    Links are not followed, because a cleaner would then delete files outside of the store.
    """
    try:
        return sorted(folder.tree.names(path))
    except OSError:
        return []


def shards(folder: Folder, part: str) -> list[str]:
    """Return the shards of `ac`, `cas` or `rec`, each as `ac/00`."""
    return [f"{part}/{name}" for name in subfolders(folder, folder.part(part)) if is_shard(name)]


def keys_of_shard(folder: Folder, shard: str) -> list[str]:
    """Return every key that has a folder in a shard such as `ac/00`."""
    found = subfolders(folder, folder.part(shard))
    return [key for key in found if is_key(key) and key[:2] == shard[3:]]


def subfolders(folder: Folder, path: str) -> list[str]:
    """Return the sorted names of the folders in a folder, without symbolic links."""
    try:
        return sorted(folder.tree.subfolders(path))
    except OSError:
        return []


def key_folders(folder: Folder) -> list[str]:
    """Return every key that has a folder."""
    return [key for shard in shards(folder, "ac") for key in keys_of_shard(folder, shard)]
