"""Run the rows of a tree of packages in this process and print what happened, as JSON.

python run_rows.py FOLDER PHASE [ROW ...]

A row is a package whose module `main` has `make(cached) -> (call, ...)`, `run(call, ...)`, and may
have `change(call, ...)` and `around()`, a context for the changed call. Phases: `cold` makes and
runs; `warm` makes, changes and runs; `live` makes, runs, changes and runs again.
"""

import contextlib
import hashlib
import importlib
import json
import logging
import sys
import traceback

import torch


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


class Warnings(logging.Handler):
    def emit(self, record):
        LINES.append(record.getMessage())


class Program:
    def __init__(self, name):
        from npugx_cache import cache_compile

        self.module = importlib.import_module(f"{name}.main")
        self.made = []

        def cached(target, **arguments):
            result = cache_compile(target, **arguments)
            self.made.append(result.forward if isinstance(result, torch.nn.Module) else result)
            return result

        self.plain = self.module.make(lambda target, **_: target)
        self.cached = self.module.make(cached)

    def change(self):
        change = getattr(self.module, "change", None)
        if change is not None:
            change(*self.plain)
            change(*self.cached)

    def run(self, *, changed):
        around = getattr(self.module, "around", contextlib.nullcontext)
        before = self.counts()
        LINES.clear()
        with around() if changed else contextlib.nullcontext():
            with torch.no_grad():
                expected = self.module.run(*self.plain)
            got = self.module.run(*self.cached)
        hits, misses, bypasses = (b - a for a, b in zip(before, self.counts(), strict=True))
        return {
            "difference": difference(expected, got),
            "warnings": "\n".join(LINES),
            "eager": digest(expected),
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
    first = program.run(changed=False) if phase == "live" else None
    program.change()
    return {**program.run(changed=True), "first": first}


def main(folder, phase, *names):
    sys.path.insert(0, folder)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("npugx_cache").addHandler(Warnings(logging.WARNING))
    results = {}
    for name in names:
        try:
            results[name] = run(name, phase)
        except Exception:
            results[name] = {"difference": traceback.format_exc()[-2000:]}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
