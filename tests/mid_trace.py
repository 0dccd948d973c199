"""Does something in the middle of a trace: where torch runs an operator on tensors without data.

The fake of an operator can't do that: what a fake reads is a condition of the graph, or refuses it.
"""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode


def before(operator, action):
    """Call `action` with the arguments, each time that torch runs the operator without data."""
    dispatch = FakeTensorMode.__torch_dispatch__

    def act_and_dispatch(mode, func, types, args=(), kwargs=None):
        if func is operator:
            action(*args)
        return dispatch(mode, func, types, args, kwargs)

    FakeTensorMode.__torch_dispatch__ = act_and_dispatch
