"""Tells torch that `aot_compile` can save what our backend returns."""

from __future__ import annotations

import sys
from typing import Any


def register(cls: type) -> None:
    """Make a class with torch's two methods count as a `SerializableCallable`.

    Call it where Dynamo is loaded: where it is not, nobody saves a graph of Dynamo's.
    """
    home: Any = sys.modules.get("torch._dynamo.aot_compile_types")
    if home is not None:
        home.SerializableCallable.register(cls)
