"""Every hook on Dynamo has its target, and where a target is gone, what it showed is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from npugx_cache.trace.observe.body_hash import body_hash

SCRIPT = Path(__file__).parent / "hooks_missing.py"
FUNCTIONS = (
    "plain",
    "with_a_dict",
    "with_a_mode",
    "with_a_set",
    "with_a_dict_of_the_users",
)
REFUSED = {
    "nothing": ((), ""),
    "a method is renamed": (
        ("with_a_dict", "with_a_dict_of_the_users"),
        (
            "has another variables.dicts:ConstDictVariable.as_python_constant, "
            "which npugx_cache watches for dicts that are used as a whole"
        ),
    ),
    "the cache of handlers is renamed": (
        FUNCTIONS,
        (
            "has no variables.builtin:BuiltinVariable.call_function_handler_cache, "
            "which npugx_cache watches for calls of builtins"
        ),
    ),
    "a method is inherited now": (
        ("with_a_mode",),
        (
            "has another variables.ctx_manager:AutocastModeVariable.exit, "
            "which npugx_cache watches for autocast objects"
        ),
    ),
    "a function is renamed": (
        FUNCTIONS,
        "has no exc:raise_observed_exception, which npugx_cache watches for exceptions",
    ),
    "a method of sets is renamed": (
        ("with_a_set",),
        "has another variables.sets:SetVariable.as_python_constant, which npugx_cache watches for",
    ),
    "a hook that only allows more is missing": ((), ""),
}
"""What changed in Dynamo: the functions that are refused then, and the reason."""


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        hows = ["a method is renamed", *(set(REFUSED) - {"a method is renamed"})]
        found = surroundings.run(SCRIPT, surroundings.folder, *hows)
        afterwards = surroundings.run(SCRIPT, surroundings.folder, "nothing")
        return found | {"afterwards": afterwards["nothing"]}

    return once("hooks", make)


@pytest.mark.thorough
@pytest.mark.parametrize("how", REFUSED)
def test_what_a_missing_or_changed_hook_watched_is_refused_with_the_reason(runs, how):
    refused, reason = REFUSED[how]
    for name in FUNCTIONS:
        row = runs[how][name]
        assert row["same"]
        assert row["bypasses"] == (name in refused), (name, row["lines"])
        assert row["stored"] == (name not in refused), name
        if name in refused:
            [line] = row["lines"]
            assert reason in line


@pytest.mark.thorough
@pytest.mark.parametrize("how", REFUSED)
def test_what_looks_out_for_refused_objects_is_gone_after_the_trace(runs, how):
    assert runs[how]["left"] is False


@pytest.mark.thorough
def test_a_refusal_for_this_processes_dynamo_is_not_stored_for_others(runs):
    for name in FUNCTIONS:
        row = runs["afterwards"][name]
        assert row["bypasses"] == 0
        assert (row["hits"], row["misses"]) in ((1, 0), (0, 1))
    assert runs["afterwards"]["with_a_dict"]["misses"] == 1


@pytest.fixture(scope="module")
def tables():
    from npugx_cache.trace.observe import hook_table

    return hook_table


def test_every_target_of_this_torch_is_there(tables):
    rows = (*tables.ON_DYNAMO.find_targets(), *tables.ON_DEVICES.find_targets())
    assert {each.target: each.state.value for each in rows if each.state.value != "there"} == {}
    assert tables.ON_DYNAMO.obstacle() is None
    assert tables.ON_DEVICES.missing() is None


def test_few_hooks_depend_on_what_the_body_of_their_target_is(tables):
    rows = [each for each in (*tables.ROWS, *tables.DEVICE_ROWS) if each.bodies]
    assert len(rows) <= 10


def test_every_hook_says_what_it_watches(tables):
    for row in (*tables.ROWS, *tables.DEVICE_ROWS):
        assert len(row.watches) > len("hash"), row.target
        assert not row.watches.endswith(".")


@pytest.mark.thorough
def test_a_command_prints_the_worklist_for_the_torch_that_is_installed(tables):
    done = subprocess.run(
        [sys.executable, "-m", "npugx_cache.trace.observe.hook_table"],
        capture_output=True,
        text=True,
        check=True,
    )
    first, *lines = done.stdout.splitlines()
    assert first.startswith("torch ")
    rows = (*tables.ON_DYNAMO.find_targets(), *tables.ON_DEVICES.find_targets())
    assert {line.split()[1] for line in lines} == {each.target for each in rows}
    assert all(line.startswith("there ") for line in lines)


def test_two_sets_of_hooks_refuse_what_each_of_them_needs():
    from torch._dynamo.variables.dicts import ConstDictVariable
    from torch._dynamo.variables.lists import ListVariable

    from npugx_cache.trace.observe.hooks import Hook, Hooks

    def missing(kind, refused):
        row = Hook(f"variables.{kind}.is_not_there", lambda original: original, "a test")
        return Hooks([row], refused.append)

    of_dicts, of_lists = [], []
    dicts, lists = (
        missing("dicts:ConstDictVariable", of_dicts),
        missing("lists:ListVariable", of_lists),
    )
    with dicts.in_place(), lists.in_place():
        ConstDictVariable({})
        ListVariable([])
    assert [len(of_dicts), len(of_lists)] == [1, 1]


def test_a_target_with_two_names_is_the_one_that_this_torch_has():
    from npugx_cache.trace.observe.hooks import Hook, State, find

    there, gone = (
        "variables.lists:ListVariable.call_method",
        "variables.lists:ListVariable.not_there",
    )
    for target, name in ((f"{gone} | {there}", there), (f"{there} | {gone}", there), (gone, gone)):
        found = find(Hook(target, lambda original: original, "a test"))
        assert found.target == name
        assert (found.state is State.GONE) == (name == gone)


def test_a_hook_on_an_inherited_method_lets_the_hook_on_its_base_run():
    from torch._dynamo.variables.functions import WrapperUserFunctionVariable

    from npugx_cache.trace.observe.hooks import Hook, Hooks

    seen = []

    def watching(original):
        return lambda *given: (seen.append("derived"), original(*given))

    def replacing(_):
        return lambda *_: seen.append("base")

    rows = [
        Hook(
            f"variables.functions:{kind}UserFunctionVariable.call_obj_hasattr",
            make,
            "a test",
            inherits=True,
        )
        for kind, make in (("Wrapper", watching), ("Base", replacing))
    ]
    assert "call_obj_hasattr" not in vars(WrapperUserFunctionVariable)
    hooks = Hooks(rows, seen.append)
    with hooks.in_place():
        made = object.__new__(WrapperUserFunctionVariable)
        WrapperUserFunctionVariable.call_obj_hasattr(made, None, "name")
    assert seen == ["derived", "base"]
    assert "call_obj_hasattr" not in vars(WrapperUserFunctionVariable)


BEFORE = '''
def f(x, *, y=2):
    """Say what it does."""
    # why
    return {"a": x, **{"b": y}}
'''
SAME = """

