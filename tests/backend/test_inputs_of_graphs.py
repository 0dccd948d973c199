"""A graph whose inputs are not the values that a call gives is refused, never written."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from npugx_cache.backend.codegen import source_text
from npugx_cache.backend.graph import to_program
from npugx_cache.portable import NotPortable


def expanded():
    """What lowering made of a call with a list of two tensors and a size: three inputs for two."""
    graph = fx.Graph()
    first, _, size = (graph.placeholder(name) for name in ("first", "second", "size"))
    graph.output([graph.call_function(torch.ops.aten.expand.default, (first, [size]))])
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("names", [["given", "size"], []])
def test_other_inputs_than_the_graph_takes_are_refused(names):
    with pytest.raises(NotPortable, match=f"takes 3 values where a call gives {len(names)}"):
        to_program(expanded(), names)


def test_as_many_inputs_get_their_names():
    program, _ = to_program(expanded(), ["given", "other", "size"])
    assert "aten_expand_default(given, [size])" in source_text(program)
