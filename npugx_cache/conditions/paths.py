"""Paths as people write them: `self.layers[0].mlp`, not `self._modules['layers']._modules['0']`."""

from __future__ import annotations

import re

_MODULE = re.compile(r"\._modules\['([^'\\]+)'\]")
_TENSOR = re.compile(r"\._(?:parameters|buffers)\['([^\W\d]\w*)'\]")
_LOCAL = re.compile(r"\bL\['([^\W\d]\w*)'\]")
_NUMBERED = re.compile(r"\.(\d+)\b(?=[.\[)\s]|$)")


def as_written(text: str) -> str:
    """A condition or a path with the paths in it as people write them."""
    return _TENSOR.sub(r".\1", _MODULE.sub(_member, text))


def of_module(name: str) -> str:
    """The name that Dynamo gives a module, `L['self'].layers.0`, as people write it."""
    return as_written(_NUMBERED.sub(r"[\1]", _LOCAL.sub(r"\1", name)))


def _member(found: re.Match[str]) -> str:
    name = found[1]
    if name.isidentifier():
        return f".{name}"
    return f"[{name}]" if name.isdecimal() else f"[{name!r}]"
