"""The table of kinds: each kind has a row, and all forms of a row judge alike."""

import ast
import contextlib
import sys
import types
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch

from npugx_cache.conditions import (
    Check,
    Conditions,
    Kind,
    Step,
    TensorFact,
    differences,
    shapes,
    source_facts,
)
from npugx_cache.conditions.arguments_only import ArgumentsOnly
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.code_watch import Watch, watch_nothing
from npugx_cache.conditions.cpp_check import NativeCheck
from npugx_cache.conditions.data import CALL, columns
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.conditions.kinds import (
    KINDS,
    LiveArguments,
    in_order,
    lines,
    live_state,
    seal_conditions,
)
from npugx_cache.errors import CorruptEntry
from npugx_cache.portable import encode, identity
from npugx_cache.private import runtime

HERE = "kinds_here"


class Thing:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("mask", torch.ones(2))
        self.inner = torch.nn.Identity()


class Answering(Net):
    def __getattr__(self, name):
        return super().__getattr__(name)


class Covered(Net):
    """Its class gets an attribute with the name of a parameter after the module was made."""


COVERED = Covered()
Covered.weight = 2.0


def hidden(where, name):
    """A module that gives a name from another dict than the one it was registered in."""
    made = Net()
    (vars(made) if where == "__dict__" else vars(made)[where])[name] = None
    return made


def tensor_fact(value):
    return TensorFact(
        0,
        str(value.dtype).removeprefix("torch."),
        str(value.device),
        value.requires_grad,
        runtime.dispatch_keys(value).raw_repr(),
        tuple(value.shape),
        value.stride(),
        (),
    )


def conditions(checks, *, tensors=(), idents=(), **values):
    """Conditions on locals, with the nodes in the order of `values`."""
    return Conditions(
        parents=(-1,) * len(values),
        steps=(int(Step.LOCAL),) * len(values),
        args=tuple(values),
        checks=columns([Check(CALL, Kind.STATE, live_state()), *checks]),
        idents=tuple(map(identity, idents)),
        tensors=tuple(map(tensor_fact, tensors)),
    )


SHAPE = shapes.parse("2 <= a", {"a": 0})
WIDE = torch.ones(2, 3)


def iterator(count):
    made = iter((1, 2, 3))
    for _ in range(3 - count):
        next(made)
    return made


# For each kind at a node: the argument, values of which it holds, and values of which it does not.
AT_NODES = {
    Kind.TYPE: (0, [3], [True, 3.0, "3"]),
    Kind.IDENTITY: (0, [int], [float, 3]),
    Kind.EQUALS: (encode(1.5), [1.5], [1, 2.5, "1.5", None]),
    Kind.TENSOR: (0, [torch.zeros(2, 3)], [torch.zeros(3, 2), WIDE.double(), WIDE.t(), None]),
    Kind.LENGTH: (2, [[1, 2], {1: 1, 2: 2}, (3, 4)], [[1], (), {}]),
    Kind.ABSENT_ATTRS: (["a", "c"], [Thing(b=1), Thing()], [Thing(a=1), Thing(c=1), 3]),
    Kind.HAS_ATTR: ("a", [Thing(a=1)], [Thing(), 3]),
    Kind.LACKS_ATTR: ("a", [Thing(), 3], [Thing(a=1)]),
    Kind.CONTAINS: ("k", [{"k": 1}, ["k"]], [{}, ["l"]]),
    Kind.NOT_CONTAINS: ("k", [{}, OrderedDict(), ["l"]], [{"k": 1}, ["k"]]),
    Kind.KEYS: (encode(["a", "b"]), [{"a": 1, "b": 2}], [{"b": 2, "a": 1}, {"a": 1}, {}]),
    Kind.KEY_SET: (encode({"a", "b"}), [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{"a": 1}, {}]),
    Kind.NOT_NONE: (None, [0, ""], [None]),
    Kind.ITERATOR: (["left", 2], [iterator(2)], [iterator(1), [1, 2]]),
    Kind.UNSHADOWED: (
        [["weight"], ["mask"], ["inner"], False],
        [Net()],
        [
            *(hidden("__dict__", name) for name in ("weight", "mask", "inner")),
            *(hidden("_parameters", name) for name in ("mask", "inner")),
            hidden("_buffers", "inner"),
            COVERED,
            Answering(),
            3,
        ],
    ),
    Kind.ATTRIBUTES: (
        ["a", "b"],
        [Thing(a=1, b=2), Thing(b=3, a=4), Thing(a=1, b=2, _dynamo_mark=3)],
        [Thing(a=1), Thing(a=1, b=2, c=3), Thing(), 3],
    ),
}
ONE, OTHER = [], []
# The same for kinds about two values.
OF_VALUES = {
    Kind.SAME: ([0, 1], [(ONE, ONE)], [(ONE, OTHER)]),
    Kind.DIFFERENT: ([0, 1], [(ONE, OTHER)], [(ONE, ONE)]),
    Kind.SHAPE: (SHAPE, [(2, 0), (5, 0)], [(1, 0)]),
    Kind.ORDER: ([["node", 0], [1, 2]], [({1, 2}, 0)], [({1}, 0), ({2, 3}, 0)]),
}
OF_PROCESS = {Kind.STATE, Kind.THREADS, Kind.DEVICE, Kind.IMPORT}
FACTS = {kind for kind in Kind if kind >= Kind.FUNCTION}


