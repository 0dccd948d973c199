"""Networks of this host that reach the host and not each other, each in a namespace of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Network:
    """A namespace with one link to this host, which has the address `server` there."""

    def __init__(self, number: int) -> None:
        # Names of interfaces are at most 15 characters long, and other runs may be on this host.
        unique = f"{os.getpid() % 100_000}x{number}"
        self.name = f"npugx{unique}"
        self._here, self._there = f"nx{unique}", f"ny{unique}"
        self._subnet = f"10.213.{os.getpid() % 250}.{4 * number}"
        self.server, self.client = (self._address(1), self._address(2))
        self.inside = ["ip", "netns", "exec", self.name]

    def _address(self, last: int) -> str:
        start, _, end = self._subnet.rpartition(".")
        return f"{start}.{int(end) + last}"

    def make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there)
        _ip("link", "set", self._there, "netns", self.name)
        _ip("addr", "add", f"{self.server}/30", "dev", self._here)
        _ip("link", "set", self._here, "up")
        for command in (
            ("addr", "add", f"{self.client}/30", "dev", self._there),
            ("link", "set", self._there, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *command)

    def cut(self) -> None:
        """Let nothing come through any more, as when a cable is pulled."""
        _ip("-n", self.name, "link", "set", self._there, "down")

    def mend(self) -> None:
        _ip("-n", self.name, "link", "set", self._there, "up")

    def remove(self) -> None:
        # First the link: the kernel takes it away some time after its namespace, and until then no
        # other may have its name.
        for command in (("link", "del", self._here), ("netns", "del", self.name)):
            with contextlib.suppress(NotAllowed, FileNotFoundError, RuntimeError):
                _ip(*command)


class NotAllowed(Exception):
    """This user may not make namespaces on this host, or its kernel has none."""


_REFUSALS = ("not permitted", "Permission denied", "not supported", "Unknown device type")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if not done.returncode:
        return
    if any(refusal in done.stderr for refusal in _REFUSALS):
        raise NotAllowed(done.stderr)
    raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr}")


@contextlib.contextmanager
def two_networks() -> Iterator[list[Network]]:
    """Raises `NotAllowed`, or FileNotFoundError if there is no program `ip`."""
    made = [Network(1), Network(2)]
    try:
        for network in made:
            network.make()
        yield made
    finally:
        for network in made:
            network.remove()
