"""The drawn graph has the calls of the graph, and shows which value goes from where to where."""

from __future__ import annotations

from npugx_cache.backend.program import Call, Constant, Operator, Program, values_in
from npugx_cache.backend.repeats import Loop
from npugx_cache.entry.view import drawing, graph_text
from npugx_cache.entry.view.drawing import INPUT, LAYER, RESULTS, Edge
from npugx_cache.entry.view.given import inputs_of

OPERATORS = tuple(Operator("aten", name, "Tensor") for name in ("add", "mm", "view", "mean"))
LAYERS = 5


def program_of(inputs, calls, outputs):
    """A call is (operator, value, value, ...)."""
    rows = [
        Call(f"c{place}", operator, [["value", each] for each in taken], [])
        for place, (operator, *taken) in enumerate(calls)
    ]
    return Program(
        inputs=tuple(inputs),
        constants=(Constant("half", "float32", "cpu", (), ()),),
        operators=OPERATORS,
        calls=tuple(rows),
        outputs=["tuple", [["value", value] for value in outputs]],
        disable_autocast=False,
    )


def layered():
    """Calls before, LAYERS layers with a weight each, and a call after; values of each copy are
    results, such as the keys of a cache."""
    inputs = ["x", "scale", *(f"w{layer}" for layer in range(LAYERS))]
    described = ["x: x", "scale: scale"]
    described += [
        f"w{layer}: self._modules['layers']._modules['{layer}']._parameters['weight']"
        for layer in range(LAYERS)
    ]
    first = len(inputs) + 1
    calls = [(0, 0, 1)]
    each = []
    for layer in range(LAYERS):
        hidden, start = first + len(calls) - 1, first + len(calls)
        calls += [(1, hidden, 2 + layer), (2, start), (3, start, start + 1), (0, hidden, start + 2)]
        each.append(start + 1)
    calls.append((1, first + len(calls) - 1, 0, len(inputs)))
    program = program_of(inputs, calls, [first + len(calls) - 1, *each])
    return program, inputs_of(program, described)


def test_layers_are_one_box_around_the_calls_of_a_copy():
    program, inputs = layered()
    drawn = drawing.drawing(program, inputs)
    (layer,) = (at for at, node in enumerate(drawn.nodes) if node.kind == LAYER)
    assert drawn.nodes[layer].copies == LAYERS
    inside = [node for node in drawn.nodes if node.parent == layer]
    assert [node.title for node in inside] == ["mm", "view", "mean", "add"]
    assert dict(inside[0].about)["takes"] == "self.layers[i].weight"
    assert [node.title for node in drawn.nodes if node.kind == INPUT] == ["x", "scale"]
    # No end of an edge is the layer itself, so that opening it needs no other edges.
    assert layer not in {end for edge in drawn.edges for end in edge[:2]}
    last = max(at for at, node in enumerate(drawn.nodes) if node.parent == layer)
    again = {(edge.source, edge.target) for edge in drawn.edges if edge.again}
    names = {(drawn.nodes[a].title, drawn.nodes[b].title) for a, b in again}
    assert names == {("add", "mm"), ("add", "add")}
    assert {source for source, _ in again} == {last}


def test_every_use_of_a_value_is_an_edge_and_no_edge_is_more():
    program, inputs = layered()
    drawn = drawing.drawing(program, inputs)
    boxes = box_of_each_call(program, drawn)
    first = len(program.inputs) + len(program.constants)
    expected = set()
    results = next(at for at, node in enumerate(drawn.nodes) if node.kind == RESULTS)
    named = {node.title: at for at, node in enumerate(drawn.nodes) if node.kind == INPUT}

    def sources(values, target, copy):
        for value in values:
            if value >= first:
                box, of = boxes[value - first]
                again = of is not None and copy is not None and of != copy
                expected.add(Edge(box, target, again))
            elif value < len(inputs) and inputs[value].path in named:
                expected.add(Edge(named[inputs[value].path], target, again=False))

    for at, call in enumerate(program.calls):
        sources(call.values(), *boxes[at])
    sources(values_in(program.outputs), results, None)
    assert set(drawn.edges) == expected
    assert len(drawn.edges) == len(expected)


def box_of_each_call(program, drawn):
    """For each call its box, and which copy of the layer the call belongs to."""
    found = {}
    free = iter([at for at, node in enumerate(drawn.nodes) if node.kind not in (INPUT, RESULTS)])
    for item in graph_text.fold_repeats(program).items:
        if not isinstance(item, Loop):
            found[item] = next(free), None
            continue
        next(free)  # the layer
        boxes = [next(free) for _ in range(item.period)]
        for copy in range(item.copies):
            for call, box in enumerate(boxes):
                found[item.start + copy * item.period + call] = box, copy
    return found


def test_a_graph_without_repeats_has_no_layer():
    program = program_of(["x"], [(2, 0), (0, 2, 0)], [3, 0])
    drawn = drawing.drawing(program, inputs_of(program, ["x: x"]))
    assert [node.title for node in drawn.nodes] == ["x", "view", "add", "results"]
    edges = {(edge.source, edge.target) for edge in drawn.edges}
    assert edges == {(0, 1), (1, 2), (0, 2), (2, 3), (0, 3)}
