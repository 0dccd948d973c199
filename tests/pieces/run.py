"""Runs one program under torch.compile(backend="npugx") and compares with eager.

python run.py NAME [BACKEND] prints {"difference", "info", "graphs", "warnings", "entries"}.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import sys

import torch

from npugx_cache.pieces import compiled

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent))
from programs import PROGRAMS


def main(name, backend="npugx"):
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    torch.manual_seed(0)
    function, calls = PROGRAMS[name]()
    eager, expected_calls = copy.deepcopy((function, calls))
    run = torch.compile(function, backend=backend)
    difference = None
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        for args, theirs in zip(calls, expected_calls, strict=True):
            result, expected = run(*args), eager(*theirs)
            try:
                torch.testing.assert_close((result, args), (expected, theirs), rtol=0, atol=0)
            except AssertionError as error:
                difference = str(error)
    print(
        json.dumps(
            {
                "difference": difference,
                "info": list(compiled.counters.info(0)[:4]),
                "warnings": warnings,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
