"""Real servers for a remote tier on the loopback device: Redis, and moto's S3."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "graphs"
AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def redis_program() -> str | None:
    return shutil.which("redis-server") if shutil.which("redis-cli") else None


def moto_program() -> str | None:
    beside = Path(sys.executable).parent / "moto_server"
    return str(beside) if beside.exists() else shutil.which("moto_server")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def reachable(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def serving(
    command: list[str], port: int, folder: Path, host: str = "127.0.0.1", **variables: str
) -> Iterator[int]:
    log = folder / f"server-{port}.log"
    with log.open("wb") as out:
        environment = {**os.environ, **variables}
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder, env=environment)
    try:
        ends = time.monotonic() + 60
        while not reachable(port, host):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def redis(folder: Path, *options: str, host: str = "127.0.0.1") -> Iterator[int]:
    port, program = free_port(), redis_program()
    assert program is not None
    fixed = ["--port", str(port), "--bind", host, "--save", "", "--appendonly", "no"]
    with serving([program, *fixed, *options], port, folder, host):
        yield port


@contextlib.contextmanager
def s3(folder: Path, *, host: str = "127.0.0.1", **variables: str) -> Iterator[int]:
    port, program = free_port(), moto_program()
    assert program is not None
    with serving([program, "-H", host, "-p", str(port)], port, folder, host, **variables):
        put = urllib.request.Request(f"http://{host}:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(put, timeout=30).close()
        yield port


@contextlib.contextmanager
def skewed(folder: Path) -> Iterator[int]:
    """A server that answers each request as S3 does if the clock of the client is wrong."""
    code = (
        "import http.server, sys\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        body = b'<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between "
        "the request time and the current time is too large.</Message></Error>'\n"
        "        self.rfile.read(int(self.headers.get('content-length') or 0))\n"
        "        self.send_response(403)\n"
        "        self.send_header('content-length', str(len(body)))\n"
        "        self.end_headers()\n"
        "        self.wfile.write(b'' if self.command == 'HEAD' else body)\n"
        "    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Answer).serve_forever()\n"
    )
    port = free_port()
    with serving([sys.executable, "-c", code, str(port)], port, folder):
        yield port
