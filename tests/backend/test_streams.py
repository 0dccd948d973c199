"""What passes and programs make of streams, events and scopes. Labels need no device."""

import sys
import types

import pytest
import torch
import torch._dynamo  # registers the operators of the namespace "streams"

from npugx_cache.backend import operators, register_replacement, scope
from npugx_cache.backend.codegen import source_text
from npugx_cache.backend.engines import load
from npugx_cache.backend.graph import to_program
from npugx_cache.backend.lowering import lower
from npugx_cache.backend.options import Options
from npugx_cache.backend.passes.copies import remove_copies
from npugx_cache.backend.passes.copy_back import reinplace_inputs
from npugx_cache.backend.passes.dead_code import remove_dead_code
from npugx_cache.backend.passes.reinplace import reinplace
from npugx_cache.errors import BackendUnavailable, OptionError

aten, streams = torch.ops.aten, torch.ops.streams
FORK = streams.fork.default, (0, 1)
BACK = streams.fork.default, (1, 0)
RECORD = streams.record_event.default, (2, 0)
RECORD_SIDE = streams.record_event.default, (3, 1)
WAIT_ON_SIDE = streams.wait_event.default, (2, 1)
WAIT = streams.wait_event.default, (3, 0)
WAIT_STREAM = streams.wait_stream.default, (0, 1)
LIMIT = torch.ops.npugx_cache.limit_cores.default, (2, 4)
RESTORE = torch.ops.npugx_cache.restore_cores.default, ()


def graph_of(function, inserted, *inputs):
    """A graph with calls inserted before the n-th of the function's own, or at the end."""
    module = lower(function, inputs or (torch.ones(3),), None)
    own = [node for node in module.graph.nodes if node.op in ("call_function", "output")]
    for position, calls in inserted.items():
        with module.graph.inserting_before(own[position]):
            for target, args in calls:
                module.graph.call_function(target, args)
    module.recompile()
    return module


def own(module):
    """Operators of the graph, but for those on streams and scopes."""
    names = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    return [name for name in names if name.startswith("aten.")]


def used_by_both(x):
    y = x * 2
    z = y + 1
    w = y * 3
    return z, w


def last_is_in_place(module):
    reinplace(module.graph)
    return own(module)[-1] == "aten.mul_.Tensor"


def test_a_value_that_one_stream_alone_uses_is_written_over():
    assert last_is_in_place(graph_of(used_by_both, {}))
    assert last_is_in_place(graph_of(used_by_both, {1: [RECORD], 2: [WAIT_STREAM]}))


def test_a_value_that_another_stream_uses_is_not_written_over():
    fork_and_join = {1: [RECORD, FORK, WAIT_ON_SIDE], 2: [BACK]}
    assert not last_is_in_place(graph_of(used_by_both, fork_and_join))


@pytest.mark.parametrize("protection", [[RECORD_SIDE, BACK, WAIT], [BACK, WAIT_STREAM]])
def test_it_is_where_events_make_sure_that_the_other_stream_is_done(protection):
    assert last_is_in_place(graph_of(used_by_both, {1: [FORK, WAIT_ON_SIDE], 2: protection}))


@pytest.mark.parametrize(
    "before",
    [
        [BACK, WAIT],  # of an event that was never recorded here
        [RECORD_SIDE, BACK, RECORD, (streams.wait_event.default, (2, 0))],  # another event
        [RECORD_SIDE, BACK, RECORD, WAIT],  # labels 2 and 3 may stand for one event
    ],
    ids=["not recorded", "other event", "recorded again"],
)
def test_events_that_do_not_protect(before):
    assert not last_is_in_place(graph_of(used_by_both, {1: [FORK], 2: before}))


def test_events_protect_only_what_comes_before_their_record():
    early = {1: [FORK, RECORD_SIDE], 2: [BACK, WAIT]}
    assert not last_is_in_place(graph_of(used_by_both, early))


def chained(x):
    y = x * 2
    z = y + 1
    v = z + 1
    w = y * 3
    return v, w


def test_a_chain_of_events_through_a_third_stream_protects():
    to_third = [(streams.wait_event.default, (3, 4)), (streams.fork.default, (1, 4))]
    from_third = [(streams.fork.default, (4, 0)), (streams.wait_stream.default, (0, 4))]
    inserted = {1: [FORK], 2: [RECORD_SIDE, *to_third], 3: from_third}
    assert last_is_in_place(graph_of(chained, inserted))
    assert not last_is_in_place(graph_of(chained, {**inserted, 3: from_third[:1]}))


def test_memory_of_another_stream_is_not_written_over_even_when_it_is_done():
    def function(x):
        y = x * 2
        return y + 1

    joined = {0: [FORK], 1: [RECORD_SIDE, BACK, WAIT]}
    assert reinplace(graph_of(function, joined).graph) == 0
    assert reinplace(graph_of(function, {0: [FORK], 2: [BACK]}).graph) == 1


def test_copies_stay_across_streams_and_events():
    def copies(x):
        y = x.clone()
        return y + 1

    assert remove_copies(graph_of(copies, {}).graph) == 1
    assert remove_copies(graph_of(copies, {1: [RECORD]}).graph) == 0
    assert remove_copies(graph_of(copies, {1: [FORK], 2: [BACK]}).graph) == 0


