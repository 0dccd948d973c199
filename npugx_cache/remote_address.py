"""Reads the address of a remote tier, such as `s3://bucket/folder`. Never shows a password."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

_OPTIONS = {
    "s3": ("endpoint", "region", "enable_virtual_host_style", "server_side_encryption"),
    "obs": ("endpoint",),
    "redis": (),
    "webdav": ("endpoint",),
    "fs": (),
}
"""The engines, and what may be said of each in the query of its address."""
_REDIS_PORT = 6379


class RemoteAddress(NamedTuple):
    """Which engine of OpenDAL keeps the tier, and the options that the address gives the engine.

    `text` is the address as it may be shown. Credentials are in neither.
    """

    text: str
    engine: str
    options: tuple[tuple[str, str], ...]


def parse(text: str) -> RemoteAddress:
    """Read an address; raises ValueError, whose words quote nothing that may be a secret."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it is not a URL") from None
    engine, path = parts.scheme, unquote(parts.path)
    if engine not in _OPTIONS:
        raise ValueError(f"expected one of {', '.join(f'{name}://' for name in _OPTIONS)}")
    options = _given(parts)
    if engine == "fs":
        options |= _folder(host, path)
    elif engine == "redis":
        options |= _database(host, port, path)
    elif not host:
        raise ValueError("it names no host" if engine == "webdav" else "it names no bucket")
    elif engine == "webdav":
        where = f"{host}:{port}" if port else host
        options = {"endpoint": f"https://{where}", **options, "root": path or "/"}
    else:
        options |= {"bucket": parts.netloc, "root": path or "/"}
    return RemoteAddress(text, engine, tuple(options.items()))


def _given(parts: SplitResult) -> dict[str, str]:
    """The options that the query gives, and the name of the user."""
    engine = parts.scheme
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.password is not None or any("@" in urlsplit(value).netloc for value in given.values()):
        raise ValueError("it holds a password; give credentials in the engine's own variables")
    if parts.username is not None and engine not in {"redis", "webdav"}:
        raise ValueError("it names a user; give credentials in the engine's own variables")
    strange = sorted(given.keys() - {*_OPTIONS[engine]})
    if strange or parts.fragment:
        named = ", ".join(strange) or "a fragment"
        valid = ", ".join(_OPTIONS[engine]) or "none"
        raise ValueError(f"{named}: options of {engine}:// are {valid}")
    return given if parts.username is None else {**given, "username": unquote(parts.username)}


def _folder(host: str, path: str) -> dict[str, str]:
    if host or not path.strip("/"):
        raise ValueError("expected fs:///FOLDER")
    # Written beside and renamed, so that nobody reads half of a file.
    return {"root": path, "atomic_write_dir": f"{path.rstrip('/')}/unfinished"}


def _database(host: str, port: int | None, path: str) -> dict[str, str]:
    """`redis://host:port/2/folder`: the number of the database, then what keys begin with."""
    number, _, root = path.strip("/").partition("/")
    if not host or not (number.isdecimal() or not number):
        raise ValueError("expected redis://HOST:PORT/DATABASE, with the database as a number")
    shown = f"[{host}]" if ":" in host else host
    endpoint = f"tcp://{shown}:{port or _REDIS_PORT}"
    return {"endpoint": endpoint, "db": number or "0", "root": f"/{root}"}
