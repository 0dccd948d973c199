"""A trace is closed: what no rule knows is refused, and each place and each rule is needed."""

from __future__ import annotations

import dis
import math
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.source import LocalSource
from torch._dynamo.variables import TorchInGraphFunctionVariable, VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.constant import ConstantVariable

from npugx_cache import cache_compile
from npugx_cache.trace import observer
from npugx_cache.trace.rules import by_value, instructions, pure

X = torch.tensor([-1.0, 2.0])
METHOD = torch.Tensor.relu
RULES_OFF = Path(__file__).with_name("rules_off.py")
BEFORE_3_11 = """
    BINARY_ADD BINARY_AND BINARY_FLOOR_DIVIDE BINARY_LSHIFT BINARY_MATRIX_MULTIPLY BINARY_MODULO
    BINARY_MULTIPLY BINARY_OR BINARY_POWER BINARY_REMAINDER BINARY_RSHIFT BINARY_SUBTRACT
    BINARY_TRUE_DIVIDE BINARY_XOR INPLACE_ADD INPLACE_AND INPLACE_FLOOR_DIVIDE INPLACE_LSHIFT
    INPLACE_MATRIX_MULTIPLY INPLACE_MODULO INPLACE_MULTIPLY INPLACE_OR INPLACE_POWER
    INPLACE_REMAINDER INPLACE_RSHIFT INPLACE_SUBTRACT INPLACE_TRUE_DIVIDE INPLACE_XOR
    BEGIN_FINALLY WITH_CLEANUP_START WITH_CLEANUP_FINISH
"""
"""Instructions that Dynamo still knows and no Python has since 3.11, the oldest that is served."""


@pytest.fixture
def refusal(tmp_path, caplog):
    """Gives the reason why a function is refused, or an empty text."""

    def refuse(function):
        cached = cache_compile(function, cache_dir=tmp_path / "cache")
        caplog.clear()
        with torch.no_grad():
            expected = function(X)
        assert torch.equal(cached(X), expected)
        if not cached.cache_info().bypasses:
            return ""
        return "\n".join(record.getMessage() for record in caplog.records)

    return refuse


def interpreted():
    """The names of all instructions that Dynamo interprets, on any Python."""
    waiting, names = [symbolic_convert.InstructionTranslatorBase], set()
    while waiting:
        each = waiting.pop()
        waiting += type.__subclasses__(each)
        names |= {name for name, run in vars(each).items() if name.isupper() and callable(run)}
    return names


def test_each_instruction_that_dynamo_interprets_has_a_rule():
    assert interpreted() - instructions.DOES.keys() - {*BEFORE_3_11.split()} == set()


def test_each_instruction_that_asks_its_operands_says_what_it_asks():
    symbols = "+ - * / // % @ ** & | ^ << >> == != < <= > >= in"
    binary = [f"a {symbol} b" for symbol in symbols.split()]
    for text in [*binary, "a[b]", "-a", "not a", "[*a]", "f'{a}'"]:
        for each in dis.get_instructions(compile(text, "", "eval")):
            if instructions.DOES[each.opname] is instructions.Does.OPERATES:
                asked = instructions.asks(each)
                assert 1 <= len(asked) <= 4, each
                assert any(asked), each
                assert all(name.startswith("__") for names in asked for name in names), each


def test_no_instruction_of_this_python_moves_values_unless_the_table_says_so():
    moving = {n for n, does in instructions.DOES.items() if does is instructions.Does.MOVES}
    asking = {"LOAD_ATTR", "LOAD_GLOBAL", "CALL", "BINARY_OP", "COMPARE_OP", "CONTAINS_OP"}
    assert asking <= dis.opmap.keys()
    assert not asking & moving


def test_an_unknown_instruction_is_refused(refusal, monkeypatch):
    def function(x):
        return x * 2 if 1 in (x.dim(), 3) else x

    assert refusal(function) == ""
    monkeypatch.delitem(instructions.DOES, "CONTAINS_OP")
    assert "no rule for the instruction CONTAINS_OP" in refusal(lambda x: function(x) + 0)


def test_an_unknown_builtin_is_refused(refusal, monkeypatch):
    def function(x):
        return x * math.gcd(x.size(0), 4)

    assert refusal(function) == ""
    monkeypatch.setattr(pure, "_MODULES", ())
    pure._pure.cache_clear()
    try:
        assert "no rule for math.gcd()" in refusal(lambda x: function(x) + 0)
    finally:
        pure._pure.cache_clear()


