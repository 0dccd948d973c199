"""Attention with lengths on the host: one graph for all lengths, updated at every replay."""

import os
from pathlib import Path

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import attention
import npu_sim
import torch
from attention import CAPTURE, SEEN, UPDATE, compiled, inputs, score, score_v2

from npugx_cache import cache_compile
from npugx_cache.backend.capture import planned

SCRIPT = Path(__file__).parent / "growing.py"


def step(attend):
    def function(q, k, v, first, second):
        return attend(q * 2, k, v, [first, second]) + attend(q, k + 1, v, [second + 1, 2]) * 2

    return function


def wanted(q, k, v, first, second):
    q, k, v = q.cpu(), k.cpu(), v.cpu()
    one = attention.attend(q * 2, k, v, [first, second], 0.5)
    return one + attention.attend(q, k + 1, v, [second + 1, 2], 0.5) * 2


@pytest.mark.parametrize("attend", [score, score_v2], ids=lambda f: f.__name__)
def test_growing_lengths_are_one_capture(attend, tmp_path):
    function = step(attend)
    cached = cache_compile(function, dynamic=True, cache_dir=tmp_path)
    tensors = inputs()
    for first, second in [(2, 3), (3, 4), (4, 5), (6, 7), (3, 4)]:
        torch.testing.assert_close(
            cached(*tensors, first, second).cpu(), wanted(*tensors, first, second)
        )
    info = cached.cache_info()
    assert (info.bypasses, info.misses, [each.replays for each in info.graphs]) == (0, 1, [5])
    restored = cache_compile(function, dynamic=True, cache_dir=tmp_path)
    for first, second in [(3, 6), (4, 7)]:
        torch.testing.assert_close(
            restored(*tensors, first, second).cpu(), wanted(*tensors, first, second)
        )
    info = restored.cache_info()
    assert (info.hits, info.misses, [each.replays for each in info.graphs]) == (1, 0, [2])


def test_capture_alone_updates_too(tmp_path):
    cached = cache_compile(step(score), backend="npugraphs", dynamic=True, cache_dir=tmp_path)
    tensors = inputs()
    for lengths in [(2, 3), (3, 4), (6, 7)]:
        torch.testing.assert_close(cached(*tensors, *lengths).cpu(), wanted(*tensors, *lengths))
    assert [each.replays for each in cached.cache_info().graphs] == [3]


def test_a_restarted_worker_captures_once_for_all_lengths(surroundings):
    kept = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD", "LD_LIBRARY_PATH", "NPU_STUB_LIB")
    environment = {name: os.environ[name] for name in (*kept, "TASK_QUEUE_ENABLE")}
    cold, warm = (surroundings.run(str(SCRIPT), **environment) for _ in range(2))
    assert (cold["hits"], cold["misses"], cold["bypasses"]) == (0, 1, 0)
    assert (warm["hits"], warm["misses"], warm["bypasses"]) == (1, 0, 0)
    assert not warm["compiler"]
    for each in (cold, warm):
        assert each["worst"] < 1e-6
        assert each["replays"] == [5]
        assert "any length" in each["shapes"][0]


def test_a_plan_holds_for_all_lengths():
    run, other = (compiled(step(score), *inputs(5, 3), 3, 4) for _ in range(2))
    tensors = inputs()
    run(*tensors, 2, 5)
    run(*inputs(9), 4, 5)
    first, second = (graph.tally.planned for graph in run.captures.graphs.values())
    assert second.identity != first.identity
    other(*tensors, 3, 6)
    (graph,) = other.captures.graphs.values()
    assert graph.tally.planned.identity == first.identity
    assert [planned.checked(planned.plain_spec(spec)) for spec in first.inputs] == [*first.inputs]
    assert [other.prepare(each) for each in (first, second)] == ["", ""]
    for given in (tensors, inputs(9)):
        torch.testing.assert_close(other(*given, 4, 2).cpu(), wanted(*given, 4, 2))
    assert [graph.replays for graph in other.captures.graphs.values()] == [2, 1]


def test_the_graph_is_started_and_then_updated_on_a_stream_of_its_own():
    run = compiled(step(score), *inputs(5, 3), 3, 4)
    tensors = inputs()
    for expected in ([*CAPTURE, "replay", *UPDATE], ["replay", *UPDATE]):
        with npu_sim.issued() as found:
            run(*tensors, 2, 5)
        seen = [each for each in found if each.what in SEEN]
        assert [each.what for each in seen] == expected
        assert {each.stream for each in seen if each.what == "replay"} == {""}
        (beside,) = {each.stream for each in seen if each.what in UPDATE}
        assert beside != ""
        marks = [each for each in found if each.what in ("record", "wait")]
        assert marks[-1].stream == ""  # what the next updates wait for
    assert npu_sim.waiting() == 0


