"""Runs rows under torch.compile(backend="npugx"), each compared with eager.

python rows.py WHAT [NAME...] prints {name: {"difference", "info", "warnings"}} for the named rows,
or for all. WHAT says what is otherwise in this process: a name of `PROCESSES`. The module
`kernels`, with custom operators, must be importable. `OPTIONS` has the options of some rows.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import sys
import threading

import kernels
import torch
from of_this_torch import let_threads_compile
from torch import nn
from torch.utils.checkpoint import checkpoint

from npugx_cache.pieces import compiled

ROWS, OPTIONS = {}, {}


def row(make):
    ROWS[make.__name__] = make
    return make


@row
def plain():
    return lambda x, w: (x @ w).softmax(-1) * 2, [(torch.randn(4, 8), torch.randn(8, 8))]


@row
def kernel():
    return lambda x: kernels.scaled(x) + 1, [(torch.randn(4, 8),)]


@row
def fake():
    return lambda x: torch.ops.pieces.faked(x) - 1, [(torch.randn(4, 8),)]


@row
def fake_in_a_checkpoint():
    def inner(x):
        return torch.ops.pieces.faked(x) - 2

    return lambda x: checkpoint(inner, x, use_reentrant=False) * 2, [(torch.randn(4, 8),)]


@row
def fake_in_a_branch():
    def inner(x):
        return torch.ops.pieces.faked(x) - 2

    return lambda x: torch.cond(x.sum() > 0, inner, torch.sin, (x,)), [(torch.ones(4, 8),)]


@row
def schema():
    return lambda x: torch.ops.pieces.by(x) - 1, [(torch.randn(4, 8),)]


@row
def reads():
    return lambda x: torch.ops.pieces.copied(x).mean(0) * 2, [(torch.randn(4, 8),)]


@row
def method():
    return lambda x: x.sigmoid() + 1, [(torch.randn(4, 8),)]


@row
def method_in_torch():
    return lambda x: torch.nn.functional.softmin(x, -1), [(torch.randn(4, 8),)]


@row
def vary():
    def f(x, y):
        return x.view(-1)[: x.shape[0] // 2], torch.cat([x, y]) * y.shape[0]

    return f, [(torch.randn(n, 4), torch.randn(m, 4)) for n, m in ((4, 5), (6, 7), (9, 3), (2, 2))]


def by_parity(graph_module, example_inputs, options):
    """Doubles the result for an even number of rows and triples it for an odd one."""
    (output,) = graph_module.graph.find_nodes(op="output")
    ((value,),) = output.args
    by = 2 if value.meta["val"].shape[0] % 2 == 0 else 3
    with graph_module.graph.inserting_before(output):
        output.args = ((graph_module.graph.call_function(torch.ops.aten.mul.Tensor, (value, by)),),)
    graph_module.recompile()


def of_parity(*lengths):
    def expected(x):
        y = torch.relu(x)
        return y if torch.compiler.is_compiling() else y * (3 if x.shape[0] % 2 else 2)

    calls = [(torch.randn(n, 4),) for n in lengths]
    for (x,) in calls:
        torch._dynamo.mark_dynamic(x, 0)
    return expected, calls


@row
def parity():
    return of_parity(6, 8)


@row
def parity_odd_first():
    return of_parity(7, 9, 6, 8)


@row
def parity_both():
    return of_parity(4, 5, 6, 7)


for name in ("parity", "parity_odd_first", "parity_both"):
    OPTIONS[name] = {"post_grad_custom_post_pass": by_parity}


@row
def overlapping_later():
    """Dynamo does not guard that two arguments share no memory."""

    def f(x, y):
        x.mul_(2)
        return x + y, y * 3

    base = torch.arange(8.0)
    return f, [(torch.ones(4), torch.ones(4)), (base[:4], base[2:6]), (base[1:5], base[1:5])]


@row
def in_place_layout():
    def f(x):
        x.t_()
        return x + 1

    return f, [(torch.randn(3, 4),)]


@row
def breaks():
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y @ y.t()

    return f, [(torch.randn(3, 4),)]


@row
def regions():
    @torch.compiler.nested_compile_region
    def inner(x):
        return x.sin() + 1

    return lambda x: inner(inner(x)), [(torch.randn(3, 4),)]


@row
def returned():
    def f(x, n):
        return x, x[1:], n, x.shape[0], None, x.sum(), [x * n, (x,)]

    return f, [(torch.randn(3, 4), 2), (torch.randn(3, 4), 3), (torch.randn(5, 4), 4)]


@row
def checked():
    def f(x):
        torch._check(x.shape[0] % 2 == 0)
        return x.view(2, -1) * x.shape[0]

    return f, [(torch.randn(n, 4),) for n in (4, 6, 8)]


@contextlib.contextmanager
def changed(write, value, before):
    write(value)
    try:
        yield
    finally:
        write(before)


def patched(name, function):
    before = getattr(torch.Tensor, name)
    return changed(lambda value: setattr(torch.Tensor, name, value), function, before)


PROCESSES = {
    "as it is": contextlib.nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: changed(torch.use_deterministic_algorithms, True, False),
    "patched sigmoid": lambda: patched("sigmoid", lambda x: x * 7),
    "patched softmax": lambda: patched("softmax", lambda x, *_, **__: x * 7),
}


def difference(got, expected):
    try:
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    except (AssertionError, TypeError, ValueError) as error:
        return str(error)
    return None


def run(name, warnings, backend):
    torch.manual_seed(0)
    torch._dynamo.reset()
    warnings.clear()
    function, calls = ROWS[name]()
    expected_calls = copy.deepcopy(calls)
    run = torch.compile(function, backend=backend, options=OPTIONS.get(name))
    before, found = compiled.counters.info(0)[:4], None
    for args, theirs in zip(calls, expected_calls, strict=True):
        expected = function(*theirs)
        try:
            got = run(*args)
        except Exception as error:
            found = found or f"{type(error).__name__}: {error}"[:600]
            continue
        found = found or difference((got, args), (expected, theirs))
    after = compiled.counters.info(0)[:4]
    info = [now - then for now, then in zip(after, before, strict=True)]
    return {"difference": found, "info": info, "warnings": list(warnings)}


def in_threads():
    """Eight threads compile four functions at once; Dynamo lets one through after another."""
    model = nn.Linear(8, 8)
    functions = [lambda x, n=n: (model(x) * n).relu() for n in range(4)] * 2
    x, found = torch.randn(4, 8), {}
    start = threading.Barrier(len(functions))

    def work(index, function, run):
        start.wait()
        with torch.no_grad():
            found[index] = difference(run(x), function(x))

    # Here, because torch looks up the name of a backend without a lock.
    runs = [torch.compile(function, backend="npugx") for function in functions]
    each_with_run = zip(range(len(functions)), functions, runs, strict=True)
    threads = [threading.Thread(target=work, args=each) for each in each_with_run]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [found.get(index, "ended early") for index in range(len(functions))]


def main(what, *names):
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    backend = "npugx_inductor" if "inductor" in names else "npugx"
    names = [name for name in names if name != "inductor"]
    with torch.no_grad(), PROCESSES[what]():
        found = {name: run(name, warnings, backend) for name in names or ROWS}
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:] == ["threads"]:
        let_threads_compile()
        print(json.dumps(in_threads()))
    else:
        main(*sys.argv[1:])
