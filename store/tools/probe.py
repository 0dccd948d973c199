"""The second process of `doctor`: does to a folder what a second worker would do.

It runs as a script, by path, and imports nothing of the package. It reads one request per line and
writes one line as the answer.
"""

from __future__ import annotations

import fcntl
import os
import sys


def answer(request: str, path: str, held: dict[str, int]) -> str:
    """Do what a request asks; return "yes", "no", the contents of a file, or the error."""
    try:
        if request == "create":
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        elif request == "lock":
            if path not in held:
                held[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif request == "read":
            fd = os.open(path, os.O_RDONLY)
            try:
                return os.read(fd, 100).decode("ascii", "replace")
            finally:
                os.close(fd)
        else:
            return "unknown"
    except (FileExistsError, BlockingIOError):
        return "no"
    except OSError as error:
        return f"error: {error.strerror}"
    return "yes"


def as_line(request: str, path: str) -> str:
    """Return a request for `serve`; its path is in hex, because a path may hold any bytes."""
    return f"{request} {os.fsencode(path).hex()}\n"


def serve() -> None:
    held: dict[str, int] = {}
    for line in sys.stdin:
        request, _, path = line.rstrip("\n").partition(" ")
        sys.stdout.write(answer(request, os.fsdecode(bytes.fromhex(path)), held) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