def test_a_size_is_part_of_the_key_and_a_length_is_not():
    run = compiled(step(score), *inputs(5, 3), 3, 4)
    for rows, first, second in [(8, 2, 3), (9, 4, 3), (8, 5, 6), (9, 2, 2)]:
        tensors = inputs(rows)
        got = run(*tensors, first, second)
        torch.testing.assert_close(got.cpu(), wanted(*tensors, first, second))
    assert sorted(graph.replays for graph in run.captures.graphs.values()) == [2, 2]


def test_without_room_for_a_graph_the_lengths_are_right_too():
    run = compiled(step(score), *inputs(5, 3), 3, 4, capture_limit=1)
    for rows, first, second in [(8, 2, 3), (9, 4, 3), (9, 5, 6), (8, 5, 6)]:
        tensors = inputs(rows)
        got = run(*tensors, first, second)
        torch.testing.assert_close(got.cpu(), wanted(*tensors, first, second))


def length_in_the_graph(q, k, v, first, second):
    return score(q, k, v, [first, second]) * second


def test_a_length_of_which_more_depends_is_part_of_the_key():
    run = compiled(length_in_the_graph, *inputs(5, 3), 3, 4)
    tensors = inputs()
    q, k, v = (each.cpu() for each in tensors)
    for first, second in [(2, 3), (4, 3), (4, 5), (6, 5)]:
        got = run(*tensors, first, second)
        want = attention.attend(q, k, v, [first, second], 0.5) * second
        torch.testing.assert_close(got.cpu(), want)
    assert sorted(graph.replays for graph in run.captures.graphs.values()) == [2, 2]


def test_an_update_that_fails_leaves_no_graph_waiting():
    run = compiled(step(score), *inputs(5, 3), 3, 4)
    tensors = inputs()
    run(*tensors, 2, 3)
    with pytest.raises(ValueError, match="a length below 0"):
        run(*tensors, -1, 3)
    assert npu_sim.waiting() == 0
    assert len(run.captures.graphs) == 0
    torch.testing.assert_close(run(*tensors, 3, 3).cpu(), wanted(*tensors, 3, 3))


def test_tasks_have_the_core_limits_of_their_stream():
    run = compiled(step(score), *inputs(5, 3), 3, 4)
    tensors, stream = inputs(), torch.npu.current_stream()
    before = torch.npu.get_stream_limit(stream)
    torch.npu.set_stream_limit(stream, 8, 16)
    try:
        got = run(*tensors, 2, 3)
        torch.testing.assert_close(got.cpu(), wanted(*tensors, 2, 3))
        (graph,) = run.captures.graphs.values()
        assert {group.limits for group in graph.tasks._updates._groups} == {(8, 16)}
    finally:
        torch.npu.set_stream_limit(stream, before["cube_core_num"], before["vector_core_num"])


def test_graphs_do_not_keep_what_their_tasks_are_given():
    run = compiled(step(score), *inputs(5, 3), 3, 4, clone_input=False)
    tensors = inputs()
    run(*tensors, 2, 3)
    before = torch.npu.memory_allocated()
    size = sum(each.untyped_storage().nbytes() for each in tensors)
    del tensors
    assert torch.npu.memory_allocated() <= before - size


def paged(query, keys, values, table, lengths, out):
    torch.ops.atb._npu_paged_attention(query + 1, keys, values, 1, 1, 0.5, table, lengths, out)
    return out * 2


def test_lengths_in_a_tensor_on_the_host():
    def made(batch):
        q, k, v = inputs(8, batch)
        return q, k, v, torch.zeros(batch, 1, dtype=torch.int32).npu()

    example = torch.tensor([3, 4, 5], dtype=torch.int32)
    run = compiled(paged, *made(3), example, torch.zeros(3, 1, 4).npu())
    for lengths in ([2, 3], [3, 4], [1, 2, 3], [8, 8]):
        tensors = made(len(lengths))
        out = torch.zeros(len(lengths), 1, 4).npu()
        got = run(*tensors, torch.tensor(lengths, dtype=torch.int32), out)
        q, k, v = (each.cpu() for each in tensors[:3])
        want = attention.attend(q + 1, k, v, lengths, 0.5)
        torch.testing.assert_close(got.cpu(), want * 2)
        torch.testing.assert_close(out.cpu(), want)


def test_a_replay_that_nobody_updates_waits():
    graph, event = torch.npu.NPUGraph(), torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        graph.capture_begin()
        event.wait(stream)
        event.reset(stream)
        graph.capture_end()
    graph.replay()
    assert npu_sim.waiting() == 1
    with pytest.raises(RuntimeError, match="507046"):
        torch.npu.synchronize()
    event.record(torch.npu.Stream())
    torch.npu.synchronize()
    assert npu_sim.waiting() == 0
