"""`cached_graph`, `load_graph` and the backend of `torch.compile`: what they give and say.

`test_loaded.py` has other processes, and files of torch's.
"""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import npugx_cache
from npugx_cache import store
from npugx_cache.backend.options import SPECS, Options
from npugx_cache.config import load, state_folder
from npugx_cache.errors import BackendUnavailable, CorruptEntry
from npugx_cache.pieces import dynamo
from npugx_cache.pieces.cached_graph import CachedGraph
from npugx_cache.pieces.compiled import counters
from npugx_cache.pieces.saved import Saved
from npugx_cache.portable import NotPortable, decode
from npugx_cache.store.format.plain import unpack
from npugx_cache.store.upkeep import flushing

X, W, HELD = torch.randn(4, 8), torch.randn(8, 8), torch.full((8,), 0.5)


def plain(x, w):
    return torch.nn.functional.gelu(x @ w) + x.shape[0]


def traced(mode="real"):
    return make_fx(plain, tracing_mode=mode)(X, W)


def holding():
    """A graph that holds a tensor, and writes to it."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    held = graph.get_attr("held")
    added = graph.call_function(torch.ops.aten.add_.Tensor, (held, 1.0))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, added)),))
    module = torch.nn.Module()
    module.register_buffer("held", HELD.clone())
    return torch.fx.GraphModule(module, graph)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "cache"


def counted(before):
    return tuple(now - then for now, then in zip(counters.info(0)[:4], before[:4], strict=True))


def reasons(graph):
    return [(row.entry, *row.reasons) for row in graph.explain()]


def test_gradients_on_or_off_are_one_entry(folder):
    before = counters.info(0)
    assert torch.is_grad_enabled()
    cold = npugx_cache.cached_graph(traced(), [X, W])
    assert counted(before) == (0, 1, 0, 1)
    with torch.no_grad():
        warm = npugx_cache.cached_graph(traced(), [X, W])
    assert counted(before) == (1, 1, 0, 1)
    assert cold.entry == warm.entry is not None
    assert reasons(warm) == [(warm.entry, "used, because its conditions hold")]
    for graph in (cold, warm):
        result = graph(X, W)
        assert torch.equal(result, plain(X, W))
        assert not result.requires_grad


def test_a_loaded_graph_takes_any_size_that_was_symbolic_and_is_a_hit(folder):
    made = npugx_cache.cached_graph(traced("symbolic"), [X, W])
    loaded = npugx_cache.load_graph(made.entry)
    assert loaded.entry == made.entry
    assert loaded.explain() == ()
    assert torch.equal(loaded(X, W), plain(X, W))
    flushing._flush_all()
    (item,) = store.open_store(load(cache_dir=folder)).listing()
    assert item.hits == 1


def test_a_loaded_graph_works_on_the_tensors_that_are_given_for_those_it_held(folder):
    made = npugx_cache.cached_graph(holding(), [X])
    own = HELD.clone()
    (product,) = npugx_cache.load_graph(made.entry, held=[own])(X)
    assert torch.equal(product, X * 1.5)
    assert torch.equal(own, HELD + 1)


def test_why_an_entry_can_not_be_loaded_is_said(folder, monkeypatch):
    entry = npugx_cache.cached_graph(traced(), [X, W]).entry
    held = npugx_cache.cached_graph(holding(), [X]).entry
    npugx_cache.cache_compile(lambda x: print(end="") or x)(X)
    opened = store.open_store(load(cache_dir=folder))
    (bypass,) = (row.manifest.entry for row in opened.listing() if row.manifest.kind == "bypass")

    def why(name, **how):
        found = npugx_cache.load_graph(name, **how)
        assert isinstance(found, store.Miss)
        return found.reason

    assert why("0123456789ab") == "no entry starts with 0123456789ab"
    assert why(bypass) == f"{bypass} is an entry of the kind bypass, which is no single graph"
    assert why(held) == "the graph holds 1 tensors, 0 are given"
    assert why(entry, held=[HELD]) == "the graph holds 0 tensors, 1 are given"
    assert why(entry, options={"inplace_pass": False}) == "option.inplace_pass was True, is False"
    assert why(entry, backend="aot_eager") == "backend was npugraph_ex, is aot_eager"
    monkeypatch.setenv("NPUGX_CACHE", "off")
    assert "switched off" in why(entry)


def test_without_the_cache_a_graph_is_compiled_and_has_no_entry(folder, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE", "off")
    before = counters.info(0)
    graph = npugx_cache.cached_graph(traced(), [X, W])
    assert (graph.entry, graph.explain()) == (None, ())
    assert counted(before) == (0, 0, 0, 0)
    assert torch.equal(graph(X, W), plain(X, W))


def test_where_a_compile_is_forbidden_a_graph_runs_as_it_is(folder, monkeypatch, caplog):
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "eager")
    before = counters.info(0)
    module = traced()
    graph = npugx_cache.cached_graph(module, [X, W])
    assert graph.entry is None
    assert counted(before) == (0, 0, 1, 0)
    assert "NPUGX_CACHE_ON_MISS=eager forbids a compile" in caplog.text
    assert torch.equal(graph(X, W), plain(X, W))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"mode": "max-autotune"}, "['mode']"),
        ({"dynamic": True}, "['dynamic']"),
        ({"zeal": 1, "dynamic": True, "mode": "default"}, "['dynamic', 'zeal']"),
    ],
)
def test_the_backend_of_torch_compile_names_the_arguments_it_does_not_take(arguments, named):
    for backend in (dynamo.backend, dynamo.inductor_backend):
        with pytest.raises(BackendUnavailable) as told:
            backend(traced(), [X, W], **arguments)
        assert str(told.value) == f"the npugx backend takes options, not {named}"


def test_options_of_torch_compile_are_options_of_the_backend(folder):
    before = counters.info(0)
    for options in (None, {"inplace_pass": False}, {"inplace_pass": True}):
        torch.compiler.reset()
        compiled = torch.compile(plain, backend="npugx", options=options)
        with torch.no_grad():
            assert torch.equal(compiled(X, W), plain(X, W))
    assert counted(before) == (1, 2, 0, 2)


def test_the_journal_says_what_a_compile_did(folder):
    made = npugx_cache.cached_graph(traced(), [X, W])
    other = npugx_cache.cached_graph(traced(), [X, W], options={"inplace_pass": False})
    flushing._flush_all()
    second, first = store.Journal(str(folder), state_folder()).load()
    title = "2 inputs: mm, gelu, add.Tensor"
    assert first[1:4] == (title, "miss", ("no entry for this graph",))
    assert second[1:4] == (title, "miss", ("option.inplace_pass was True, is False",))
    assert [(line.nearest, line.stored) for line in (first, second)] == [
        ("", made.entry),
        (made.entry, other.entry),
    ]
    phases = ["lowering", "passes", "guards and source facts", "packing", "binding", "publishing"]
    for line in (first, second):
        assert [name for name, _ in line.phases] == phases


def test_equal_graphs_of_a_process_run_one_program_with_their_own_captures(folder):
    made = [npugx_cache.cached_graph(traced(), [X, W]) for _ in range(3)]
    assert len({graph.entry for graph in made}) == 1
    assert len({graph._run for graph in made}) == 3
    before = counters.info(0)
    for graph in made:
        assert torch.equal(graph(X, W), plain(X, W))
    assert counted(before) == (0, 0, 0, 0)


@pytest.mark.parametrize("capture", [True, False])
def test_a_graph_in_a_file_of_torchs_runs_without_the_store(folder, capture):
    made = npugx_cache.cached_graph(traced(), [X, W], capture=capture)
    data = CachedGraph.serialize_compile_artifacts(made)
    found = CachedGraph.deserialize_compile_artifacts(data)
    assert torch.equal(found(X, W), plain(X, W))
    assert (found.entry, found.explain()) == (None, ())
    assert CachedGraph.serialize_compile_artifacts(found) == data
    with pytest.raises(CorruptEntry, match="no saved graph of npugx_cache"):
        CachedGraph.deserialize_compile_artifacts(data[:-1])


def test_a_graph_that_holds_tensors_can_not_be_in_a_file(folder):
    made = npugx_cache.cached_graph(holding(), [X])
    with pytest.raises(NotPortable, match="it holds 1 tensors of its own"):
        CachedGraph.serialize_compile_artifacts(made)


def test_options_are_in_a_file_but_for_those_that_are_functions():
    options = Options(capture_limit=7, post_grad_custom_pre_pass=lambda graph: None)
    data = Saved("a graph", "npugraph_ex", options, (), {}).to_bytes(None)
    kept = unpack(data, max_bytes=1 << 20, max_items=1 << 10)[2]
    assert decode(kept["capture_limit"]) == 7
    assert options.post_grad_custom_pre_pass is not None
    assert kept.keys() == SPECS.keys() - {"post_grad_custom_pre_pass"}


def test_inputs_of_a_graph_that_is_not_cached_may_overlap(folder, monkeypatch):
    def function(x, y):
        a, b, total = x * 2, y * 3, y.sum()
        x.copy_(a)
        y.copy_(b)
        return total

    monkeypatch.setenv("NPUGX_CACHE", "off")
    ones = [torch.ones(4), torch.ones(4)]
    run = npugx_cache.cached_graph(make_fx(function)(*ones), ones)
    mine, plain = torch.arange(6.0), torch.arange(6.0)
    result, expected = run(mine[:4], mine[2:]), function(plain[:4], plain[2:])
    assert torch.equal(result, expected)
    assert torch.equal(mine, plain)


def test_settings_of_dynamos_are_nothing_to_a_graph_that_is_loaded(folder):
    entry = npugx_cache.cached_graph(traced(), [X, W]).entry
    with torch._dynamo.config.patch(specialize_float=True):
        loaded = npugx_cache.load_graph(entry)
    assert not isinstance(loaded, store.Miss), loaded
