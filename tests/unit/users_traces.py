"""What a user's own torch.compile makes before, during and after traces of ours; prints JSON.

python users_traces.py [beside]: without an argument, nothing of ours is imported.
"""

from __future__ import annotations

import abc
import collections
import functools
import json
import re
import sys
import threading
import types

import torch
import torch._dynamo
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

SETTINGS = {"rate": 2, "more": 3}
ORDERED = collections.OrderedDict(a=1, b=2)
SCALED = functools.partial(torch.mul, other=2)


class Base(abc.ABC):  # noqa: B024 - classes are registered with it
    pass


class Item:
    def __init__(self):
        self.size = 3


def user_function(x, n, item):
    found = [n in range(5), hasattr(item, "missing"), isinstance(item, Base), callable(item)]
    try:
        found.append(SETTINGS["absent"])
    except KeyError:
        found.append("no such key")
    try:
        found.append(item.missing)
    except AttributeError:
        found.append("no such attribute")
    found += [name for name in {"a", "b"} if name in ORDERED]
    found += list(reversed([*SETTINGS])) + sorted({3, 1, 2}) + [getattr(item, "size", 0)]
    found += [str(sum(vars(item).values())), max({1, 2}), frozenset({1}) == {1}]
    return SCALED(x) + len(found), sorted(map(repr, found))


def without_numbers(text):
    """Without addresses, and without what counts the traces of a process."""
    return re.sub(r"0x[0-9a-f]+|\d{5,}|(?<=__builtins_dict___)\d+|(?<=_c)\d+\b", "N", text)


def traced():
    """Everything that Dynamo makes of the function: graph, guards, results."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph_module, inputs):
        del inputs
        graphs.append(graph_module.print_readable(print_output=False))
        return graph_module.forward

    # A function of its own for each trace: Dynamo remembers sizes and numbers by their code.
    function = types.FunctionType(user_function.__code__.replace(), globals(), "user_function")
    x, item = torch.ones(3), Item()
    result, found = torch.compile(function, backend=backend, fullgraph=True)(x, 2, item)
    entries = _debug_get_cache_entry_list(function)
    guards = [str(entry.guard_manager) for entry in entries]
    return {
        "graphs": [without_numbers(each) for each in graphs],
        "guards": sorted(set("\n".join(map(without_numbers, guards)).splitlines())),
        "result": result.tolist(),
        "found": found,
    }


def names_of_dynamo():
    """Every function, class and method of Dynamo's modules, by where it is found."""
    found = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch._dynamo") or not isinstance(module, types.ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value):
                found[f"{name}.{attribute}"] = value
            if isinstance(value, dict) and attribute == "compare_op_handlers":
                found |= {f"{name}.{attribute}[{key}]": each for key, each in value.items()}
            if isinstance(value, type) and value.__module__.startswith("torch._dynamo"):
                place = f"{value.__module__}.{value.__qualname__}"
                found |= {
                    f"{place}.{key}": each
                    for key, each in list(vars(value).items())
                    if callable(each) or isinstance(each, (staticmethod, classmethod, property))
                }
    handlers = torch._dynamo.variables.builder.SourcelessBuilder._type_handlers
    return found | {f"handler of {kind}": each for kind, each in handlers.items()}


def changed(before, after):
    return [n for n in before if n not in after or before[n] is not after[n]]


def scaled(x):
    return x * 2 + 1


def graphs_of_sizes(*sizes):
    """The graphs of a user's torch.compile that meets sizes one after another."""
    graphs = []

    def backend(graph_module, inputs):
        del inputs
        graphs.append(graph_module.print_readable(print_output=False))
        return graph_module.forward

    compiled = torch.compile(scaled, backend=backend, fullgraph=True)
    for size in sizes:
        compiled(torch.ones(size))
    return graphs


BEGUN, LOOKED = threading.Event(), threading.Event()


def wait(x):
    """In the middle of our trace, and not in the trace of the user that comes after."""
    if not BEGUN.is_set():
        BEGUN.set()
        assert LOOKED.wait(300), "the other thread did not look"


def beside():
    import torch._dynamo.variables.object_protocol
    from torch._dynamo.convert_frame import compile_lock

    rows, before = {"before": traced()}, names_of_dynamo()
    from npugx_cache import cache_compile
    from npugx_cache.trace import dynamo  # noqa: F401 - to have all hooks known
    from tests.mid_trace import at_each_input

    rows["imported"] = changed(before, names_of_dynamo())

    def users_thread():
        assert BEGUN.wait(300), "our trace did not begin"
        try:
            rows["in place"] = changed(before, names_of_dynamo())
            rows["lock is free"] = compile_lock.acquire(blocking=False)
        finally:
            LOOKED.set()
        rows["beside"] = traced()

    thread = threading.Thread(target=users_thread)
    thread.start()
    at_each_input(wait)
    cached = cache_compile(user_function)
    result, found = cached(torch.ones(3), 2, Item())
    thread.join()
    rows["ours"] = {
        "result": result.tolist(),
        "found": found,
        "info": cached.cache_info()._asdict(),
    }
    rows["left"] = changed(before, names_of_dynamo())
    cached = cache_compile(scaled)
    for size in (3, 4, 5):
        cached(torch.ones(size))
    rows["misses by size"] = cached.cache_info().misses
    rows["sizes"] = graphs_of_sizes(6)
    cached(torch.ones(7))
    rows["misses by size"] = [rows["misses by size"], cached.cache_info().misses]
    rows["after"] = traced()
    return rows


if __name__ == "__main__":
    alone = {} if sys.argv[1:] else {"sizes alone": graphs_of_sizes(6), "alone": traced()}
    print(json.dumps(alone or beside(), default=str))
