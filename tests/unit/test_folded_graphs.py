"""Repeated layers are one function, in the code that runs and in the text that people read.

Both compute what the graph computes, and the code frees each result as early as the calls do.
"""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._dynamo.eval_frame import set_eval_frame

from npugx_cache.backend import repeats
from npugx_cache.backend.codegen import CALLS_SAVED, operator_names, source_text
from npugx_cache.backend.notes import Column, Given, Notes
from npugx_cache.backend.program import MAIN, Call, Operator, Program, values_in
from npugx_cache.entry.view import graph_text, needs
from npugx_cache.entry.view.given import inputs_of

OPERATORS = tuple(Operator("", f"operator.{name}", "") for name in ("add", "sub", "mul"))


PRIME = 1_000_003


class Modular:
    """Stands for the module `operator`: results of many multiplications stay small."""

    def add(self, a, b):
        return (a + b) % PRIME

    def sub(self, a, b):
        return (a - b) % PRIME

    def mul(self, a, b):
        return a * b % PRIME


MODULAR = Modular()
FUNCTIONS = (MODULAR.add, MODULAR.sub, MODULAR.mul)


def program_of(inputs, calls, outputs):
    """A program on integers; a call is (operator, argument, argument), an argument a value."""
    rows = [
        Call(f"c{place}", op, [["value", a], ["value", b]], [])
        for place, (op, a, b) in enumerate(calls)
    ]
    return Program(
        inputs=tuple(inputs),
        constants=(),
        operators=OPERATORS,
        calls=tuple(rows),
        outputs=["tuple", [["value", value] for value in outputs]],
        disable_autocast=False,
    )


def stored_result(program, values):
    names = dict(zip(operator_names(program), FUNCTIONS, strict=True))
    exec(source_text(program), names)
    return names["forward"](*values)


def shown_result(program, described, values):
    inputs = inputs_of(program, described)
    text = "\n".join(graph_text.graph_text(program, inputs))
    names = {"operator": MODULAR}
    exec(text, names)
    passed = graph_text.parameters(program, inputs)
    held = {each.path: value for each, value in zip(inputs, values, strict=True) if each.held}
    plain = {passed[each.name]: v for each, v in zip(inputs, values, strict=True) if not each.held}
    return names["forward"](**plain, **({"w": held} if held else {})), text


def layers(count, *, of_each=False, first_differs=False):
    """Layers of four calls on `x`, each with two weights of its own, and a scale for all."""
    inputs = ["x", "scale"]
    described = ["x: x", "scale: scale"]
    for place in range(count):
        for name in ("a", "b"):
            path = f"self._modules['layers']._modules['{place}']._parameters['{name}']"
            inputs.append(f"layers_{place}_{name}")
            described.append(f"layers_{place}_{name}: {path}")
    calls, hidden, kept = [], 0, []
    for place in range(count):
        a, b, base = 2 + 2 * place, 3 + 2 * place, len(inputs) + len(calls)
        calls.append((2, hidden, a))
        calls.append((0 if place or not first_differs else 1, base, 1))
        calls.append((2, base + 1, b))
        calls.append((0, base + 2, hidden))
        hidden = base + 3
        kept.append(base + 1)
    calls.append((1, hidden, 0))
    last = len(inputs) + len(calls) - 1
    return program_of(inputs, calls, [last, *(kept if of_each else [])]), described


@pytest.mark.parametrize("of_each", [False, True])
@pytest.mark.parametrize("first_differs", [False, True])
def test_layers_are_one_function_that_a_loop_calls(of_each, first_differs):
    program, described = layers(9, of_each=of_each, first_differs=first_differs)
    values = list(range(2, 2 + len(program.inputs)))
    result, text = shown_result(program, described, values)
    assert result == stored_result(program, values)
    assert "for i in range(" in text
    if first_differs and of_each:
        return  # other calls than those of one layer may be the copies
    assert ("for i in range(1, 9):" if first_differs else "for i in range(9):") in text
    assert "a=w[f'self.layers[{i}].a']" in text
    assert text.count("operator.mul(") == (4 if first_differs else 2)


