"""Turns an error of Dynamo into a reason for the person who can change the function."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from npugx_cache import location
from npugx_cache.events import logger
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.passing import is_passing
from npugx_cache.portable import NotPortable, resolve_op
from npugx_cache.private import schemas
from npugx_cache.trace import torch_words
from npugx_cache.trace.torch_words import OUTSIDE

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

_MAX_LENGTH = 240

_CHANGES = (
    ("depends on the data", "choose with torch.where, or branch outside the cached function"),
    ("data-dependent", "choose with torch.where, or branch outside the cached function"),
    ("sparse", "convert to a dense tensor before the call"),
    ("skipped", f"{OUTSIDE}, or in a torch.library operator"),
    ("context manager", "enter it outside the cached function"),
)
"""What to do instead, by a word in Dynamo's name for the construct. If none fits, the first of
Dynamo's own hints is taken."""

_CHANGES_BY_FUNCTION = (
    ("DistributedDataParallel.", "compile the module inside: cache_compile(ddp.module)"),
    ("AlignDevicesHook.", "compile the modules inside, or load the model onto one device"),
)
"""What to do instead, by the function of a library that Dynamo can't trace."""

_OF_LIBRARIES = frozenset(change for _, change in _CHANGES_BY_FUNCTION)

_NOT_HERE = re.compile(
    r"graph break is fundamental|may be fixable|report an issue|file an issue|fullgraph=False"
    r"|torch\.cond|torch\._dynamo\.|avoid calling",
    re.IGNORECASE,
)
"""Hints of Dynamo that help nobody, or that are wrong for a cached function."""

_EXAMPLE = re.compile(r"\s*\(e\.g\.([^()]|\([^()]*\))*\)")

_UNKNOWN_NUMBER = re.compile(
    r"data-dependent expression|GuardOnDataDependent|PendingUnbackedSymbolNotFound"
)
"""What errors say that ask for a number which only a run on real data gives."""

_REPEATED = re.compile(
    r"[^.]*(Dynamo does not support tracing dynamic control flow|Detected data-dependent)[^.]*\.?"
)
"""Sentences that only say again what the name of the construct says."""


class NotEager(Exception):
    """The traced graph would not do what eager does."""


class NotHere(NotEager):
    """The traced graph would not do what eager does on this machine; on others it may."""


