"""Which kernels of a trace may block each other."""

import pytest

from npugx_cache.backend.capture.deadlock import conflicts

CORES = 48


def task(stream, number, name, **args):
    return {"ph": "X", "tid": stream, "name": name, "args": {"Task Id": number, **args}}


def kernel(stream, number, name="aiv_all_gather", cores=30, kind="KERNEL_AIVEC", **args):
    args = {"Schem Mode": 1, "Task Type": kind, "Numblocks": cores, **args}
    return task(stream, number, name, **args)


def test_two_kernels_that_nothing_orders():
    (found,) = conflicts([kernel("s1", 1), kernel("s2", 1, "MoeDistributeDispatchV2")], CORES)
    assert "aiv_all_gather (task 1 of s1, 30 cores) and MoeDistributeDispatchV2" in found


@pytest.mark.parametrize(
    "other",
    [
        kernel("s1", 2),
        kernel("s2", 1, cores=18),
        kernel("s2", 1, "MatMul"),
        kernel("s2", 1, **{"Schem Mode": 0}),
        kernel("s2", 1, kind="KERNEL_AICORE"),
        kernel("s2", 1, kind="KERNEL_MIX_AIC", **{"Task Ration": 0}),
        {"ph": "M", "name": "a row that is no task"},
    ],
    ids=["one stream", "few cores", "no communication", "any mode", "cube", "mixed cube", "meta"],
)
def test_what_can_not_block(other):
    assert conflicts([kernel("s1", 1), other], CORES) == []


def test_a_mixed_kernel_takes_two_vector_cores_per_block():
    mixed = kernel("s2", 1, cores=12, kind="KERNEL_MIX_AIC", **{"Task Ration": 2})
    assert "24 cores" in conflicts([kernel("s1", 1), mixed], CORES)[0]


def test_an_event_orders_also_through_another_stream():
    rows = [
        kernel("s1", 1),
        task("s1", 2, "EVENT_RECORD_7"),
        task("s2", 1, "EVENT_WAIT_7"),
        task("s2", 2, "MEM_WRITE_VALUE_8"),
        task("s3", 1, "MEM_WAIT_VALUE_8"),
        kernel("s3", 2),
    ]
    assert conflicts(rows, CORES) == []
    assert conflicts([row for row in rows if "8" not in row["name"]], CORES) != []


def test_an_event_that_is_recorded_too_early_orders_nothing():
    rows = [
        task("s1", 1, "EVENT_RECORD_7"),
        kernel("s1", 2),
        task("s2", 1, "EVENT_WAIT_7"),
        kernel("s2", 2),
    ]
    assert len(conflicts(rows, CORES)) == 1


def test_an_activated_stream_goes_on_after_its_host():
    rows = [
        kernel("stream1", 1),
        task("stream1", 2, "STREAM_ACTIVE", **{"Active Stream Id": 2}),
        kernel("stream2", 1),
    ]
    assert conflicts(rows, CORES) == []


def test_streams_that_wait_for_each_other():
    rows = [
        task("s1", 1, "EVENT_WAIT_1"),
        task("s1", 2, "EVENT_RECORD_2"),
        task("s2", 1, "EVENT_WAIT_2"),
        task("s2", 2, "EVENT_RECORD_1"),
    ]
    (found,) = conflicts(rows, CORES)
    assert found.startswith("streams wait for one another in a circle")


@pytest.mark.parametrize("rows", [[1], [{"ph": "X", "tid": 1, "args": []}]])
def test_what_is_no_trace_is_said(rows):
    with pytest.raises(ValueError, match="not a trace"):
        conflicts(rows, CORES)
