"""The key of a piece: each single change gives another key, what does not matter the same key."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import json
import operator
import subprocess
import sys
import weakref
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.fx.experimental._config as size_config
from torch import fx, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from npugx_cache.backend import patterns, register_replacement
from npugx_cache.key.symbols import Symbols
from npugx_cache.pieces import compiled
from npugx_cache.pieces.piece import Piece
from npugx_cache.portable import NotPortable

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))
sys.path.insert(0, str(Path(__file__).parent))
import random_graphs
from captured import captured, changes, renamed, shaping
from models import qwen3

LIBRARY = torch.library.Library("npugx_pieces", "DEF")
LIBRARY.define("scaled(Tensor x, float by, *, int power=1) -> Tensor")


@torch.library.impl(LIBRARY, "scaled", "CompositeExplicitAutograd")
def _scaled(x, by, *, power=1):
    return x.pow(power) * by


@torch.library.impl(LIBRARY, "scaled", "Meta")
def _fake_of_scaled(x, by, *, power=1):
    return torch.empty_like(x)


def plain(x):
    return (x + 2.0).relu()


def branches(x):
    return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v * 2.0, (x,))


def mixed(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return y.to(torch.float64), torch.zeros(3, dtype=torch.int32, device="cpu")


def custom(x):
    return torch.ops.npugx_pieces.scaled(x, 0.0, power=2) + 1


def sizes(x, y):
    return x.view(-1)[: x.shape[0] // 2], torch.cat([x, y], 0) * y.shape[0]


def zeros(x):
    return x * 0.0, x * 1, x.sum(0, True), x[1:3, None], x.transpose(0, 1).contiguous()


def holds(x):
    return x + torch.tensor([1.0, 2.0, 3.0, 4.0])


STEPS = [
    [("add", 0, 1), ("t", 0, 0), ("mul_", 0, 0), ("cat 0", 1, 2), ("sum", 0, 0)],
    [("to double", 0, 0), ("flat", 1, 0), ("where", 1, 2), ("bump_", 0, 0), ("index_put_", 2, 0)],
    [("as_strided", 1, 0), ("copy back", 1, 2), ("select_scatter", 2, 0), ("cat new", 1, 2)],
]


def of_steps(steps):
    def run(*values):
        return random_graphs.run((steps, [1, 2]), values)

    return run


@functools.cache
def graphs():
    model, call = qwen3(2)
    x = torch.ones(4, 4)
    found = {
        "qwen3": captured(lambda: model(**call)),
        "plain": captured(plain, x),
        "branches": captured(branches, x),
        "mixed": captured(mixed, x),
        "custom": captured(custom, x),
        "sizes": captured(sizes, torch.ones(6, 4), torch.ones(5, 4), dynamic=True),
        "zeros": captured(zeros, x),
        "holds": captured(holds, x),
    }
    for index, steps in enumerate(STEPS):
        found[f"steps {index}"] = captured(of_steps(steps), *random_graphs.inputs())
    return found


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.thorough)])
def test_each_single_change_of_a_graph_is_in_the_text(step):
    """Of all changes, every one or every twelfth."""
    counts: collections.Counter[str] = collections.Counter()
    same, refused = [], collections.Counter()
    for name, graph in graphs().items():
        base = graph.text()
        for what, change in list(changes(graph.graph_module))[::step]:
            undo = change()
            try:
                text = graph.text()
            except NotPortable as error:
                refused[str(error)] += 1
            else:
                counts[what] += 1
                same += [(name, what)] if text == base else []
            undo()
        assert graph.text() == base
    print(counts.total(), counts, refused)
    assert same == []
    assert counts.total() >= 2400 // step, counts
    assert min(counts["stream"], counts["call_function target"]) >= 80 // step, counts


def test_each_renaming_and_copy_has_the_same_text():
    for name, graph in graphs().items():
        base = graph.text()
        assert graph.text(renamed(graph.graph_module)) == base, name
        assert graph.text(copy.deepcopy(graph.graph_module)) == base, name
        for node in graph.graph_module.graph.nodes:
            before, node.name = node.name, f"{node.name}_again"
            assert graph.text() == base, (name, before)
            node.name = before


KEYS_OF_ANOTHER_PROCESS = """
import json, sys
sys.path.insert(0, {here!r})
from test_key import graphs
print(json.dumps({{name: graph.key for name, graph in graphs().items()}}))
"""


@pytest.mark.thorough
def test_another_process_with_another_hash_seed_has_the_same_keys(surroundings):
    """The other process also has other parameters: its model is made anew."""
    ran = subprocess.run(
        [sys.executable, "-c", KEYS_OF_ANOTHER_PROCESS.format(here=str(Path(__file__).parent))],
        env=surroundings.environment(PYTHONHASHSEED="7"),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    keys = json.loads(ran.stdout.strip().splitlines()[-1])
    assert keys == {name: graph.key for name, graph in graphs().items()}


def test_values_hints_and_names_of_code_are_in_no_key():
    x = torch.ones(4, 8)
    assert captured(nn.Linear(8, 8), x).key == captured(nn.Linear(8, 8), x * 3).key
    assert captured(plain, x).key == captured(lambda other: (other + 2.0).relu(), x).key
    numbers = [torch.tensor([1.0, 2.0]), torch.tensor([7.0, 8.0])]
    held = [held_by(lambda a, h: a + h, each) for each in numbers]
    assert key_of(held[0], torch.ones(2)) == key_of(held[1], torch.ones(2))
    lengths = (captured(plain, torch.ones(n, 8), dynamic=True).key for n in (4, 6, 9))
    assert len(set(lengths)) == 1


def marked(mark, *args, **kwargs):
    tensor = torch.ones(4, 8)
    mark(tensor, *args, **kwargs)
    return tensor


def leaf(tensor):
    return tensor.requires_grad_()


def inputs_of_pairs():
    """Two matrices of the same values and sizes, in memory of many kinds."""
    base = torch.ones(64)
    dynamic, static = torch._dynamo.mark_dynamic, torch._dynamo.mark_static_address
    one = torch.ones(4, 8)
    plain_pair = torch.ones(4, 8), torch.ones(4, 8)
    return {
        "apart": plain_pair,
        "float64": (torch.ones(4, 8).double(), plain_pair[1]),
        "bfloat16": (torch.ones(4, 8).bfloat16(), plain_pair[1]),
        "complex": (torch.ones(4, 8).cfloat(), plain_pair[1]),
        "conjugated": (torch.ones(4, 8).cfloat().conj(), plain_pair[1]),
        "negated": (torch.ones(4, 8).cfloat().conj().imag, plain_pair[1]),
        "one row more": (torch.ones(5, 8), torch.ones(5, 8)),
        "transposed": (torch.ones(8, 4).t(), plain_pair[1]),
        "with gaps": (torch.ones(4, 16)[:, ::2], plain_pair[1]),
        "expanded": (torch.ones(1, 8).expand(4, 8), plain_pair[1]),
        "offset": (torch.ones(5, 8)[1:], plain_pair[1]),
        "same object": (one, one),
        "same memory": (base[:32].view(4, 8), base[:32].view(4, 8)),
        "overlapping": (base[:32].view(4, 8), base[8:40].view(4, 8)),
        "halves of one": (base[:32].view(4, 8), base[32:].view(4, 8)),
        "needs a gradient": (leaf(torch.ones(4, 8)), plain_pair[1]),
        "a parameter": (nn.Parameter(torch.ones(4, 8)), plain_pair[1]),
        "a parameter without": (nn.Parameter(torch.ones(4, 8), requires_grad=False), plain_pair[1]),
        "stays": (marked(static), plain_pair[1]),
        "meta": (torch.ones(4, 8, device="meta"), plain_pair[1]),
        "rows vary": (marked(dynamic, 0), marked(dynamic, 0)),
        "rows up to 64": (marked(dynamic, 0, min=2, max=64), marked(dynamic, 0, min=2, max=64)),
        "rows from 3 on": (marked(dynamic, 0, min=3, max=64), marked(dynamic, 0, min=3, max=64)),
        "columns vary": (marked(dynamic, 1), marked(dynamic, 1)),
        "both vary": (marked(dynamic, (0, 1)), marked(dynamic, (0, 1))),
    }


def of_each(x, y):
    return x + 1, y * 2


def test_each_property_of_an_input_is_in_the_key():
    keys = {name: captured(of_each, *pair).key for name, pair in inputs_of_pairs().items()}
    same = [name for name, count in collections.Counter(keys.values()).items() if count > 1]
    assert [name for name, key in keys.items() if key in same] == []


def test_each_constant_is_in_the_key():
    x = torch.ones(4, 8)
    functions = [
        lambda x: x * 0,
        lambda x: x * False,
        lambda x: x * 0.0,
        lambda x: x * -0.0,
        lambda x: x * 1,
        lambda x: x * True,
        lambda x: x * 1.0,
        lambda x: x * float("nan"),
        lambda x: x * float("inf"),
        lambda x: x.sum((0,)),
        lambda x: x.sum(0),
        lambda x: x.sum((0, 1)),
        lambda x: x[0],
        lambda x: x[0:1],
        lambda x: x[...],
        lambda x: x[None],
        lambda x: x.to(torch.float64),
        lambda x: x.clone(memory_format=torch.contiguous_format),
        lambda x: x.clone(memory_format=torch.preserve_format),
        lambda x: x.clone(),
        lambda x: torch.full((2,), 1, dtype=torch.int64) + x.sum(),
        lambda x: torch.full((2,), 1, dtype=torch.int32) + x.sum(),
        lambda x: torch.full((2,), 1, layout=torch.strided) + x.sum(),
        lambda x: torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 2, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda v: v - 1, lambda v: v + 1, (x,)),
    ]
    keys = [captured(function, x).key for function in functions]
    assert len(set(keys)) == len(functions)


def first_pass(graph_module, example_inputs, options):
    pass


def other_pass(graph_module, example_inputs, options):
    graph_module.graph.lint()


def decomposed(x):
    return x.clamp_min(0)


def otherwise(x):
    return x.clamp_min(0.0)


def test_all_that_shapes_a_lowering_is_in_the_key():
    relu = torch.ops.aten.relu.default
    x = torch.ones(4, 8)
    keys = [
        captured(plain, x, using=shaping(*given)).key
        for given in (
            (None,),
            ({"inplace_pass": False},),
            ({"post_grad_custom_post_pass": first_pass},),
            ({"post_grad_custom_post_pass": other_pass},),
            ({"post_grad_custom_pre_pass": first_pass},),
            (None, [(relu, decomposed)]),
            (None, [(relu, otherwise)]),
            (None, (), "inductor"),
        )
    ]
    assert len(set(keys)) == len(keys)


def test_a_registered_pattern_is_in_the_key(monkeypatch):
    monkeypatch.setattr(patterns, "_registered", [])
    x = torch.ones(4, 8)
    before = captured(plain, x).key
    pair = [torch.ones(2), torch.ones(2)]
    register_replacement(lambda a, b: torch.relu(a + b), lambda a, b: torch.relu(b + a), pair)
    assert captured(plain, x).key != before


SWITCHES = {
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
    "math": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, False),
    "fast path": (
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
        False,
    ),
    "oneDNN": (
        lambda: torch.backends.mkldnn.enabled,
        lambda value: torch.backends.mkldnn.set_flags(value),
        False,
    ),
    "priority": (
        torch._C._get_sdp_priority_order,
        torch._C._set_sdp_priority_order,
        [0, 1, 2, 3, 4],
    ),
    "sizes": (
        lambda: size_config.backed_size_oblivious,
        lambda value: setattr(size_config, "backed_size_oblivious", value),
        True,
    ),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_that_a_lowering_heeds_is_in_the_key(name):
    read, write, other = SWITCHES[name]
    graph, x = traced_by_fx(plain), torch.ones(4, 8)
    before, was = key_of(graph, x), read()
    write(other)
    try:
        assert key_of(graph, x) != before
    finally:
        write(was)
    assert key_of(graph, x) == before


@pytest.mark.parametrize("changed", [{"duck_shape": False}, {"specialize_zero_one": False}])
def test_what_a_trace_assumes_of_all_sizes_is_in_the_key(changed):
    """Two traces with equal symbols may have been guarded by other rules."""

    def text(**settings):
        varies = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
        mode = FakeTensorMode(shape_env=ShapeEnv(**settings))
        x = mode.from_tensor(torch.ones(6, 4), source=ConstantSource("x"), symbolic_context=varies)
        return list(Symbols([x]).describe_symbols())

    assert text()
    assert text() == text()
    assert text(**changed) != text()


STATES = {
    "autocast": (lambda: torch.autocast("cpu"), "autocast"),
    "default dtype": (lambda: _default_dtype(torch.float64), "default_dtype"),
    "deterministic": (lambda: _deterministic(), "deterministic"),
    "default device": (lambda: torch.device("meta"), "DeviceContext"),
}


class _default_dtype:
    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_):
        torch.set_default_dtype(self.before)


class _deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", STATES)
def test_each_state_of_torch_is_a_condition(name, tmp_path):
    state, word = STATES[name]
    x = torch.ones(4, 8)

    def answer():
        return compiled.cached_graph(traced_by_fx(plain), [x], cache_dir=tmp_path)

    stored = answer()
    with state():
        missed = answer()
        found = answer()
    assert missed.entry != stored.entry
    refusals = [refusal for refusal in missed.explain() if refusal.entry == stored.entry]
    assert any(word in reason for reason in refusals[0].reasons), missed.explain()
    assert found.entry == missed.entry
    assert answer().entry == stored.entry


def test_a_graph_keeps_none_of_the_inputs_that_it_was_made_or_found_for(tmp_path):
    graphs = []
    for _ in range(2):
        x = torch.ones(4, 8)
        graphs.append(compiled.cached_graph(traced_by_fx(plain), [x], cache_dir=tmp_path))
        alive = weakref.ref(x)
        del x
        gc.collect()
        assert alive() is None
    assert graphs[0].entry == graphs[1].entry is not None


# --- graphs that no tracer makes


def traced_by_fx(function):
    return fx.symbolic_trace(function)


def key_of(graph_module, *inputs):
    return Piece.of(graph_module, inputs, shaping(), is_apart=False).fingerprint.key


def built(build, **attributes):
    graph, root = fx.Graph(), nn.Module()
    for name, value in attributes.items():
        setattr(root, name, value)
    build(graph)
    return _LazyGraphModule(root, graph)  # no Python text can be made of some of them


def of_one_call(target, *args, op="call_function", given="x", default=None, **kwargs):
    def build(graph):
        x = graph.placeholder(given) if default is None else graph.placeholder(given, None, default)
        graph.output((graph.create_node(op, target, (x, *args), kwargs, "called"),))

    return built(build)


def held_by(_, tensor, name="h"):
    def build(graph):
        x, h = graph.placeholder("x"), graph.get_attr(name)
        graph.output((graph.call_function(torch.add, (x, h)),))

    return built(build, **{name: tensor})


def packed(results):
    made = of_one_call(torch.relu)
    given = pytree.tree_flatten(((0,), {}))[1]
    info = _PyTreeInfo(["x"], given, pytree.tree_flatten(results)[1])
    made.graph.set_codegen(_PyTreeCodeGen(info))
    return made


def hooked():
    def build(graph):
        graph.output(graph.call_module("inner", (graph.placeholder("x"),)))

    return built(build, inner=of_one_call(torch.relu))


def helper(x):
    return x


@functools.wraps(torch.nn.functional.relu)
def wrapper(x):
    return helper(x)


class Operator(torch._ops.HigherOrderOperator):
    def __init__(self):
        super().__init__("npugx_operator_of_a_user")

    def __call__(self, *args):
        return super().__call__(*args)


class Mine(torch.Tensor):
    pass


class Named(NamedTuple):
    first: int
    second: int


X = torch.ones(4, 8)

REFUSED = {
    "a list of inputs": (lambda: of_one_call(operator.getitem, 0, given="*x"), "is a list"),
    "a default": (lambda: of_one_call(torch.relu, default=1.0), "has a default"),
    "other results": (lambda: packed({"a": 0}), "packs"),
    "a module": (hooked, "calls a module"),
    "code behind a name of torch's": (lambda: of_one_call(wrapper), "whose code is not"),
    "a user's operator on functions": (lambda: of_one_call(Operator()), "whose code is not"),
    "a class": (lambda: of_one_call(torch.relu, Mine), "whose code is not"),
    "a module as argument": (lambda: of_one_call(torch.relu, torch), "whose code is not"),
    "a named tuple": (lambda: of_one_call(torch.relu, Named(1, 2)), "no name"),
    "a generator": (lambda: of_one_call(torch.relu, torch.Generator()), "no name"),
    "a tensor as argument": (lambda: of_one_call(torch.relu, torch.ones(2)), "no name"),
    "a number": (lambda: held_by(None, 3), "holds a int"),
    "a fake tensor": (
        lambda: held_by(None, torch._subclasses.FakeTensorMode().from_tensor(X)),
        "holds a FakeTensor",
    ),
    "a sparse tensor": (lambda: held_by(None, X.to_sparse()), "sparse"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_no_text_covers_is_refused(name):
    build, reason = REFUSED[name]
    with pytest.raises(NotPortable, match=reason):
        key_of(build(), X)


ODD_INPUTS = {
    "too few": (lambda: (), "1 inputs, and is given 0"),
    "too many": (lambda: (X, X), "1 inputs, and is given 2"),
    "a subclass": (lambda: (X.as_subclass(Mine),), "Mine"),
    "nested": (lambda: (torch.nested.nested_tensor([X, X[:2]]),), "nested"),
    "quantized": (lambda: (torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),), "quantized"),
    "sparse": (lambda: (X.to_sparse(),), "sparse"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize")
@pytest.mark.parametrize("name", ODD_INPUTS)
def test_inputs_that_no_text_covers_are_refused(name):
    make, reason = ODD_INPUTS[name]
    with pytest.raises(NotPortable, match=reason):
        key_of(of_one_call(torch.relu), *make())


def test_a_graph_whose_inputs_no_text_covers_runs_uncached(tmp_path, caplog):
    ran = compiled.cached_graph(of_one_call(wrapper), [X], cache_dir=tmp_path)
    assert ran.entry is None
    assert torch.equal(ran(X)[0], X)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "whose code is not in the graph" in caplog.text


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")  # Inductor imports that
def test_a_graph_that_an_engine_refuses_runs_without_the_engine(tmp_path, caplog):
    x = torch.ones(2, 3)
    ran = compiled.cached_graph(
        of_one_call(torch.bernoulli), [x], backend="inductor", cache_dir=tmp_path
    )
    assert ran.entry is None
    assert torch.equal(ran(x)[0], x)
    assert "draws random numbers" in caplog.text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, ["bool", 1]),
        (1.0, ["float", (1.0).hex()]),
        (torch.float32, ["torch", "float32"]),
        (slice(1, 2), ["slice", 1, 2, None]),
        ((1, 2), [1, 2]),
        ([], [[]]),
    ],
)
def test_a_list_of_texts_is_no_other_value(one, other):
    assert key_of(of_one_call(torch.relu, one), X) != key_of(of_one_call(torch.relu, other), X)


def test_what_a_held_tensor_is_and_whom_it_shares_memory_with_is_in_the_key():
    tensors = {
        "of its own": torch.ones(4, 8),
        "the input itself": X,
        "a part of the input": X[0],
        "a part of another": torch.ones(4, 8)[0],
        "alone": torch.ones(8),
        "of another type": torch.ones(4, 8, dtype=torch.float64),
        "transposed": torch.ones(8, 4).t(),
        "a parameter": nn.Parameter(torch.ones(4, 8)),
        "a parameter without": nn.Parameter(torch.ones(4, 8), requires_grad=False),
    }
    keys = {name: key_of(held_by(None, each), X) for name, each in tensors.items()}
    assert keys.pop("a part of another") == keys["alone"]
    assert len(set(keys.values())) == len(keys)
    assert key_of(held_by(None, X, name="other"), X) == keys["the input itself"]


def test_whether_held_tensors_share_memory_is_in_the_key():
    def holding(*tensors):
        def build(graph):
            found = graph.placeholder("x")
            for place in range(len(tensors)):
                found = graph.call_function(torch.add, (found, graph.get_attr(f"h{place}")))
            graph.output((found,))

        return key_of(built(build, **{f"h{n}": each for n, each in enumerate(tensors)}), X)

    one, *others = (torch.ones(4, 8) for _ in range(6))
    apart = holding(one, *others)
    assert holding(*(each.clone() for each in (one, *others))) == apart
    shared = [holding(one, *(one[:] for _ in range(n)), *others[n:]) for n in range(1, 6)]
    assert len({apart, *shared}) == 6


def test_what_a_user_noted_for_passes_is_in_the_key():
    keys = set()
    for noted in ({}, {"stage": 1}, {"stage": 2}, {"stage": True}):
        graph = of_one_call(torch.relu)
        for node in graph.graph.nodes:
            node.meta["custom"] = noted
        keys.add(key_of(graph, X))
    assert len(keys) == 4


def test_a_pass_does_not_see_whose_graph_it_gets(tmp_path):
    seen = []

    def look(graph_module, example_inputs, options):
        seen.extend(set(node.meta) for node in graph_module.graph.nodes)

    look.uuid = lambda: "look"
    options = {"post_grad_custom_post_pass": look}
    backend = functools.partial(compiled.cached_graph, options=options, cache_dir=tmp_path)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(nn.Linear(8, 8), backend=backend)(X)
    assert seen
    assert set().union(*seen) & {"nn_module_stack", "source_fn_stack", "from_node"} == set()


def test_settings_of_a_device_count_for_a_graph_that_only_names_the_device():
    for device in ("meta", torch.device("meta"), "meta:0"):
        text = Piece.of(
            of_one_call(torch.zeros_like, device=device), [X], shaping(), is_apart=False
        ).text
        assert "meta" in text.named_devices
        assert text.device_types == {"cpu"}
