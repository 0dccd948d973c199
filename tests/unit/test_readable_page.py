"""No text of an entry becomes code in the file that `readable` prints, and no text is believed."""

from __future__ import annotations

import ast
import contextlib
import re
import tokenize
from dataclasses import replace

import pytest
import torch

from npugx_cache import cache_compile, store
from npugx_cache.backend.capture.layout import Layout, Role
from npugx_cache.backend.notes import Column, Given, Notes
from npugx_cache.backend.program import Call, Constant, Function, Operator, Program
from npugx_cache.conditions import Conditions
from npugx_cache.conditions.data import CALL, Kind
from npugx_cache.config import load
from npugx_cache.entry.artifact import (
    BINDINGS,
    CONDITIONS,
    PROGRAM,
    READABLE,
    Bindings,
    pack_conditions,
)
from npugx_cache.entry.frame import Frame
from npugx_cache.entry.readable import readable_cache
from npugx_cache.entry.view import stored_text
from npugx_cache.entry.view.sections import SECTIONS
from npugx_cache.errors import CorruptEntry
from npugx_cache.store import Draft
from npugx_cache.store.format.plain import pack

CODE = "__import__('os').abort()"
BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
ENDS = ["", "'", '"', "'''", '"""', "\\", ")", "]", "}"]
STEERING = ["\x1b[2J", "\x9b2J", "\u202e", "\u2066", "\u200b", "\x00", "\ufeff"]
HOSTILE = "x" + "".join(f"{end}{line}{CODE}" for line in BREAKS for end in ENDS) + "".join(STEERING)


def program_of(**changes):
    lines = Column(("model.py:3",), (0, 0))
    notes = Notes(
        inputs=(Given("float32", "cpu", (2, "s0"), ("s0", 1)), Given("int", "", ("s0",), ())),
        results=Column(("float32[2, s0]", "float32[2]"), (0, 1)),
        lines=lines,
        modules=Column(("L['self'].layers.0",), (0, 0)),
        examples={"s0": 3},
    )
    program = Program(
        inputs=("x", "n"),
        constants=(Constant("c", "float32", "cpu", (2,), (1,)),),
        operators=(Operator("aten", "sin", ""), Operator("aten", "sum", "dim_IntList")),
        calls=(
            Call("a", 0, [["value", 0]], []),
            Call("b", 1, [["value", 3], ["list", [1]]], []),
        ),
        outputs=["tuple", [["value", 4], ["value", 0]]],
        disable_autocast=False,
        notes=notes,
    )
    return replace(program, **changes)


STATE = {Kind.STATE: ((CALL,), ({"grad_mode": False},))}
TEXT = """# {text}


# ---- What the entry was made for (a change of any of these is a miss)
# backend = {text}
# option.{text} = {text}


# ---- Guards: what must hold for the graph to be valid
def guards_hold() -> bool:
    return (
        type(x) is {text}
        and x['{text}'] == 1
        and {text}
    )


# ---- Passes, in the order they ran
# {text}: 1 rewrites, 0 nodes removed


# ---- Inputs and parameters of the graph
# x: self._parameters['{text}']: t, float32[2, *], stride=(*, 1), cpu
# n: n['{text}']
"""


@pytest.fixture
def stored(tmp_path):
    """Stores a program, given as data, and a text; returns the id."""
    opened = store.open_store(load(cache_dir=tmp_path))

    def publish(program, text="x", kind="graph", about="f"):
        conditions = Conditions(
            parents=(-1,), steps=(0,), args=("x",), checks=STATE, idents=(), tensors=()
        )
        bindings = Bindings(
            frame=Frame(code=b"", names={}, globals=(), constants=()),
            program_code=b"",
            operators=(),
            constants=(),
            disable_autocast=False,
            layout=Layout(device="cpu", roles=(Role.WRITTEN, Role.NUMBER)),
        )
        blobs = {
            CONDITIONS: pack_conditions(conditions),
            BINDINGS: bindings.pack(),
            PROGRAM: pack(program),
            READABLE: TEXT.replace("{text}", text).encode(),
        }
        draft = Draft(
            key="e" * 64,
            identity="1d" * 16,
            kind=kind,
            cost_seconds=1.0,
            factors=(),
            about={"function": about, "reason": about},
            blobs={} if kind == "bypass" else blobs,
        )
        return opened.publish(draft).manifest.entry

    return publish


