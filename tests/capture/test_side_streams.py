"""Streams and events of a caller around captured graphs, on whatever device has them."""

import os

import pytest
import torch

from npugx_cache import cache_compile, version

DEVICE = os.environ.get("NPUGX_TEST_DEVICE", "cpu")
if DEVICE == "cpu":
    pytest.skip("a CPU has no streams", allow_module_level=True)

SIZE = 512
needs_numbers = pytest.mark.skipif(
    version.minor_version(torch.__version__) < (2, 12),
    reason="torch before 2.12 does not trace which stream is the current one",
)


def current():
    return torch.accelerator.current_stream()


def on_a_side_stream(x, side):
    side.wait_stream(current())
    with side:
        y = x @ x
    current().wait_stream(side)
    return y + x


def between_events(x, side, begin, end):
    begin.record()
    side.wait_event(begin)
    with side:
        y = x.sin()
        end.record()
    z = x.cos()
    end.wait()
    return y + z


def given_by_a_stream(x, side):
    with side:
        y = x * 2
        y.add_(1)
    return y


@pytest.fixture
def cached(tmp_path):
    return lambda function: cache_compile(function, cache_dir=tmp_path)


@pytest.fixture
def side(device):
    return torch.Stream(device=device)


def replays(cached):
    return sum(graph.replays for graph in cached.cache_info().graphs)


def random(device):
    return torch.rand(SIZE, SIZE, device=device)


@needs_numbers
def test_work_on_a_side_stream_is_in_the_graph(cached, device, side):
    run = cached(on_a_side_stream)
    for _ in range(4):
        x = random(device)
        torch.testing.assert_close(run(x, side), on_a_side_stream(x, side))
    assert replays(run) >= 2
    assert len(run.cache_info().graphs) == 1


@needs_numbers
def test_events_inside_a_graph(cached, device, side):
    run, events = cached(between_events), [torch.Event(device=device) for _ in range(2)]
    for _ in range(4):
        x = random(device)
        torch.testing.assert_close(run(x, side, *events), between_events(x, side, *events))
    events[1].synchronize()
    assert replays(run) >= 2


@needs_numbers
def test_what_the_caller_does_on_the_stream_comes_before_and_after(cached, device, side):
    run = cached(given_by_a_stream)
    for step in range(4):
        x = torch.zeros(SIZE, SIZE, device=device)
        side.wait_stream(current())
        with side:
            for _ in range(8):
                x.add_(step)  # queued: the function's own block comes after it
        y = run(x, side)
        with side:
            z = y * 3  # and this after the function's
        current().wait_stream(side)
        assert z.unique().tolist() == [(16 * step + 1) * 3]
    assert replays(run) >= 2


@needs_numbers
def test_the_current_stream_as_a_side_stream(cached, device, side):
    run, x = cached(given_by_a_stream), random(device)
    for stream in (side, current(), side, current(), side, current()):
        y = run(x, stream)
        current().wait_stream(side)
        torch.testing.assert_close(y, x * 2 + 1)
    assert len(run.cache_info().graphs) == 2


@needs_numbers
def test_calls_on_several_current_streams(cached, device, side):
    run = cached(on_a_side_stream)
    for stream in (torch.Stream(device=device), torch.Stream(device=device), current()):
        stream.wait_stream(current())
        with stream:
            for _ in range(2):
                x = random(device)
                got, wanted = run(x, side), on_a_side_stream(x, side)
                stream.synchronize()
                torch.testing.assert_close(got, wanted)
    assert len(run.cache_info().graphs) == 1


@pytest.mark.skipif(
    version.minor_version(torch.__version__) >= (2, 12), reason="this torch traces streams"
)
@pytest.mark.parametrize("given", ["side", "current"])
def test_a_block_is_refused_where_its_stream_is_not_traced(cached, device, side, given, caplog):
    run, x = cached(given_by_a_stream), random(device)
    stream = side if given == "side" else current()
    for _ in range(2):
        side.wait_stream(current())
        y = run(x, stream)
        current().wait_stream(side)
        torch.testing.assert_close(y, x * 2 + 1)
    assert run.cache_info().bypasses == 2
    assert "does not trace which stream is the current one" in caplog.text