def test_what_is_repeated_inside_a_repeated_block_is_folded_too():
    inputs = ["x", "y"]
    calls, value = [], 0
    for _ in range(4):
        outer = value
        for _ in range(5):
            for op, other in ((2, 1), (1, 0), (0, 1), (1, 1), (2, 0)):
                calls.append((op, value, other))
                value = 1 + len(calls)
        calls.append((0, value, outer))
        value = 1 + len(calls)
    program = program_of(inputs, calls, [value])
    lines = Column.of("outer" if place % 26 == 25 else "inner" for place in range(len(calls)))
    none = Column.of([""] * len(calls))
    notes = Notes(inputs=(Given("int", "", (2,), ()),) * 2, results=none, lines=lines, modules=none)
    program = replace(program, notes=notes)
    result, text = shown_result(program, ["x: x", "y: y"], [2, 3])
    assert result == stored_result(program, [2, 3])
    assert text.count("\ndef ") == 3
    assert "for i in range(4):" in text
    assert "for j in range(5):" in text


def test_calls_with_other_labels_are_not_folded():
    program, _ = layers(6)
    assert list(repeats.loops_in(repeats.fold(program, [""] * len(program.calls), saved=12)))
    labels = list(range(len(program.calls)))
    assert not list(repeats.loops_in(repeats.fold(program, labels, saved=12)))


@st.composite
def repeated_programs(draw):
    """Blocks with random dataflow, repeated, among calls that are not."""
    inputs = [f"v{place}" for place in range(draw(st.integers(2, 6)))]
    calls: list[tuple[int, int, int]] = []

    def one(low, back):
        value = st.integers(max(low, len(inputs) + len(calls) - back), len(inputs) + len(calls) - 1)
        calls.append((draw(st.integers(0, 2)), draw(value), draw(value)))

    def stray(start, stop):
        """Let one call of a late copy take a value from elsewhere than those of the others do."""
        inside = [
            (place, at)
            for place in range(start, stop)
            for at in (1, 2)
            if calls[place][at] >= len(inputs) + start
        ]
        if inside:
            place, at = draw(st.sampled_from(inside))
            call = list(calls[place])
            call[at] -= draw(st.integers(1, min(call[at], 9)))
            calls[place] = tuple(call)

    for _ in range(draw(st.integers(0, 3))):
        one(0, 99)
    for _ in range(draw(st.integers(1, 2))):
        period, start = draw(st.integers(4, 7)), len(calls)
        for _ in range(period):
            one(0, draw(st.integers(1, 9)))
        block = calls[start:]
        for copy in range(1, draw(st.sampled_from([2, 3, 5, 6]))):
            for op, *arguments in block:
                moved = []
                for value in arguments:
                    inside = value >= len(inputs) + start
                    near = draw(st.integers(0, 9)) > 0 if not inside else True
                    shift = copy * period if inside or (not near and value) else 0
                    moved.append(min(value + shift, len(inputs) + len(calls) - 1))
                calls.append((op, *moved))
        if draw(st.booleans()):
            stray(start + 2 * period, len(calls))
        for _ in range(draw(st.integers(0, 2))):
            one(0, 9)
    count = len(inputs) + len(calls)
    outputs = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))
    return program_of(inputs, calls, [count - 1, *outputs])


@settings(max_examples=60)
@given(program=repeated_programs())
def test_any_folded_graph_computes_the_same(program):
    values = [3 + 2 * place for place in range(len(program.inputs))]
    described = [f"{name}: {name}" for name in program.inputs]
    assert shown_result(program, described, values)[0] == called_one_by_one(program, values)


class Number:
    """A result, of which it can be seen whether anything still holds it."""

    def __init__(self, value):
        self.value = value


class Watched:
    """Calls of operators on numbers: what each computes, and which results are held by then."""

    def __init__(self):
        self.numbers = []
        self.seen = []

    def operator(self, compute):
        def run(a, b):
            held = [place for place, number in enumerate(self.numbers) if number() is not None]
            made = Number(compute(a.value, b.value))
            self.numbers.append(weakref.ref(made))
            self.seen.append((made.value, held))
            return made

        return run


def watched_runs(program, *, saved=CALLS_SAVED):
    """What the text of a program does, and what its calls do one by one."""
    folded, plain = Watched(), Watched()
    names = dict(zip(operator_names(program), map(folded.operator, FUNCTIONS), strict=True))
    exec(source_text(program, saved=saved), names)
    inputs = [Number(3 + 2 * place) for place in range(len(program.inputs))]
    results = names[MAIN](*inputs)
    wanted = one_by_one(program, inputs, [plain.operator(each) for each in FUNCTIONS])
    return (folded, results), (plain, wanted)