def shown(entry, tmp_path, section="overview"):
    """The text, which must be Python in which nothing is called that we did not write."""
    text = readable_cache(entry, print_output=False, section=section, cache_dir=tmp_path)
    file = tmp_path / "entry.py"
    file.write_text(text, encoding="utf-8")
    assert text.replace("\n", "").replace("\t", "").isprintable()
    with file.open("rb") as lines:
        assert tokenize.detect_encoding(lines.readline)[0] == "utf-8"
    if section != "all":
        assert "id='__import__'" not in ast.dump(ast.parse(file.read_bytes()))
    return text


@pytest.mark.parametrize("section", [each for each in SECTIONS if each not in ("code", "frame")])
@pytest.mark.parametrize("text", [HOSTILE, HOSTILE.replace("\n", ""), "# coding: utf-7"])
def test_no_text_of_an_entry_leaves_its_comment_or_its_literal(stored, tmp_path, text, section):
    notes = program_of().notes
    hostile = Column((text,), (0, 0))
    columns = {"results": hostile, "lines": hostile, "modules": hostile}
    sizes = (Given("float32", "cpu", (2, text), (text, 1)), notes.inputs[1])
    notes = replace(notes, inputs=sizes, examples={text: 3}, **columns)
    entry = stored(program_of(notes=notes).to_plain(), text.replace("\n", ""))
    shown(entry, tmp_path, section)


@pytest.mark.parametrize("text", [HOSTILE, "# coding: utf-7"])
def test_why_a_function_is_not_cached_stays_a_comment(stored, tmp_path, text):
    shown(stored(None, kind="bypass", about=text), tmp_path)


def changed(place, value):
    data = program_of().to_plain()
    *path, last = place
    found = data
    for step in path:
        found = found[step]
    found[last] = value
    return data


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["notes"], []),
        (["notes"], "text"),
        (["notes"], {"inputs": [None, None]}),
        (["notes", "inputs"], [["float32", "cpu", [1], [1]]]),
        (["notes", "inputs", 0, 0], f"float32'\n{CODE}"),
        (["notes", "inputs", 0, 1], f"cpu'\n{CODE}"),
        (["notes", "inputs", 0, 2], [None]),
        (["notes", "results"], [["x"], [0]]),
        (["notes", "results", 0], [1, 2]),
        (["notes", "lines", 1], [0, 5]),
        (["notes", "examples"], {"s0": None}),
        (["notes", "examples"], None),
    ],
)
def test_notes_that_make_no_sense_are_left_out(stored, tmp_path, place, value):
    text = shown(stored(changed(place, value)), tmp_path)
    assert "b = aten.sum.dim_IntList(a, [1])\n" in text
    assert "# results     not noted\n" in text


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["inputs", 0], f"x){CODE}"),
        (["operators", 0], ["aten", f"sin{CODE}", ""]),
        (["operators", 0], [f"aten\n{CODE}", "sin", ""]),
        (["operators", 0], ["lambda", "sin", ""]),
        (["calls", 0, 2, 0], ["value", 0, 1, f"\n{CODE}"]),
        (["calls", 0, 2, 0], ["torch", f"float32\n{CODE}"]),
        (["calls", 0, 2, 0], ["float", CODE]),
        (["calls", 0, 2, 0], ["int", CODE]),
        (["calls", 0, 2, 0], ["complex", "1"]),
        (["calls", 0, 2, 0], ["list"]),
        (["calls", 0, 2, 0], [[], []]),
        (["calls", 0, 3], [[f"x\n{CODE}", 1]]),
        (["calls", 0, 3], [1]),
        (["constants", 0, 0], f"c\n{CODE}"),
        (["constants", 0, 3], ["2"]),
        (["operators", 0], ["aten", "__getattr__.__builtins__", "get"]),
        (["operators", 0], ["load_library", "__call__", "__call__"]),
        (["calls", 0, 2, 0], ["torch", "load"]),
        (["inputs", 0], "\uff41ten"),
    ],
)
def test_a_damaged_graph_is_one_clear_error(stored, tmp_path, place, value):
    entry = stored(changed(place, value))
    with pytest.raises(CorruptEntry):
        shown(entry, tmp_path)


