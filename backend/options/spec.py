"""What is said of one option, and how its field in the table is made."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple, TypeVar

from npugx_cache.backend.options import ranges

ALL_DEVICES = ("cpu", "cuda", "npu")

T = TypeVar("T")


class Spec(NamedTuple):
    """All there is to know of an option besides its name and default.

    devices: on graphs of other kinds of device a value that differs from `off` is refused.
    off: the value that asks for nothing; for it `devices` does not matter.
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
