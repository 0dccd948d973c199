"""What the options change that have no effect on a CPU, asked for by tests/capture."""

import json
import logging
import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import npu_sim
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache.backend.compile import compile_graph

npu_sim.install()


def called(*sizes, **options):
    """A doubling on the NPU, called with tensors of some sizes."""
    with torch.no_grad():
        graph = make_fx(lambda x: x * 2, tracing_mode="symbolic")(torch.randn(7, 2).npu())
    run = compile_graph(graph, None, options)
    for size in sizes:
        x = torch.randn(size, 2).npu()
        assert torch.equal(run(x), x * 2)
    return run


def pools(run):
    return [graph.graph.pool() for graph in run.captures.graphs.values()]


@pytest.fixture
def seen(monkeypatch):
    """Watch a method of torch_npu's graphs: the arguments of its calls."""

    def watch(name, *, passed_on=True):
        calls, original = [], getattr(torch.npu.NPUGraph, name)

        def watched(graph, *args, **kwargs):
            calls.append(kwargs)
            return original(graph, *args, **kwargs) if passed_on else None

        monkeypatch.setattr(torch.npu.NPUGraph, name, watched)
        return calls

    return watch


def test_capture_error_mode(seen):
    begun = seen("capture_begin")
    called(2, capture_error_mode="relaxed")
    called(2)
    assert [call["capture_error_mode"] for call in begun] == ["relaxed", "global"]


def test_reuse_graph_pool_in_same_fx():
    assert len({*pools(called(2, 3))}) == 1
    assert len({*pools(called(2, 3, reuse_graph_pool_in_same_fx=False))}) == 2


def test_use_graph_pool():
    pool = torch.npu.graph_pool_handle()
    assert pools(called(2, 3, use_graph_pool=pool)) == [pool, pool]


def test_super_kernel_optimize(seen, caplog):
    asked = seen("super_kernel_optimize", passed_on=False)
    run = called(2, 2, 3, super_kernel_optimize=True)
    assert asked == [{"optimize_options": None, "debug_options": None}] * 2
    assert len(run.captures.graphs) == 2
    assert not [record for record in caplog.records if record.name == "npugx_cache"]


def test_what_cann_does_not_merge_runs_uncaptured(caplog):
    run = called(2, 2, super_kernel_optimize=True)  # CANN's library for it is not simulated
    assert len(run.captures.graphs) == 0
    assert "not captured, runs uncaptured" in caplog.text


def test_super_kernel_optimize_options(seen):
    asked = seen("super_kernel_optimize", passed_on=False)
    called(2, super_kernel_optimize=True, super_kernel_optimize_options={"split_mode": 1})
    assert asked == [{"optimize_options": {"split_mode": 1}, "debug_options": None}]


def test_super_kernel_debug_options(seen):
    asked = seen("super_kernel_optimize", passed_on=False)
    called(2, super_kernel_optimize=True, super_kernel_debug_options={"debug_sync_all": 1})
    assert asked == [{"optimize_options": None, "debug_options": {"debug_sync_all": 1}}]


def gathering(stream, cores):
    args = {"Task Id": 1, "Schem Mode": 1, "Task Type": "KERNEL_AIVEC", "Numblocks": cores}
    return {"ph": "X", "tid": stream, "name": "aiv_all_gather", "args": args}


@pytest.mark.parametrize(("cores", "warned"), [(40, True), (20, False)])
def test_deadlock_check(cores, warned, caplog):
    caplog.set_level(logging.INFO, logger="npugx_cache")
    npu_sim.set_trace(json.dumps([gathering("stream1", cores), gathering("stream2", cores)]))
    try:
        run = called(2, 2, deadlock_check=True)
    finally:
        npu_sim.set_trace("[]")
    assert len(run.captures.graphs) == 1
    lines = [r.getMessage() for r in caplog.records if "deadlock_check" in r.getMessage()]
    assert len(lines) == 1
    assert ("may run at once; the device has 48 vector cores" in lines[0]) == warned


def test_a_trace_that_is_none_costs_a_warning_alone(caplog):
    npu_sim.set_trace("[1]")
    try:
        run = called(2, 2, deadlock_check=True)
    finally:
        npu_sim.set_trace("[]")
    assert len(run.captures.graphs) == 1
    assert "can't read the trace of the captured graph" in caplog.text
