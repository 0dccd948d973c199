"""What each option of the table changes: one test per option, named for it."""

import ast
import logging
from pathlib import Path

import pytest
import torch
from capture_programs import graph_of, graphs, randn, step

from npugx_cache.backend import engines, register_replacement
from npugx_cache.backend.compile import compile_graph
from npugx_cache.backend.options import SPECS, parse
from npugx_cache.backend.options.page import render
from npugx_cache.errors import BackendUnavailable

HERE = Path(__file__)
NPU = HERE.parents[1] / "npu_sim"
ON_NPU = NPU / "test_npu_options.py", NPU / "test_static_kernels.py"


def names_in(path):
    return {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}


@pytest.mark.parametrize("name", SPECS)
def test_every_option_has_a_row_and_a_test(name):
    (row,) = [line for line in render().splitlines() if line.startswith(f"| `{name}` |")]
    assert all(cell.strip() for cell in row.strip("|").split(" | "))
    here = [HERE] if "cpu" in SPECS[name].devices else ON_NPU
    assert any(f"test_{name.strip('_')}" in names_in(path) for path in here)


# --- graph passes


def calls(function, *examples, distinct_inputs=False, **options):
    """The names of the operators that are left of a function."""
    graph = graph_of(function, examples)
    engine = engines.load("npugraph_ex")
    engine.optimise(graph, parse(options), distinct_inputs=distinct_inputs)
    return [n.target.__name__ for n in graph.graph.nodes if n.op == "call_function"]


def test_remove_noop_ops(device):
    def function(x):
        return (x * 2).clone() + 1

    examples, options = (randn(device, 5),), {"inplace_pass": False}
    assert "clone.default" not in calls(function, *examples, **options)
    assert "clone.default" in calls(function, *examples, **options, remove_noop_ops=False)


def test_remove_dead_ops(device):
    def left(**options):
        graph = graph_of(lambda x: (x * 2, x.exp()), (randn(device, 5),))
        (output,) = [node for node in graph.graph.nodes if node.op == "output"]
        output.args = (output.args[0][:1],)
        engines.load("npugraph_ex").optimise(graph, parse(options))
        return [n.target.__name__ for n in graph.graph.nodes if n.op == "call_function"]

    assert left() == ["mul.Tensor"]
    assert "exp.default" in left(remove_dead_ops=False)


def test_remove_cat_ops(device):
    def function(x, y):
        return torch.cat([x.exp(), y.exp()])

    examples = randn(device, 5, 2), randn(device, 3, 2)
    assert "cat.default" not in calls(function, *examples)
    assert "cat.default" in calls(function, *examples, remove_cat_ops=False)


def test_inplace_pass(device):
    def function(x):
        return x.exp() + 1

    assert "add_.Tensor" in calls(function, randn(device, 5))
    assert "add.Tensor" in calls(function, randn(device, 5), inplace_pass=False)


def test_input_inplace_pass(device):
    def function(x):
        return x.copy_(x + 1)

    options = {"inplace_pass": False, "distinct_inputs": True}
    assert calls(function, randn(device, 5), **options) == ["add_.Tensor"]
    left = calls(function, randn(device, 5), **options, input_inplace_pass=False)
    assert left == ["add.Tensor", "copy_.default"]


@pytest.fixture
def fused(device):
    """A pattern that holds for one test: a sine of a cosine becomes a tangent."""
    from npugx_cache.backend import patterns

    before = list(patterns._registered)
    example = [randn(device, 3)]
    register_replacement(lambda x: x.cos().sin(), lambda x: x.tan(), example)
    yield
    patterns._registered[:] = before


@pytest.mark.usefixtures("fused")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_pattern_fusion_pass(device):
    def function(x):
        return x.cos().sin()

    assert calls(function, randn(device, 5)) == ["tan.default"]
    assert "tan.default" not in calls(function, randn(device, 5), pattern_fusion_pass=False)


def halve(graph_module, _, config):
    """A custom pass: multiplications by 2 become multiplications by 1."""
    for node in graph_module.graph.nodes:
        if node.target == torch.ops.aten.mul.Tensor:
            node.args = (node.args[0], 1)


