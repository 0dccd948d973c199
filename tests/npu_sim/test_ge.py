"""The backend `ge` on a simulated graph engine: results, and what is refused."""

import importlib
import logging
import os
from importlib import metadata

import pytest
import torch

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)
if not metadata.version("torch_npu").startswith("2.13."):
    pytest.skip("GE mode knows the converters of torch_npu 2.13", allow_module_level=True)

import graph_engine
import npu_sim
from ge_functions import DYNAMIC, STATIC, X, Y, number

from npugx_cache import cache_compile, readable_cache
from npugx_cache.backend.ge.engine_graph import EngineGraph
from npugx_cache.errors import CorruptEntry, OptionError

npu_sim.install()
graph_engine.install()


def on(device, arguments):
    """Copies with the same strides, on a device."""
    return [
        each.to(device, copy=True) if isinstance(each, torch.Tensor) else each for each in arguments
    ]


def flat(value):
    if isinstance(value, (tuple, list)):
        return [leaf for each in value for leaf in flat(each)]
    return [value]


def check(cached, function, arguments):
    """Results, their strides and what is written to are eager's, and GE has run the call."""
    want, got = on("cpu", arguments), on("npu", arguments)
    runs = len(graph_engine.events)
    with torch.no_grad():
        made, results = cached(*got), function(*want)
    assert [what for what, _ in graph_engine.events[runs:]].count("run") >= 1
    for left, right in zip(flat((made, got)), flat((results, want)), strict=True):
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(left.cpu(), right)
            assert left.stride() == right.stride()
        else:
            assert left == right
    tensors = [each for each in flat(made) if isinstance(each, torch.Tensor)]
    return [each.untyped_storage().data_ptr() for each in tensors]


@pytest.mark.parametrize("function", STATIC, ids=lambda function: function.__name__)
def test_a_static_graph_gives_eagers_results(function, tmp_path):
    cached = cache_compile(function, backend="ge", dynamic=False, cache_dir=tmp_path, strict=True)
    for arguments in STATIC[function]:
        check(cached, function, arguments)
        check(cached, function, arguments)
    assert cached.cache_info().bypasses == 0


@pytest.mark.parametrize("function", DYNAMIC, ids=lambda function: function.__name__)
def test_a_dynamic_graph_gives_eagers_results_at_other_sizes(function, tmp_path):
    cached = cache_compile(function, backend="ge", dynamic=True, cache_dir=tmp_path, strict=True)
    for arguments in DYNAMIC[function]:
        check(cached, function, arguments)
    assert cached.cache_info().bypasses == 0


def test_results_that_eager_keeps_apart_share_no_memory(tmp_path):
    (function,) = (each for each in STATIC if each.__name__ == "one_result_twice")
    cached = cache_compile(function, backend="ge", dynamic=False, cache_dir=tmp_path)
    first, copy, again = check(cached, function, (X,))
    assert first == again != copy


def refusal(caplog, function, *arguments, **options):
    caplog.clear()
    cached = cache_compile(function, backend="ge", dynamic=False, **options)
    with caplog.at_level(logging.WARNING, logger="npugx_cache"), torch.no_grad():
        cached(*arguments)
    (said,) = [r.getMessage() for r in caplog.records if "runs uncached" in r.getMessage()]
    assert cached.cache_info()[:3] == (0, 0, 1)
    return said


def sdpa(x):
    heads = x[None, None]
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


def index_copied(x, y):
    return x.index_copy(0, torch.arange(2, device=x.device), y[:2])


def random(x):
    return x + torch.rand_like(x)


def chosen(x):
    return x[x > 0]


def repeated(x):
    return x.sum(-1, keepdim=True).expand(4, 3)


def branch(x):
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


def limited(x):
    from npugx_cache.backend import scope

    with scope.limit_core_num(8, 16):
        return x + 1


def two_streams(x):
    other = torch.npu.Stream()
    with torch.npu.stream(other):
        made = x + 1
    torch.npu.current_stream().wait_stream(other)
    return made * 2


