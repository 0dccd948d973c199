"""`NPUGX_CACHE_VERIFY=recompile` finds what slipped through a check that did not look."""

import shutil
import sys
import textwrap

import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
    import json, sys, torch
    from npugx_cache import cache_compile
    from npugx_cache.errors import VerificationError
    {before}

    def f(x):
        return {body}

    cached = cache_compile(f)
    try:
        row = {{"result": cached(torch.ones(3)).tolist()}}
    except VerificationError as error:
        row = {{"error": str(error), "texts": [str(error.restored), str(error.recompiled)]}}
    print(json.dumps(row | {{"info": cached.cache_info()._asdict()}}))
"""

BLIND = """
    from npugx_cache.conditions.check import Checker
    from npugx_cache.key import recipe
    Checker.code_holds = lambda self: True
    recipe.code_hash = lambda code: "edited or not"
"""
"""Switches off what sees an edit of the function: its hash in the key, and source facts."""

MISCOMPUTING = """
    from npugx_cache.backend import runtime
    bind = runtime.bind
    def wrong(*args, **kwargs):
        graph = bind(*args, **kwargs)
        wrong.count += 1
        return (lambda *a: [graph(*a)[0] + 1]) if wrong.count == 1 else graph
    wrong.count = 0
    runtime.bind = wrong
