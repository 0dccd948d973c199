"""A process of a user without a home and without a row in passwd: `no_home.py ls` or `no_home.py`.

Prints what the command says, or what calls of three cached functions came to.
"""

import json
import logging
import os
import pwd
import sys


def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")


for name in ("HOME", "LOGNAME", "USER", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
    os.environ.pop(name, None)
pwd.getpwuid = unknown
if len(sys.argv) > 1:
    from npugx_cache.cli import main

    sys.exit(main())

import torch  # noqa: E402 - after what the process must not have

from npugx_cache import cache_compile  # noqa: E402

told = []


class Noting(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())


logging.getLogger("npugx_cache").addHandler(Noting(logging.WARNING))


def add(x):
    return x + 1


functions = [cache_compile(add, dynamic=False) for _ in range(3)]
x = torch.ones(3)
right = [torch.equal(each(x), x + 1) for each in functions for _ in range(2)]
counts = [list(each.cache_info()[:4]) for each in functions]
print(
    json.dumps(
        {"right": right, "counts": counts, "told": told, "explained": str(functions[0].explain())}
    )
)
