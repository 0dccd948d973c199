"""Functions that use streams and events; each is called with tensors on the device.

`PROGRAMS` maps a name to the function, its arguments and the streams that it uses, by name.
"""

import npu_sim
import torch
from torch import nn

from npugx_cache.backend import scope

npu_sim.install()

SIDE = torch.npu.Stream()
GENERIC = torch.Stream(device="npu")
EVENT = torch.npu.Event()
EVENTS = [torch.npu.Event(), torch.npu.Event()]
PROGRAMS = {}


def program(*arguments, makes_streams=False, **streams):
    """`makes_streams`: torch_npu hands out 32 streams in turn: one may be SIDE again."""
    named = {} if makes_streams else {"side": SIDE, **streams}

    def add(function):
        PROGRAMS[function.__name__] = function, arguments, named
        return function

    return add


@program()
def a_block_and_wait_stream(x):
    SIDE.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(SIDE):
        y = x * 2
    torch.npu.current_stream().wait_stream(SIDE)
    return y + 1


@program()
def events_between_streams(x):
    y = x * 3
    EVENT.record()
    with torch.npu.stream(SIDE):
        EVENT.wait()
        z = y * 2
        z.record_stream(SIDE)
        EVENTS[0].record()
    w = y - 1
    EVENTS[0].wait()
    return z + w


@program()
def wait_event_and_record_event_of_a_stream(x):
    y = x.exp()
    EVENT.record(torch.npu.current_stream())
    SIDE.wait_event(EVENT)
    with torch.npu.stream(SIDE):
        z = y.sin()
        SIDE.record_event(EVENTS[1])
    torch.npu.current_stream().wait_event(EVENTS[1])
    return z


@program(makes_streams=True)
def made_inside(x):
    stream, event = torch.npu.Stream(), torch.npu.Event()
    y = x * 3
    event.record()
    stream.wait_event(event)
    with torch.npu.stream(stream):
        z = y * 2
    torch.npu.current_stream().wait_stream(stream)
    return z + 1


@program(makes_streams=True)
def generic_ones_made_inside(x):
    stream, event = torch.Stream(device="npu"), torch.Event(device="npu")
    y = x * 3
    event.record()
    stream.wait_event(event)
    with stream:
        z = y * 2
    event.record(stream)
    event.wait()
    return z


@program(SIDE)
def an_argument(x, stream):
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        y = x * 2
    torch.npu.current_stream().wait_stream(stream)
    return y


@program(GENERIC, generic=GENERIC)
def a_generic_argument(x, stream):
    with stream:
        y = x * 2
    torch.accelerator.current_stream().wait_stream(stream)
    return y


@program()
def a_block_that_nothing_waits_for(x):
    with torch.npu.stream(SIDE):
        return x * 2


@program()
def nested_blocks(x):
    SIDE.wait_stream(torch.npu.current_stream())
    other = torch.npu.Stream()
    with torch.npu.stream(SIDE):
        y = x * 2
        other.wait_stream(SIDE)
        with torch.npu.stream(other):
            z = y + 1
        SIDE.wait_stream(other)
        w = z * y
    torch.npu.current_stream().wait_stream(SIDE)
    return w.sum(), z


@program()
def the_current_stream_as_a_block(x):
    with torch.npu.stream(torch.npu.current_stream()):
        y = x * 2
    return y + 1


@program()
def waiting_of_the_host(x):
    y = x * 2
    torch.npu.current_stream().synchronize()
    SIDE.synchronize()
    return y + 1


@program()
def waiting_for_the_device(x):
    y = x * 2
    torch.npu.synchronize()
    z = y + 1
    torch.npu.synchronize(0)
    torch.accelerator.synchronize()
    return (z * 3).to("cpu", non_blocking=True)


@program()
def what_nobody_uses_is_not_issued_but_events_are(x):
    EVENT.record()
    SIDE.wait_event(EVENT)
    torch.npu.current_stream().wait_stream(SIDE)
    return x + 1


@program()
def a_write_to_an_argument(x):
    SIDE.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(SIDE):
        x.mul_(2)
    torch.npu.current_stream().wait_stream(SIDE)
    return x.add_(1)


@program()
def limited_cores(x):
    y = x * 2
    with scope.limit_core_num(4, 8):
        z = y.sin()
        with scope.limit_core_num(2, 2):
            z = z.cos()
        w = z * y
    return w + 1


@program()
def limited_cores_of_a_stream(x):
    SIDE.wait_stream(torch.npu.current_stream())
    with scope.limit_core_num(4, 8, SIDE):
        y = x * 2
        with torch.npu.stream(SIDE):
            z = x * 3
    with torch.npu.stream(SIDE), scope.limit_core_num(3, 6):
        z = z.exp()
    torch.npu.current_stream().wait_stream(SIDE)
    return y + z


@program()
def deterministic_parts(x):
    y = x * 2
    with scope.deterministic(2):
        z = y.sin()
        with scope.deterministic(0):
            z = z.cos()
        with scope.limit_core_num(4, 8), scope.deterministic(1):
            w = z * y
        w = w - z
    return w + 1


@program()
def determinism_on_a_stream(x):
    SIDE.wait_stream(torch.npu.current_stream())
    with scope.deterministic(1), torch.npu.stream(SIDE):
        y = x * 2
        if torch.are_deterministic_algorithms_enabled():
            y = y + 3
    torch.npu.current_stream().wait_stream(SIDE)
    return y if torch.are_deterministic_algorithms_enabled() else y * 5


vendors = torch.npu.npugraph_ex.scope


@program()
def scopes_of_the_vendors(x):
    y = x * 2
    with vendors.limit_core_num(4, 8):
        z = y.sin()
        with vendors.deterministic(2), vendors.limit_core_num(2, 2):
            z = z.cos()
        w = z * y
    with vendors.deterministic(1):
        return w + 1


@program(SIDE)
def scopes_of_the_vendors_on_streams(x, stream):
    SIDE.wait_stream(torch.npu.current_stream())
    with vendors.limit_core_num(4, 8, stream):
        y = x * 2
        with torch.npu.stream(SIDE), vendors.limit_core_num(3, 6):
            z = x * 3
            with vendors.limit_core_num(2, 2, torch.npu.current_stream()):
                z = z.exp()
    with vendors.limit_core_num(5, 5, torch.npu.current_stream()):
        y = y * 3
    torch.npu.current_stream().wait_stream(SIDE)
    return y + z


class Overlapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.npu.Stream()
        self.done = torch.npu.Event()
        self.left, self.right = nn.Linear(4, 4).npu(), nn.Linear(4, 4).npu()

    def forward(self, x):
        self.stream.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.stream):
            right = self.right(x)
            self.done.record()
        left = self.left(x)
        self.done.wait()
        return left + right


torch.manual_seed(0)
MODULE = Overlapped().eval()
PROGRAMS["attributes_of_a_module"] = MODULE.forward, (), {"side": MODULE.stream}