def test_every_kind_has_a_row_and_every_row_is_of_one_sort():
    assert KINDS.keys() == set(Kind)
    assert set(Kind) == AT_NODES.keys() | OF_VALUES.keys() | OF_PROCESS | FACTS
    for kind, row in KINDS.items():
        assert (row.watch is not None) == (kind in FACTS), kind
        assert row.before == (kind in OF_PROCESS), kind


def cases():
    for kind, (arg, good, bad) in {**AT_NODES, **OF_VALUES}.items():
        for right in good:
            for wrong in bad:
                yield kind, arg, right, wrong


@pytest.mark.parametrize(("kind", "arg", "right", "wrong"), [*cases()])
def test_all_forms_of_a_kind_judge_alike(kind, arg, right, wrong):
    pair = kind in OF_VALUES
    names, node = ("a", "b") if pair else ("a",), CALL if pair else 0

    def scope(value):
        return Scope(dict(zip(names, value if pair else (value,), strict=True)), globals())

    made = conditions(
        [Check(node, kind, arg)],
        tensors=[WIDE] if kind is Kind.TENSOR else (),
        idents=[torch.Tensor if kind is Kind.TENSOR else int],
        **scope(right).frame_locals,
    )
    made = Conditions.from_plain(made.to_plain())
    checker = Checker(made)
    for _ in range(3):  # the second time C++ managers are made
        assert checker.holds(scope(right))
    assert checker._native is not None
    assert checker.holds_quickly(scope(right)) or kind is Kind.IDENTITY
    assert checker.failures(scope(right)) == []
    row, values = KINDS[kind], list(scope(wrong).frame_locals.values())
    (live,) = LiveArguments(made).of(kind, [arg])
    assert not checker.holds(scope(wrong))
    assert not checker.holds_quickly(scope(wrong))
    (reason,) = checker.failures(scope(wrong))
    # A condition on sizes has a reason of its own only where it demands a number.
    has_default = row.reason is None or kind is Kind.SHAPE
    assert reason.startswith("no longer true: ") == has_default
    if row.bulk is not None:
        assert row.bulk([(0, live)], list(scope(right).frame_locals.values()))
        try:
            assert not row.bulk([(0, live)], values)
        except AttributeError:  # as `test` raises it
            assert not checker.holds_of(Check(node, kind, arg), wrong)
    printed = list(lines(made, code=False))[-1]
    assert "a" in printed
    if kind not in (Kind.TYPE, Kind.IDENTITY, Kind.TENSOR, Kind.ITERATOR):
        assert isinstance(ast.parse(printed, mode="eval"), ast.Expression)