def test_a_write_to_an_input_does_not_move_before_an_event():
    def writes(x):
        y = x * 2
        x.copy_(y)

    assert reinplace_inputs(graph_of(writes, {}).graph) == 1
    assert reinplace_inputs(graph_of(writes, {1: [RECORD, WAIT]}).graph) == 0


def test_dead_code_takes_no_operator_on_streams_or_scopes():
    def dead(x):
        x * 2
        return x + 1

    calls = [FORK, RECORD, WAIT_ON_SIDE, WAIT_STREAM, BACK, LIMIT, RESTORE]
    module = graph_of(dead, {0: calls})
    remove_dead_code(module.graph)
    left = [(n.target, n.args) for n in module.graph.nodes if n.op == "call_function"]
    assert left[:-1] == calls
    assert own(module) == ["aten.add.Tensor"]


def fused_to_be(x):
    return torch.asinh(torch.acosh(x))


def fusion_replaces(inserted):
    module = graph_of(fused_to_be, inserted)
    load("npugraph_ex").optimise(module, Options(inplace_pass=False))
    return "aten.atanh.default" in own(module)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the matcher is Inductor's
def test_patterns_match_within_one_stream_and_one_scope(monkeypatch):
    from npugx_cache.backend import patterns

    monkeypatch.setattr(patterns, "_registered", [])
    register_replacement(fused_to_be, torch.atanh, [torch.ones(3)])
    assert fusion_replaces({})
    assert fusion_replaces({0: [FORK], 2: [BACK]})
    assert not fusion_replaces({1: [FORK], 2: [BACK]})
    assert fusion_replaces({0: [LIMIT], 2: [RESTORE]})
    assert not fusion_replaces({1: [LIMIT], 2: [RESTORE]})


def test_a_value_that_two_streams_use_lives_until_the_program_ends():
    text = source_text(to_program(graph_of(used_by_both, {1: [FORK], 2: [BACK]}))[0])
    assert "streams_fork_default(0, 1)" in text
    assert "del mul\n" not in text
    alone = source_text(to_program(graph_of(used_by_both, {}))[0])
    assert "del mul\n" in alone


def test_a_program_that_names_an_unknown_operator_on_streams_is_refused():
    from npugx_cache.backend.streams import Seen, Streams
    from npugx_cache.portable import NotPortable

    with pytest.raises(NotPortable, match="streams::around is not known"):
        Streams(Seen()).operator("around")


def test_core_limits_are_for_an_npu_and_checked_elsewhere_too():
    with pytest.raises(OptionError, match="op_vectorcore_num must be an int of at least 1"):
        scope.limit_core_num(1, 0)
    if not hasattr(torch, "npu"):
        with pytest.raises(BackendUnavailable, match="torch_npu is not loaded"):
            scope.limit_core_num(1, 1)


@pytest.mark.parametrize("level", [-1, 4, True, 1.0, "1"])
def test_a_level_of_determinism_is_checked_everywhere(level):
    with pytest.raises(OptionError, match="level must be 0, 1, 2 or 3"):
        scope.deterministic(level)


def test_levels_of_determinism_are_for_an_npu():
    if not hasattr(torch, "npu"):
        with pytest.raises(BackendUnavailable, match="torch_npu is not loaded"):
            scope.deterministic(1)


def nested(x):
    torch.ops.npugx_cache.set_determinism(2)
    enabled = [torch.are_deterministic_algorithms_enabled()]
    torch.ops.npugx_cache.set_determinism(0)
    enabled.append(torch.are_deterministic_algorithms_enabled())
    torch.ops.npugx_cache.restore_determinism()
    enabled.append(torch.are_deterministic_algorithms_enabled())
    torch.ops.npugx_cache.restore_determinism()
    return x + sum(2**place for place, each in enumerate(enabled) if each)


def test_what_torch_decides_by_determinism_is_decided_so_in_a_trace():
    (value,) = [n for n in lower(nested, (torch.ones(3),), None).graph.nodes if "add" in n.name]
    assert value.args[1] == 5
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_trace_that_fails_leaves_nothing_deterministic():
    def fails(x):
        torch.ops.npugx_cache.set_determinism(2)
        raise KeyError(x)

    with pytest.raises(KeyError):
        lower(fails, (torch.ones(3),), None)
    assert not torch.are_deterministic_algorithms_enabled()


class Npu:
    """A simulated device: its settings, and each change of them."""

    def __init__(self):
        self.limits, self.deterministic, self.changes = (20, 40), 0, []

    def current_stream(self):
        return "stream"

    def get_stream_limit(self, stream):
        return {"cube_core_num": self.limits[0], "vector_core_num": self.limits[1]}

    def set_stream_limit(self, stream, cube, vector):
        self.limits = (cube, vector)
        self.changes.append(self.limits)

    def _get_deterministic_level(self):
        return self.deterministic

    def set_deterministic_level(self, level):
        self.deterministic = level
        self.changes.append(level)


def test_what_an_operator_leaves_limited_is_taken_back(monkeypatch):
    npu = Npu()
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(npu=npu))

    def raises():
        with operators.scopes_closed():
            torch.ops.npugx_cache.limit_cores(1, 2)
            torch.ops.npugx_cache.set_determinism(3)
            torch.ops.npugx_cache.limit_cores(3, 4)
            torch.ops.npugx_cache.restore_cores()
            raise ValueError

    with pytest.raises(ValueError):
        raises()
    assert npu.changes == [(1, 2), 3, (3, 4), (1, 2), 0, (20, 40)]
    assert not torch.are_deterministic_algorithms_enabled()
