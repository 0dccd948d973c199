"""A TCP proxy in front of a server, which does to connections what a bad network does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Fault = Literal["none", "down", "silent", "slow", "cut", "lying", "dripping"]
SLOW = 0.15
"""Seconds that each piece of an answer waits under the fault `slow`."""
DRIP = 1.0
"""Seconds that each byte of an answer waits under the fault `dripping`."""


class Proxy:
    """Forwards connections to a port of this host; `fault` says what goes wrong, also of those that
    are open already."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.fault: Fault = "none"
        self.sent = 0
        """How many bytes clients have sent."""
        self._limit: tuple[int, Callable[[], object]] | None = None
        self._target = (host, port)
        self._open: set[socket.socket] = set()
        self._counting = threading.Lock()
        self._listener: socket.socket | None = None
        self._listen()

    def _listen(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def set(self, fault: Fault) -> None:
        """Let something go wrong from now on, or nothing any more."""
        self.fault = fault
        if fault == "down":
            self.close()
        elif self._listener is None:
            self._listen(self.port)

    def at(self, count: int, then: Callable[[], object]) -> None:
        """Let through so many bytes of what clients send from now on, then do something once."""
        self.sent, self._limit = 0, (count, then)

    def _of(self, data: bytes) -> bytes:
        """What is let through of bytes that a client sends."""
        with self._counting:
            before, self.sent = self.sent, self.sent + len(data)
            if self._limit is None or self.sent < self._limit[0]:
                return data
            count, then = self._limit
            if before < count:
                then()
            return data[: max(0, count - before)]

    def close(self) -> None:
        if self._listener is not None:
            # Without it the accepting thread would take one more connection.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for each in list(self._open):
            _shut(each)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _shut(client)
                continue
            self._open |= {client, server}
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._forward, args=(source, sink, answers), daemon=True
                ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                data = data if answers else self._of(data)
                if not answers or self.fault == "none":
                    sink.sendall(data)
                elif self.fault == "silent":
                    continue
                elif self.fault == "slow":
                    time.sleep(SLOW)
                    sink.sendall(data)
                elif self.fault == "dripping":
                    for byte in data:
                        sink.sendall(bytes([byte]))
                        time.sleep(DRIP)
                elif self.fault == "cut":
                    sink.sendall(data[: len(data) // 2])
                    break
                else:
                    sink.sendall(_changed(data))
        _shut(source)
        _shut(sink)


def _changed(data: bytes) -> bytes:
    """Bytes that differ before the end of line with which Redis ends a value, or in an XML text."""
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:] if len(data) > 8 else data


def _shut(which: socket.socket) -> None:
    with contextlib.suppress(OSError):
        which.shutdown(socket.SHUT_RDWR)
    which.close()
