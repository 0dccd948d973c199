"""Comparisons of traced tensors add no guard on symbolic sizes, whatever the sizes are."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from npugx_cache.backend.passes import layout


def symbolic(env, length, width):
    """A tensor of a symbolic number of rows."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    mode = FakeTensorMode(shape_env=env)
    return mode.from_tensor(torch.empty(length, width), symbolic_context=context)


@pytest.mark.parametrize("length", [3, 16])
def test_a_length_equal_to_a_width_or_stride_stays_symbolic(length):
    env = ShapeEnv()
    value = symbolic(env, length, 16)
    guards = list(env.guards)
    assert layout.is_dense(value)
    assert layout.is_dense(value.t())
    assert not layout.is_dense(value[:, :4])
    assert layout.is_contiguous(value)
    assert layout.fills(value.t(), value)
    assert layout.same_layout(value, value.clone())
    assert not layout.same_sizes(value, value.t())
    assert env.guards == guards
    assert not isinstance(value.shape[0], int)
    assert not value.shape[0].node.expr.is_number