@pytest.mark.parametrize("kind", [Kind.EQUALS, Kind.KEYS, Kind.KEY_SET, Kind.ORDER])
def test_texts_that_are_only_compared_are_sealed_and_still_compared(kind):
    secret, other = "correct horse", "battery staple"
    value, arg = {
        Kind.EQUALS: (secret, secret),
        Kind.KEYS: ({secret: 1}, encode([secret])),
        Kind.KEY_SET: ({secret: 1}, encode({secret})),
        Kind.ORDER: ({secret}, [["node", 0], [secret]]),
    }[kind]
    wrong = other if kind is Kind.EQUALS else {other} if kind is Kind.ORDER else {other: 1}
    node = CALL if kind is Kind.ORDER else 0
    made = seal_conditions(conditions([Check(node, kind, arg)], a=value), frozenset())
    assert secret not in str(made.to_plain())
    checker = Checker(made)
    for _ in range(3):
        assert checker.holds(Scope({"a": value}, globals()))
    assert not checker.holds(Scope({"a": wrong}, globals()))
    assert not checker.holds_quickly(Scope({"a": wrong}, globals()))
    assert secret not in str(checker.failures(Scope({"a": wrong}, globals())))


def test_torchs_state_is_compared_before_any_value_is_read():
    class Reads:
        @property
        def a(self):
            raise AssertionError("it was read")

    made = conditions([], a=Reads())
    made = Conditions(
        parents=(-1, 0),
        steps=(int(Step.LOCAL), int(Step.ATTR)),
        args=("a", "a"),
        checks=made.checks,
        idents=(),
        tensors=(),
    )
    with torch.inference_mode():
        assert not Checker(made).holds(Scope({"a": Reads()}, globals()))
        assert any("inference_mode" in why for why in Checker(made).failures(Scope({}, {})))


def test_the_number_of_threads_is_compared_only_where_it_is_asked_for():
    count = torch.get_num_threads()
    asks = conditions([Check(CALL, Kind.THREADS, count)])
    scope = Scope({}, globals())
    torch.set_num_threads(count + 1)
    try:
        assert Checker(conditions([])).holds(scope)
        assert not Checker(asks).holds(scope)
        (reason,) = Checker(asks).failures(scope)
    finally:
        torch.set_num_threads(count)
    assert reason == f"torch.get_num_threads() was {count}, is {count + 1}"
    assert Checker(asks).holds(scope)


def test_a_device_that_is_not_here_is_named():
    made = conditions([Check(CALL, Kind.DEVICE, ["npu", 0, "it says so"])])
    assert not Checker(made).holds(Scope({}, {}))
    assert Checker(made).failures(Scope({}, {})) == ["there is no npu here"]
    assert "current_device() == 'npu:0'  # it says so" in lines(made, code=False)


# --- source facts

SOURCE = """
import enum, torch
class Base:
    def __bool__(self): return True
    def act(self): return 1
class Thing(Base):
    width = 3
    def scaled(self, x, by=2): return x * by
    scaled.k = 3
class Other: pass
class Mode(enum.Enum):
    FAST = 1
def helper(x, a=1): return x + a
SIZES = {"small": 2}
@torch.compiler.assume_constant_result
def size(name="small"): return SIZES[name]
"""


OPERATOR = torch.library.custom_op(
    "npugx_kinds::act", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor"
)
OPERATOR.register_fake(lambda x: torch.empty_like(x))


@pytest.fixture
def module(monkeypatch, tmp_path):
    made = types.ModuleType(HERE)
    made.__file__ = str(tmp_path / "kinds_here.py")
    (tmp_path / "kinds_here.py").write_text(SOURCE)
    exec(compile(SOURCE, made.__file__, "exec"), vars(made))
    monkeypatch.setitem(sys.modules, HERE, made)
    return made


