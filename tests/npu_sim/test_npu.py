"""What only an NPU has: pools, stream limits, refused captures, and the vendor's own backend."""

import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import npu_sim
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache.backend.compile import compile_graph

npu_sim.install()


def compiled(function, *examples, **options):
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="symbolic")(*examples)
    return compile_graph(graph, None, options)


def pools(run):
    return [graph.graph.pool() for graph in run.captures.graphs.values()]


def on_npu(*size):
    return torch.randn(*size).npu()


def called(run, function, *sizes):
    for size in sizes:
        x = on_npu(size, 2)
        assert torch.equal(run(x), function(x))


def double(x):
    return x * 2


def wide_softmax(x):
    return torch.softmax(x, -1, dtype=torch.float32)


def test_a_softmax_of_half_precision_is_cast_for_real_and_captured():
    run = compiled(wide_softmax, on_npu(7, 2).half())
    for size in (3, 4, 3):
        x = on_npu(size, 2).half()
        assert torch.equal(wide_softmax(x).cpu(), wide_softmax(x.cpu()))
        assert torch.equal(run(x).cpu(), wide_softmax(x.cpu()))
    assert len(run.captures.graphs) == 2


def test_the_graphs_of_one_function_share_a_pool():
    run = compiled(double, on_npu(7, 2))
    called(run, double, 2, 3, 2, 3)
    first, second = pools(run)
    assert first == second


def test_without_reuse_each_graph_has_a_pool():
    run = compiled(double, on_npu(7, 2), reuse_graph_pool_in_same_fx=False)
    called(run, double, 2, 3, 2, 3)
    first, second = pools(run)
    assert first != second


def test_a_pool_that_is_given_is_used():
    pool = torch.npu.graph_pool_handle()
    run = compiled(double, on_npu(7, 2), use_graph_pool=pool)
    called(run, double, 2, 3, 2)
    assert pools(run) == [pool, pool]


def test_a_replay_runs_the_record():
    run = compiled(double, on_npu(7, 2))
    called(run, double, 2)
    before = npu_sim.stats()
    called(run, double, 2)
    after = npu_sim.stats()
    assert after["replayed"] > before["replayed"]
    assert after["recorded"] == before["recorded"]


def test_dropped_graphs_are_freed():
    before = npu_sim.stats()["live_graphs"]
    run = compiled(double, on_npu(7, 2), capture_limit=1)
    called(run, double, 2, 3, 3, 3, 2, 2, 2, 2)
    assert npu_sim.stats()["live_graphs"] == before + 1
    run.captures.close()
    assert npu_sim.stats()["live_graphs"] == before


def test_other_core_limits_are_another_graph():
    run = compiled(double, on_npu(7, 2))
    stream = torch.npu.current_stream()
    limits = torch.npu.get_stream_limit(stream)
    called(run, double, 2)
    torch.npu.set_stream_limit(stream, 8, 16)
    try:
        called(run, double, 2, 2)
    finally:
        torch.npu.set_stream_limit(stream, limits["cube_core_num"], limits["vector_core_num"])
    called(run, double, 2)
    assert sorted(graph.replays for graph in run.captures.graphs.values()) == [2, 2]


def test_calls_on_several_streams():
    run = compiled(double, on_npu(7, 2))
    for stream in (torch.npu.Stream(), torch.npu.Stream()):
        with torch.npu.stream(stream):
            called(run, double, 2, 2)
    called(run, double, 2)
    assert len(run.captures.graphs) == 1


def test_a_capture_that_can_not_begin_leaves_the_device_as_it_was(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no capture now")

    run = compiled(double, on_npu(7, 2))
    with monkeypatch.context() as patched:
        patched.setattr(torch.npu.NPUGraph, "capture_begin", refuse)
        called(run, double, 2, 2)
        assert len(run.captures.graphs) == 0
    assert not torch.npu.is_current_stream_capturing()
    called(run, double, 2, 3, 3)
    assert len(run.captures.graphs) == 2


def test_within_a_capture_of_somebody_else_nothing_is_captured():
    run = compiled(double, on_npu(7, 2))
    x, outer = on_npu(3, 2), torch.npu.NPUGraph()
    with torch.npu.graph(outer):
        y = run(x)
    outer.replay()
    assert torch.equal(y, x * 2)
    assert len(run.captures.graphs) == 0


def attend(kv, x, position):
    kv.index_copy_(0, position, x)
    return kv.sum(0, keepdim=True) + x


VENDOR = [
    {},
    {"clone_input": False},
    {"clone_output": True},
    {"frozen_parameter": True},
    {"force_eager": True},
    {"capture_limit": 1},
    {"reuse_graph_pool_in_same_fx": False},
]


@pytest.mark.parametrize("options", VENDOR, ids=str)
def test_the_vendors_backend_gives_the_same(options):
    theirs = torch.compile(attend, backend="npugraph_ex", dynamic=False, options=options)
    ours = compiled(attend, on_npu(4, 2), on_npu(1, 2), torch.tensor([0]).npu(), **options)
    caches = torch.zeros(4, 2).npu(), torch.zeros(4, 2).npu()
    with torch.no_grad():
        for position in range(4):
            x, where = on_npu(1, 2), torch.tensor([position]).npu()
            assert torch.equal(ours(caches[0], x, where), theirs(caches[1], x, where))
            assert torch.equal(*caches)
    torch._dynamo.reset()


def test_the_device_and_its_software_are_part_of_the_key():
    from npugx_cache.key import environment

    factors = {factor[0]: factor[1] for factor in environment.factors(frozenset({"npu"}))}
    assert factors["npu.cann"] == "9.0.0"
    assert factors["npu.device"] == "Ascend910B3"
    assert factors["npu"].startswith(torch.__version__.rpartition(".")[0])


def shifted(x, host):
    return x + host.to(x.device)


def test_an_input_on_the_cpu_that_is_only_copied_to_the_device():
    run = compiled(shifted, on_npu(7, 2), torch.randn(7, 2))
    for size in (2, 3, 2, 3, 2):
        x, host = on_npu(size, 2), torch.randn(size, 2)
        assert torch.equal(run(x, host), shifted(x, host))
    assert sorted(graph.replays for graph in run.captures.graphs.values()) == [2, 3]
    host = torch.ones(2)
    view = host.expand(3, 2)
    assert torch.equal(run(x := on_npu(3, 2), view), shifted(x, view))


def test_an_input_on_the_cpu_that_is_used_there_is_not_captured(caplog):
    run = compiled(lambda x, host: (shifted(x, host), host * 2), on_npu(7, 2), torch.randn(7, 2))
    assert "it works on more than one device: cpu, npu:0" in caplog.text
    assert not hasattr(run, "captures")
