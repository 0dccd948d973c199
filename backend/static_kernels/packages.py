"""Packages of kernels: self-extracting `.run` files that CANN makes, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from npugx_cache.backend.static_kernels.wanted import Wanted

Packages: TypeAlias = Mapping[str, bytes]
"""Contents by file name: CANN installs a package under the name of its file."""


class NoKernels(NamedTuple):
    reason: str


Make: TypeAlias = Callable[[], "Packages | NoKernels"]


class Kept(Protocol):
    """Where packages are kept for other processes."""

    def obtain(self, wanted: Wanted, make: Make) -> Packages | NoKernels:
        """The packages for these operators, made only if nobody has made them yet.

        What is returned runs as a program: it must come from `make`, or from somebody trusted.
        """
