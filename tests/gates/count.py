"""Count what a lookup and a later call do, and print it as JSON: python count.py LAYERS

The store is NPUGX_CACHE_DIR. Empty, it is filled and the counts are those of a compile.
"""

import collections
import dataclasses
import enum
import json
import os
import sys
from pathlib import Path

import torch

IMPORTED_BY_TORCH = frozenset(sys.modules)


class Layer(torch.nn.Module):
    """A decoder layer as they are written: submodules, settings read from attributes, buffers."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm = torch.nn.LayerNorm(width)
        self.projections = torch.nn.ModuleDict(
            {name: torch.nn.Linear(width, width, bias=False) for name in "qkvo"}
        )
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.SiLU(), torch.nn.Linear(2 * width, width)
        )
        self.register_buffer("gain", torch.ones(width))

    def forward(self, x, mask):
        y = self.norm(x) * self.gain
        q, k, v = (self.split(self.projections[name](y)) for name in "qkv")
        scores = q @ k.transpose(-1, -2) * self.scale + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.projections["o"](mixed)
        return x + self.mlp(x)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Decoder(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(16, 2) for _ in range(layers))

    def forward(self, x, mask=None):
        mask = torch.zeros(x.shape[1], x.shape[1]) if mask is None else mask
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Calls:
    """Calls of Python functions and of C functions from Python, while it is open.

    Calls on the way to the store's folder are left out: their number is that of the folders above.
    `own` are those in and from this package, `graph` are operators that the compiled graph calls,
    `managers` make one of torch's guard managers, `all` are all. A generator counts as called each
    time it goes on.
    """

    on_the_way = False

    def __init__(self, folders):
        self.own = self.graph = self.managers = self.all = 0
        self.folders = folders

    def __enter__(self):
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        self.all -= 1  # the call above

    def _count(self, frame, event, called):
        if event not in {"call", "c_call"} or self.on_the_way:
            return
        self.all += 1
        self.managers += event == "c_call" and called.__name__.endswith("_manager")
        caller = frame if event == "c_call" else frame.f_back
        self.own += frame.f_code.co_filename.startswith(self.folders)
        self.graph += _is_of_program(caller) and not (
            called.__name__ == "pop" if event == "c_call" else _is_of_program(frame)
        )  # a block of the program is called with values that a list hands over


def _is_of_program(frame):
    return frame.f_code.co_filename == "<npugx_cache program>"


class SystemCalls:
    """The store's system calls from here on, but those on the way to its folder, by name."""

    def __init__(self):
        from npugx_cache.store.io import syscalls, tree

        self.counts = collections.Counter()
        for name, value in list(vars(syscalls).items()):
            own = getattr(value, "__module__", None) == syscalls.__name__
            if own and name not in {"is_regular", "is_folder", "random_name"}:
                setattr(syscalls, name, self._counted(name, value))
        tree.open_root = self._way(tree.open_root)

    def _counted(self, name, call):
        def run(*args, **kwargs):
            self.counts[name] += not Calls.on_the_way
            return call(*args, **kwargs)

        return run

    def _way(self, call):
        def run(*args, **kwargs):
            Calls.on_the_way = True
            try:
                return call(*args, **kwargs)
            finally:
                Calls.on_the_way = False

        return run


class GeneratedClasses(list):
    """The names of classes that the standard library makes slowly, from here on.

    Dataclasses and named tuples compile their methods; an enumeration works on each member.
    """

    def __init__(self):
        dataclasses.dataclass = self._noting(dataclasses.dataclass)
        make = vars(collections)["namedtuple"]
        vars(collections)["namedtuple"] = self._noting(make)
        make = enum.EnumType.__new__

        def noting(metaclass, name, *args, **kwargs):
            self.append(name)
            return make(metaclass, name, *args, **kwargs)

        enum.EnumType.__new__ = noting

    def _noting(self, make):
        def noting(named=None, /, *args, **kwargs):
            if named is None:
                return lambda cls: noting(cls, *args, **kwargs)
            self.append(getattr(named, "__name__", named))
            return make(named, *args, **kwargs)

        return noting


def of_ours():
    return len([name for name in sys.modules if name.startswith("npugx_cache")])


def leave_only(*names):
    """Remove all other environment variables, because a lookup reads each one's name."""
    for name in set(os.environ).difference(names):
        del os.environ[name]


def first(x):
    return x + 1


def same(value):
    return value


def spoil(how):
    """Do what the limits are there to find."""
    from npugx_cache.conditions import check

    hold, evaluate = check.Checker.code_holds, check.evaluate
    if how == "a compiler on the way of a hit":
        check.Checker.code_holds = lambda self: __import__("torch._dynamo") and hold(self)
    if how == "a call for each node of the tree":
        check.evaluate = lambda plan, scope: [same(x) for x in evaluate(plan, scope)]


def main(layers, how=""):
    torch.manual_seed(0)
    root = os.environ["NPUGX_CACHE_DIR"]
    leave_only("NPUGX_CACHE_DIR", "HOME", "PATH", "TMPDIR")
    model, x = Decoder(int(layers)).eval(), torch.randn(1, 4, 16)
    generated = GeneratedClasses()
    from npugx_cache import backend, cache_compile, store

    imported = {"modules": of_ours(), "generated": len(generated)}
    spoil(how)
    cached, other = cache_compile(model.forward), cache_compile(first)
    decorated = {"modules": of_ours(), "generated": len(generated)}
    from npugx_cache.store.content import verified

    # Of young files less is remembered, by fewer calls: counts must not depend on the time.
    verified._RACY_NS = 0
    homes = (backend, store, sys.modules[cache_compile.__module__])
    with torch.no_grad():
        # What is imported is counted by itself: how many calls that takes depends on sys.path.
        other.warm(x)
        syscalls = SystemCalls()
        with Calls(tuple(f"{Path(home.__file__).parent}/" for home in homes)) as lookup:
            cached.warm(x)
        seen = dict(syscalls.counts)
        modules, made = sorted(set(sys.modules) - IMPORTED_BY_TORCH), list(generated)
        other(x), other(x)  # imports what a second call needs
        with Calls(lookup.folders) as second:
            cached(x)
        for _ in range(4):
            cached(x)
        with Calls(lookup.folders) as steady:
            cached(x)
        for _ in range(4):
            other(x)
        with Calls(lookup.folders) as tiny:
            other(x)
        shapes = cache_compile(first, cache_dir=f"{root}.shapes", dynamic=False)
        shorter = x[:, :2]
        for _ in range(5):
            shapes(x), shapes(shorter)
        with Calls(lookup.folders) as turns:
            shapes(x), shapes(shorter)
    [known] = cached._state.specialisations
    tree, info = known.conditions.conditions, cached.cache_info()
    files = (path for part in ("ac", "cas") for path in Path(root, "v1", part).rglob("*"))
    answer = {
        "hits": info.hits,
        "compiled": info.misses,
        "imported": imported,
        "decorated": decorated,
        "modules": modules,
        "generated": made,
        "system calls": seen,
        "lookup calls": lookup.all,
        "second calls": second.own,
        "managers": second.managers,
        "steady calls": steady.own,
        "tiny calls": tiny.own,
        "two shapes' calls": turns.own,
        "graph calls": steady.graph,
        "nodes": len(tree.parents),
        "checks": sum(1 for _ in tree.all_checks()),
        "bytes": sum(path.stat().st_size for path in files if path.is_file()),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
