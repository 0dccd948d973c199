"""Seals manifests and records: adds a digest and, with a secret, a signature for one key.

Unsigned: body, sha256(tag, body). Signed: body, HMAC-SHA256(secret, tag, key, body) and
sha256(tag, body, HMAC). The body of a manifest names every blob by its digest, so the signature
covers the blobs as well. The plain digest tells a damaged file, which goes to quarantine, from a
file with another team's signature, which stays where it is.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

from npugx_cache.passing import is_passing
from npugx_cache.store.format.layout import is_digest
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import is_ours

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = b"npugx_cache manifest 1\0"
SIGNED = b"npugx_cache manifest 1 signed\0"
_DIGEST = 32
_MAX_KEY_FILE = 4096


class Unsigned(ValueError):  # caught inside this package; users never see it
    """Intact bytes that nobody with the signing key has signed for this place."""


def seal(body: bytes, key: str, secret: bytes | None) -> bytes:
    """Return the stored form of a body, signed if there is a secret."""
    if secret is None:
        return body + hashlib.sha256(FORMAT + body).digest()
    mac = _mac(body, key, secret)
    return body + mac + hashlib.sha256(SIGNED + body + mac).digest()


def unseal(data: bytes, key: str, secret: bytes | None) -> bytes:
    """Return the body; raises `Malformed` for damage and, with a secret, `Unsigned`.

    Without a secret no signature is checked, because that caller trusts the owner of the file.
    """
    content, digest = data[:-_DIGEST], data[-_DIGEST:]
    # The usual form is tried first, because each try hashes the whole content.
    if secret is None and _is_plain(content, digest):
        return content
    if len(content) > _DIGEST and hashlib.sha256(SIGNED + content).digest() == digest:
        body = content[:-_DIGEST]
        if secret is None or _is_signed(body, key, secret, content[-_DIGEST:]):
            return body
        raise Unsigned("signed with another key, or for another place")
    if secret is not None and _is_plain(content, digest):
        raise Unsigned("not signed")
    raise Malformed("digest mismatch")


def _is_plain(content: bytes, digest: bytes) -> bool:
    return bool(content) and hashlib.sha256(FORMAT + content).digest() == digest


def _is_signed(body: bytes, key: str, secret: bytes, mac: bytes) -> bool:
    import hmac

    return hmac.compare_digest(_mac(body, key, secret), mac)


def _mac(body: bytes, key: str, secret: bytes) -> bytes:
    import hmac  # few caches are signed

    # The NUL ends the key, which is hex: no other split into key and body gives the same bytes.
    return hmac.digest(secret, SIGNED + key.encode("ascii") + b"\0" + body, "sha256")


def new_secret() -> str:
    """Return the text of a new key file."""
    return f"{syscalls.random_name()}{syscalls.random_name()}\n"


def read_secret(path: Path, root: str) -> bytes | str:
    """Return the signing key in a file, or say why the file can't be used.

    Raises OSError if the file can't be read now.
    """
    shown = f"the key file {path}"
    # Links are followed, because a secret that is mounted into a container is a link.
    real = os.path.realpath(path)
    if real.startswith(f"{os.path.realpath(root)}/"):
        return f"{shown} lies in the cache that it signs; keep it elsewhere"
    try:
        fd = syscalls.open_read(real)
        try:
            status = syscalls.fstat(fd)
            text = syscalls.read_all(fd, _MAX_KEY_FILE)
        finally:
            syscalls.close(fd)
    except OSError as error:
        if is_passing(error):
            raise
        return f"{shown} can't be read: {error}"
    if not is_ours(status.st_uid):
        return f"{shown} belongs to uid {status.st_uid}"
    if stat.S_IMODE(status.st_mode) & 0o077:
        return f"others can use {shown}. Do: chmod 600 {path}"
    digits = text.decode("ascii", "replace").strip()
    if not is_digest(digits):
        return f"{shown} holds no key. Make one with: npugx-cache key new FILE"
    return bytes.fromhex(digits)