@pytest.mark.parametrize("name", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_custom_pass_changes_the_graph(name, device):
    graph = graph_of(lambda x: x * 2, (randn(device, 5),))
    x = randn(device, 3)
    assert torch.equal(compile_graph(graph, None, {name: halve})(x), x)
    assert torch.equal(compile_graph(graph, None, {})(x), x * 2)


def order_of_passes(**options):
    return [name for name, _ in engines.load("npugraph_ex").passes(parse(options), False)]


def test_post_grad_custom_pre_pass():
    assert order_of_passes(post_grad_custom_pre_pass=halve)[0] == "post_grad_custom_pre_pass"


def test_post_grad_custom_post_pass():
    names = order_of_passes(post_grad_custom_post_pass=halve)
    mine = names.index("post_grad_custom_post_pass")
    assert names.index("pattern_fusion_pass") < mine < names.index("inplace_pass")


# --- capture and replay


def repeated(compiled, device, calls=3, **options):
    """A doubling, called several times with tensors of one size."""
    run = compiled(lambda x: x * 2, randn(device, 7), **options)
    results = []
    for _ in range(calls):
        x = randn(device, 3)
        results.append(run(x))
        assert torch.equal(results[-1], x * 2)
    return run, results


def test_force_eager(compiled, device):
    run, _ = repeated(compiled, device, force_eager=True)
    assert not hasattr(run, "captures")


def test_capture_limit(compiled, device):
    run = compiled(lambda x: x * 2, randn(device, 7), capture_limit=2)
    for size in (2, 3, 4, 2, 3, 4):
        run(randn(device, size))
    assert len(run.captures.graphs) == 2


def test_clone_input(compiled, device):
    run, _ = repeated(compiled, device)
    assert [len(graph.buffers) for graph in graphs(run)] == [1]
    run, _ = repeated(compiled, device, clone_input=False)
    assert all(graph.buffers == () for graph in graphs(run))


def test_clone_output(compiled, device):
    _, own = repeated(compiled, device)
    assert own[1].data_ptr() != own[2].data_ptr()
    _, lent = repeated(compiled, device, clone_output=False)
    assert lent[1].data_ptr() == lent[2].data_ptr()


def with_two_weights(compiled, device, **options):
    run = compiled(torch.matmul, randn(device, 5, 4), randn(device, 4, 4), static=[1], **options)
    for weight in (randn(device, 4, 4), randn(device, 4, 4)):
        for _ in range(2):
            run(randn(device, 3, 4), weight)
    return len(run.captures.graphs)


def test_frozen_parameter(compiled, device):
    assert with_two_weights(compiled, device) == 2
    assert with_two_weights(compiled, device, frozen_parameter=True) == 1


def test_force_recapture(compiled, device):
    run, _ = repeated(compiled, device)
    before = graphs(run)
    run(randn(device, 3))
    assert graphs(run) == before
    run, _ = repeated(compiled, device, force_recapture=True)
    before = graphs(run)
    run(randn(device, 3))
    assert graphs(run) != before


def test_unsafe_skip_npugraph_capture_validation(compiled, device):
    where, x = torch.tensor([0], device=device), randn(device, 1, 2)
    examples = (randn(device, 4, 2), x, where)
    for options, written in (
        ({}, True),
        ({"unsafe_skip_npugraph_capture_validation": True}, False),
    ):
        run = compiled(step, *examples, **options)
        caches = [torch.zeros(4, 2, device=device) for _ in range(3)]
        for cache in (caches[0], caches[0], caches[1]):
            run(cache, x, where)
        assert bool(caches[1].any()) == written


# --- looking inside


def dumped(device, folder, **options):
    graph = graph_of(lambda x: (x * 2).clone() + 1, (randn(device, 5),))
    options = {"dump_tensor_data": True, "data_dump_dir": str(folder), **options}
    compile_graph(graph, None, options)(torch.ones(3, device=device))
    files = (folder / "worldsize1_global_rank0").iterdir()
    return sorted(path.name.partition("_device_")[0].rstrip("_") for path in files)


def test_dump_tensor_data(device, tmp_path):
    assert "mul" in dumped(device, tmp_path)


def test_data_dump_stage(device, tmp_path):
    assert "clone" in dumped(device, tmp_path, data_dump_stage="original")


def test_data_dump_dir(device, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    assert dumped(device, tmp_path / "elsewhere")


def test_record_statistics_debug_info(compiled, device, caplog):
    caplog.set_level(logging.DEBUG, logger="npugx_cache")
    run = compiled(lambda x: x * 2, randn(device, 5), record_statistics_debug_info=True)
    for _ in range(3):
        run(torch.arange(4.0).to(device))
    lines = [r.getMessage() for r in caplog.records if "call 3" in r.getMessage()]
    assert [line.partition(": ")[2] for line in lines] == [
        "call 3: input 0: float32[4] min=0 max=3 norm=3.74166 mean=1.5",
        "call 3: output 0: float32[4] min=0 max=6 norm=7.48331 mean=3",
    ]
    caplog.clear()
    repeated(compiled, device)
    assert "call" not in caplog.text


def test_statistics_of_all_kinds_of_tensor(device):
    from npugx_cache.backend.capture.statistics import describe

    assert describe(torch.empty(0, 3, device=device)) == "float32[0, 3] empty"
    assert describe(torch.tensor([True, False], device=device)).startswith("bool[2] min=0 max=1")
    assert "norm=5 " in describe(torch.tensor([3 + 4j]).to(device))
    assert "max=nan" in describe(torch.tensor([1.0, float("nan")], device=device))


@pytest.mark.skipif("torch_npu" in __import__("sys").modules, reason="torch_npu is installed")
@pytest.mark.parametrize("name", [n for n, spec in SPECS.items() if spec.devices == ("npu",)])
def test_an_option_of_the_npu_says_so_elsewhere(name):
    given = {"bool": True, "int": 1, "list[int] or None": [1]}.get(SPECS[name].range.type, {})
    with pytest.raises(BackendUnavailable, match=f"{name!r} has an effect on an NPU only"):
        parse({name: given})
