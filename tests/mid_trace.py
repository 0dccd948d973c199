"""Does something in the middle of a trace: where torch makes tensors without data of the inputs.

The fake of an operator can't do that: what a fake reads is a condition of the graph, or refuses it.
"""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode


def at_each_input(action):
    """Call `action` with each tensor of which a trace makes one without data."""
    make = FakeTensorMode.from_tensor

    def act_and_make(mode, tensor, *args, **kwargs):
        action(tensor)
        return make(mode, tensor, *args, **kwargs)

    FakeTensorMode.from_tensor = act_and_make
