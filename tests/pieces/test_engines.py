"""`NpugxCompiler` under an engine that drives it as vLLM and sglang do."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from npugx_cache.errors import BackendUnavailable
from npugx_cache.integrations.vllm import NpugxCompiler
from npugx_cache.pieces import compiled

sys.path.insert(0, str(Path(__file__).parent))
from engine import Engine, Range

SCRIPT = Path(__file__).with_name("run_engine.py")
WIDTH = 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.view(*x.size()))


@pytest.fixture
def model():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield nn.Sequential(*(Layer() for _ in range(3))).eval()


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "cache"


def started(model, store, sizes, lengths=(16, 5, 1), compiler=NpugxCompiler, **how):
    """Start the engine, and compare it with eager. What the cache did is counted."""
    torch._dynamo.reset()
    engine = Engine(compiler(), sizes, store.parent / "handles.txt", **how)
    run, before = engine.compile(model), compiled.counters.info(0)
    for length in lengths:
        x = torch.randn(1, length, WIDTH)
        if length == lengths[0]:
            torch._dynamo.mark_dynamic(x, 1)
        torch.testing.assert_close(run(x), model(x), rtol=0, atol=0)
    counts = zip(compiled.counters.info(0)[:4], before[:4], strict=True)
    engine.counted = dict(
        zip(("hits", "misses", "bypasses", "stored"), (a - b for a, b in counts), strict=True)
    )
    return engine


def asking(condition):
    """A compiler with a user's pass that decides by a size."""

    def asks(module, inputs, settings):
        for node in module.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dim() == 3:
                bool(condition(value.shape[1]))

    options = {**NpugxCompiler.options, "post_grad_custom_pre_pass": asks}
    return type("Asking", (NpugxCompiler,), {"options": options})


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"sizes": [Range(1, 64), 16]}, id="vllm"),
        pytest.param(
            {"sizes": [None, 16], "single_values": True, "real": True},
            id="sglang",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_each_piece_is_stored_once_and_comes_back_by_key(model, store, how):
    cold = started(model, store, **how)
    assert cold.counted == {"hits": 2, "misses": 6, "bypasses": 0, "stored": 6}
    assert (cold.compiled, cold.loaded) == (8, 0)

    with_handles = started(model, store, **how)
    assert with_handles.counted == {"hits": 8, "misses": 0, "bypasses": 0, "stored": 0}
    assert with_handles.loaded == 8

    cold.file.unlink()
    without = started(model, store, **how)
    assert without.counted == with_handles.counted
    assert without.handles == cold.handles

    shutil.rmtree(store)  # the handles are of entries that are gone
    gone = started(model, store, **how)
    assert (gone.loaded, gone.counted) == (8, cold.counted)


@pytest.mark.thorough
def test_a_condition_on_sizes_must_hold_for_the_whole_range(model, store, caplog):
    even = asking(lambda size: size % 2 == 0)
    for _ in range(2):
        engine = started(model, store, [Range(1, 64), Range(16, 16)], compiler=even)
        assert engine.counted["bypasses"] == 4
        assert {key[0] for key in engine.handles} == {(16, 16)}
        engine.file.unlink()
    assert (
        "(n0 % 2) == 0, which is not true of 3, and the engine calls it with 1 to 64" in caplog.text
    )

    short = asking(lambda size: size < 100)
    engine = started(model, store, [Range(1, 64), Range(1, 128), None], compiler=short)
    assert {key[0] for key in engine.handles} == {(1, 64)}
    assert engine.counted["bypasses"] == 8


def piece(size=None):
    """A graph that an engine hands over, with a tensor that the graph holds, and its inputs."""
    root = nn.Module()
    root.register_buffer("seen", torch.zeros(4))
    graph = fx.Graph()
    x = graph.placeholder("x")
    seen = graph.get_attr("seen")
    added = graph.call_method("add_", (seen, graph.call_method("sum", (x, 0))))
    graph.output((graph.call_function(torch.mul, (x, added)),))
    return fx.GraphModule(root, graph), [torch.ones(size or 3, 4)]


def test_the_graph_of_the_engine_stays_as_it_is(store):
    graph, inputs = piece()
    code, buffer = graph.code, graph.seen
    compiler = NpugxCompiler()
    run, handle = compiler.compile(graph, inputs, {}, 3)
    assert graph.code == code
    assert isinstance(run(*inputs), tuple)
    assert graph.seen is buffer
    assert buffer.tolist() == [3.0] * 4  # the program writes to the tensor of the graph
    run = NpugxCompiler().load(handle, graph, inputs, 0, 3)
    torch.testing.assert_close(run(*inputs)[0], torch.full((3, 4), 6.0))


def test_a_graph_that_can_not_be_cached_runs_and_raises_nothing(store, caplog):
    def of_a_user(x):
        return x.sin()

    graph = fx.Graph()
    graph.output((graph.call_function(of_a_user, (graph.placeholder("x"),)),))
    module = fx.GraphModule(nn.Module(), graph)
    compiler = NpugxCompiler()
    for x in (torch.randn(3), torch.randn(3).to_sparse()):
        run, handle = compiler.compile(module, [x], {}, 3)
        assert handle is None
        torch.testing.assert_close(run(x)[0], x.sin())
        assert callable(compiler.load(("0" * 64, ""), module, [x], 0, 3))
    assert "of_a_user" in caplog.text
    assert "sparse" in caplog.text


def test_vllms_one_file_of_artifacts_is_refused_with_what_to_set(store, monkeypatch):
    monkeypatch.setenv("VLLM_USE_MEGA_AOT_ARTIFACT", "1")
    with pytest.raises(BackendUnavailable, match="set VLLM_USE_MEGA_AOT_ARTIFACT=0"):
        NpugxCompiler().initialize_cache("/nowhere")
    compiler = NpugxCompiler()
    compiler.initialize_cache("/nowhere", disable_cache=True)
    graph, inputs = piece()
    run, handle = compiler.compile(graph, inputs, {}, 3)
    assert handle is None
    assert run(*inputs)[0].tolist() == [[3.0] * 4] * 3
    assert not store.exists()


def test_the_compiler_is_an_instance_of_the_interface_that_is_loaded(monkeypatch):
    assert type(NpugxCompiler()) is NpugxCompiler
    interface = type("CompilerInterface", (), {"load": None})
    for engine in ("vllm", "sglang.srt"):
        module = types.ModuleType(f"{engine}.compilation.compiler_interface")
        module.CompilerInterface = type("CompilerInterface", (interface,), {})
        monkeypatch.setitem(sys.modules, module.__name__, module)
        compiler = NpugxCompiler()
        assert isinstance(compiler, module.CompilerInterface)
        assert callable(compiler.load)
        assert (compiler.name, type(compiler).__name__) == ("npugx", "NpugxCompiler")


def test_the_hash_follows_what_a_compile_depends_on(monkeypatch):
    other = type("Other", (NpugxCompiler,), {"options": {"force_eager": True}})
    assert NpugxCompiler().compute_hash() == NpugxCompiler().compute_hash(object())
    assert NpugxCompiler().compute_hash() != other().compute_hash()


def interfaces():
    """The source of each engine's interface that is installed."""
    for engine in ("vllm", "sglang"):
        found = importlib.util.find_spec(engine)
        for folder in (found.submodule_search_locations or []) if found else []:
            yield from Path(folder).glob("**/compilation/compiler_interface.py")


@pytest.mark.parametrize("method", ["compute_hash", "initialize_cache", "compile", "load"])
def test_each_method_takes_what_the_engines_interface_passes(method):
    sources = list(interfaces())
    if not sources:
        pytest.skip("neither vllm nor sglang is installed")
    for source in sources:
        tree = ast.parse(source.read_text())
        [interface] = (
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == "CompilerInterface"
        )
        [theirs] = (
            node
            for node in interface.body
            if isinstance(node, ast.FunctionDef) and node.name == method
        )
        given = [each.arg for each in theirs.args.args]
        ours = inspect.signature(getattr(NpugxCompiler, method))
        for count in range(len(given) - len(theirs.args.defaults), len(given) + 1):
            ours.bind(*given[:count])


def run_engine(surroundings, *args, handles="handles.txt", **environment):
    return surroundings.start(SCRIPT, surroundings.folder / handles, *args, **environment)


@pytest.mark.thorough
def test_qwen3_restarts_with_and_without_handles_and_after_a_prune(surroundings):
    layers, sizes = "4", "--sizes=[(1, 64), 16]"
    cold = run_engine(surroundings, layers, sizes, PYTHONHASHSEED="1").result()
    assert (cold["difference"], cold["warnings"]) == (0.0, [])
    assert (cold["pieces"], cold["entries"]) == (5, 6)
    assert cold["info"] == [4, 6, 0, 6]
    warm = run_engine(surroundings, layers, sizes, PYTHONHASHSEED="2").result()
    assert (warm["difference"], warm["warnings"], warm["loaded"]) == (0.0, [], 10)
    assert warm["info"] == [10, 0, 0, 0]
    entry = surroundings.listing()[0]["entry"]
    assert surroundings.command("rm", "--yes", entry[:12]).returncode == 0
    pruned = run_engine(surroundings, layers, sizes).result()
    assert (pruned["difference"], pruned["warnings"], pruned["loaded"]) == (0.0, [], 10)
    assert pruned["info"][1:] == [1, 0, 1]


@pytest.mark.thorough
def test_two_ranks_on_one_store_compile_each_piece_once(surroundings):
    ranks = [
        run_engine(surroundings, "4", handles=f"rank{rank}.txt", RANK=str(rank)) for rank in (0, 1)
    ]
    results = [rank.result() for rank in ranks]
    assert [(each["difference"], each["warnings"]) for each in results] == [(0.0, [])] * 2
    assert sum(each["info"][1] for each in results) == 3
    assert len(surroundings.listing()) == 3


@pytest.mark.thorough
def test_a_pass_that_asks_whether_a_size_is_even_leaves_qwen3_right(surroundings):
    for _ in range(2):
        found = run_engine(surroundings, "4", "--asks", "--sizes=[(1, 64), 16]").result()
        assert found["difference"] == 0.0
        # Three of the single size, and the first piece, of which the pass asks nothing.
        assert (found["entries"], found["info"][2]) == (4, 4)
        assert any("is not true of 3" in each for each in found["warnings"])


@pytest.mark.thorough
def test_28_layers_are_three_entries(surroundings):
    cold = run_engine(surroundings, "28").result()
    assert (cold["difference"], cold["pieces"], cold["entries"]) == (0.0, 29, 3)
    warm = run_engine(surroundings, "28").result()
    assert (warm["difference"], warm["info"]) == (0.0, [29, 0, 0, 0])


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", ["of another graph", "paths", "of no entry"])
def test_a_handle_decides_nothing(model, store, wrong):
    cold = started(model, store, [Range(1, 64), 16])
    names, handles = list(cold.handles), list(cold.handles.values())
    given = {
        "of another graph": [*handles[1:], handles[0]],
        "paths": [("../../etc/passwd", "/dev/zero")] * len(names),
        "of no entry": [("", "")] * len(names),
    }[wrong]
    cold.file.write_text(repr(dict(zip(names, given, strict=True))))
    again = started(model, store, [Range(1, 64), 16])
    assert again.counted == {"hits": len(names), "misses": 0, "bypasses": 0, "stored": 0}
    assert again.loaded == len(names)


def test_a_triton_kernel_in_a_graph_is_refused_by_name(store, caplog):
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    graph = fx.Graph()
    x = graph.placeholder("x")
    given = {"kernel_idx": 0, "constant_args_idx": 0, "grid": [(1, 1, 1)], "kwargs": {"x": x}}
    graph.call_function(triton_kernel_wrapper_mutation, kwargs=given)
    graph.output((x,))
    compiler = NpugxCompiler()
    run, handle = compiler.compile(fx.GraphModule(nn.Module(), graph), [torch.ones(3)], {}, 3)
    assert handle is None
    assert callable(run)
    assert "triton_kernel_wrapper_mutation" in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize("setting", ["off", "readonly"])
def test_a_start_that_may_not_write_runs_compiled_and_stores_nothing(
    model, store, monkeypatch, setting
):
    monkeypatch.setenv("NPUGX_CACHE", setting)
    cold = started(model, store, [Range(1, 64)])
    assert cold.counted["stored"] == cold.counted["hits"] == 0
    assert cold.handles == {}
    assert not (store / "v1" / "ac").exists()
    monkeypatch.delenv("NPUGX_CACHE")
    filled = started(model, store, [Range(1, 64)])
    assert filled.counted["stored"] == 3
    monkeypatch.setenv("NPUGX_CACHE", setting)
    again = started(model, store, [Range(1, 64)])
    assert again.counted["hits"] == (4 if setting == "readonly" else 0)


@pytest.mark.thorough
def test_with_on_miss_raise_a_start_without_entries_fails_with_the_reason(
    model, store, monkeypatch
):
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "raise")
    with pytest.raises(Exception, match="CacheMiss"):
        started(model, store, [Range(1, 64)])
    monkeypatch.delenv("NPUGX_CACHE_ON_MISS")
    started(model, store, [Range(1, 64)])
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "raise")
    again = started(model, store, [Range(1, 64)])
    assert again.counted == {"hits": 4, "misses": 0, "bypasses": 0, "stored": 0}


@pytest.mark.usefixtures("store")
def test_called_with_a_graph_the_class_is_a_backend_of_torch_compile(model):
    before = compiled.counters.info(0)
    run = torch.compile(model, backend=NpugxCompiler, fullgraph=True)
    x = torch.randn(1, 5, WIDTH)
    assert torch.equal(run(x), model(x))
    assert compiled.counters.info(0).misses == before.misses + 1
