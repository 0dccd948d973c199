"""Reads and sets the switches for deterministic operators of torch and torch_npu.

We don't call `torch.use_deterministic_algorithms`, because it loads Inductor, and a restored call
must not load Inductor.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Told(NamedTuple):
    """The arguments of the last `torch.use_deterministic_algorithms`."""

    enabled: bool
    warn_only: bool


def told() -> Told:
    return Told(
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def tell(what: Told) -> None:
    if what == told():
        return
    torch._C._set_deterministic_algorithms(what.enabled, warn_only=what.warn_only)
    inductor: Any = sys.modules.get("torch._inductor.config")
    if hasattr(inductor, "deterministic"):
        inductor.deterministic = what.enabled


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restore torch's switch afterwards."""
    before = told()
    try:
        yield
    finally:
        tell(before)


def level() -> int:
    """How far the operators of an NPU must give the same bits at each run: 0 (not at all) to 3."""
    asked: int = sys.modules["torch_npu"].npu._get_deterministic_level()
    return asked


def set_level(wanted: int) -> None:
    """Set the level and torch's switch for the whole process.

    A level above 0 turns torch's switch on (a switch that is on keeps `warn_only`), and 0 turns it
    off. If torch_npu raises, the error goes through and torch's switch is as before.
    """
    before = told()
    if before.enabled != (wanted > 0):
        tell(Told(enabled=wanted > 0, warn_only=False))
    try:
        sys.modules["torch_npu"].npu.set_deterministic_level(wanted)
    except Exception:
        tell(before)
        raise
