"""What a GPU has of its own: warm-up, streams, threads, failed captures, memory."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.key import environment

pytestmark = pytest.mark.cuda


def product(x, weight):
    return (x @ weight).relu()


@pytest.fixture
def compiled():
    from torch.fx.experimental.proxy_tensor import make_fx

    from npugx_cache.backend.compile import compile_graph

    def compiled(function, *examples, **options):
        with torch.no_grad():
            graph = make_fx(function, tracing_mode="symbolic")(*examples)
        return compile_graph(graph, None, options)

    return compiled


def on_gpu(*size):
    return torch.randn(*size).cuda()


def graphs(run):
    return list(run.captures.graphs.values())


def test_a_shape_is_captured_at_its_second_call(compiled):
    weight = on_gpu(64, 64)
    run = compiled(product, on_gpu(7, 64), weight)
    for calls in range(1, 5):
        x = on_gpu(5, 64)
        torch.testing.assert_close(run(x, weight), product(x, weight))
        assert len(graphs(run)) == (calls > 1)
    assert graphs(run)[0].replays == 3
    assert graphs(run)[0].nbytes > 0


def test_a_thread_that_never_called_before_may_capture(compiled):
    weight, found = on_gpu(64, 64), []
    run = compiled(product, on_gpu(7, 64), weight)
    x = on_gpu(5, 64)
    run(x, weight)
    thread = threading.Thread(target=lambda: found.append(run(x, weight)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], product(x, weight))
    assert len(graphs(run)) == 1


def test_two_functions_replayed_at_the_same_time_do_not_share_a_workspace(compiled):
    weight = on_gpu(1024, 1024)
    runs = [compiled(product, on_gpu(7, 1024), weight) for _ in range(2)]
    inputs = [on_gpu(8, 1024) for _ in runs]
    want = [product(x, weight) for x in inputs]
    for run, x in zip(runs, inputs, strict=True):
        for _ in range(2):
            run(x, weight)
    streams = [torch.cuda.Stream() for _ in runs]
    torch.cuda.synchronize()
    for _ in range(200):
        got = []
        for run, x, stream in zip(runs, inputs, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(run(x, weight))
        torch.cuda.synchronize()
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_a_capture_that_the_device_calls_off_leaves_it_usable(compiled):
    def reads(x):
        torch.cuda.synchronize()
        return x * 2

    library = torch.library.Library("npugx_cuda_test", "FRAGMENT")
    library.define("reads(Tensor x) -> Tensor")
    library.impl("reads", reads, "CUDA")
    library.impl("reads", torch.empty_like, "Meta")
    run = compiled(lambda x: torch.ops.npugx_cuda_test.reads(x) + 1, on_gpu(7))
    for _ in range(4):
        x = on_gpu(5)
        torch.testing.assert_close(run(x), x * 2 + 1)
    assert graphs(run) == []
    torch.cuda.empty_cache()
    torch.rand(3, device="cuda").sum().item()
    other = compiled(lambda x: x * 3, on_gpu(7))
    for _ in range(3):
        x = on_gpu(5)
        torch.testing.assert_close(other(x), x * 3)
    assert len(graphs(other)) == 1


def test_dropped_graphs_give_their_memory_back(compiled):
    run = compiled(lambda x: (x * 2).cumsum(0), on_gpu(7, 1 << 20))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        run(on_gpu(16, 1 << 20))
    assert len(graphs(run)) == 1
    run.captures.close()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (8 << 20)


def test_a_capture_without_memory_runs_uncaptured(compiled):
    run = compiled(lambda x: (x * 2).cumsum(0), on_gpu(7, 1 << 20))
    x = on_gpu(64, 1 << 20)  # 256 MiB: a call needs two such results, a capture three tensors
    want = (x * 2).cumsum(0)
    torch.testing.assert_close(run(x), want)
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + (640 << 20)
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
    try:
        got = run(x)
        assert graphs(run) == []
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(got, want)
    for _ in range(2):
        torch.testing.assert_close(run(x), want)
    assert len(graphs(run)) == 1


def test_each_precision_of_products_is_a_graph_of_its_own(tmp_path):
    cached = cache_compile(product, cache_dir=tmp_path)
    x, weight = on_gpu(64, 512), on_gpu(512, 512)
    found = []
    for allow in (False, True, False, True):
        torch.backends.cuda.matmul.allow_tf32 = allow
        try:
            want = product(x, weight)
            found += [(cached(x, weight) - want).abs().max().item() for _ in range(3)]
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    assert found == [0.0] * 12
    info = cached.cache_info()
    assert (info.misses, info.bypasses, info.entries) == (2, 0, 2)


def test_the_key_tells_the_driver_and_the_gpu():
    found = dict(environment.factors(frozenset({"cuda"})))
    driver = int(found["cuda"].split()[1])
    assert driver >= 12000
    assert found["cuda.device"].startswith(torch.cuda.get_device_name())


def test_a_broken_graph_is_served_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path))

    def says(x):
        y = (x @ x.T).relu()
        print("between", file=sys.stderr)
        return y.sum(-1) * 2

    call = torch.compile(says, backend="npugx")
    with torch.no_grad():
        for n in range(4):
            x = on_gpu(8, 8) + n
            torch.testing.assert_close(call(x), says(x))