def found(module):
    """A fact of each kind."""
    pairs, enums, met = [(module.Thing, module.Base)], [module.Mode], [module.Thing]
    fact = source_facts.fact
    facts = [
        fact(Kind.FUNCTION, source_facts.function_hash, HERE, "helper"),
        fact(Kind.FILE, source_facts.file_hash, HERE, "helper"),
        source_facts.operator_fact("aten", "add", "Tensor"),
        *source_facts.lookup_facts([(module.Thing, "act")]),
        *source_facts.tensor_method_facts(["add"]),
        source_facts.value_fact(module.Thing, "width"),
        *source_facts.function_value_facts(
            {(module.Thing.scaled, "k"): None}, [(module.Thing, "scaled")]
        ),
        fact(Kind.CONTENTS, source_facts.contents_hash, HERE, "Thing"),
        source_facts.rules_fact("npugx_kinds", "act", "default"),
        Check(CALL, Kind.GROUP, ("torch.distributed", "no such group", "ranks [0]")),
        *source_facts.class_facts_of(pairs, enums, met),
        *source_facts.method_facts(dict.fromkeys(met), lambda _: True),
        fact(Kind.ANSWER, source_facts.constant_answer, HERE, "size((('small',), {}))"),
    ]
    return {each.kind: each for each in facts}


@contextlib.contextmanager
def replaced(owner, name, value):
    own, old = name in {*vars(owner), "__bases__", "__code__"}, getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old) if own else delattr(owner, name)


def test_one_fact_says_where_all_names_of_a_class_are_found(module, monkeypatch):
    (fact,) = source_facts.lookup_facts([(module.Thing, name) for name in ("scaled", "act", "no")])
    checker, scope = Checker(conditions([fact])), Scope({}, {})
    assert fact.arg[2::2] == ("act", "no", "scaled")
    assert len(list(lines(checker.conditions, code=True))) == 3
    assert checker.holds(scope)
    monkeypatch.setattr(module.Thing, "no", 1, raising=False)
    monkeypatch.setattr(module.Thing, "scaled", len)
    assert not checker.holds(scope)
    assert list(checker.failures(scope)) == [
        f"where to find {HERE}.Thing.{name} changed" for name in ("no", "scaled")
    ]
    monkeypatch.delattr(module, "Thing")
    (reason,) = checker.failures(scope)
    assert reason.startswith(f"source of {HERE}.Thing can't be checked: ")


BREAKS = {
    Kind.FUNCTION: lambda m: (m.helper, "__code__", (lambda x, a=1: x).__code__),
    Kind.METHOD: lambda m: (m.Thing, "scaled", lambda self, x, by=3: x * by),
    Kind.LOOKUP: lambda m: (m.Thing, "act", len),
    Kind.TENSOR_METHOD: lambda _: (torch.Tensor, "add", lambda *_: None),
    Kind.CLASS_VALUE: lambda m: (m.Thing, "width", 4),
    Kind.FUNCTION_VALUE: lambda m: (m.Thing.scaled, "k", 4),
    Kind.CONTENTS: lambda m: (m.Thing, "depth", 4),
    Kind.ANSWER: lambda m: (m, "SIZES", {"small": 3}),
    Kind.OPERATOR_RULES: lambda _: (OPERATOR, "_abstract_fn", lambda x: x.new_empty(2)),
    Kind.SUBCLASS: lambda m: (m.Thing, "__bases__", (m.Other,)),
    Kind.MEMBERS: lambda m: (m.Mode, "_missing_", classmethod(lambda cls, value: cls.FAST)),
    Kind.SPECIAL_NAMES: lambda m: (m.Thing, "__len__", lambda _: 1),
}
"""Patches that are seen at the next call. Other kinds are not watched, but for the ranks of groups,
which are asked for again (`tests/restart/collectives.py`)."""


