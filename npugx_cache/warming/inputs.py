"""Makes the arguments of calls from what `--inputs` says.

A text has the form in which `npugx-cache ls` shows inputs: `float32[4, 8], int64 cuda[4], 3` or
`x: float32[4, 8], scale: 0.5`. Lists, tuples and dicts may hold tensors. Tensors are zeros, because
to get a graph ready nothing is computed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

from npugx_cache.triage.targets import WrongTarget, arguments_of, value

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_TENSOR = re.compile(r"\b([a-z]\w*)(?: ([a-z]\w*(?::\d+)?))?\[([\d,\s]*)\]")
_KEYWORD = re.compile(r"(^|,)\s*([A-Za-z_]\w*):\s")
_SHOWN = 200
_FORMS = "write arguments as `npugx-cache ls` does, such as 'x: float32[4, 8], 3', with all sizes"


def calls(text: str) -> Iterator[Arguments]:
    """The arguments of each call. Raises WrongTarget.

    `module:name` or a `.pt` file is a value as for `npugx-cache triage`, and what is iterated gives
    such a value for each call.
    """
    if not text.endswith(".pt") and not _NAME.fullmatch(text):
        yield _parse_arguments(text)
        return
    found = value(text)
    for each in found if isinstance(found, Iterator) else [found]:
        yield arguments_of(each)


def _parse_arguments(text: str) -> Arguments:
    tensors: dict[str, torch.Tensor] = {}

    def put(found: re.Match[str]) -> str:
        name = f"_tensor_{len(tensors)}"
        tensors[name] = _tensor(text, *found.groups())
        return name

    source = _KEYWORD.sub(r"\1 \2=", _TENSOR.sub(put, text))
    try:
        match ast.parse(f"f({source})", mode="eval").body:
            case ast.Call(func=ast.Name(), args=args, keywords=named) if _are_distinct(named):
                kwargs = {str(each.arg): _value(each.value, tensors) for each in named}
                return tuple(_value(each, tensors) for each in args), kwargs
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass  # the last two: Python's parser says so of a text that is too deep
    raise WrongTarget(f"--inputs {quote_text(text)}: {_FORMS}")


def quote_text(text: str) -> str:
    """The text as a literal, or the beginning of a long text."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _are_distinct(named: list[ast.keyword]) -> bool:
    """Whether arguments have names, each another one: of two with one name, one would be lost."""
    names = [each.arg for each in named]
    return None not in names and len({*names}) == len(names)


def _value(node: ast.expr, tensors: dict[str, torch.Tensor]) -> Any:
    match node:
        case ast.Name(id=name) if name in tensors:
            return tensors[name]
        case ast.List(elts=items):
            return [_value(each, tensors) for each in items]
        case ast.Tuple(elts=items):
            return tuple(_value(each, tensors) for each in items)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {ast.literal_eval(k): _value(v, tensors) for k, v in pairs if k is not None}
    return ast.literal_eval(node)


def _tensor(text: str, dtype: str, device: str | None, sizes: str) -> torch.Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise WrongTarget(f"--inputs {quote_text(text)}: torch has no type {dtype!r}")
    try:
        size = [int(each) for each in sizes.split(",") if each.strip()]
        return torch.zeros(size, dtype=kind, device=device or "cpu")
    except (AssertionError, RuntimeError, ValueError) as error:
        raise WrongTarget(f"--inputs {quote_text(text)}: {str(error).splitlines()[0]}") from error
