"""Reads and sets the determinism of torch and torch_npu. Checked on torch 2.13.

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
    """What `torch.use_deterministic_algorithms` was given."""

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
    """Tell torch afterwards what it was told before."""
    before = told()
    try:
        yield
    finally:
        tell(before)


def level() -> int:
    """How strictly operators of an NPU give the same bits at each run: 0 (not at all) to 3."""
    asked: int = sys.modules["torch_npu"].npu._get_deterministic_level()
    return asked


def set_level(wanted: int) -> None:
    """Set it, for the whole process, and tell torch; raises what torch_npu does, changing nothing.

    For a level above 0 torch is told as it was if it was told something, or else everything.
    """
    before = told()
    if before.enabled != (wanted > 0):
        tell(Told(enabled=wanted > 0, warn_only=False))
    try:
        sys.modules["torch_npu"].npu.set_deterministic_level(wanted)
    except Exception:
        tell(before)
        raise