def test_there_is_a_fact_of_every_kind(module):
    assert found(module).keys() == FACTS
    assert {kind for kind in FACTS if KINDS[kind].watch is not watch_nothing} == {
        *BREAKS,
        Kind.GROUP,
    }


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_a_fact_holds_until_something_else_is_found(module, kind):
    fact, scope = found(module)[kind], Scope({}, {})
    where, name, *rest = fact.arg
    other = fact._replace(arg=(where, name, *rest[:-1], "something else"))
    checker, wrong = Checker(conditions([fact])), Checker(conditions([other]))
    gone = kind is Kind.GROUP
    assert checker.holds(scope) == checker.code_holds() == (not gone)
    assert not wrong.holds(scope)
    assert not wrong.code_holds()
    (reason,) = wrong.failures(scope)
    named = ".".join((where, name, *rest[:-1]))  # a fact of LOOKUP names attributes of the class
    assert named in reason
    assert (f"{named} changed" in reason) != gone
    assert "can't be checked" in reason or not gone
    (line,) = lines(checker.conditions, code=True)
    assert isinstance(ast.parse(line, mode="eval"), ast.Expression)
    assert not any(line in each for each in lines(checker.conditions, code=False))


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_the_difference_of_two_entries_names_a_fact(module, kind):
    fact = found(module)[kind]
    other = fact._replace(arg=(*fact.arg[:-1], "something else"))
    same, apart = (
        differences.between(*map(conditions, ([fact], [each]))) for each in (fact, other)
    )
    assert same == differences.Differences((), (), ())
    (changed,) = apart.changed
    assert ".".join(fact.arg[:-1]) in changed


@pytest.mark.parametrize("kind", BREAKS)
def test_a_patch_is_seen_at_the_next_call_and_what_is_put_back_accepted(module, kind):
    checker, scope = Checker(conditions([found(module)[kind]], a=1)), Scope({"a": 1}, globals())
    assert [checker.holds_quickly(scope), checker.holds(scope), checker.holds(scope)] == [0, 1, 1]
    assert checker.holds_quickly(scope)
    with replaced(*BREAKS[kind](module)):
        assert not checker.holds_quickly(scope)
        assert not checker.holds(scope)
        assert not checker.code_holds()
    assert checker.holds_quickly(scope)


def test_what_is_patched_while_the_code_is_checked_is_seen_at_the_next_call(module, monkeypatch):
    fact = found(module)[Kind.FUNCTION]
    checker, scope = Checker(conditions([fact])), Scope({}, globals())
    assert checker.holds(scope)
    compare = Checker.code_holds

    def code_holds(self):  # another thread patches just after the hash was taken
        answer = compare(self)
        monkeypatch.setattr(module, "helper", len)
        return answer

    monkeypatch.setattr(Checker, "code_holds", code_holds)
    assert checker.holds(scope)
    assert not checker.holds_quickly(scope)
    assert not checker.holds(scope)


def test_the_first_check_makes_nothing_for_later_ones(module):
    checker, scope = Checker(conditions([found(module)[Kind.LOOKUP]])), Scope({}, globals())
    assert checker.holds(scope)
    assert (checker._watch, checker._native) == (None, None)
    assert checker.holds(scope)
    assert isinstance(checker._watch, Watch)
    assert isinstance(checker._native, NativeCheck)


def made_by_a_factory():
    class Local:
        pass

    return Local


def test_no_class_like_one_without_a_name_may_be_a_key():
    made, other = made_by_a_factory(), made_by_a_factory()
    lacks = [Check(0, Kind.NOT_CONTAINS, encode(made))]
    checker = Checker(conditions(lacks, table={int: 1}))
    for table, holds in (({int: 1}, True), ({made: 1}, False), ({other: 1}, False)):
        scope = Scope({"table": table}, globals())
        assert [checker.holds(scope), checker.holds(scope)] == [holds, holds]
    # Another class of the same contents is no proof that this one is a key.
    has = Checker(conditions([Check(0, Kind.CONTAINS, encode(made))], table={made: 1}))
    assert not has.holds(Scope({"table": {made: 1}}, globals()))


def test_an_exception_from_outside_is_no_answer(module, monkeypatch):
    class Raises:
        @property
        def a(self):
            raise ValueError

    made = conditions([Check(0, Kind.HAS_ATTR, "a")], a=1)
    assert not Checker(made).holds(Scope({"a": Raises()}, {}))
    (reason,) = Checker(made).failures(Scope({"a": Raises()}, {}))
    assert reason == "no longer true: hasattr(a, 'a')"
    monkeypatch.setattr(source_facts, "function_chain", lambda _: [])
    assert not Checker(conditions([found_function()])).code_holds()


