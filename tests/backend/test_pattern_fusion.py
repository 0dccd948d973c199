"""Registered patterns: what they replace, what they must not, and that the key knows them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.thorough

CODE = """
import json, re, sys, torch
from npugx_cache import cache_compile, readable_cache
from npugx_cache.backend import register_replacement
from npugx_cache.backend.options import Options
from npugx_cache.backend.engines import load
from npugx_cache.backend.lowering import lower
aten = torch.ops.aten
def search(x, y):
    return torch.relu(x + y)
def replacement(x, y):
    return torch.clamp_min(x + y, %s)
if %s:
    register_replacement(search, replacement, [torch.ones(2, 3), torch.ones(2, 3)],
                         extra_check=lambda match: match.kwargs["x"].meta["val"].dim() == 2)
def fits(x, y):
    return torch.relu(x + y) * 2
def one_dimension(x, y):
    return torch.relu(x[0] + y[0]) * 2
def is_written(x, y):
    z = torch.relu(x + y)
    z.add_(1)
    return z
def input_is_written(x, y):
    z = torch.relu(x + y)
    x.add_(1)
    return z * 2
left = {}
for function in (fits, one_dimension, is_written, input_is_written):
    inputs = torch.randn(2, 3), torch.randn(2, 3)
    graph = lower(function, inputs, None)
    load("npugraph_ex").optimise(graph, Options(inplace_pass=False))
    left[function.__name__] = any("clamp" in str(n.target) for n in graph.graph.nodes)
    mine, plain = [x.clone() for x in inputs], [x.clone() for x in inputs]
    got, want = graph(*mine), function(*plain)
    if "%s" == "0":
        torch.testing.assert_close(got, want); torch.testing.assert_close(mine, plain)
cached = cache_compile(fits)
result = cached(torch.full((2, 3), -1.0), torch.zeros(2, 3))
print(json.dumps({"left": left, "result": result[0, 0].item(), "hits": cached.cache_info().hits}))
"""


def test_a_pattern_is_replaced_where_nothing_is_written_and_its_code_is_in_the_key(surroundings):
    def run(value, registered=True):
        # The replacement gives other numbers on purpose, to show that its code is in the key.
        verify = {"NPUGX_CACHE_VERIFY": "off"}
        return surroundings.run("-c", CODE % (value, registered, value), **verify)

    cold = run("0")
    assert cold["left"] == {
        "fits": True,
        "one_dimension": False,
        "is_written": False,
        "input_is_written": False,
    }
    assert (cold["result"], cold["hits"]) == (0.0, 0)
    warm = run("0")
    assert (warm["result"], warm["hits"]) == (0.0, 1)
    edited = run("5")
    assert (edited["result"], edited["hits"]) == (10.0, 0)
    assert run("5", registered=False)["result"] == 0.0


UNDER_AOT_AUTOGRAD = """
import json, sys, torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses.fake_tensor import FakeTensorMode
from npugx_cache.backend import compile_fx, register_replacement
traced, checked = [], []
def search(x, y):
    traced.append(x)
    return torch.relu(x) * y
def replacement(x, y):
    return torch.clamp(x, min=0) * y - 1
def extra_check(match):
    checked.append(match)
    return True
def inputs(kind):
    if kind == "real":
        return [torch.randn(2, 2), torch.randn(2, 2)]
    with FakeTensorMode():
        return [torch.randn(2, 2), torch.randn(2, 2)]
if sys.argv[1] != "none":
    register_replacement(search, replacement, inputs(sys.argv[1]), extra_check=extra_check)
def compiler(graph_module, examples):
    return compile_fx(graph_module, examples, {"inplace_pass": False})
def backend(graph_module, examples):
    return aot_module_simplified(graph_module, examples, fw_compiler=compiler)
def fits(x):
    return torch.relu(x) * x + 1
def other(x):
    return x.sin() + 1
rows = []
for function in (fits, other):
    for dynamic in (False, True):
        torch._dynamo.reset()
        before = len(traced)
        compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
        x = torch.randn(4, 4)
        with torch.no_grad():
            difference = compiled(x) - function(x)
        rows.append([function.__name__, round(difference.mean().item(), 4), len(traced) - before])
print(json.dumps({"rows": rows, "checked": len(checked)}))
"""


@pytest.mark.parametrize("kind", ["none", "real", "fake"])
def test_compile_fx_works_as_a_compiler_of_aot_autograds(surroundings, kind):
    found = surroundings.run("-W", "ignore", "-c", UNDER_AOT_AUTOGRAD, kind)
    difference = 0.0 if kind == "none" else -1.0
    assert [row[:2] for row in found["rows"]] == [
        ["fits", difference],
        ["fits", difference],
        ["other", 0.0],
        ["other", 0.0],
    ]
    assert found["checked"] == (0 if kind == "none" else 2)
    # The pattern itself is traced once; torch traces it again for each match.
    assert [row[2] for row in found["rows"][2:]] == [0, 0]
