"""Stream blocks, events and `record_stream` in a cached function: eager's order, on each stream."""

import os
import re
from pathlib import Path

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import npu_sim
import stream_programs
import torch

from npugx_cache import cache_compile, version
from npugx_cache.backend import dynamo_backend, scope

NAMES = tuple(stream_programs.PROGRAMS)
SCRIPT = Path(__file__).parent / "run_streams.py"
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")


BETWEEN = ("record", "wait", "replay", "synchronize", "synchronize device")
WAITING = ("waiting_of_the_host", "waiting_for_the_device")
NUMBERED = version.minor_version(torch.__version__) >= (2, 12)
ON_ONE_STREAM = ("limited_cores", "deterministic_parts", "scopes_of_the_vendors")
"""What is cached where torch does not trace which stream is the current one."""
needs_numbers = pytest.mark.skipif(
    not NUMBERED, reason="torch before 2.12 does not trace which stream is the current one"
)
FILLS = () if NUMBERED else ("fill",)
"""torch_npu 2.10 fills the seed and the offset of its generator before a capture and a replay."""
COPIES = ("copy", "_foreach_copy", "_copy_from", "clone")


def passed_on(verify="off"):
    """The environment of a run. What is compared with its function at the first call issues more
    than the function does."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**kept, "NPUGX_CACHE_VERIFY": verify}


def cold_and_restarted(once, way):
    def make(surroundings):
        command = "-W", "ignore", SCRIPT, way
        return [surroundings.start(*command, **passed_on()).result() for _ in range(2)]

    return once(f"streams_{way}", make)


@pytest.fixture
def runs(once):
    """Every program uncaptured."""
    return cold_and_restarted(once, "EAGER")


@pytest.fixture
def captured_runs(once):
    return cold_and_restarted(once, "CAPTURED")


def kernels(issued):
    """What runs on a device, in order, and the same by stream, whatever streams are called."""
    every = [each for each in issued if each[0] not in (*BETWEEN, *COPIES, *FILLS)]
    by_stream = {}
    for what, on, stream in every:
        by_stream.setdefault(stream, []).append((what, on))
    return [what for what, _, _ in every], sorted(by_stream.values())


@pytest.mark.parametrize("phase", ["cold", "restarted"])
@pytest.mark.parametrize("name", NAMES)
def test_everything_is_issued_to_the_stream_and_in_the_order_of_eager(runs, name, phase):
    row = runs[phase == "restarted"]["rows"][name]
    assert row["equal"]
    if not NUMBERED and name not in ON_ONE_STREAM:
        # Refused. The trace itself may have recorded an event, and waited.
        assert row["issued"][1:] == row["eager"][1:]
        assert (row["hits"], row["misses"], row["bypasses"]) == (0, 0, 3)
        return
    assert row["issued"] == row["eager"]
    if phase == "cold":
        assert (row["misses"], row["bypasses"]) == (1, 0)
    else:
        assert (row["hits"], row["misses"], row["bypasses"]) == (1, 0, 0)


def test_a_new_graph_is_compared_with_its_function_on_the_device(surroundings):
    names = ("limited_cores", "deterministic_parts")
    command = "-W", "ignore", SCRIPT, "EAGER", *names
    rows = surroundings.start(*command, **passed_on("first")).result()["rows"]
    for row in rows.values():
        assert (row["equal"], row["misses"], row["bypasses"]) == (True, 1, 0)
        first, *later = row["issued"]
        order, by_stream = kernels(row["eager"][0])
        first = [each for each in first if each[0] != "equal"]  # which compares the results
        # The graph, whose result is the call's, and the function.
        assert kernels(first) == (order * 2, [each * 2 for each in by_stream])
        assert later == row["eager"][1:]


def test_the_programs_do_issue_to_several_streams(runs):
    issued = runs[1]["rows"]["nested_blocks"]["issued"][0]
    kernels = [stream for what, _, stream in issued if what not in ("record", "wait")]
    assert kernels == ["side", "stream 2", "side", ""]


def test_a_restart_loads_no_compiler(runs):
    assert runs[1]["loaded"] == []


@pytest.mark.parametrize("phase", ["cold", "restarted"])
@pytest.mark.parametrize("name", sorted({*NAMES} - {*WAITING}) if NUMBERED else ON_ONE_STREAM)
def test_a_capture_takes_the_work_of_all_streams_in_and_replays_it(captured_runs, name, phase):
    row = captured_runs[phase == "restarted"]["rows"][name]
    assert row["equal"]
    assert row["replays"] == 3
    first, *later = row["issued"]
    assert kernels(first) == kernels(row["eager"][0])
    # What is written to has to be in its place, so each of those tensors has a graph of its own.
    for call in later if name != "a_write_to_an_argument" else ():
        assert kernels(call) == ([], [])
        assert [each[0] for each in call].count("replay") == 1


@needs_numbers
@pytest.mark.parametrize("name", WAITING)
def test_a_program_that_makes_the_host_wait_is_not_captured(captured_runs, name):
    for run in captured_runs:
        row = run["rows"][name]
        assert row["equal"]
        assert (row["replays"], row["issued"]) == (0, row["eager"])


@needs_numbers
def test_a_wait_for_the_device_stays_in_its_place(runs):
    for run in runs:
        issued = [what for what, *_ in run["rows"]["waiting_for_the_device"]["issued"][0]]
        waits = [i for i, what in enumerate(issued) if what == "synchronize device"]
        assert len(waits) == 3
        assert issued.index("mul") < waits[0] < issued.index("add") < waits[1]


@needs_numbers
def test_a_replay_waits_for_the_streams_of_its_caller_and_they_for_it(captured_runs):
    waits = [
        [what, stream] if what == "wait" else what
        for what, _, stream in captured_runs[1]["rows"]["an_argument"]["issued"][2]
        if what in ("wait", "replay")
    ]
    assert waits == [["wait", ""], "replay", ["wait", "side"]]


@needs_numbers
def test_events_of_the_caller_are_recorded_after_a_replay(captured_runs):
    issued = captured_runs[1]["rows"]["events_between_streams"]["issued"][2]
    after = issued[[what for what, _, _ in issued].index("replay") :]
    # One for the stream that waits for the replay, then the caller's two.
    assert len([each for each in after if each[0] == "record"]) == 3


def waits_for_what_the_caller_recorded(x, stream, event):
    stream.wait_event(event)
    with torch.npu.stream(stream):
        y = x * 2
    torch.npu.current_stream().wait_stream(stream)
    return y


@needs_numbers
def test_labels_that_stand_for_one_stream_are_another_graph(tmp_path):
    cached = cache_compile(waits_for_what_the_caller_recorded, cache_dir=tmp_path)
    x, side, event = torch.ones(3).npu(), torch.npu.Stream(), torch.npu.Event()
    event.record()
    for stream in (side, torch.npu.current_stream(), torch.npu.Stream(), side):
        with npu_sim.issued(side=side) as issued:
            assert torch.equal(cached(x, stream, event), x * 2)
    # Another stream in the same part needs no other graph.
    assert sorted(graph.replays for graph in cached.cache_info().graphs) == [1, 3]
    assert (cached.cache_info().misses, cached.cache_info().bypasses) == (1, 0)
    before = [each.what for each in issued[: [each.what for each in issued].index("replay")]]
    assert before.count("wait") == 2  # for the stream, and for the event recorded outside


@needs_numbers
def test_other_core_limits_of_a_side_stream_are_another_graph(tmp_path):
    cached = cache_compile(waits_for_what_the_caller_recorded, cache_dir=tmp_path)
    x, side, event = torch.ones(3).npu(), torch.npu.Stream(), torch.npu.Event()
    assert torch.equal(cached(x, side, event), x * 2)
    torch.npu.set_stream_limit(side, 2, 4)
    assert torch.equal(cached(x, side, event), x * 2)
    assert [graph.replays for graph in cached.cache_info().graphs] == [1, 1]


@pytest.mark.parametrize(
    "name", [*(["events_between_streams", "made_inside"] if NUMBERED else []), "limited_cores"]
)
def test_torch_compile_with_this_backend_keeps_the_order_as_well(name):
    function, arguments, streams = stream_programs.PROGRAMS[name]
    options = {"force_eager": True}
    run = torch.compile(function, backend=dynamo_backend, options=options, dynamic=False)
    orders = []
    with torch.no_grad():
        run(torch.ones(4, 4).npu(), *arguments)
        for each in (function, run):
            x = torch.ones(4, 4).npu()
            with npu_sim.issued(**streams) as issued:
                each(x, *arguments)
            orders.append([(i.what.rstrip("_"), i.on, i.stream) for i in issued])
    assert orders[0] == orders[1]


def both_scopes(scope, x):
    y = x.sin()
    with scope.limit_core_num(4, 8):
        y = y * 2
        with scope.deterministic(2):
            y = y.cos()
    with scope.deterministic(1), scope.limit_core_num(2, 2, stream_programs.SIDE):
        y = y.exp()
    return y + 1


def with_our_scopes(x):
    return both_scopes(scope, x)


def with_the_vendors_scopes(x):
    return both_scopes(torch.npu.npugraph_ex.scope, x)


@needs_numbers
def test_our_scopes_issue_what_the_vendors_do_in_eager_and_compiled(tmp_path):
    options = {"force_eager": True}
    runs = [
        with_our_scopes,
        with_the_vendors_scopes,
        cache_compile(with_our_scopes, cache_dir=tmp_path, options=options),
        cache_compile(with_the_vendors_scopes, cache_dir=tmp_path, options=options),
        torch.compile(with_the_vendors_scopes, backend=dynamo_backend, options=options),
        torch.compile(
            with_the_vendors_scopes, backend="npugraph_ex", dynamic=False, options=options
        ),
    ]
    orders = []
    with torch.no_grad():
        for each in runs:
            each(torch.ones(3).npu())
            with npu_sim.issued(side=stream_programs.SIDE) as issued:
                each(torch.ones(3).npu())
            orders.append([(i.what.rstrip("_"), i.on, i.stream) for i in issued])
    assert orders == [orders[0]] * 6
    assert ("deterministic", 2, "") in orders[0]


@pytest.mark.skipif(
    not NUMBERED, reason="a guard of that torch refuses the level that is set around the call"
)
def test_another_level_of_determinism_is_another_graph(tmp_path):
    cached, x = (
        cache_compile(stream_programs.deterministic_parts, cache_dir=tmp_path),
        torch.ones(3),
    )
    wanted = stream_programs.deterministic_parts(x.npu())
    for outside in (1, 2, 1, 2):
        with scope.deterministic(outside):
            assert torch.equal(cached(x.npu()), wanted)
        assert torch.equal(cached(x.npu()), wanted)
    assert sorted(graph.replays for graph in cached.cache_info().graphs) == [2, 2, 4]


def of_a_level_that_is_not_there(x):
    with scope.deterministic(1):
        y = x * 2
        with scope.deterministic(3):
            return y * 3


class Nameless:
    """No other process finds an object of this class again, so what reads one is not stored."""


ANY = {Nameless(): 1}


def of_a_level_that_is_not_there_and_not_stored(x):
    for each in ANY:
        x = x + ANY[each]
    with torch.npu.stream(stream_programs.SIDE), of_the_vendors.limit_core_num(4, 8):
        return of_a_level_that_is_not_there(x)


of_the_vendors = torch.npu.npugraph_ex.scope


@needs_numbers
def test_what_is_not_stored_leaves_streams_and_scopes_as_eager_does(tmp_path):
    function = of_a_level_that_is_not_there_and_not_stored
    cached, side = cache_compile(function, cache_dir=tmp_path), stream_programs.SIDE
    before = torch.npu.get_stream_limit(side)
    for each in (function, cached, cached):
        with pytest.raises(RuntimeError, match="requires CANN runtime"):
            each(torch.ones(3).npu())
        assert torch.npu.current_stream() == torch.npu.default_stream()
        assert torch.npu.get_stream_limit(side) == before
        assert not torch.are_deterministic_algorithms_enabled()
    assert cached.cache_info().entries == 1


def test_what_a_scope_raises_leaves_all_as_it_was(tmp_path):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        cached = cache_compile(of_a_level_that_is_not_there, cache_dir=tmp_path)
        for each in (of_a_level_that_is_not_there, cached, cached):
            with pytest.raises(RuntimeError, match="requires CANN runtime"):
                each(torch.ones(3).npu())
            with scope.deterministic(0):
                assert not torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            with npu_sim.issued() as issued:
                torch.ones(3).npu().exp_()
            assert ("deterministic", 1) in [each[:2] for each in issued]
    finally:
        torch.use_deterministic_algorithms(False)


SCOPES = "scopes_of_the_vendors", "scopes_of_the_vendors_on_streams"


@needs_numbers
def test_the_vendors_scopes_do_the_same_beside_its_compiler(surroundings):
    def run(way, *names):
        command = "-W", "ignore", SCRIPT, way, *names
        return surroundings.start(*command, **passed_on()).result()["rows"]

    cold, restarted = run("BESIDE", *SCOPES), run("CAPTURED", *SCOPES)
    for rows in (cold, restarted):
        assert all(row["equal"] and row["bypasses"] == 0 for row in rows.values())
        assert all(kernels(r["issued"][0]) == kernels(r["eager"][0]) for r in rows.values())
    assert [restarted[name]["hits"] for name in SCOPES] == [1, 1]


def with_a_scope_of_the_vendors_without_a_counterpart(x):
    torch.ops.npugraph_ex.scope_enter(["_user_stream_label"], ["first"])
    y = x * 2
    torch.ops.npugraph_ex.scope_exit()
    return y


def test_other_scopes_of_the_vendors_are_refused(tmp_path, caplog):
    theirs = torch.compile(torch.sin, backend="npugraph_ex", options={"force_eager": True})
    with torch.no_grad():
        theirs(torch.ones(3).npu())  # which registers the vendor's operators
    function = with_a_scope_of_the_vendors_without_a_counterpart
    cached = cache_compile(function, cache_dir=tmp_path)
    assert torch.equal(cached(torch.ones(3).npu()).cpu(), torch.full((3,), 2.0))
    assert cached.cache_info().bypasses == 1
    assert re.search(r"no counterpart at .*test_streams.py:\d+ in with_a_scope_of", caplog.text)
    assert "use npugx_cache.backend.scope" in caplog.text