def test_a_dtype_of_an_input_is_a_dtype(stored, tmp_path):
    data = changed(["notes", "inputs", 0, 0], "hub")
    with pytest.raises(CorruptEntry, match="no dtype"):
        shown(stored(data), tmp_path)


PARTS = ["KEY", "SOURCE", "GUARDS", "PASSES", "INPUTS", "CODE", "FRAME"]


@pytest.mark.parametrize("with_parts", [True, False])
@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_runs_of_what_the_entry_calls_its_text(
    stored, tmp_path, monkeypatch, section, with_parts
):
    code = "ran.append(1)"
    headings = [f"# ---- {getattr(stored_text, part)}\n" for part in PARTS]
    text = f"{code}\n".join([f"{code}\n", *(headings if with_parts else []), ""])
    monkeypatch.setitem(globals(), "TEXT", text)
    entry = stored(program_of().to_plain())
    printed = readable_cache(entry, print_output=False, section=section, cache_dir=tmp_path)
    assert code in printed or section in {"overview", "graph", "guards"}
    names = {"ran": [], "__name__": "__main__"}
    with contextlib.suppress(SystemExit):
        exec(compile(printed, "printed", "exec"), names)
    assert names["ran"] == []


def test_the_parameters_of_a_graph_inside_hide_no_name_of_the_file(stored, tmp_path):
    inner = Function("inner", ("aten",), (Call("a", 0, [["value", 0]], []),), ["tuple", []])
    branches = [["function", 0], ["function", 0]]
    program = program_of(
        operators=(Operator("aten", "sin", ""), Operator("higher_order", "cond", "")),
        constants=(),
        functions=(inner,),
        calls=(Call("b", 1, [True, *branches, ["tuple", [["value", 0]]]], []),),
        outputs=["value", 2],
        notes=None,
    )
    text = shown(stored(program.to_plain()), tmp_path)
    assert "def inner(aten_2):\n    a = aten.sin.default(aten_2)" in text


def test_a_graph_that_writes_files_does_not_run(stored, tmp_path):
    program = program_of(
        operators=(Operator("npugx_cache", "dump", ""), Operator("aten", "sin", "")),
        calls=(
            Call("a", 0, [["value", 0], "name", "/folder"], []),
            Call("b", 1, [["value", 0]], []),
        ),
    )
    names = {"__name__": "shown"}
    exec(shown(stored(program.to_plain()), tmp_path), names)
    with pytest.raises(SystemExit, match="writes tensors to files"):
        names["main"]()


def run(text):
    """The names of a printed file, after its graph ran on the inputs that it makes."""
    names = {"__name__": "shown"}
    exec(compile(text, "shown", "exec"), names)
    names["results"] = names["forward"](**names["inputs"]())
    names["show"](names["results"])
    return names


def test_names_that_python_or_the_file_uses_are_no_names_of_the_graph(stored, tmp_path):
    program = program_of(
        inputs=("isinstance", "lambda"),
        constants=(Constant("tuple", "float32", "cpu", (2,), (1,)),),
        notes=None,
    )
    text = shown(stored(program.to_plain()), tmp_path)
    assert "def forward(lambda_, w):" in text
    run(text)


def test_the_current_device_of_the_worker_is_the_first_for_a_reader(stored, tmp_path):
    given = (Given("float32", "meta:current", (2, 3), (3, 1)), Given("int", "", (1,), ()))
    program = program_of(notes=replace(program_of().notes, inputs=given))
    text = shown(stored(program.to_plain()), tmp_path)
    assert "at='meta:0'" in text
    assert run(text)["results"][0].device.type == "meta"


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (Given("float32", "cpu", (0, 2), (3, 1)), "tensor('float32', [0, 2], stride=[3, 1])"),
        (Given("complex64", "cpu", (2, 0), (5, 3)), "tensor('complex64', [2, 0], stride=[5, 3])"),
        (Given("bool", "cpu", (2, 3), (3, 1)), "tensor('bool', [2, 3])"),
    ],
)
def test_the_file_makes_inputs_of_any_size(stored, tmp_path, given, value):
    notes = program_of().notes
    program = program_of(notes=replace(notes, inputs=(given, notes.inputs[1])))
    text = shown(stored(program.to_plain()), tmp_path)
    assert value in text
    assert run(text)["results"][1].shape == given.sizes


