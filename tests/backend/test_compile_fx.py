"""The backend on its own: graphs in, callables out, no cache."""

import pytest
import torch

from npugx_cache.backend import compile_fx, dynamo_backend
from npugx_cache.backend.compile import compile_graph
from npugx_cache.errors import BackendUnavailable, OptionError

aten = torch.ops.aten


def graph_of(function, *inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function)(*inputs)


def test_an_aten_graph_runs_as_written():
    graph = graph_of(lambda x, y: (x @ y).relu() + 1, torch.ones(2, 3), torch.ones(3, 4))
    run = compile_fx(graph)
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    torch.testing.assert_close(run(x, y), (x @ y).relu() + 1)


def test_a_torch_level_graph_is_lowered_for_its_example_inputs():
    class Scale(torch.nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x.view(-1), x.sum()

    graph = torch.fx.symbolic_trace(Scale())
    run = compile_fx(graph, [torch.ones(2, 3)])
    x = torch.randn(2, 3)
    expected = x * 2
    flat, total = run(x)
    torch.testing.assert_close(x, expected)
    assert flat.data_ptr() == x.data_ptr()
    torch.testing.assert_close(total, expected.sum())


def test_the_graph_given_is_left_as_it_is():
    graph = graph_of(lambda x: aten.alias.default(x) * 1, torch.ones(3))
    before = str(graph.graph)
    compile_fx(graph)
    assert str(graph.graph) == before


@pytest.mark.parametrize("from_dynamo", [True, False])
def test_only_aot_autograds_copies_at_the_end_say_that_inputs_are_distinct(from_dynamo):
    """Dynamo's graph may have the same form, and its inputs may overlap."""

    def function(x, y):
        a, b, total = x * 2, y * 3, y.sum()
        x.copy_(a)
        y.copy_(b)
        return total

    run = compile_graph(
        graph_of(function, torch.ones(4), torch.ones(4)),
        [torch.ones(4), torch.ones(4)],
        None,
        from_dynamo=from_dynamo,
    )
    mine, plain = torch.arange(6.0), torch.arange(6.0)
    result, expected = run(mine[:4], mine[2:]), function(plain[:4], plain[2:])
    same = torch.equal(mine, plain) and torch.equal(result, expected)
    assert same is from_dynamo  # AOTAutograd has another graph for inputs that overlap


def test_random_numbers_still_run():
    graph = graph_of(lambda x: torch.rand_like(x), torch.ones(3))
    assert compile_fx(graph)(torch.ones(3)).shape == (3,)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bogus": 1}, OptionError, "unknown option 'bogus'"),
        ({"remove_noop_ops": 1}, OptionError, "valid values are True and False"),
        ({"capture_limit": 0}, OptionError, "valid range is 1 to"),
        ({"capture_limit": True}, OptionError, "expected an int"),
        ({"capture_limit": "5"}, OptionError, "expected an int"),
        ({"deadlock_check": True}, BackendUnavailable, "an NPU only"),
    ],
)
def test_bad_options_are_refused_by_name(options, error, words):
    graph = graph_of(lambda x: x + 1, torch.ones(3))
    with pytest.raises(error, match=words):
        compile_fx(graph, options=options)


def test_torch_compile_reaches_the_backend():
    def function(x, y):
        y.add_(x)
        return x.sin() * y, y.t()

    compiled = torch.compile(function, backend=dynamo_backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for n in (3, 4):
            x, y = torch.randn(n, n), torch.randn(n, n)
            y_eager = y.clone()
            got, got_t = compiled(x, y)
            want, want_t = function(x, y_eager)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(got_t, want_t)
            torch.testing.assert_close(y, y_eager)
    torch._dynamo.reset()


def test_a_state_that_a_graph_of_dynamos_changes_is_changed_at_each_call(caplog):
    def function(x):
        y = x * 2
        torch.backends.cuda.enable_flash_sdp(False)
        return y + 1

    compiled = torch.compile(function, backend=dynamo_backend, fullgraph=True)
    try:
        for _ in range(2):
            torch.backends.cuda.enable_flash_sdp(True)
            with torch.no_grad():
                assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
            assert not torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
        torch._dynamo.reset()
    assert "enable_flash_sdp has an effect or an answer that a graph does not hold" in caplog.text
