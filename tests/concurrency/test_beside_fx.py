"""A trace by torch.fx in one thread, and calls in another."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from npugx_cache import cache_compile


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) if torch.compiler.is_dynamo_compiling() else x


def test_a_trace_in_another_thread_refuses_no_graph(tmp_path):
    """Meanwhile `nn.Module.__getattr__` is a wrapper of the trace's, for all threads."""
    net, x, found = Net().eval(), torch.ones(2, 3), []
    cached = cache_compile(net.forward, cache_dir=tmp_path)

    def call():
        with torch.no_grad():
            return cached(x)

    class Traced(nn.Module):
        def forward(self, value):
            found.append(nn.Module.__getattr__)
            with ThreadPoolExecutor(1) as other:
                found.append(other.submit(call).result())
            return value

    want = call()
    torch.fx.Tracer().trace(Traced())
    assert found[0] is not nn.Module.__getattr__
    assert torch.equal(found[1], want)
    assert cached.cache_info()[:3] == (0, 1, 0)


def test_a_restored_graph_is_bound_beside_a_trace(tmp_path):
    net, x, infos = Net().eval(), torch.ones(2, 3), []
    with torch.no_grad():
        cache_compile(net.forward, cache_dir=tmp_path)(x)
    cached = cache_compile(net.forward, cache_dir=tmp_path)

    def call():
        with torch.no_grad():
            cached(x)
        return cached.cache_info()

    class Traced(nn.Module):
        def forward(self, value):
            with ThreadPoolExecutor(1) as other:
                infos.append(other.submit(call).result())
            return value

    torch.fx.Tracer().trace(Traced())
    assert infos[0][:3] == (1, 0, 0), cached.explain()
