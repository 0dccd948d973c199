"""The C++ guard tree of later calls, held against the full check and torch's own guards."""

import contextlib
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from states import STATES
from test_oracle import LOCALS, Traced, patched, toy

from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.cpp_check import NativeCheck
from npugx_cache.conditions.dict_versions import Found, KeptDicts
from npugx_cache.conditions.evaluate import Scope, evaluate

RANDOM_STATES = 10_000


@pytest.fixture(scope="module")
def traced():
    made = Traced()
    made.toy = toy
    for _ in range(2):  # the second acceptance builds the managers
        assert made.verdicts()[0]
    assert isinstance(made.ours._native, NativeCheck)
    made.ours._native, _ = native(made, versions=False)
    return made


def native(traced, versions, owner=None):
    scope, full = Scope(traced.base, traced.globals), Checker(traced.ours.conditions)
    with torch.no_grad():
        values = evaluate(full._plan, scope)
        found = Found(full.conditions, full._plan, values, owner) if versions else None
        assert full.holds(scope)
        return NativeCheck(
            full.conditions, full._plan, values, scope, full._arguments, found
        ), found


def verdicts(traced, states, change):
    """Native, full and torch's, in a changed state; the full one has seen nothing before.

    Versions are read again for each state, because they differ after what the last one wrote: of
    dicts that are read from where they are, and of dicts that are kept.
    """
    of_versions, found = native(traced, versions=True)
    of_kept, _ = native(traced, versions=True, owner=traced.base["self"])
    assert isinstance(of_kept.versions._tables, KeptDicts)
    assert not isinstance(of_versions.versions._tables, KeptDicts)
    counts = [
        sum(len(nodes) for nodes, _ in checks.values())
        for checks in (found.left, traced.ours.conditions.checks)
    ]
    assert counts[0] < counts[1] - 80
    with torch.no_grad(), contextlib.ExitStack() as stack:
        assert of_versions.accept(Scope(traced.base, traced.globals))
        assert of_kept.accept(Scope(traced.base, traced.globals))
        for state in states:
            # An earlier state may have taken the place away, or put a meta tensor there.
            with contextlib.suppress(AttributeError, RuntimeError):
                stack.enter_context(STATES[state](traced))
        frame_locals = {**traced.base, **change(traced)}
        scope = Scope(frame_locals, traced.globals)
        full = Checker(traced.ours.conditions).holds(scope)
        theirs, of_tree = traced.theirs(frame_locals), traced.ours.holds_quickly(scope)
        for by_versions in (of_versions, of_kept):
            with patched(traced.ours, "_native", by_versions):
                accepts = traced.ours.holds_quickly(scope)
            assert accepts <= full, states
            assert accepts <= theirs, states
        return of_tree, full, theirs


@pytest.mark.parametrize("state", STATES)
def test_one_change_is_judged_as_the_full_check_does(traced, state):
    native, full, theirs = verdicts(traced, [state], lambda _: {})
    assert native <= full
    assert native <= theirs
    assert native == full or state in STRICTER
    assert verdicts(traced, [], lambda _: {}) == (True, True, True)


STRICTER = {
    "another number of threads",  # torch's state guard counts them; the full check decides
    "a table of another kind",
    "a copy of a helper",
    "another attribute lookup",  # one that does the same
}
"""Refused by the managers, then accepted by the full check: slower, not wrong."""


@pytest.mark.thorough
def test_random_states_are_never_accepted_by_the_managers_alone(traced):
    random.seed(0)
    names = list(STATES)
    changes = [lambda _: {}, *LOCALS.values()]
    seen = {True: 0, False: 0}
    for _ in range(RANDOM_STATES):
        states = random.sample(names, random.choice((0, 1, 1, 2, 3)))
        change = random.choice(changes) if random.random() < 0.3 else changes[0]
        native, full, theirs = verdicts(traced, states, change)
        assert not native or (full and theirs), states
        seen[native] += 1
    assert min(seen.values()) > RANDOM_STATES // 20, seen


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CALLS = """
    import sys, torch
    from npugx_cache import cache_compile
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    cached = cache_compile(net, cache_dir=sys.argv[1] if sys.argv[1:] else {folder!r})
    x = torch.ones(2, 4)
    for _ in range(4):
        cached(x)
    info = cached.forward.cache_info()
    guards = next(iter(cached.forward._state.specialisations)).conditions
    assert guards._native is not None
"""


@pytest.mark.thorough
def test_building_managers_imports_no_compiler(tmp_path):
    calls = textwrap.dedent(CALLS.format(folder=str(tmp_path)))
    run(calls)
    after = """
assert info.hits == 1, info
for name in ("torch._dynamo", "torch._dynamo.guards", "torch._dynamo.config", "sympy"):
    assert name not in sys.modules, name
"""
    run(calls + after)
    # Dynamo comes later, with an enum that C++ knows, and both go on working.
    later = """
compiled = torch.compile(lambda a, d: torch.relu(a) + d["k"], backend="eager")
other = {"k": 1.0, "l": 2}
assert torch.equal(compiled(x, other), torch.relu(x) + 1)
assert torch.equal(compiled(x, {"k": 2.0}), torch.relu(x) + 2)
assert torch._dynamo.config.cache_size_limit
second = cache_compile(torch.nn.Linear(4, 4).eval(), cache_dir=cached.forward._settings.cache_dir)
for _ in range(4):
    second(x)
assert next(iter(second.forward._state.specialisations)).conditions._native is not None
assert torch.equal(net(x), cached(x))
"""
    run(calls + after + later)
    run("import torch._dynamo\n" + calls + later)


@pytest.mark.thorough
def test_an_import_of_dynamo_in_another_thread_is_kept_apart(tmp_path):
    calls = textwrap.dedent(CALLS.format(folder=str(tmp_path)))
    run(calls)
    threads = """
import threading
from npugx_cache.private import guard_managers
with guard_managers.building() as kind:
    def load():
        import torch._dynamo
    thread = threading.Thread(target=load)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()  # waits for the build
thread.join()
import torch._dynamo.config as config
assert isinstance(config.cache_size_limit, int) and not isinstance(config, guard_managers._Settings)
compiled = torch.compile(lambda a: torch.relu(a), backend="eager")
assert torch.equal(compiled(x), torch.relu(x))
"""
    run(calls + threads)


def test_shapes_that_take_turns_are_told_apart_in_cpp(tmp_path):
    from npugx_cache import cache_compile

    linear = torch.nn.Linear(4, 4).eval()
    cached = cache_compile(linear, cache_dir=tmp_path, dynamic=False).forward
    sizes = [torch.ones(n, 4) for n in (2, 3, 4)]
    for x in sizes * 3:
        cached(x)
    checks = [known.conditions for known in cached._state.specialisations]
    before = [guards._held for guards in checks]
    for x in sizes * 5:
        assert torch.equal(cached(x), type(linear).forward(linear, x))
    assert [guards._held for guards in checks] == before  # no full check has accepted since
    assert cached.cache_info().misses == 3