REFUSED = {
    sdpa: "aten.scaled_dot_product_attention.default has no converter to GE at ",
    index_copied: "aten.index_copy.default has no graph of GE: ",
    random: "aten.rand_like.default draws random numbers at ",
    chosen: "the size of what aten.index.Tensor returns depends on data at ",
    repeated: "a result of aten.expand.default repeats elements in memory or leaves gaps at ",
    branch: "backend 'ge' does not convert cond at ",
    limited: "a scope (npugx_cache.limit_cores.default), which backend 'ge' does not serve at ",
    two_streams: "which backend 'ge' does not serve at ",
}
INSTEAD = {
    sdpa: "attn_implementation='eager'",
    index_copied: "DynamicCache",
    repeated: "return its .contiguous()",
    branch: "torch.where",
    limited: "leave scopes such as limit_core_num out",
    two_streams: "leave streams to GE",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_a_call_without_a_graph_of_ge_is_refused_with_its_line_and_what_to_use(function, caplog):
    count = function.__code__.co_argcount
    said = refusal(caplog, function, *(each.npu() for each in (X, Y)[:count]))
    assert REFUSED[function] in said
    assert f" in {function.__name__} (`" in said
    assert INSTEAD.get(function, "") in said


def scaled(x, by):
    return x * by


def test_a_float_that_may_vary_is_refused_and_one_that_may_not_is_served(caplog, tmp_path):
    with caplog.at_level(logging.WARNING, logger="npugx_cache"):
        cached = cache_compile(scaled, backend="ge", dynamic=True, cache_dir=tmp_path)
        torch.testing.assert_close(cached(X.npu(), 0.5).cpu(), X * 0.5)
    (said,) = warnings_of(caplog)
    assert "a float that dynamic=True lets vary is no input of a graph for GE at " in said
    with torch._dynamo.config.patch(specialize_float=True):
        check(
            cache_compile(scaled, backend="ge", dynamic=True, cache_dir=tmp_path), scaled, (X, 0.5)
        )


def test_a_tensor_of_the_host_is_refused(caplog):
    assert "a tensor is on cpu: move it to the NPU" in refusal(caplog, number, X, 2)


def test_a_converter_that_a_program_registered_is_refused(caplog):
    @torch.library.custom_op("ge_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    operator = torch.ops.ge_test.twice.default

    def before(x):
        return twice(x) + 1

    def after(x):
        return twice(x) + 2

    assert "ge_test.twice.default has no converter to GE" in refusal(caplog, before, X.npu())
    torchair = importlib.import_module("torchair")
    torchair.register_fx_node_ge_converter(operator)(lambda x: x)
    assert "is this program's (" in refusal(caplog, after, X.npu())


def test_other_options_of_the_engine_are_refused_in_a_process_that_has_one(caplog, tmp_path):
    check(cache_compile(number, backend="ge", cache_dir=tmp_path), number, (X, 2))
    said = refusal(caplog, number, X.npu(), 2, options={"ge_config.oo_level": "O1"})
    assert "was started with ge.oo.level=O3, and this graph needs O1" in said


def test_options_reach_ge(tmp_path):
    options = {
        "experimental_config.topology_sorting_strategy": "BFS",
        "experimental_config.tiling_schedule_optimize": True,
    }
    cached = cache_compile(number, backend="ge", options=options, cache_dir=tmp_path)
    check(cached, number, (X, 2))
    compiled = [graph for what, graph in graph_engine.events if what == "compile"][-1]
    given = graph_engine.options(compiled)
    assert given["ge.topoSortingMode"] == "0"
    assert given["ge.tiling_schedule_optimize"] == "1"


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_an_input_in_a_format_of_the_npus_own_runs_operator_by_operator(
    tmp_path, caplog, monkeypatch
):
    torch_npu = importlib.import_module("torch_npu")
    cached = cache_compile(number, backend="ge", cache_dir=tmp_path)
    check(cached, number, (X, 2))
    monkeypatch.setattr(torch_npu, "get_npu_format", lambda tensor: 29)
    runs = len(graph_engine.events)
    with caplog.at_level(logging.WARNING, logger="npugx_cache"):
        for _ in range(2):
            torch.testing.assert_close(cached(X.npu(), 2).cpu(), number(X, 2))
    assert len(graph_engine.events) == runs
    (said,) = warnings_of(caplog)
    assert "input 0 of its graph of GE is in a format of the NPU's own" in said


def test_another_stream_runs_operator_by_operator(tmp_path, caplog):
    cached = cache_compile(number, backend="ge", cache_dir=tmp_path)
    check(cached, number, (X, 2))
    runs = len(graph_engine.events)
    other = torch.npu.stream(torch.npu.Stream())
    with caplog.at_level(logging.WARNING, logger="npugx_cache"), other:
        torch.testing.assert_close(cached(X.npu(), 2).cpu(), number(X, 2))
    assert len(graph_engine.events) == runs
    (said,) = warnings_of(caplog)
    assert "runs on the stream of its first call only" in said
    check(cached, number, (X, 2))


def unknown_to_the_simulator(x):
    return x.erf() + 1


def test_a_graph_that_fails_in_the_engine_is_left_for_the_program(tmp_path, caplog):
    cached = cache_compile(unknown_to_the_simulator, backend="ge", cache_dir=tmp_path)
    with caplog.at_level(logging.WARNING, logger="npugx_cache"), torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(cached(X.npu()).cpu(), unknown_to_the_simulator(X))
    (said,) = warnings_of(caplog)
    assert "its graph of GE failed" in said


def test_an_entry_says_what_ge_was_given(tmp_path):
    cached = cache_compile(number, backend="max-autotune", dynamic=False, cache_dir=tmp_path)
    check(cached, number, (X, 2))
    (manifest,) = (tmp_path / "v1" / "ac").glob("*/*/*")
    text = readable_cache(manifest, print_output=False, cache_dir=tmp_path, section="all")
    assert "operators for GE: " in text
    assert "1 NetOutput" in text


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa1a\x01"])
def test_bytes_that_are_no_graph_are_a_corrupt_entry(data):
    with pytest.raises(CorruptEntry, match="graph for the graph engine"):
        EngineGraph.unpack(data)


def test_a_bad_option_is_refused_when_a_function_is_decorated():
    with pytest.raises(OptionError, match=r"frozen_parameter' is not served by backend 'ge'"):
        cache_compile(number, backend="ge", options={"experimental_config.frozen_parameter": True})