class MadeUp:
    def __call__(self):
        return 2


class MadeUpVariable(VariableTracker):
    """What a later torch may bring: it has no guard, and answers a call itself."""

    def call_function(self, tx, args, kwargs):
        return ConstantVariable.create(2)


def test_a_variable_of_an_unknown_class_is_refused(refusal, monkeypatch):
    original = VariableBuilder._wrap

    def wrap(builder, value):
        if type(value) is MadeUp:
            return MadeUpVariable(source=builder.source)
        return original(builder, value)

    made_up = MadeUp()
    monkeypatch.setattr(VariableBuilder, "_wrap", wrap)
    assert "no rule for a call of a " in refusal(lambda x: x * made_up())


def test_an_operand_of_an_unknown_type_is_refused():
    given, made = MadeUpVariable(source=LocalSource("made_up")), MadeUpVariable()
    assert "of which type" in by_value.obstacle(given, by_value.ANYTHING)
    assert by_value.obstacle(made, by_value.ANYTHING) is None


def test_a_function_of_torchs_that_gives_a_new_kind_of_value_is_refused(refusal, monkeypatch):
    original = TorchInGraphFunctionVariable.call_function

    def answer(variable, tx, args, kwargs):
        if variable.value is torch.get_num_threads:
            return MadeUpVariable()
        return original(variable, tx, args, kwargs)

    monkeypatch.setattr(TorchInGraphFunctionVariable, "call_function", answer)
    assert "no rule for " in refusal(lambda x: [torch.get_num_threads(), x][1])


class Sizes:
    def __class_getitem__(cls, key):
        return key


NEEDED = {
    ("variables.base.VariableTracker", "call_function"): (
        lambda x: x * (2 if sys.exc_info()[0] is None else 3),
        "no rule for sys.exc_info()",
    ),
    ("symbolic_convert.InstructionTranslatorBase", "dispatch_table"): (
        lambda x: x * Sizes[2],
        "no rule for Sizes.__class_getitem__",
    ),
}


@pytest.mark.parametrize("place", NEEDED)
def test_without_a_place_nothing_is_refused(refusal, monkeypatch, place):
    function, reason = NEEDED[place]
    assert reason in refusal(function)
    monkeypatch.delitem(observer._PLACES, place)
    assert refusal(lambda x: function(x)) == ""


@pytest.mark.parametrize("is_watched", [True, False])
def test_values_that_come_in_are_guarded_at_their_place(tmp_path, monkeypatch, is_watched):
    if not is_watched:
        monkeypatch.delitem(observer._PLACES, ("variables.builder.VariableBuilder", "__call__"))
    monkeypatch.setitem(globals(), "METHOD", torch.Tensor.relu)
    cached = cache_compile(lambda x: METHOD(x), cache_dir=tmp_path)
    cached(X)
    monkeypatch.setitem(globals(), "METHOD", torch.Tensor.sigmoid)
    assert torch.equal(cached(X), X.sigmoid()) is is_watched


@pytest.fixture(scope="module")
def rules(once):
    return once("rules", lambda surroundings: surroundings.run(RULES_OFF, surroundings.folder))


def test_each_rule_about_names_kinds_and_containers_is_needed(rules):
    """With a rule a change is noticed between two calls; without it the second call is wrong."""
    assert rules["on"] == dict.fromkeys(rules["on"], True)
    assert rules["off"] == dict.fromkeys(rules["on"], False)


@pytest.mark.parametrize(
    ("value", "is_known"),
    [(2, True), ("a", True), (Sizes, True), (torch.float32, True), ([1], True), (MadeUp(), False)],
)
def test_only_what_is_compared_elsewhere_may_come_in_without_a_place(value, is_known):
    assert observer._is_known_by_itself(value) is is_known


def test_a_torch_without_a_place_is_refused_by_name(refusal, monkeypatch):
    monkeypatch.setitem(
        observer._PLACES, ("variables.base.VariableTracker", "no_such_name"), (None, False)
    )
    reason = refusal(lambda x: x * 2)
    assert f"torch {torch.__version__} has no variables.base.VariableTracker.no_such_name" in reason