"""
"""The first graph that is bound computes something else, as a damaged kernel would."""


def run(surroundings, body, before="", **environment):
    script = surroundings.folder / "script.py"
    before = textwrap.indent(textwrap.dedent(before), "    ")
    script.write_text(textwrap.dedent(PROGRAM.format(before=before.strip(), body=body)))
    return surroundings.run(script, **environment)


CHECK = {"NPUGX_CACHE_VERIFY": "recompile"}


def test_a_good_entry_passes(surroundings):
    assert run(surroundings, "x * 2")["info"]["misses"] == 1
    row = run(surroundings, "x * 2", **CHECK)
    assert row["result"] == [2.0] * 3
    assert (row["info"]["hits"], row["info"]["misses"]) == (1, 0)


def test_an_entry_of_other_code_is_an_error_with_both_texts(surroundings):
    run(surroundings, "x * 2", BLIND)
    assert run(surroundings, "x * 3", BLIND)["result"] == [2.0] * 3  # the defect, unseen
    row = run(surroundings, "x * 3", BLIND, **CHECK)
    assert "its entry differs" in row["error"]
    assert "mul_Tensor" in row["texts"][0]
    assert row["texts"][0] != row["texts"][1]
    assert run(surroundings, "x * 3")["result"] == [3.0] * 3  # with the checks on: a miss


def test_a_graph_that_computes_something_else_is_an_error_with_both_results(surroundings):
    run(surroundings, "x * 2")
    assert run(surroundings, "x * 2", MISCOMPUTING)["result"] == [3.0] * 3  # the defect, unseen
    row = run(surroundings, "x * 2", MISCOMPUTING, **CHECK)
    assert "result differs" in row["error"]
    assert row["texts"] == ["tensor([3., 3., 3.])", "tensor([2., 2., 2.])"]


def test_an_unknown_value_is_refused_at_decoration(surroundings):
    script = surroundings.folder / "script.py"
    script.write_text(
        "from npugx_cache import cache_compile\n"
        "try:\n    cache_compile(len)\nexcept ValueError as error:\n"
        "    import json\n    print(json.dumps(str(error)))\n"
    )
    message = surroundings.run(script, NPUGX_CACHE_VERIFY="1")
    assert message == "NPUGX_CACHE_VERIFY='1': valid values are off, first, recompile"


# By default gloo asks the resolver for the name of the host, and takes whatever answers.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
RANK = """
    import json, sys, torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as fc
    from npugx_cache import cache_compile
    from tests.ranks import leave

    rank, place = int(sys.argv[1]), sys.argv[2]
    store = dist.FileStore(place, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

    def f(x):
        return fc.all_reduce(x * 2, "sum", "0")

    def g(x):
        y = x * 3
        dist.all_reduce(y)
        return y + 1

    rows = {}
    for function in (f, g):
        cached = cache_compile(function)
        got = [cached(torch.full((2,), float(n + rank))).tolist() for n in range(3)]
        rows[function.__name__] = [got, cached.cache_info().hits]
    store.set(f"done {rank}", "")
    store.wait(["done 0", "done 1"])
    dist.destroy_process_group()
    print(json.dumps(rows))
    leave()
"""


def ranks(surroundings, phase, **environment):
    script = surroundings.folder / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    place = surroundings.folder / f"meeting {phase}"
    # A store for each rank: one may have an entry that the other has yet to make.
    folders = [{"NPUGX_CACHE_DIR": str(surroundings.folder / f"cache {rank}")} for rank in (0, 1)]
    workers = [
        surroundings.start("-W", "ignore", script, rank, place, **LOOPBACK, **environment, **folder)
        for rank, folder in enumerate(folders)
    ]
    return [(worker.result(), worker.stderr) for worker in workers]


WANTED = {
    "f": [[2.0 * (2 * n + 1)] * 2 for n in range(3)],
    "g": [[3.0 * (2 * n + 1) + 1] * 2 for n in range(3)],
}


@pytest.mark.parametrize("all_hit", [False, True])
def test_a_graph_with_collectives_runs_once_and_is_named(surroundings, all_hit):
    ranks(surroundings, "cold")
    if not all_hit:
        shutil.rmtree(surroundings.folder / "cache 1")
    found = ranks(surroundings, "checked", **CHECK)
    for rank, (rows, stderr) in enumerate(found):
        hits = 1 if all_hit or rank == 0 else 0
        assert rows == {name: [want, hits] for name, want in WANTED.items()}
        for name in WANTED:
            warned = f"{name}: results not compared: it calls _c10d_functional.all_reduce"
            assert stderr.count(warned) == hits


EFFECTS = """
    import json, sys, torch
    from torch import nn
    from npugx_cache import cache_compile

    TOTAL, SEEN, COUNT, CALLS = torch.zeros(3), [], 0, []
    operators = torch.library.Library("npugx_recheck", "DEF")
    operators.define("note(Tensor x) -> ()")
    operators.impl("note", lambda x: CALLS.append(1), "CPU")
    torch.library.register_fake("npugx_recheck::note", lambda x: None)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total += x
            return self.total * 2

    LAYER = Layer()
    held = Layer()

    def closed_over():
        layer, seen = Layer(), []
        def inner(x):
            seen.append(1)
            return layer(x), len(seen)
        return inner

    def a_global_tensor(x):
        TOTAL.add_(x)
        return TOTAL * 2

    def a_global_list(x):
        SEEN.append(1)
        return x + len(SEEN)

    def a_global_number(x):
        global COUNT
        COUNT += 1
        return x + COUNT

    def a_global_module(x):
        return LAYER(x)

    def an_operator(x):
        torch.ops.npugx_recheck.note(x)
        return x + 1

    def an_argument(x):
        return x.add_(1) * 2

    def reads_a_global(x):
        return x + TOTAL

    functions = [closed_over(), a_global_tensor, a_global_list, a_global_number, a_global_module,
                 an_operator, an_argument, reads_a_global]
    rows = {}
    for function in functions:
        result = cache_compile(function)(torch.ones(3))
        values = result if isinstance(result, tuple) else (result,)
        rows[function.__name__] = [v.tolist() if hasattr(v, "tolist") else v for v in values]
    rows["held"] = cache_compile(held.forward)(torch.ones(3)).tolist(), held.total.tolist()
    rows["world"] = [TOTAL.tolist(), SEEN, COUNT, LAYER.total.tolist(), CALLS]
    print(json.dumps(rows))
"""
WRITES = "it writes to something that was there before the call"
UNCOMPARED = {
    "inner": "it writes to its inputs",
    "a_global_tensor": "it writes to its inputs",
    "a_global_list": WRITES,
    "a_global_number": WRITES,
    "a_global_module": "it writes to its inputs",
    "an_operator": "it calls npugx_recheck.note, which has no result",
    "an_argument": "it writes to its inputs",
    "Layer.forward": "it writes to its inputs",
}


def test_nothing_is_done_twice(surroundings):
    script = surroundings.folder / "script.py"
    script.write_text(textwrap.dedent(EFFECTS))
    plain = surroundings.run(script, NPUGX_CACHE="off")
    assert surroundings.run(script) == plain
    worker = surroundings.start(script, **CHECK)
    assert worker.result() == plain
    lines = [line for line in worker.stderr.splitlines() if "results not compared" in line]
    assert len(lines) == len(UNCOMPARED)
    for name, reason in UNCOMPARED.items():
        assert any(f"{name}: results not compared: {reason}" in line for line in lines), name


NAMES = ["n" * size for size in range(15, 35)]
OTHERS = """
    for n in range(12):
        torch.compile(lambda x, n: x * max([n]), backend="eager", dynamic=False)(torch.ones(1), n)
"""


def test_an_entry_does_not_depend_on_what_the_process_traced_before(surroundings):
    # Dynamo orders guards by names, and writes counters into these. One more digit moves a guard
    # behind another one, if there is a name of that length.
    named = "; ".join(f"{name} = min" for name in NAMES)
    body = f"x * max([2]) + ({' + '.join(f'{name}([1])' for name in NAMES)})"
    expected = [2.0 + len(NAMES)] * 3
    cold = run(surroundings, body, before=named)
    assert (cold["result"], cold["info"]["misses"]) == (expected, 1)
    warm = run(surroundings, body, before=named + textwrap.dedent(OTHERS), **CHECK)
    assert (warm.get("result"), warm["info"]["hits"]) == (expected, 1), warm
