"""A remote tier behind TLS: whose certificate is not trusted, and whose is."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

import faults
import pytest
import servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faults import Engines

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates by openssl"),
]


def made(folder: Path) -> tuple[Path, Path, Path]:
    """The certificates of an authority and of this host, and the key of this host's."""
    ca, ca_key, request, cert, key, extra = (
        folder / name for name in ("ca.pem", "ca.key", "host.csr", "host.pem", "host.key", "extra")
    )
    extra.write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    new = ["-newkey", "rsa:2048", "-nodes"]
    signed = ["-out", cert, "-days", "2", "-extfile", extra]
    for command in (
        ["req", "-x509", *new, "-keyout", ca_key, "-out", ca, "-days", "2", "-subj", "/CN=ours"],
        ["req", *new, "-keyout", key, "-out", request, "-subj", "/CN=localhost"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", *signed],
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return ca, cert, key


@contextlib.contextmanager
def encrypted(port: int, cert: Path, key: Path) -> Iterator[int]:
    """A port that speaks TLS, in front of one that does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def forward(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port)) as server,
            context.wrap_socket(client, server_side=True) as plain,
        ):
            threading.Thread(target=forward, args=(plain, server), daemon=True).start()
            forward(server, plain)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def test_a_tier_is_used_if_its_certificate_is_trusted_and_named_if_not(
    engines: Engines, tmp_path: Path
) -> None:
    engines.fill("s3")
    ca, cert, key = made(tmp_path)
    with encrypted(engines.port("s3"), cert, key) as port:
        address = f"s3://{servers.BUCKET}/tier?endpoint=https://127.0.0.1:{port}"
        remote = {**engines.common, **faults.PATIENT, "NPUGX_CACHE_REMOTE": address}
        stranger = engines.host("stranger").run(faults.WORKER, 2, **remote)
        friend = engines.host("friend").run(faults.WORKER, 2, **remote, SSL_CERT_FILE=str(ca))
    assert [call["equal"] for call in (*stranger["calls"], *friend["calls"])] == [True] * 4
    assert [call["hits"] for call in friend["calls"]] == [1, 1]
    for call in stranger["calls"]:
        assert (call["misses"], call["stored"]) == (1, 1)
        (told,) = [reason for reason in call["told"] if "the remote tier" in reason]
        assert "the certificate of the endpoint is not trusted (UnknownIssuer)" in told
        assert "let SSL_CERT_FILE name" in told
    # Not asked a second time in vain.
    assert "the remote tier is not asked" in str(stranger["calls"][1]["told"])