def f(x, *,
      y=2):
    return {"a": x,
            **{"b": y}}
"""
OTHER = """
def f(x, *, y=2):
    return {"a": x, **{"b": x}}
"""


@pytest.mark.parametrize(
    ("after", "is_same"), [(BEFORE, True), (SAME, True), (OTHER, False)], ids=["0", "same", "other"]
)
def test_the_hash_of_a_function_is_of_what_it_does(tmp_path, after, is_same):
    before = body_hash(made(tmp_path / "before.py", BEFORE))
    assert before is not None
    assert (body_hash(made(tmp_path / "after.py", after)) == before) is is_same


def test_a_wrapper_around_a_function_is_not_the_function(tmp_path):
    original = made(tmp_path / "before.py", BEFORE)

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return original(*args, **kwargs)

    assert body_hash(wrapper) != body_hash(original)


@pytest.mark.parametrize("value", [len, {}, eval("lambda: 1")], ids=["builtin", "dict", "no file"])
def test_what_has_no_source_has_no_hash(value):
    assert body_hash(value) is None


def test_a_hook_with_which_less_is_refused_is_put_only_at_a_body_that_was_read(tmp_path):
    from torch._dynamo.variables.lists import ListVariable

    from npugx_cache.trace.observe.hooks import Hook, Hooks

    known = body_hash(ListVariable.call_method)
    assert known is not None
    for bodies, is_put in (((known,), True), (("0" * 16, known), True), (("0" * 16,), False)):
        original, refused = ListVariable.call_method, []
        row = Hook("variables.lists:ListVariable.call_method", passing_on, "a test", bodies=bodies)
        hooks = Hooks([row], refused.append)
        with hooks.in_place():
            assert (ListVariable.call_method is not original) is is_put
            ListVariable([])
        assert hooks.obstacle() is None
        assert (hooks.missing() is None) is is_put
        assert refused == []


def passing_on(original):
    return lambda *given: original(*given)


def made(path, text):
    path.write_text(text)
    names = {}
    exec(compile(text, str(path), "exec"), names)
    return names["f"]
