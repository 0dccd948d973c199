"""What `readable` prints of an entry, word for word: the texts in `pages`.

The entry is written here as data, so that its texts are equal under all versions of torch.
`NPUGX_TEST_WRITE=1` writes the files anew; look at what changed before you keep it.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from npugx_cache.backend.capture.layout import Layout, Role
from npugx_cache.backend.notes import Column, Given, Notes
from npugx_cache.backend.program import Call, Constant, Function, Operator, Program
from npugx_cache.conditions import Conditions
from npugx_cache.conditions.data import Step
from npugx_cache.entry.artifact import Bindings
from npugx_cache.entry.frame import Frame
from npugx_cache.entry.view import stored_text
from npugx_cache.entry.view.page import Stored, page
from npugx_cache.entry.view.sections import ALL, OVERVIEW, SECTIONS

PAGES = Path(__file__).with_name("pages")
LAYERS = 4
HELD = [f"{which}_{layer}" for layer in range(LAYERS) for which in ("up", "down", "gate")]
INPUTS = ("x", "n", "mask", *HELD, "self_head", "scale", "flag", "y")
OPERATORS = (
    ("aten", "t", ""),
    ("aten", "mm", ""),
    ("aten", "relu", ""),
    ("aten", "add", "Tensor"),
    ("", "operator.mul", ""),
    ("aten", "view", ""),
    ("aten", "sum", "dim_IntList"),
    ("aten", "copy_", ""),
    ("higher_order", "cond", ""),
    ("mine", "lookup", ""),
    ("npugx_cache", "scope", ""),
    ("aten", "lambda", ""),
    ("", "math.floor", ""),
    ("aten", "_to_copy", ""),
)
NUMBER = {name.rpartition(".")[2]: place for place, (_, name, _) in enumerate(OPERATORS)}


class Writer:
    """Writes the calls of a program, with a note on each."""

    def __init__(self, inputs, constants):
        self.places = {name: place for place, name in enumerate((*inputs, *constants))}
        self.calls, self.notes = [], []

    def __call__(self, name, operator, *args, gives, at, module="", **kwargs):
        named = [[key, value] for key, value in kwargs.items()]
        self.calls.append(Call(name, NUMBER[operator], [*map(self.value, args)], named))
        self.notes.append((gives, f"model/decoder.py:{at}", module))
        self.places[name] = len(self.places)
        return name

    def value(self, arg):
        return ["value", self.places[arg]] if isinstance(arg, str) else arg

    def columns(self):
        results, lines, modules = (Column.of(each) for each in zip(*self.notes, strict=True))
        return {"results": results, "lines": lines, "modules": modules}


def program():
    constants = (
        Constant("table", "int64", "cpu", (4,), (1,)),
        Constant("spread", "float16", "cpu", (2, 3), (1, 2)),
    )
    write = Writer(INPUTS, [each.name for each in constants])
    hidden, seen = "x", []
    for layer in range(LAYERS):
        serial = f"_{layer}" if layer else ""
        of = f"L['self'].layers.{layer}"
        known = {"gives": "float32[s0, 8]", "module": f"{of}.mlp"}
        up = write(f"t{serial}", "t", f"up_{layer}", **known | {"gives": "float32[8, 8]"}, at=11)
        product = write(f"mm{serial}", "mm", hidden, up, **known, at=11)
        active = write(f"relu{serial}", "relu", product, **known, at=12)
        down = write(f"t_down{serial}", "t", f"down_{layer}", **known, at=13)
        product = write(f"mm_down{serial}", "mm", active, down, **known, at=13)
        size = write(f"size{serial}", "mul", "n", 2, gives=f"int s{layer + 3}", at=14, module=of)
        product = write(f"gated{serial}", "mul", product, f"gate_{layer}", **known, at=13)
        hidden = write(f"add{serial}", "add", hidden, product, **known | {"module": of}, at=15)
        write(f"view{serial}", "view", hidden, ["list", [["value", write.places[size]]]],
              gives="float32[2*s0]", at=16, module=of)  # fmt: skip
        seen.append(f"view{serial}")
    at = {"at": 21, "module": "L['self']"}
    head = write("head", "t", "self_head", gives="float32[8, 8]", **at)
    write("lambda", "mm", hidden, head, gives="float32[s0, 8]", **at)
    total = write("total", "sum", "lambda", ["list", [1]], True, gives="float32[s0, 1]", **at)
    write("kept", "copy_", "y", total, gives="float32[s0, 1]", at=22)
    branches = [["function", 0], ["function", 0]]
    operands = ["tuple", [["value", write.places["kept"]]]]
    write("chosen", "cond", "flag", *branches, operands, gives="float32[s0, 1]", at=23)
    write("looked", "lookup", "table", "spread", ["float", "inf"], gives="int64[4]", at=24)
    write("plain", "lambda", "looked", gives="int64[4]", at=24)
    write("floor", "floor", "scale", gives="int 3", at=25)
    moved = ["dtype", "float16"], ["device", "cuda:1"]
    write("there", "_to_copy", "kept", gives="float16[s0, 1]", at=26,
          dtype=["torch", "float16"], device=moved[1])  # fmt: skip
    results = ["total", "x", "table", *seen, "kept", "kept", "there"]
    outputs = ["tuple", [*([["value", write.places[name]] for name in results]), None]]
    square = [Given("float32", "cpu", (8, 8), (8, 1))]
    given = (
        Given("float32", "cpu", ("s0", 8), (8, 1)),
        Given("int", "", ("s0",), ()),
        Given("bool", "cpu", ("s0", "s0"), ("s0", 1)),
        *square * 3 * LAYERS,
        Given("float16", "cuda:0", (8, "s1"), (1, 8)),
        Given("float", "", ("s1",), ()),
        Given("bool", "", (1,), ()),
        Given("float32", "cpu", ("s0", 1), (1, 1)),
    )
    branch = Function("branch", ("x",), (Call("relu", NUMBER["relu"], [["value", 0]], []),),
                      ["tuple", [["value", 3]]])  # fmt: skip
    return Program(
        inputs=INPUTS,
        constants=constants,
        operators=tuple(Operator(*each) for each in OPERATORS),
        functions=(branch,),
        calls=tuple(write.calls),
        outputs=outputs,
        disable_autocast=False,
        notes=Notes(inputs=given, examples={"s0": 3, "s1": 2.5}, **write.columns()),
    )


TENSOR = "torch.Tensor, float32[8, 8], stride=(8, 1), cpu"
LAYER = "self._modules['layers']._modules['{}']"
GUARDS = [
    "torch_state['grad_mode'] == False",
    "torch_state['threads'] == 1",
    "type(self) is model.Decoder",
    *(
        check.format(LAYER.format(layer))
        for layer in range(LAYERS)
        for check in (
            "type({}) is model.Layer",
            "len({}._forward_hooks) == 0",
            "'forward' not in {}.__dict__",
            f"check_tensor({{}}._parameters['up'], {TENSOR})",
        )
    ),
    "len(self._modules['head']._forward_hooks) == 0",
    "len(self._modules['norm']._forward_hooks) == 0",
    "len(self._modules['tail']._forward_hooks) == 0",
    "check_tensor(x, torch.Tensor, float32[*, 8], stride=(8, 1), cpu)",
    "2 <= x.size(0)",
    "x.size(0) == mask.size(1)",
    "text == 'a\nb'",
    "this is (no) Python",
    "all_distinct(x, x.pair[0], x.pair[1])",
    "globals()['f'] is model.f (code 0123abcd)",
    "model.os is module os",
    "model.torch.float32 == torch float32",
    "func.__code__ == code a6ce430818b5",
    f"all_distinct(x, mask, {', '.join(LAYER.format(i) + '.w' for i in range(LAYERS))})",
]
KEY = [
    "backend = npugraph_ex",
    "cpu = x86_64, avx512",
    "dynamic = None",
    "option.inplace_pass = False",
    "option.static_kernel_compile = False",
    "option.unheard_of = 'x'",
    "platform = linux",
    "python = 3.12.1 (main)",
    "torch = 2.13.0 git 123",
]
PASSES = ["fold: 3 rewrites, 2 nodes removed", "nothing: 0 rewrites, 0 nodes removed"]
PASSES += [f"pass_with_a_long_name_{number}: 1 rewrites, 0 nodes removed" for number in range(3)]


def described():
    where = {f"{which}_{layer}": f"{LAYER.format(layer)}._parameters['{which}']"
             for layer in range(LAYERS) for which in ("up", "down")}  # fmt: skip
    # Siblings whose names have no numbers.
    where |= {
        f"gate_{n}": f"self._modules['gate_{c}']._parameters['w']" for n, c in enumerate("abcd")
    }
    for name in INPUTS:
        if name in where:
            yield f"{name}: {where[name]}: {TENSOR}"
        elif name == "self_head":
            tensor = "torch.Tensor, float16[8, *], stride=(1, 8), cuda:0"
            yield f"{name}: self._modules['head']._buffers['t']: {tensor}"
        else:
            yield f"{name}: {name}"


def text():
    comments = {
        stored_text.KEY: KEY,
        stored_text.SOURCE: ["model/decoder.py: forward (code 0123abcd)"],
        stored_text.PASSES: PASSES,
        stored_text.INPUTS: [*described()],
        stored_text.FRAME: ["none"],
    }
    first, *others = GUARDS
    parts = {
        **{part: [f"# {line}" for line in lines] for part, lines in comments.items()},
        stored_text.GUARDS: [
            "def guards_hold() -> bool:",
            "    return (",
            f"        {first}",
            *(f"        and {line}" for line in others),
            "    )",
        ],
        stored_text.CODE: ["def forward(x):", "    return x"],
    }
    lines = ["# model.Decoder.forward"]
    for part, written in parts.items():
        lines += ["", "", f"{stored_text.MARK}{part}", *written]
    return "\n".join(lines) + "\n"


def stored(program):
    known = stored_text.parse_text(text())
    assert known is not None
    roles = (Role.WRITTEN if name in {"n", "y"} else Role.TENSOR for name in INPUTS)
    return Stored(
        entry="0123456789abcdef" * 4,
        created=1_700_000_000.0,
        seconds=1.26,
        text=known,
        program=program,
        bindings=Bindings(
            frame=Frame(code=b"", names={}, globals=(), constants=()),
            program_code=b"",
            operators=(),
            constants=(),
            disable_autocast=False,
            layout=Layout(device="cpu", roles=tuple(roles)),
        ),
        conditions=Conditions(
            parents=(-1,) * 5,
            steps=(Step.LOCAL,) * 5,
            args=("x", "mask", "self", "func", "text"),
            checks={},
            idents=(),
            tensors=(),
        ),
    )


@pytest.fixture
def in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("section", [each for each in SECTIONS if each != ALL])
def test_a_page_is_the_expected_text(section, in_utc):
    expect(page(stored(program()), section), section)


def test_a_page_without_notes_is_the_expected_text(in_utc):
    expect(page(stored(replace(program(), notes=None)), OVERVIEW), "without_notes")


def test_a_page_without_operations_is_the_expected_text(in_utc):
    expect(page(stored(None), OVERVIEW), "without_operations")


def expect(found, name):
    expected = PAGES / f"{name}.txt"
    if os.environ.get("NPUGX_TEST_WRITE"):
        expected.write_text(found, encoding="utf-8")
    assert found == expected.read_text(encoding="utf-8")
