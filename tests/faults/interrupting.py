"""A first call into which an exception comes from outside: `python interrupting.py KIND`.

The exception comes while Dynamo runs the function's operator on fakes, where torch wraps what it
catches. Prints what reached the caller, and what the next call did.
"""

import json
import signal
import sys

import torch

from npugx_cache import cache_compile
from tests import mid_trace

KIND = sys.argv[1]
RAISES = {"timeout": TimeoutError, "value": ValueError, "interrupt": KeyboardInterrupt}
armed = [True]


@torch.library.custom_op("interrupting::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


def interrupt(_):
    if armed.pop() if armed else False:
        if KIND == "memory":
            raise MemoryError("no memory left for a moment")
        if KIND == "files":
            raise OSError(24, "Too many open files")
        if KIND == "own":
            raise ValueError("the fake's own error")
        signal.raise_signal(signal.SIGALRM)
        [None for _ in range(1000)]  # a handler runs between two instructions


mid_trace.at_each_input(interrupt)


def time_is_up(*arguments):
    raise RAISES[KIND]("time is up")


@cache_compile
def function(x):
    return double(x) + 1


def call():
    try:
        return function(torch.ones(2)).tolist()
    except BaseException as error:
        return [type(error).__name__, str(error)]


if KIND == "handled":
    # Out of memory, then once more with less: what the caller handles is no error of this call.
    armed.clear()

    @cache_compile
    def refused(x, table):
        print(end="")
        return x + table["a"]

    rows = []
    for problem in (MemoryError("big"), KeyboardInterrupt("stop"), torch.OutOfMemoryError("gpu")):
        try:
            raise problem
        except BaseException:
            rows.append([call(), refused(torch.ones(2), {"a": len(rows)}).tolist()])
    print(json.dumps(rows))
    sys.exit()
signal.signal(signal.SIGALRM, time_is_up)
print(json.dumps([call(), call(), list(function.cache_info()[:4])]))