def one_by_one(program, inputs, functions):
    """The results of a program without functions, each freed after its last use."""
    last = {value: place for place, call in enumerate(program.calls) for value in call.values()}
    kept = set(values_in(program.outputs))
    values = dict(enumerate(inputs))
    for place, call in enumerate(program.calls):
        made = len(inputs) + place
        values[made] = functions[call.operator](*(values[value] for value in call.values()))
        for value in {made, *call.values()}:
            if last.get(value, place) == place and value not in kept and value >= len(inputs):
                del values[value]
    return tuple(values[value] for value in values_in(program.outputs))


def called_one_by_one(program, values):
    return one_by_one(program, values, FUNCTIONS)


@settings(max_examples=150)
@given(program=repeated_programs())
def test_code_with_blocks_computes_and_frees_as_the_calls_do(program):
    (folded, results), (plain, wanted) = watched_runs(program, saved=8)
    assert [each.value for each in results] == [each.value for each in wanted]
    assert folded.seen == plain.seen


@pytest.mark.parametrize("of_each", [False, True])
@pytest.mark.parametrize("first_differs", [False, True])
def test_the_code_of_many_layers_has_one_function_for_all(of_each, first_differs):
    program, _ = layers(40, of_each=of_each, first_differs=first_differs)
    text = source_text(program)
    assert text.count("operator_mul(") <= 8, text
    assert text.count("block(dying, ") >= 38
    (folded, results), (plain, wanted) = watched_runs(program)
    assert [each.value for each in results] == [each.value for each in wanted]
    assert folded.seen == plain.seen


def test_a_copy_is_no_call_where_it_would_keep_what_nothing_uses():
    program, _ = layers(40, of_each=True)
    last, kept = program.outputs[1][0], program.outputs[1][1:]
    program = replace(program, outputs=["tuple", [last, *kept[:30]]])
    text = source_text(program)
    assert text.count("= block(") == 30
    assert text.count("operator_mul(") == 2 + 10 * 2
    (folded, results), (plain, wanted) = watched_runs(program)
    assert [each.value for each in results] == [each.value for each in wanted]
    assert folded.seen == plain.seen


@pytest.mark.parametrize("of", ["this layer", "the layer before"])
@pytest.mark.parametrize("place", [0, 1, 2, 3, 20, 39])
def test_a_layer_that_takes_a_value_from_elsewhere_is_not_run_as_the_others(place, of):
    """The second call of a layer reads the result of the first, the last that of a layer before."""
    program, _ = layers(40)
    call = 4 * place + (1 if of == "this layer" else 3)
    first, second = program.calls[call].values()
    values = (1, second) if of == "this layer" else (first, 0)
    calls = list(program.calls)
    calls[call] = calls[call].with_values(values)
    program = replace(program, calls=tuple(calls))
    (folded, results), (plain, wanted) = watched_runs(program)
    assert [each.value for each in results] == [each.value for each in wanted]
    assert folded.seen == plain.seen


def wide_layers(count, width):
    """Layers of many weights each: a call with more than thirty arguments keeps them."""
    inputs = ["x", *(f"w{place}" for place in range(count * width))]
    calls, hidden = [], 0
    for place in range(count * width):
        calls.append((place % width % 2 if place % width else 2, hidden, 1 + place))
        hidden = len(inputs) + len(calls) - 1
    return program_of(inputs, calls, [hidden])


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("width", [5, 29, 30, 31, 40])
def test_a_block_frees_what_it_is_handed_however_it_is_called(width, looked_at):
    program = wide_layers(30, width)
    assert source_text(program).count("= block(dying, ") == 30
    if looked_at:  # as while another thread is in a function that `torch.compile` made
        set_eval_frame(False)
    try:
        (folded, results), (plain, wanted) = watched_runs(program)
    finally:
        set_eval_frame(None)
    assert [each.value for each in results] == [each.value for each in wanted]
    assert folded.seen == plain.seen


