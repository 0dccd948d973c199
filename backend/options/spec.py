"""The description of one option, and the functions that make its field in the table."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple, TypeVar

from npugx_cache.backend.options import ranges

ALL_DEVICES = ("cpu", "cuda", "npu")

T = TypeVar("T")


class Spec(NamedTuple):
    """Everything about an option besides its name and default.

    devices: the kinds of device on which the option has an effect. On a graph of other devices, a
    value other than `off` and the default is refused.
    off: the value that asks for nothing.
    needs: the option that must be on for this one to have an effect.
    vendor_default: the vendor's default in words, where ours differs.
    """

    range: ranges.Range
    effect: str
    devices: tuple[str, ...] = ALL_DEVICES
    off: Any = False
    needs: str = ""
    vendor_default: str = ""


def option(default: T, accepted: ranges.Range, effect: str, **rest: Any) -> T:
    spec = Spec(accepted, " ".join(effect.split()), **rest)
    return field(default=default, metadata={"spec": spec})


def switch(default: bool, effect: str, **rest: Any) -> bool:
    return option(default, ranges.BOOLEAN, effect, **rest)


NPU: Any = {"devices": ("npu",)}
GPUS: Any = {"devices": ("cuda", "npu")}
