"""The roles of the inputs of a graph that is captured."""

from __future__ import annotations

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from npugx_cache.backend.capture.layout import Role
from npugx_cache.backend.capture_layout import layout_of


def test_a_size_is_a_number_where_a_tensor_that_it_shaped_is_written_to():
    """A function without a schema may write to all that it gets, but a size has no memory."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        traced = mode.from_tensor(torch.empty(4), symbolic_context=context)
    graph = fx.Graph()
    size, given = graph.placeholder("size"), graph.placeholder("given")
    shaped = graph.call_function(torch.reshape, (given, [size]))
    written = graph.call_function(torch.ops.aten.mul_.Tensor, (shaped, 2))
    graph.output(written)
    size.meta["val"] = traced.shape[0]
    for node in (given, shaped, written):
        node.meta["val"] = traced
    found = layout_of(fx.GraphModule(torch.nn.Module(), graph))
    assert found.roles == (Role.NUMBER, Role.WRITTEN)
