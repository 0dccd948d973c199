"""Turns an error of Dynamo's into a reason for the person who can change the function."""

from __future__ import annotations

import re

from npugx_cache import location
from npugx_cache.trace import missing_fake

_MAX_LENGTH = 240

_CHANGES = (
    ("data-dependent", "choose with torch.where, or branch outside the cached function"),
    ("sparse", "convert to a dense tensor before the call"),
    ("skipped", "do this outside the cached function, or in a torch.library operator"),
    ("context manager", "enter it outside the cached function"),
)
"""What to do instead, by a word of Dynamo's name for the construct. Its own hints come next."""

_DEFAULT = "do this outside the cached function"
_NOT_HERE = re.compile(
    r"graph break is fundamental|may be fixable|report an issue|file an issue|fullgraph=False"
    r"|torch\.cond|torch\._dynamo\.|avoid calling",
    re.IGNORECASE,
)
"""Hints of Dynamo's that say nothing, or that don't hold for a cached function."""

_EXAMPLE = re.compile(r"\s*\(e\.g\.([^()]|\([^()]*\))*\)")


class NotEager(Exception):
    """What was traced is not what eager would do."""


class NotHere(NotEager):
    """The same, but only on a machine like this one."""


def of_failure(error: BaseException) -> str:
    """The construct, where it stands, Dynamo's explanation, and what to do instead."""
    text = str(error).strip()
    if missing := missing_fake.reason_for(text):
        return missing
    lines = text.splitlines() or ["no message"]
    what, kind = lines[0].strip(), type(error).__name__
    place = location.of_frames(getattr(error, "real_stack", None)) or location.of_text(text)
    return location.reason(
        (what if kind == "Unsupported" else f"{kind}: {what}")[:_MAX_LENGTH],
        place,
        _change(what, lines),
        why=next(iter(_all_after("Explanation:", lines)), ""),
    )


def of_violation(error: BaseException) -> str:
    """A size that the caller marked as dynamic, and the code that fixes or bounds it."""
    text = str(error)
    items = [line.strip() for line in text.splitlines() if line.strip().startswith("- ")]
    why = items[0].removeprefix("- ").partition(". If you're")[0] if items else text
    return location.reason(
        "a size marked with mark_dynamic can't vary freely",
        location.of_text(text),
        "don't mark it, mark it with maybe_mark_dynamic, or let the code take any size",
        why=why[:_MAX_LENGTH],
    )


def _change(what: str, lines: list[str]) -> str:
    ours = (change for word, change in _CHANGES if word in what.lower())
    theirs = (hint for hint in _all_after("Hint:", lines) if not _NOT_HERE.search(hint))
    return next(ours, None) or next(theirs, None) or _DEFAULT


def _all_after(label: str, lines: list[str]) -> list[str]:
    found = (line.partition(label)[2].strip() for line in lines if label in line)
    return [_EXAMPLE.sub("", text)[:_MAX_LENGTH] for text in found]
