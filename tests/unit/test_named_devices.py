"""Which code may name the index of a device: told by instructions, which differ between Pythons.

Code that takes the device from an argument and hands it on names none; in doubt code may name one.
"""

from __future__ import annotations

import pytest
import torch

from npugx_cache.trace.device import may_name_index


def handed_on(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def handed_on_first(x, i):
    return torch.empty((x.shape[0], i + 4), device=x.device, dtype=x.dtype)


def handed_on_between(x, y):
    return torch.full((4,), 1.0, dtype=y.dtype, device=x.device, requires_grad=False)


def without_device(x, n: int):
    return x.new_empty((n, x.size(0))).view(-1)


def as_another_argument(x):
    return torch.empty(4, dtype=x.device)


def looked_at(x):
    return torch.empty(4 + x.device.index, device=x.device)


def kept(x):
    device = x.device
    return torch.empty(4, device=device)


def compared(x, y):
    return torch.empty(4, device=x.device if x.device == y.device else y.device)


def in_a_text(x, i):
    return torch.empty(4, device=f"npu{i}")


def named(x):
    return torch.empty(4, device="npu:1")


def opened(x):
    with torch.no_grad():
        return torch.empty(4, device=x.device)


@pytest.mark.parametrize(
    "function", [handed_on, handed_on_first, handed_on_between, without_device]
)
def test_a_device_that_is_handed_on_names_no_index(function):
    assert not may_name_index(function.__code__, {id(function.__code__): [function]})


@pytest.mark.parametrize(
    "function", [as_another_argument, looked_at, kept, compared, in_a_text, named, opened]
)
def test_what_is_done_with_a_device_otherwise_may_name_its_index(function):
    assert may_name_index(function.__code__, {id(function.__code__): [function]})