def test_names_of_a_program_are_no_names_of_blocks_and_their_parameters():
    program, _ = layers(40)
    named = ("block", "dying", "p0", "p1", "p2", *program.inputs[5:])
    program = replace(program, inputs=named)
    (folded, results), (plain, wanted) = watched_runs(program)
    assert "def block_(dying_, p1_, p2_, p3)" in source_text(program)
    assert [each.value for each in results] == [each.value for each in wanted]
    assert folded.seen == plain.seen


@given(program=repeated_programs())
def test_a_program_is_what_was_stored(program):
    assert Program.from_plain(program.to_plain()) == program


def test_layers_are_stored_as_equal_calls():
    calls = [(place % 2, 9 + place if place else 0, 1 + place) for place in range(8)]
    program = program_of(["x", *(f"w{place}" for place in range(9))], calls, [17])
    rows = [row[1:] for row in program.to_plain()["calls"]]
    assert rows[2:4] == rows[4:6] == rows[6:8]


def test_a_keyword_may_be_named_like_a_reference():
    """`addcmul(..., value=0.5)`: what is a value or a device is told by the argument alone."""
    operators = (Operator("aten", "addcmul", ""), Operator("aten", "zeros", ""))
    half, device = ["float", (0.5).hex()], ["device", "cuda:0"]
    calls = [
        Call(f"c{place}", 0, [["value", place], "value", 3], [["value", half]])
        for place in range(16)
    ]
    calls.append(Call("made", 1, [], [["device", device]]))
    program = Program(
        inputs=("x",),
        constants=(),
        operators=operators,
        calls=tuple(calls),
        outputs=["value", 17],
        disable_autocast=False,
    )
    program.validate()
    assert "c15 = aten_addcmul_default(c14, 'value', 3, value=0.5); del c14" in source_text(program)
    text = "\n".join(graph_text.graph_text(program, inputs_of(program, ["x: x"])))
    assert "aten.addcmul.default(hidden, 'value', 3, value=0.5)" in text
    assert 'getattr(torch, "cuda", None)' in "\n".join(needs.check(program, []))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([f"layers.{place}" for place in range(6)], "# self.layers[i]\n"),
        (["layers.0", "layers.1", "layers.3", *["x"] * 3], "# self.layers[0] or self.layers[1]"),
        (["a", "a", "a", "b", "b", "b"], "# self.a or self.b\n"),
        (["a"] * 6, "# self.a\n"),
        ([f"ins.{place}" for place in range(6)], "def in_("),
        ([f"tuples.{place}" for place in range(6)], "def tuple_2("),
    ],
)
def test_a_block_names_the_modules_of_all_its_copies(names, shown):
    program, described = layers(6)
    modules = Column.of([f"L['self'].{name}" for name in names for _ in range(4)] + [""])
    none = Column.of([""] * len(program.calls))
    inputs = (Given("int", "", (2,), ()),) * len(program.inputs)
    notes = Notes(inputs=inputs, results=none, lines=none, modules=modules)
    values = list(range(2, 2 + len(program.inputs)))
    result, text = shown_result(replace(program, notes=notes), described, values)
    assert result == stored_result(program, values)
    assert shown in text


@pytest.mark.parametrize("name", ["lambda", "it's", "}", "{", "\\", "[0]", "\"q\"'p'", "²", "01"])
def test_a_weight_may_have_any_name(name):
    program, described = layers(6)
    described = [line.replace("['a']", f"[{name!r}]") for line in described]
    values = list(range(2, 2 + len(program.inputs)))
    result, _ = shown_result(program, described, values)
    assert result == stored_result(program, values)


def test_a_loop_counts_as_the_modules_that_it_names_do():
    operators = (0, 1, 2, 2, 1, 0) * 4
    calls = [(op, 1 + place, 0) for place, op in enumerate(operators)]
    program = program_of(["x", "y"], calls, [len(calls) + 1])
    modules = Column.of([f"L['self'].layers.{2 + place // 6}" for place in range(24)])
    none = Column.of([""] * 24)
    inputs = (Given("int", "", (2,), ()),) * 2
    notes = Notes(inputs=inputs, results=none, lines=none, modules=modules)
    program = replace(program, notes=notes)
    result, text = shown_result(program, ["x: x", "y: y"], [2, 3])
    assert result == stored_result(program, [2, 3])
    assert "# self.layers[i]\n" in text
    assert "for i in range(2, 6):" in text
