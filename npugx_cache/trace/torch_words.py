"""Says in plain words what torch says about code that it can't trace.

torch speaks of its own parts ("function marked as skipped", "the top-level compiled function",
`L['x']`), and its hints are for people who use torch.compile. A row here names the construct in the
words of the person who wrote it. What no row knows keeps torch's words.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OUTSIDE = "do this outside the cached function"
_OR_OPERATOR = f"{OUTSIDE}, or in a torch.library operator"
_LOG_ELSEWHERE = (
    "log outside the cached function, or let torch leave the call out: add the method of the "
    "class, such as logging.Logger.debug, to torch._dynamo.config.ignore_logger_methods"
)
_FILE = r"(?:[^`]*/(?:site-packages|lib/python3\.\d+)/)?(?P<file>[^`]*)"
"""The path of a file, with what comes below the folder of installed packages or of Python."""


class Wording(NamedTuple):
    """What can't be traced, and what to do instead; `change` is None where torch's hint is good."""

    what: str
    change: str | None


_ROWS: tuple[tuple[re.Pattern[str], str, str | None], ...] = tuple(
    (re.compile(pattern, re.DOTALL), what, change)
    for pattern, what, change in (
        (
            r"^Invalid call to __build_class__|trace the builtin `builtins\.__build_class__",
            "torch can't trace a class that is defined inside",
            "define the class outside the cached function",
        ),
        (
            r"^Call to a time function.*`(?P<name>time\.\w+)\(\)`",
            "torch can't trace the builtin {name}",
            OUTSIDE,
        ),
        (
            r"function marked as skipped.* trace the (?:Python )?builtin `_?(?P<name>[^`]*?)\.?`",
            "torch can't trace the builtin {name}",
            _OR_OPERATOR,
        ),
        (
            rf"function marked as skipped.*that the function `(?P<name>[^`]*)` in file `{_FILE}`",
            "torch can't trace {name} of {file}",
            _OR_OPERATOR,
        ),
        (
            r"function marked as skipped.*that the function `(?P<name>[^`]*)` should not be traced",
            "torch can't trace {name}",
            _OR_OPERATOR,
        ),
        (
            r"^Unsupported method call.*trace method `(?P<name>[^`]*)` of class `(?P<kind>[^`]*)`",
            "torch can't trace the method {name} of {kind}",
            OUTSIDE,
        ),
        (
            r"Failed to trace builtin operator.*builtin operator `(?P<name>[^`]*)`",
            "torch can't trace {name}() of such arguments",
            OUTSIDE,
        ),
        (
            r"^Tensor\.tolist\(\) with non-integer tensor",
            "torch traces tolist() of whole numbers alone",
            OUTSIDE,
        ),
        (
            r"^Observed exception",
            "the traced code raises an exception that it does not catch",
            "catch the exception, or choose outside the cached function",
        ),
        (
            r"^logging\.Logger method not supported|\(LoggingLoggerVariable\(",
            "torch can't trace a call of a logger",
            _LOG_ELSEWHERE,
        ),
        (
            r"^(?:Missing richcompare_impl|Unresolved Get.* comparison|Builtin .* comparison )",
            "torch can't trace a comparison of such objects",
            OUTSIDE,
        ),
        (
            r"^HOP: Unsafe side effect",
            "code inside of an operator that runs functions changes a variable from outside of it",
            None,
        ),
        (
            r"^Data-dependent branching",
            "a branch depends on the data of a tensor",
            "choose with torch.where, or branch outside the cached function",
        ),
    )
)

_LOCAL = re.compile(r"\b[LG]\['(\w+)'\]")


def wording(text: str) -> Wording | None:
    """The words for an error of Dynamo's, whose whole text is given; None if no row knows it."""
    for pattern, what, change in _ROWS:
        if found := pattern.search(text):
            return Wording(what.format(**found.groupdict()), change)
    return None


def with_plain_names(text: str) -> str:
    """The text with the names of arguments and globals as a user writes them."""
    return _LOCAL.sub(r"\1", text)
