"""Packages of kernels (self-extracting `.run` files made by CANN), and the place to keep them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from npugx_cache.backend.static_kernels.wanted import Wanted

Packages: TypeAlias = Mapping[str, bytes]
"""Packages by file name. The name matters, because CANN installs a package under it."""


class NoKernels(NamedTuple):
    reason: str


Make: TypeAlias = Callable[[], "Packages | NoKernels"]


class Kept(Protocol):
    """A place that keeps packages for other processes; the store implements it."""

    def obtain(self, wanted: Wanted, make: Make) -> Packages | NoKernels:
        """The packages for these operators. Calls `make` only if nobody has made them yet.

        The packages are executed: they must come from `make`, or from a trusted source.
        """
