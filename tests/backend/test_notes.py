"""A program says of each call what it gives, and which line and module it comes from."""

from __future__ import annotations

import sys

import torch
import torch.fx.experimental.proxy_tensor

from npugx_cache import location
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


def test_a_graph_is_stored_without_notes_if_a_pass_left_odd_marks_on_its_nodes(caplog):
    graph_module = torch.fx.symbolic_trace(torch.nn.ReLU())
    traced = torch.fx.experimental.proxy_tensor.make_fx(graph_module)(torch.ones(2))
    for node in traced.graph.nodes:
        node.meta["nn_module_stack"] = {"": None}
    with caplog.at_level("INFO", logger="npugx_cache"):
        program, _ = graph.to_program(traced)
    assert program.notes is None
    assert [call.name for call in program.calls] == ["relu"]
    assert "notes" in caplog.text


def test_a_path_that_is_no_text_on_sys_path_costs_no_lines(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
    stack = f'File "{tmp_path}/model.py", line 3, in forward\n    return x\n'
    assert location.lines_of_texts([stack]) == ["model.py:3"]