@contextlib.contextmanager
def failures_of_torch(
    what: str, code: types.CodeType, expected: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Take what torch, or code of the user's that torch calls, raises inside for a refusal.

    `what` could not be done with the function of that code. What our own code raises goes on, and
    so do errors of the `expected` kinds.
    """
    try:
        yield
    except Exception as error:
        let_through(error)
        ours = isinstance(error, expected) or location.is_of_this_package(error)
        if ours or is_passing(error):
            raise
        logger.debug("%s", what, exc_info=True)
        said = (str(error).strip().splitlines() or ["no message"])[0][:_MAX_LENGTH]
        why = f"{type(error).__name__}: {said}"
        raise NotEager(location.reason(what, location.of_code(code), OUTSIDE, why)) from None


def of_failure(error: BaseException) -> str:
    """The reason for a trace that failed: what failed, where, why, and what to do instead."""
    text = str(error).strip()
    if missing := reason_for(text):
        return missing
    lines = text.splitlines() or ["no message"]
    what, kind = lines[0].strip(), type(error).__name__
    place = location.of_frames(getattr(error, "real_stack", None)) or location.of_text(text)
    if _UNKNOWN_NUMBER.search(f"{kind}: {text}"):
        what, kind = "a branch or a size depends on the data of a tensor", "Unsupported"
    said = what if kind == "Unsupported" else f"{kind}: {what}"
    return _sentence(said, place, lines, what)


def of_break(text: str, place: location.Place | None) -> str:
    """The reason for a line at which Dynamo ended a graph, from what Dynamo says of that line."""
    if missing := reason_for(text):
        return missing
    lines = text.strip().splitlines() or ["no message"]
    return _sentence(lines[0].strip(), place, lines, lines[0])


def _sentence(said: str, place: location.Place | None, lines: list[str], construct: str) -> str:
    change = _change(construct, lines)
    if (known := torch_words.wording("\n".join(lines))) is not None:
        said, why = known.what, ""
        change = change if known.change is None or change in _OF_LIBRARIES else known.change
    else:
        why = next((each for each in _all_after("Explanation:", lines) if each), "")
    if place is not None and place.is_installed and change not in _OF_LIBRARIES:
        change = location.IN_A_PACKAGE
    said, why = map(torch_words.with_plain_names, (said, why))
    return location.reason(said[:_MAX_LENGTH], place, change, why=why)


def of_violation(error: BaseException) -> str:
    """The reason if the code fixes or bounds a size that the caller has marked as dynamic."""
    text = str(error)
    items = [line.strip() for line in text.splitlines() if line.strip().startswith("- ")]
    why = items[0].removeprefix("- ").partition(". If you're")[0] if items else text
    why = torch_words.with_plain_names(why)
    return location.reason(
        "a size marked with mark_dynamic can't vary freely",
        location.of_text(text),
        "don't mark it, mark it with maybe_mark_dynamic, or let the code take any size",
        why=why[:_MAX_LENGTH],
    )


def _change(what: str, lines: list[str]) -> str:
    text = "\n".join(lines)
    named = (change for name, change in _CHANGES_BY_FUNCTION if name in text)
    ours = (*named, *(change for word, change in _CHANGES if word in what.lower()))
    theirs = (hint for hint in _all_after("Hint:", lines) if not _NOT_HERE.search(hint))
    return next(iter(ours), None) or next(theirs, None) or OUTSIDE


def _all_after(label: str, lines: list[str]) -> list[str]:
    found = (line.partition(label)[2].strip() for line in lines if label in line)
    texts = (_REPEATED.sub("", _EXAMPLE.sub("", text)).strip() for text in found)
    return [text.replace("Dynamo", "the trace")[:_MAX_LENGTH] for text in texts]


# --- explains a trace that failed because a custom operator has no fake implementation


_NAMES = (
    re.compile(r"no fake impl registered for <CustomOpDef\((\w+)::(\w+)\)>"),
    re.compile(r"unsupported operator: (\w+)\.(\w+)(?:\.(\w+))?"),
    re.compile(r"UnsupportedOperatorException\D*?(\w+)\.(\w+)\.(\w+)"),
)


def reason_for(text: str) -> str | None:
    """The reason if the text of an error says that an operator has no fake implementation.

    The reason shows the function that the user has to write. None for any other text.
    """
    for pattern in _NAMES:
        if found := pattern.search(text):
            namespace, name, *overload = found.groups()
            return _reason(namespace, name, (overload or [None])[0])
    return None


def _reason(namespace: str, name: str, overload: str | None) -> str | None:
    try:
        schema = schemas.schema_of(resolve_op(namespace, name, overload or "default"))
    except NotPortable:
        return None
    if schema is None:
        return None
    full = f"{schema.name}.{schema.overload}" if schema.overload else schema.name
    return (
        f"operator {full} has no fake (meta) implementation, so nobody knows the shape and type of "
        f"its result without running it. Write one: "
        f'@torch.library.register_fake("{full}") '
        f"def _({', '.join(_parameters(schema))}): return {_result(schema)}"
    )


def _parameters(schema: schemas.Schema) -> Iterator[str]:
    starred = False
    for argument in schema.arguments:
        if argument.keyword_only and not starred:
            starred = True
            yield "*"
        yield f"{argument.name}={argument.default!r}" if argument.has_default else argument.name


def _result(schema: schemas.Schema) -> str:
    """A first guess at the results, like the first tensor argument. The user corrects it."""
    tensors = (each.name for each in schema.arguments if each.type == "Tensor")
    like = next(tensors, None)
    one = f"torch.empty_like({like})" if like else "torch.empty(...)"
    parts = [one if each.holds_tensors else "..." for each in schema.returns]
    return {0: "None", 1: parts[0] if parts else "None"}.get(len(parts), ", ".join(parts))
