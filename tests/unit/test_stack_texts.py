"""The stack of a node of a trace is the text that Dynamo writes."""

from __future__ import annotations

import torch

from npugx_cache.entry.size_history import Known
from npugx_cache.trace import dynamo


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return add(self.linear(x), x) + torch.nn.functional.dropout(x, p=0.5, training=False)


LAYER = Layer()


def add(x, y):
    return [each * 2 for each in (x, y)][1] + y


def twice(x):
    for _ in range(2):
        x = LAYER(x)
    with torch.no_grad():
        return (x * 2, x - 1)[0]


def stacks(graph_module):
    return [(node.name, node.stack_trace) for node in graph_module.graph.nodes]


def test_each_node_has_the_stack_that_dynamo_writes():
    theirs = []

    def keep(graph_module, _):
        theirs.extend(stacks(graph_module))
        return graph_module

    x = torch.ones(3)
    with torch.no_grad():
        torch.compile(twice, backend=keep)(x)
        trace = dynamo.run(twice, (x,), {}, dynamic=None, known=Known([], alone=True))
    ours = dict(stacks(trace.graph))
    written = {name: stack for name, stack in theirs if stack}
    assert len(written) > 8
    assert written.items() <= ours.items()


def test_equal_code_of_two_files_keeps_its_own_places(tmp_path):
    functions = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.py"
        file.write_text("def go(x):\n    return x.sin() + 1\n")
        space = {}
        exec(compile(file.read_text(), file, "exec"), space)
        functions.append(space["go"])

    def both(x):
        return functions[0](x), functions[1](x)

    with torch.no_grad():
        trace = dynamo.run(both, (torch.ones(3),), {}, dynamic=None, known=Known([], alone=True))
    sines = [stack for name, stack in stacks(trace.graph) if name.startswith("sin")]
    assert ["one.py" in stack for stack in sines] == [True, False]
    assert ["two.py" in stack for stack in sines] == [False, True]