def found_function():
    return Check(CALL, Kind.FUNCTION, (HERE, "helper", "0" * 32))


def test_reasons_name_code_first_and_torchs_state_before_values(module):
    fact = found_function()
    made = conditions([Check(0, Kind.EQUALS, 2), fact, Check(CALL, Kind.SAME, [0, 0])], a=1)
    kinds = [check.kind for check in in_order(made)]
    assert kinds == [Kind.FUNCTION, Kind.STATE, Kind.EQUALS, Kind.SAME]


def test_conditions_survive_their_stored_form():
    made = conditions([*(Check(0, kind, arg) for kind, (arg, *_) in AT_NODES.items())], a=1)
    again = Conditions.from_plain(made.to_plain())
    assert again.to_plain() == made.to_plain()
    assert again.state == live_state()
    assert again.device is None


def test_numbers_of_nodes_survive_their_stored_form():
    checks = [
        Check(CALL, Kind.STATE, live_state()),
        *(Check(node, Kind.EQUALS, node) for node in (3, 0, 2, 2)),
        Check(CALL, Kind.SAME, [3, 1]),
        Check(CALL, Kind.DIFFERENT, [3, 0, 1]),
        Check(CALL, Kind.DIFFERENT, [1, 2]),
    ]
    made = replace(
        conditions([]),
        parents=(-1, 0, -1, 2),
        steps=(int(Step.LOCAL), int(Step.ATTR)) * 2,
        args=("a", "b") * 2,
        checks=columns(checks),
    )
    assert Conditions.from_plain(made.to_plain()) == made


@pytest.mark.parametrize(
    "change",
    [
        {"checks": []},  # no state of torch
        {"checks": [[40, [-1], [{}]], [33, [-1], [[0.5, 10**400]]]]},
        {"checks": [[40, [-1], [{}]], [2, [None], [1]]]},
        {"parents": ["a"]},
        {"checks": [[40, [-1], [{}]], [10_000, [0], [1]]]},
        {"checks": [[40, [-1], [{}]], [2, [-1], [1]]]},  # a value of no node
        {"checks": [[40, [-1], [{}]], [2, [7], [1]]]},
        {"checks": [[40, [-1], [{}]], [32, [0], [[0, 0]]]]},
        {"checks": [[40, [-1], [{}]], [50, [-1], [["m", "n"]]]]},
        {"checks": [[40, [-1], [{}]], [50, [-1], [["m", "n", 1]]]]},
        {"parents": [0]},
        {"steps": b"\xff"},
    ],
)
def test_data_that_no_conditions_look_like_is_corrupt(change):
    plain = conditions([], a=1).to_plain()
    with pytest.raises(CorruptEntry):
        Conditions.from_plain(plain | change)


def test_what_is_left_for_later_calls_under_inputs_unsafe_is_about_arguments():
    made = Conditions(
        parents=(-1, -1),
        steps=(int(Step.GLOBAL), int(Step.LOCAL)),
        args=("g", "a"),
        checks=columns(
            [
                Check(CALL, Kind.STATE, live_state()),
                Check(0, Kind.EQUALS, 1),
                Check(1, Kind.EQUALS, 2),
                Check(CALL, Kind.SAME, [0, 1]),
                Check(CALL, Kind.DIFFERENT, [0, 1]),
                found_function(),
            ]
        ),
        idents=(),
        tensors=(),
    )
    scope = Scope({"a": 2}, {})
    only = ArgumentsOnly(made, scope)
    assert [*only._checker.conditions.all_checks()] == [
        Check(0, Kind.EQUALS, 2),
        Check(CALL, Kind.STATE, live_state()),
        Check(CALL, Kind.DIFFERENT, [0]),
    ]
    assert [only.holds_quickly(scope), only.holds(scope), only.holds(scope)] == [False, True, True]
    assert only.holds_quickly(scope)
    assert not only.holds(Scope({"a": 3}, {}))
    assert not only.holds_quickly(Scope({"a": 3}, {}))
    with torch.inference_mode():
        assert not only.holds(scope)


