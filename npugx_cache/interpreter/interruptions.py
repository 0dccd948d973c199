"""Lets exceptions from outside reach the user, such as those that a signal handler raises.

A time limit is often a signal handler that raises. The exception then comes from the line of ours
or of torch that ran at that moment, and a broad `except` would take it for a fault of that line.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator


_LET_THROUGH = "npugx_cache_let_through"
"""Marks an exception from outside that was raised again, because it looks like a wrapper then."""


def let_through(error: BaseException, *, memory: bool = True) -> None:
    """Raise the exception from outside in `error` (see `from_outside`); return if there is none.

    `memory=False`: the caller can go on with less memory, so a lack of memory is not raised.
    """
    outside = error if _LET_THROUGH in vars(error) else from_outside(error)
    if outside is not None and not memory and _is_out_of_memory(outside):
        return
    if outside is not None:
        vars(outside)[_LET_THROUGH] = True
    if outside is error:
        raise error
    if outside is not None:
        raise outside from outside.__cause__


def from_outside(error: BaseException) -> BaseException | None:
    """The exception that the user must get in the place of `error`, or None.

    From outside come exceptions of signal handlers and of trace functions, a lack of memory, and
    exceptions that are no `Exception` (KeyboardInterrupt). Compilers wrap the exceptions that they
    catch, so the causes and contexts of `error` are searched too.
    """
    every = list(chain(error))
    for each in every:
        if not isinstance(each, Exception) or _is_out_of_memory(each):
            return each
    raised = [each for each in every if any(map(_handles_interruption, _frames(each)))]
    # A wrapper may take over the traceback of the exception that it wraps, and adds frames to it:
    # the exception with the fewest frames is the wrapped one.
    return min(raised, key=lambda each: len(list(_frames(each))), default=None)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception with its causes and contexts, without those that a caller is already handling.

    A cached function may be called in an `except` block, such as a retry with less memory. Python
    makes the exception that is handled there the context of each exception raised meanwhile.
    """
    callers = _callers()
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop(0)
        caught = each.__traceback__.tb_frame if each.__traceback__ is not None else None
        if id(each) not in seen and caught not in callers:
            seen.add(id(each))
            yield each
            waiting += [other for other in (each.__cause__, each.__context__) if other is not None]


def _callers() -> set[types.FrameType | None]:
    """The frames that called the cached function: what they handle was caught before the call."""
    frame: types.FrameType | None = sys._getframe()  # noqa: SLF001 - inspect would be loaded for it
    while frame is not None and frame.f_code.co_filename != _ENTRY:
        frame = frame.f_back
    below: set[types.FrameType | None] = set()
    while frame is not None:
        if frame.f_code.co_filename != _ENTRY or below:
            below.add(frame)
        frame = frame.f_back
    return below


# Not made of `__file__`: code has another name of its file where a program was frozen, or was
# compiled elsewhere and shipped without sources.
_PACKAGE = _callers.__code__.co_filename.rsplit(os.sep, 2)[0]
_ENTRY = f"{_PACKAGE}{os.sep}api.py"


def _is_out_of_memory(error: BaseException) -> bool:
    kind = type(error)  # torch's own is a RuntimeError; torch is not imported here
    return isinstance(error, MemoryError) or kind.__name__ == "OutOfMemoryError"


def _frames(error: BaseException) -> Iterator[types.FrameType]:
    """The frames that an exception left.

    The frame that caught the exception is none of them, and its locals must not be looked at.
    Before Python 3.13 a look at `f_locals` stores a copy in the frame. The copy would hold the
    exception, and the exception holds the frame, so the arguments of the call would stay alive
    until the next garbage collection.
    """
    traceback = error.__traceback__ and error.__traceback__.tb_next
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _handles_interruption(frame: types.FrameType) -> bool:
    """Whether Python itself called this frame between two instructions, as its arguments show.

    Signal handlers get a number and the frame that they interrupted, trace functions get the frame
    and the name of an event.
    """
    below, code = frame.f_back, frame.f_code
    if below is None:
        return False
    count = code.co_argcount + code.co_kwonlyargcount
    given = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    rest = frame.f_locals.get(code.co_varnames[count]) if code.co_flags & _VARARGS else None
    values = (*given, *(rest if isinstance(rest, tuple) else ()))
    return any(
        (isinstance(one, int) and two is below) or (one is below and isinstance(two, str))
        for one, two in itertools.pairwise(values)
    )


_VARARGS = 4  # inspect.CO_VARARGS, without importing inspect
