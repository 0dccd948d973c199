"""Paths as people write them: `self.layers[0].mlp`, not `self._modules['layers']._modules['0']`."""

from __future__ import annotations

import keyword
import re

_MODULE = re.compile(r"\._modules\['([^'\\]+)'\]")
_TENSOR = re.compile(r"\._(?:parameters|buffers)\['([^\W\d]\w*)'\]")
_LOCAL = re.compile(r"\bL\['([^\W\d]\w*)'\]")
_NUMBER = "(?:0|[1-9][0-9]*)"
_NUMBERED = re.compile(rf"\.({_NUMBER})(?=[.\[)\s]|$)")


def as_written(text: str) -> str:
    """A condition or a path with the paths in it as people write them."""
    return _TENSOR.sub(_attribute, _MODULE.sub(_member, text))


def of_module(name: str) -> str:
    """The name that Dynamo gives a module, `L['self'].layers.0`, as people write it."""
    return as_written(_NUMBERED.sub(r"[\1]", _LOCAL.sub(r"\1", name)))


def _member(found: re.Match[str]) -> str:
    name = found[1]
    if name.isidentifier() and not keyword.iskeyword(name):
        return f".{name}"
    # `['01']` is another name than `['1']`, and `[01]` is no Python.
    return f"[{name}]" if re.fullmatch(_NUMBER, name) else f"[{name!r}]"


def _attribute(found: re.Match[str]) -> str:
    return found[0] if keyword.iskeyword(found[1]) else f".{found[1]}"