def captures(value):
    return lambda: value


def reasons(kind, arg, live, **parts):
    made = conditions([Check(0, kind, arg)], a=live, **parts)
    return Checker(made).failures(Scope({"a": live}, {}))


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (["==", ["node", 0], ["const", 4]], "a was 4, is 5"),
        (["==", ["const", 4], ["node", 0]], "no longer true: 4 == a"),
        (["and", ["==", ["node", 0], ["const", 4]], ["<", ["node", 0], ["const", 9]]], None),
        (["==", ["*", ["node", 0], ["const", 2]], ["const", 8]], "no longer true: (a * 2) == 8"),
    ],
)
def test_a_number_that_a_size_must_equal_is_compared_with_the_one_that_it_is(condition, reason):
    made = conditions([Check(CALL, Kind.SHAPE, condition)], a=5)
    (found,) = Checker(made).failures(Scope({"a": 5}, {}))
    assert found == reason or (reason is None and found.startswith("no longer true: "))


def keeps(x, *, most=3, inner=str):
    return inner(min(x, most))


KEYWORDS = [
    lambda found: found.update(most=4),
    lambda found: found.update(inner=repr),
    lambda found: found.update(more=1),
    lambda found: found.pop("most"),
    lambda found: found.update(most=found.pop("most")),  # in another order
]


def test_a_module_that_is_not_imported_yet_is_waited_for_where_all_else_holds():
    graph = conditions([Check(CALL, Kind.IMPORT, "no_such_module"), Check(0, Kind.EQUALS, 1)], a=1)
    checker, scope = Checker(graph), Scope({"a": 1}, {})
    assert checker.missing_import(scope) == "no_such_module"
    assert checker.missing_import(Scope({"a": 2}, {})) is None
    assert checker.failures(scope) == ["the module no_such_module is not imported yet"]
    assert not checker.holds(scope)
    there = Checker(conditions([Check(CALL, Kind.IMPORT, "torch")], a=1))
    assert there.holds(scope)
    assert there.missing_import(scope) is None


@pytest.mark.parametrize("edit", KEYWORDS)
def test_keyword_defaults_of_a_function_are_watched(monkeypatch, edit):
    monkeypatch.setattr(keeps, "__kwdefaults__", dict(keeps.__kwdefaults__))
    checker = Checker(conditions([Check(0, Kind.IDENTITY, 0)], a=keeps, idents=[keeps]))
    scope = Scope({"a": keeps}, {})
    for _ in range(3):
        assert checker.holds(scope)
    assert checker.holds_quickly(scope)
    edit(keeps.__kwdefaults__)
    assert not checker.holds_quickly(scope)


def test_a_reason_never_shows_the_same_text_twice():
    four, five = captures(4), captures(5)
    (reason,) = reasons(Kind.IDENTITY, 0, five, idents=[four])
    assert reason.endswith(" at a has other captured values")
    five = captures(4)
    five.__defaults__, five.__kwdefaults__ = (1,), {"k": 2}
    (reason,) = reasons(Kind.IDENTITY, 0, five, idents=[four])
    assert reason.endswith(" at a has other defaults and defaults of keywords")
    (reason,) = reasons(Kind.EQUALS, encode((four,)), (captures(5),))
    assert reason.startswith("a is not what it was, though both are shown as (")
    assert reason.endswith("builtins.tuple")


def test_a_reason_shows_a_size_that_may_change_as_a_star():
    fact = tensor_fact(WIDE)._replace(size=(None, 3), stride=(3, 1))
    made = conditions([Check(0, Kind.TENSOR, 0)], idents=[torch.Tensor], a=WIDE)
    checker = Checker(replace(made, tensors=(fact,)))
    (reason,) = checker.failures(Scope({"a": torch.ones(2, 4, 1)}, {}))
    assert reason == "a: size was (*, 3), is (2, 4, 1); stride was (3, 1), is (4, 1, 1)"
