"""A program says of each call what it gives, and which line and module it comes from."""

from __future__ import annotations

import torch

from npugx_cache.backend import graph, lowering
from npugx_cache.backend.notes import Given


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 2)

    def forward(self, x):
        y = self.inner(x)
        return y.sin()


def test_notes_name_what_a_call_gives_its_line_and_its_module():
    programs = []

    def backend(graph_module, inputs):
        programs.append(graph.to_program(lowering.lower(graph_module, inputs, None))[0])
        return graph_module.forward

    with torch.no_grad():
        model = Model()
        torch.compile(model, backend=backend, dynamic=True)(torch.ones(3, 4))
    (program,) = programs
    notes = program.notes
    last = program.calls[-1].name
    assert last == "sin"
    first = Model.forward.__code__.co_firstlineno
    assert notes.results.at(-1).startswith("float32[s")
    assert notes.lines.at(-1).endswith(f"test_notes.py:{first + 2}")
    assert notes.lines.at(0).endswith(f"test_notes.py:{first + 1}")
    assert notes.modules.at(0) == "L['self'].inner"
    assert [notes.examples[name] for name in notes.examples] == [3]
    assert Given("float32", "cpu", (2, 4), (4, 1)) in notes.inputs
