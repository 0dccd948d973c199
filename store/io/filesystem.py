"""Tells which file system a folder lies on, by the magic numbers of statfs(2)."""

from __future__ import annotations

from npugx_cache.store.io import syscalls

LOCAL = {
    0xEF53: "ext2/3/4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlayfs",
}
NETWORK = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x00C36400: "ceph",
    0x65735546: "fuse",
    0x01021997: "9p",
    0x19830326: "fhgfs",
}
LOST_AT_A_RESTART = {"tmpfs", "ramfs"}


def is_local(path: str | int) -> bool:
    """Tell whether a folder (path or descriptor) is local: only this host sets its files' times."""
    try:
        return syscalls.filesystem_magic(path) in LOCAL
    except OSError:
        return False
