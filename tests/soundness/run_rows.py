"""Run the rows of a tree of packages in this process and print what happened, as JSON.

python run_rows.py FOLDER PHASE [ROW ...]

A row is a package whose module `main` has `make(cached) -> (call, ...)`, `run(call, ...)`, and may
have `change(call, ...)`, `around()`, a context for the changed call, and `raised(result)`, whether
eager gave an error in the place of a result. Phases: `cold` makes and
runs; `warm` makes, changes and runs; `live` makes, runs, changes and runs again.
`unprotected` takes names of `defects.PROTECTIONS` in the place of rows, `pretended` of `PRETENCES`.
`written` calls three times, and compares all that can be reached with what eager leaves, which runs
in a copy of the module `main`.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import sys
import traceback

import torch
from reachable import first_difference, lines_of


def flatten(value):
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[x for v in value for x in flatten(v)]]
    if isinstance(value, dict):
        return [type(value).__name__, *[x for k, v in value.items() for x in [k, *flatten(v)]]]
    return [value]


def difference(left, right):
    left, right = flatten(left), flatten(right)
    if len(left) != len(right):
        return f"{left} and {right}"
    for a, b in zip(left, right, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            meta = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in (a, b)]
            same = meta[0] == meta[1] and torch.allclose(a, b, equal_nan=True)
            if not same or not torch.equal(torch.signbit(a.real), torch.signbit(b.real)):
                return f"eager {a} and cached {b}, {meta}"
        elif type(a) is not type(b) or a != b:
            return f"eager {a!r} and cached {b!r}"
    return None


def digest(value):
    parts = [
        (str(v.dtype), v.stride(), v.to(torch.float64).tolist())
        if isinstance(v, torch.Tensor)
        else v
        for v in flatten(value)
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


LINES = []
SEEN = set()
"""Names of the guard kinds and source classes of Dynamo's that a row's trace came with."""


def watch_guards():
    """See every guard and source on their way into a guard tree; changes nothing."""
    from npugx_cache.trace import tracing
    from npugx_cache.trace.conditions.builder import TreeBuilder

    guard_row, node = tracing.guard_row, TreeBuilder.node

    def seeing_row(guard):
        row = guard_row(guard)
        SEEN.add(row.kind)
        return row

    def seeing_node(builder, source):
        each = source
        while each is not None:
            SEEN.update((type(each).__name__, type(getattr(each, "index", None)).__name__))
            each = getattr(each, "base", None)
        return node(builder, source)

    tracing.guard_row, TreeBuilder.node = seeing_row, seeing_node


class Warnings(logging.Handler):
    def emit(self, record):
        LINES.append(record.getMessage())


class Program:
    def __init__(self, name):
        from npugx_cache import cache_compile

        self.module = importlib.import_module(f"{name}.main")
        self._results = []

        def cached(target, **arguments):
            result = cache_compile(target, **arguments)
            self._results.append(result)
            return result

        self.plain = self.module.make(lambda target, **_: target)
        self.cached = self.module.make(cached)

    @property
    def made(self):
        """What `cache_compile` made; the `forward` of a module may be another one by now."""
        forwards = (r.forward if isinstance(r, torch.nn.Module) else r for r in self._results)
        return list(forwards)

    def change(self):
        change = getattr(self.module, "change", None)
        if change is not None:
            change(*self.plain)
            change(*self.cached)

    def run(self, *, changed):
        around = getattr(self.module, "around", contextlib.nullcontext)
        before = self.counts()
        LINES.clear()
        SEEN.clear()
        with around() if changed else contextlib.nullcontext():
            with torch.no_grad():
                expected = self.module.run(*self.plain)
            got = self.module.run(*self.cached)
        hits, misses, bypasses = (b - a for a, b in zip(before, self.counts(), strict=True))
        return {
            "difference": difference(expected, got),
            "warnings": "\n".join(LINES),
            "seen": sorted(SEEN),
            "eager": digest(expected),
            "raised": getattr(self.module, "raised", lambda _: None)(expected),
            "hits": hits,
            "misses": misses,
            "bypasses": bypasses,
            "reasons": [reason for m in self.made for r in m.explain() for reason in r.reasons],
        }

    def counts(self):
        infos = [m.cache_info() for m in self.made] + [
            state.counters.info(0) for m in self.made for _, state in m._bound.values()
        ]
        return [sum(getattr(i, n) for i in infos) for n in ("hits", "misses", "bypasses")]


def run(name, phase):
    program = Program(name)
    if phase == "cold":
        return program.run(changed=False)
    # The second call of a process makes the fast forms of the conditions, which the third one asks.
    calls = [program.run(changed=False) for _ in range(3 if phase == "live" else 0)]
    differing = [each["difference"] for each in calls if each["difference"] is not None]
    program.change()
    return {**program.run(changed=True), "differing": differing}


def run_unprotected(protection):
    """The changed row of a protection, with its check left out at the lookup."""
    from defects import PROTECTIONS

    name, left_out = PROTECTIONS[protection]
    program = Program(name)
    program.change()
    with left_out():
        return program.run(changed=True)


def run_pretended(pretence):
    """An unchanged row, as if this process were another one."""
    from pretences import PRETENCES

    from npugx_cache.key import environment

    with PRETENCES[pretence][0]():
        environment._process_factors.cache_clear()
        try:
            return Program("nothing_changed").run(changed=False)
        finally:
            environment._process_factors.cache_clear()


class Written:
    """A row about what a function writes: eager and the cache have a world of their own each."""

    def __init__(self, name):
        from npugx_cache import cache_compile

        self.cached, self.callables = importlib.import_module(f"{name}.main"), []
        spec = importlib.util.spec_from_file_location(f"{name}.eager", self.cached.__file__)
        self.eager = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.eager
        spec.loader.exec_module(self.eager)

        def cached(target, **arguments):
            self.callables.append(cache_compile(target, **arguments))
            return self.callables[-1]

        self.made = {
            self.eager: self.eager.make(lambda target, **_: target),
            self.cached: self.cached.make(cached),
        }

    def lines(self, module, *, last):
        """What one more call leaves, and gives or raises."""
        try:
            with torch.no_grad():
                result = module.run(*self.made[module])
        except Exception as error:
            result = type(error), str(error)
        return lines_of(module, self.made[module], result, last=last)

    def counts(self):
        forwards = [r.forward if isinstance(r, torch.nn.Module) else r for r in self.callables]
        infos = [m.cache_info() for m in forwards]
        return {n: sum(getattr(i, n) for i in infos) for n in ("hits", "misses", "bypasses")}


def run_written(name, calls=3):
    LINES.clear()
    row, differences = Written(name), []
    for call in range(1, calls + 1):
        last = call == calls
        both = [row.lines(module, last=last) for module in (row.eager, row.cached)]
        if (difference := first_difference(*both)) is not None:
            differences.append(f"call {call}: {difference}")
    return {"difference": differences, "warnings": "\n".join(LINES), **row.counts()}


RUNS = {
    "unprotected": run_unprotected,
    "pretended": run_pretended,
    "written": run_written,
}


def main(folder, phase, *names):
    sys.path.insert(0, folder)
    for module in filter(None, os.environ.get("NPUGX_TEST_IMPORTS", "").split(",")):
        importlib.import_module(module)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("npugx_cache").addHandler(Warnings(logging.WARNING))
    if phase == "cold" and "NPUGX_TEST_WATCH" in os.environ:
        watch_guards()
    results = {}
    for name in names:
        try:
            results[name] = RUNS[phase](name) if phase in RUNS else run(name, phase)
        except Exception:
            results[name] = {"difference": traceback.format_exc()[-2000:]}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
