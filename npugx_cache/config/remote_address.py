"""Reads the address of a remote tier, such as `s3://bucket/folder`.

An address may consist of known parts only, each of the signs that such a part needs, so that no
password or signature can stand in any form. What is shown of an address is less than that: engine,
host, port, bucket and folder.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote

_PARTS = re.compile(
    r"(?P<engine>[a-z0-9]+)://(?:(?P<user>[^/?#]*)@)?(?P<place>[^/?#]*)"
    r"(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?(?P<fragment>#.*)?",
    re.DOTALL | re.IGNORECASE,
)
_USER = re.compile(r"[A-Za-z0-9._-]+")
_HOST = r"[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]"
_PLACE = re.compile(rf"(?P<host>{_HOST})?(?::(?P<port>[0-9]{{1,5}}))?")
_FOLDER = re.compile(r"[\w.+=,~ /-]*")
_MAX_PORT = 65535
_REDIS_PORT = 6379
_URL = re.compile(rf"(?:https?://)?(?:{_HOST})(?::[0-9]{{1,5}})?(?:/[A-Za-z0-9._-]+)*/?")
_WORD = re.compile(r"[A-Za-z0-9-]+")
_OPTIONS = {
    "s3": {
        "endpoint": _URL,
        "region": _WORD,
        "enable_virtual_host_style": re.compile("true|false"),
        "server_side_encryption": re.compile("AES256|aws:kms(?::dsse)?"),
    },
    "obs": {"endpoint": _URL},
    "redis": {},
    "webdav": {"endpoint": _URL},
    "fs": {},
}
"""The engines, and of each the options in the query of its address, with the values they take."""
_VALUES = {
    _URL: "a URL such as https://HOST:PORT",
    _WORD: "made of letters, digits and -",
}
_WITH_USERS = frozenset({"redis", "webdav"})
_ELSEWHERE = "give credentials in the engine's own variables"


class RemoteAddress(NamedTuple):
    """Which engine of OpenDAL keeps the tier, and the options that the address gives the engine.

    `text` is what may be shown of the address. Credentials are in neither.
    """

    text: str
    engine: str
    options: tuple[tuple[str, str], ...]


class _Parts(NamedTuple):
    user: str | None
    host: str
    port: str | None
    path: str


def parse(text: str) -> RemoteAddress:
    """Read an address; raises ValueError, whose words quote nothing of the address."""
    found = _PARTS.fullmatch(text)
    engine = found["engine"].lower() if found is not None else ""
    if found is None or engine not in _OPTIONS:
        raise ValueError(f"expected one of {', '.join(f'{name}://' for name in _OPTIONS)}")
    parts = _parts(found, engine)
    options = _options(found, engine)
    if engine == "fs":
        options |= _folder(parts)
    elif engine == "redis":
        options |= _database(parts)
    elif not parts.host:
        _refuse("it names no host" if engine == "webdav" else "it names no bucket")
    elif engine == "webdav":
        where = f"{parts.host}:{parts.port}" if parts.port else parts.host
        options = {"endpoint": f"https://{where}", **options, "root": parts.path or "/"}
    elif parts.port is not None:
        _refuse("a bucket has no port")
    else:
        options |= {"bucket": parts.host, "root": parts.path or "/"}
    if parts.user is not None:
        options["username"] = parts.user
    shown = f"{engine}://{parts.host}{f':{parts.port}' if parts.port else ''}{parts.path}"
    return RemoteAddress(shown, engine, tuple(options.items()))


def _parts(found: re.Match[str], engine: str) -> _Parts:
    """User, host, port and folder, checked sign by sign."""
    user, place = found["user"], _PLACE.fullmatch(found["place"])
    path = unquote(found["path"] or "")
    if user is not None and _USER.fullmatch(user) is None:
        _refuse(f"it holds a password, or a user whose name is no plain word; {_ELSEWHERE}")
    if user is not None and engine not in _WITH_USERS:
        _refuse(f"it names a user; {_ELSEWHERE}")
    if place is None or not 0 < int(place["port"] or 1) <= _MAX_PORT:
        _refuse("its host, port or bucket is not a name or a number as they have them")
    if _FOLDER.fullmatch(path) is None:
        _refuse("its folder has other signs than letters, digits, spaces and _ . + = , ~ -")
    return _Parts(user, place["host"] or "", place["port"], path)


def _options(found: re.Match[str], engine: str) -> dict[str, str]:
    """The options that the query gives."""
    valid = _OPTIONS[engine]
    given = parse_qsl(found["query"] or "", keep_blank_values=True)
    named = [name for name, _ in given]
    if found["fragment"] is not None:
        _refuse("it goes on after a #")
    if len({*named} & valid.keys()) < len(named):
        names = f"are {', '.join(valid)}, each at most once" if valid else "are none"
        _refuse(f"options of {engine}:// {names}; {_ELSEWHERE}")
    for name, value in given:
        if valid[name].fullmatch(value) is None:
            what = _VALUES.get(valid[name]) or valid[name].pattern.replace("|", " or ")
            _refuse(f"its option {name} is not {what}; {_ELSEWHERE}")
    return dict(given)


def _folder(parts: _Parts) -> dict[str, str]:
    if parts.host or parts.port or not parts.path.strip("/"):
        _refuse("expected fs:///FOLDER")
    # Written beside and renamed, so that nobody reads half of a file.
    return {"root": parts.path, "atomic_write_dir": f"{parts.path.rstrip('/')}/unfinished"}


def _database(parts: _Parts) -> dict[str, str]:
    """`redis://host:port/2/folder`: the number of the database, then what keys begin with."""
    number, _, root = parts.path.strip("/").partition("/")
    if not parts.host or re.fullmatch("[0-9]*", number) is None:
        _refuse("expected redis://HOST:PORT/DATABASE, with the database as a number")
    endpoint = f"tcp://{parts.host}:{parts.port or _REDIS_PORT}"
    return {"endpoint": endpoint, "db": number or "0", "root": f"/{root}"}


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
