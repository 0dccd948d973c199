"""A program from the store is data: whatever it could not have been written as is refused."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import _ops

from npugx_cache.backend.codegen import source_text
from npugx_cache.backend.notes import Column, Given, Notes
from npugx_cache.backend.program import Call, Constant, Function, Operator, Program
from npugx_cache.backend.runtime import bind
from npugx_cache.errors import CorruptEntry
from npugx_cache.portable import NotPortable, encode, resolve_op

BRANCHES = [["function", 0], ["function", 1]]
INNER = ["tuple", [["value", 0], ["value", 1]]]
PROGRAM = Program(
    inputs=("x", "n"),
    constants=(Constant("table", "float32", "cpu", (3,), (1,)),),
    operators=(
        Operator("aten", "add", "Tensor"),
        Operator("", "operator.getitem", ""),
        Operator("higher_order", "cond", ""),
    ),
    calls=(
        Call("add", 0, [["value", 0], ["value", 2]], [["alpha", ["value", 1]]]),
        Call("first", 1, [["value", 3], 0], []),
        Call("cond", 2, [["value", 4], *BRANCHES, ["tuple", [["value", 3]]]], []),
    ),
    outputs=["tuple", [["value", 3], ["value", 5], None]],
    disable_autocast=False,
    functions=(
        Function("inner", ("x", "y"), (Call("add", 0, [["value", 0], ["value", 1]], []),), INNER),
        Function(
            "outer",
            ("x",),
            (Call("cond", 2, [["value", 1], ["function", 0], ["function", 0], INNER], []),),
            ["tuple", [["value", 2]]],
        ),
    ),
    notes=Notes(
        inputs=(Given("float32", "cpu", (2, "s0"), ("s0", 1)), Given("int", "", ("s0",), ())),
        results=Column.of(["float32[2, s0]", "float32[s0]", ""]),
        lines=Column.of(["user/model.py:3", "user/model.py:3", ""]),
        modules=Column.of(["L['self'].layers.0", "", ""]),
        examples={"s0": 3},
    ),
)


def test_a_program_comes_back_from_its_data():
    assert Program.from_plain(PROGRAM.to_plain()) == PROGRAM


def test_a_program_of_an_entry_from_before_there_were_notes_has_none():
    data = PROGRAM.to_plain()
    del data["notes"]
    assert Program.from_plain(data) == replace(PROGRAM, notes=None)


def test_its_text_is_python_and_defines_a_function_for_each_graph():
    names: dict[str, object] = {}
    exec(compile(source_text(PROGRAM), "text", "exec"), names)
    assert [name for name in names if name != "__builtins__"] == ["inner", "outer", "forward"]


def test_the_graphs_inside_are_passed_by_the_names_of_their_functions():
    assert "cond = higher_order_cond(first, inner, outer, (add,)); del first" in source_text(
        PROGRAM
    )


def test_names_of_one_function_are_no_names_of_another():
    names: dict[str, object] = {"aten_add_Tensor": lambda a, b: a + b, "table": 5}
    exec(compile(source_text(PROGRAM), "text", "exec"), names)
    chosen = []
    names["higher_order_cond"] = lambda *given: chosen.append(given) or (7,)
    inner, outer = names["inner"], names["outer"]
    assert inner(1, 2) == (1, 2)
    assert outer(3) == ((7,),)
    assert chosen == [(5, inner, inner, (3, 5))]


def changed(change):
    data = copy.deepcopy(PROGRAM.to_plain())
    change(data)
    return data


BAD = {
    "an input that is code": lambda d: d["inputs"].__setitem__(0, "x): import os #"),
    "an input that is no text": lambda d: d["inputs"].__setitem__(0, 5),
    "a constant that is code": lambda d: d["constants"][0].__setitem__(0, "a b"),
    "a constant without sizes": lambda d: d["constants"][0].pop(),
    "a call named by code": lambda d: d["calls"][0].__setitem__(0, "x = open"),
    "a value before the first": lambda d: d["calls"][0].__setitem__(2, [["value", 4]]),
    "a distance that is no whole number": lambda d: d["calls"][0].__setitem__(2, [["value", 0.5]]),
    "an input of a program without inputs": lambda d: d.update(inputs=[], constants=[]),
    "a value that is text": lambda d: d["calls"][0].__setitem__(2, [["value", "x"]]),
    "an unknown operator": lambda d: d["calls"][0].__setitem__(1, 3),
    "a negative operator": lambda d: d["calls"][0].__setitem__(1, -1),
    "a foreign function": lambda d: d["operators"].__setitem__(1, ["", "os.system", ""]),
    "a builtin": lambda d: d["operators"].__setitem__(1, ["", "builtins.eval", ""]),
    "outputs that do not exist": lambda d: d.__setitem__("outputs", ["value", 9]),
    "an operator that takes graphs and is not known": lambda d: d["operators"].__setitem__(
        2, ["higher_order", "run_const_graph", ""]
    ),
    "a function of the future": lambda d: d["functions"][1][2][0][2].__setitem__(
        1, ["function", 1]
    ),
    "a function that does not exist": lambda d: d["calls"][2][2].__setitem__(1, ["function", 2]),
    "a negative function": lambda d: d["calls"][2][2].__setitem__(1, ["function", -1]),
    "a function that is text": lambda d: d["calls"][2][2].__setitem__(1, ["function", "inner"]),
    "a function named by code": lambda d: d["functions"][0].__setitem__(0, "f(): import os #"),
    "an input of a function that is code": lambda d: d["functions"][0][1].__setitem__(0, "x, y"),
    "a call in a function named by code": lambda d: d["functions"][0][2][0].__setitem__(0, "x = y"),
    "a value of the future in a function": lambda d: d["functions"][0].__setitem__(3, ["value", 4]),
    "an operator of the future in a function": lambda d: d["functions"][0][2][0].__setitem__(1, 3),
    "a function that is too short": lambda d: d["functions"][0].pop(),
    "no functions": lambda d: d.pop("functions"),
    "no inputs": lambda d: d.pop("inputs"),
    "calls that are no list": lambda d: d.__setitem__("calls", 5),
    "a call that is too short": lambda d: d["calls"].__setitem__(0, ["a", 0]),
    "an input that Python takes for torch": lambda d: d["inputs"].__setitem__(0, "\uff54orch"),
    "attributes of a method": lambda d: d["operators"].__setitem__(
        0, ["aten", "__getattr__.__builtins__", "get"]
    ),
    "a function of torch.ops": lambda d: d["operators"].__setitem__(
        0, ["load_library", "__call__", "__call__"]
    ),
    "another function of torch.ops": lambda d: d["operators"].__setitem__(
        0, ["import_module", "x", "default"]
    ),
    "a method of a namespace": lambda d: d["operators"].__setitem__(0, ["aten", "__dir__", ""]),
    "a method of aten in another namespace": lambda d: d["operators"].__setitem__(
        0, ["mine", "__and__", ""]
    ),
    "a method of an operator": lambda d: d["operators"].__setitem__(
        0, ["aten", "add", "overloads"]
    ),
    "an operator that opens a file": lambda d: d["operators"].__setitem__(
        0, ["aten", "from_file", ""]
    ),
    "a namespace that is a keyword": lambda d: d["operators"].__setitem__(0, ["lambda", "x", ""]),
    "an operator of several parts": lambda d: d["operators"].__setitem__(0, ["aten", "a.b", ""]),
    "a stream operator that is unknown": lambda d: d["operators"].__setitem__(
        0, ["streams", "around", ""]
    ),
    "a function with an overload": lambda d: d["operators"].__setitem__(
        1, ["", "operator.getitem", "x"]
    ),
    "a keyword of a Python function": lambda d: d["calls"][1].__setitem__(3, [["key", 1]]),
    "a keyword of an operator on graphs": lambda d: d["calls"][2].__setitem__(3, [["x", 1]]),
    "a keyword of Python": lambda d: d["calls"][0].__setitem__(3, [["lambda", 1]]),
    "a value in the place of a graph": lambda d: d["calls"][2][2].__setitem__(1, ["value", 1]),
    "a graph in the place of a value": lambda d: d["calls"][2][2].__setitem__(0, ["function", 0]),
    "a function of torch as an argument": lambda d: d["calls"][0][2].__setitem__(
        1, ["torch", "load"]
    ),
    "a function of torch in the place of a graph": lambda d: d["calls"][2][2].__setitem__(
        1, ["torch", "load"]
    ),
    "a graph in a list": lambda d: d["calls"][0][2].__setitem__(1, ["list", [["function", 0]]]),
    "a list that hides a value": lambda d: d["calls"][0][2].__setitem__(
        1, ["list", [["value", 99]], 0]
    ),
    "a dict": lambda d: d["calls"][0][2].__setitem__(1, {"x": 1}),
    "a device that is no name": lambda d: d["calls"][0][2].__setitem__(1, ["device", "cpu'"]),
    "a dtype that is another thing of torch's": lambda d: d["constants"][0].__setitem__(1, "hub"),
    "a size that is text": lambda d: d["constants"][0].__setitem__(3, ["2"]),
    "arguments that are nested too deeply": lambda d: d["calls"][0][2].__setitem__(1, nested(5000)),
}


def nested(depth):
    data = 1
    for _ in range(depth):
        data = ["list", [data]]
    return data


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_refused(name):
    with pytest.raises(CorruptEntry):
        Program.from_plain(changed(BAD[name]))


def test_every_registered_operator_may_be_called_unless_it_opens_files():
    every = torch._C._dispatch_get_all_op_names()
    names = {name for name in every if not name.startswith("streams::")}  # some work on one stream
    refused = {name for name in names if operator_of(name).fault() is not None}
    files = {"aten::from_file", "aten::from_file.out", "debugprims::load_tensor"}
    assert refused == files & names


def operator_of(name):
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return Operator(namespace, base, overload)


def others(place, kind):
    """The attributes of a part of `torch.ops` that are no part of it."""
    names = {*dir(place), *vars(place), *dir(type(place))}
    return {name for name in names if not isinstance(getattr(place, name, None), kind)}


def test_what_torch_ops_has_besides_operators_is_no_operator():
    assert {"load_library", "__getattr__"} <= others(torch.ops, _ops._OpNamespace)
    for name in others(torch.ops, _ops._OpNamespace):
        assert Operator(name, "x", "").fault(), name
    for name in others(torch.ops.aten, _ops.OpOverloadPacket):
        assert Operator("aten", name, "").fault(), name
    for name in others(torch.ops.aten.add, _ops.OpOverload):
        assert Operator("aten", "add", name).fault(), name


def test_every_dtype_layout_and_memory_format_of_torch_may_be_an_argument():
    kinds = (torch.dtype, torch.layout, torch.memory_format)
    values = [value for value in vars(torch).values() if isinstance(value, kinds)]
    assert len(values) > 40
    for value in values:
        data = changed(lambda d, value=value: d["calls"][0][2].__setitem__(1, encode(value)))
        Program.from_plain(data)


@pytest.mark.parametrize(
    "operator",
    [
        Operator("load_library", "__call__", "__call__"),
        Operator("aten", "__class__", "mro"),
        Operator("aten", "add", "overloads"),
        Operator("aten", "no_such", ""),
        Operator("", "builtins.eval", ""),
        Operator("", "os.system", ""),
        Operator("higher_order", "run_const_graph", ""),
    ],
)
def test_a_program_is_bound_to_registered_operators_alone(operator):
    code = compile("def forward(): return 1", "text", "exec")
    with pytest.raises(NotPortable, match=r"not an allowed|not registered"):
        bind(code, [("x", operator)], {}, disable_autocast=False)


@pytest.mark.parametrize("name", ["load_library", "loaded_libraries", "__class__"])
def test_only_an_operator_is_found_by_the_name_of_an_operator(name):
    with pytest.raises(NotPortable, match="not registered"):
        resolve_op(name, "__call__", "__call__")


BAD_NOTES = {
    "notes on fewer calls": lambda d: d["notes"]["lines"][1].pop(),
    "notes on more inputs": lambda d: d["notes"]["inputs"].append(["int", "", [3], []]),
    "a note that does not exist": lambda d: d["notes"]["modules"][1].__setitem__(0, 9),
    "notes that are no notes": lambda d: d.__setitem__("notes", [1]),
    "an example that is text": lambda d: d["notes"]["examples"].__setitem__("s0", "3"),
}


@pytest.mark.parametrize("name", BAD_NOTES)
def test_bad_notes_are_left_out(name):
    assert Program.from_plain(changed(BAD_NOTES[name])) == replace(PROGRAM, notes=None)


@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize("place", range(3))
def test_a_call_takes_no_result_of_its_own_and_none_of_a_later_call(place, later):
    first = len(PROGRAM.inputs) + len(PROGRAM.constants)
    args = [*PROGRAM.calls[place].args]
    args[0] = ["value", first + place + later]
    calls = [*PROGRAM.calls]
    calls[place] = calls[place]._replace(args=args)
    PROGRAM.validate()
    with pytest.raises(CorruptEntry):
        replace(PROGRAM, calls=tuple(calls)).validate()


def test_a_program_returns_nothing_that_no_call_gives():
    last = len(PROGRAM.inputs) + len(PROGRAM.constants) + len(PROGRAM.calls)
    replace(PROGRAM, outputs=["value", last - 1]).validate()
    with pytest.raises(CorruptEntry):
        replace(PROGRAM, outputs=["value", last]).validate()


BAD_TEXT = {
    "a keyword that is code": lambda d: d["calls"][0].__setitem__(3, [["a=1, b", 1]]),
    "an unknown kind of argument": lambda d: d["calls"][0].__setitem__(2, [["exec", "x"]]),
    "a torch name that is code": lambda d: d["calls"][0].__setitem__(2, [["torch", "float32; x"]]),
    "an operator that is code": lambda d: d["operators"].__setitem__(0, ["aten", "a b", "c"]),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_what_is_not_an_argument_never_becomes_text(name):
    with pytest.raises(CorruptEntry):
        source_text(Program.from_plain(changed(BAD_TEXT[name])))


PLAIN = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=8), st.booleans()),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@given(
    data=st.one_of(
        PLAIN,
        st.fixed_dictionaries(dict.fromkeys(PROGRAM.to_plain(), PLAIN)),
        st.builds(
            lambda name, value: {**PROGRAM.to_plain(), name: value},
            st.sampled_from(sorted(PROGRAM.to_plain())),
            PLAIN,
        ),
    )
)
def test_any_data_is_a_program_or_refused(data):
    try:
        program = Program.from_plain(data)
    except CorruptEntry:
        return
    assert isinstance(program, Program)
