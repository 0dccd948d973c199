"""What is cached with a Dynamo in which something that a hook stands for is missing.

python hooks_missing.py FOLDER HOW ...: HOW is a key of `CHANGES`, or "nothing". Prints JSON. Each
is a child of its own, forked when Dynamo is loaded, with a cache of its own in FOLDER.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import torch
import torch._dynamo.convert_frame
from torch._dynamo import exc
from torch._dynamo.variables import base, builtin, ctx_manager, dicts, sets

from npugx_cache import cache_compile


def plain(x):
    return x * len((2, 3))


def with_a_dict(x):
    return {"a": x * 2}


def with_a_mode(x):
    with torch.autocast("cpu", enabled=False):
        return x * 2


def with_a_set(x):
    found = {1, 2, 3}
    return x * 2 if 3 in found else x


class Users(dict):
    pass


def with_a_dict_of_the_users(x):
    made = Users()
    made["a"] = x * 2
    return made["a"]


FUNCTIONS = (
    plain,
    with_a_dict,
    with_a_mode,
    with_a_set,
    with_a_dict_of_the_users,
)


def renamed(owner, name):
    """The same code under a name that nobody knows."""
    setattr(owner, f"new_{name}", vars(owner)[name])
    delattr(owner, name)


def changed(owner, name):
    """Another body that does the same."""
    original = getattr(owner, name)

    def other(*args, **kwargs):
        return original(*args, **kwargs)

    setattr(owner, name, other)


CHANGES = {
    "the cache of handlers is renamed": lambda: renamed(
        builtin.BuiltinVariable, "call_function_handler_cache"
    ),
    "a method is renamed": lambda: renamed(dicts.ConstDictVariable, "as_python_constant"),
    "a method is inherited now": lambda: delattr(ctx_manager.AutocastModeVariable, "exit"),
    "a function is renamed": lambda: renamed(exc, "raise_observed_exception"),
    "a method of sets is renamed": lambda: renamed(sets.SetVariable, "as_python_constant"),
    "a hook that only allows more is missing": lambda: changed(
        sets.SetVariable, "is_python_constant"
    ),
}


def outcome(function, folder):
    cached = cache_compile(function, cache_dir=folder)
    x = torch.ones(3)
    lines = Lines()
    logging.getLogger("npugx_cache").addHandler(lines)
    same = str(cached(x)) == str(function(x))
    logging.getLogger("npugx_cache").removeHandler(lines)
    counts = cached.cache_info()._asdict()
    return {"same": same, "lines": lines.texts} | {
        name: counts[name] for name in ("misses", "hits", "bypasses", "stored")
    }


class Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def run(folder, how):
    if how != "nothing":
        CHANGES[how]()
    rows = {function.__name__: outcome(function, folder) for function in FUNCTIONS}
    return rows | {"left": "__call__" in vars(base.VariableTrackerMeta)}


def main(folder, hows):
    found = {}
    for number, how in enumerate(hows):
        answer = folder / f"{number}.json"
        child = os.fork()
        if not child:
            answer.write_text(json.dumps(run(folder / str(number), how)))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, how
        found[how] = json.loads(answer.read_text())
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