def test_a_number_that_is_not_finite_is_written_as_python_writes_it(stored, tmp_path):
    notes = program_of().notes
    number = Given("float", "", ("s1",), ())
    notes = replace(notes, inputs=(notes.inputs[0], number), examples={"s0": 3, "s1": float("inf")})
    text = shown(stored(program_of(notes=notes).to_plain()), tmp_path)
    assert 'n_2=float("inf")' in text
    run(text)


def test_the_summary_counts_symbolic_sizes_and_says_where_writes_are_assumed(stored, tmp_path):
    program = program_of()
    assert "1 tensors that modules or lists hold: float32, 24 B\n" in shown(
        stored(program.to_plain()), tmp_path
    )
    program = replace(program, operators=(*program.operators, Operator("higher_order", "cond", "")))
    text = shown(stored(program.to_plain()), tmp_path, "summary")
    assert "# may write   self.x\n" in text


def test_a_namespace_may_be_named_like_a_part_of_the_file(stored, tmp_path):
    program = program_of(operators=(Operator("tensor", "is", ""), program_of().operators[1]))
    text = shown(stored(program.to_plain()), tmp_path)
    assert 'a = getattr(torch.ops.tensor, "is").default(' in text
    assert "tensor = torch.ops" not in text


def test_a_size_that_the_trace_did_not_know_is_dynamic(stored, tmp_path):
    program = program_of(notes=replace(program_of().notes, examples={}))
    text = shown(stored(program.to_plain()), tmp_path)
    assert "# dynamic     s0 was not known: self.x.size(1)\n" in text
    run(text)


@pytest.mark.parametrize("number", ["inf", "nan", "0x1.8p+0"])
def test_a_number_among_the_arguments_is_no_device(stored, tmp_path, number):
    plain = program_of()
    calls = (plain.calls[0]._replace(args=[["value", 0], ["float", number]]), plain.calls[1])
    text = shown(stored(replace(plain, calls=calls).to_plain()), tmp_path)
    assert "is_available" not in text
    device = (plain.calls[0]._replace(args=[["value", 0], ["device", "xpu:1"]]), plain.calls[1])
    text = shown(stored(replace(plain, calls=device).to_plain()), tmp_path)
    assert 'getattr(torch, "xpu", None), "is_available"' in text


def test_a_graph_of_operators_of_the_package_says_that_the_package_is_needed(stored, tmp_path):
    plain = program_of()
    assert "import npugx_cache" not in shown(stored(plain.to_plain()), tmp_path)
    for namespace, module in (("npugx_cache", "operators"), ("higher_order", "control_flow")):
        operators = (*plain.operators, Operator(namespace, "cond", ""))
        text = shown(stored(replace(plain, operators=operators).to_plain()), tmp_path)
        assert "import npugx_cache.backend.operators" in text
        assert ("from npugx_cache.backend.control_flow" in text) == (module == "control_flow")


def test_options_are_shown_that_are_not_at_their_defaults(tmp_path):
    cached = cache_compile(
        lambda x: x + 1,
        cache_dir=tmp_path,
        options={"inplace_pass": False, "remove_noop_ops": False},
    )
    cached(torch.ones(3))
    ((row, *_),) = (list(store.open_store(load(cache_dir=tmp_path)).listing()),)
    text = shown(row.manifest.entry, tmp_path)
    listed = re.search(r"^# options((?:.*\n#   )*.*)", text, re.MULTILINE)[1]
    assert listed.replace("#", "").split() == ["inplace_pass=False", "remove_noop_ops=False"]
