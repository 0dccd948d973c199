"""Runs functions that can't be one graph with `fullgraph=None`, and compares with eager.

python run_breaking.py [NAME ...] prints for each {"difference", "printed", "info", "warnings",
"explained", "traced"}; `traced` tells whether our own tracer was loaded by then.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import sys

import torch

from npugx_cache import cache_compile

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent))
from breaking import PROGRAMS


def run(program, **arguments):
    logged = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())
    logger = logging.getLogger("npugx_cache")
    logger.addHandler(handler)
    torch.manual_seed(0)
    target, calls = program()
    theirs = copy.deepcopy(target)
    cached = cache_compile(target, fullgraph=None, **arguments)
    results, printed = _results(cached, calls)
    logger.removeHandler(handler)  # a cached function inside is called by itself below
    torch.manual_seed(0)
    _, calls = program()  # with arguments that nothing has changed
    with torch.no_grad():
        expected, eager_printed = _results(theirs, calls)
    difference = None
    try:
        torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-5)
    except AssertionError as error:
        difference = str(error)
    function = cached.forward if isinstance(cached, torch.nn.Module) else cached
    return {
        "difference": difference,
        "printed": printed == eager_printed,
        "info": list(function.cache_info()[:5]),
        "warnings": logged,
        "explained": [[row.entry, *row.reasons] for row in function.explain()],
        "traced": "npugx_cache.trace" in sys.modules,
    }


def _results(target, calls):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        return [call(target) for call in calls], out.getvalue()


if __name__ == "__main__":
    print(json.dumps({name: run(PROGRAMS[name]) for name in sys.argv[1:] or PROGRAMS}))
