"""Every guard kind and every source class of the installed torch has a decision, and it is true.

A torch version with a new one fails here. `seen` are those that the traces of the matrix met.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from kinds import (
    GUARDS,
    NEVER,
    PORTABLE,
    REFUSED,
    SOURCES,
    STATE,
    TRANSPARENT,
)
from matrix import CHOSEN, ROWS
from processes import SECONDS
from torch._dynamo import source as torchs
from torch._dynamo.guards import GuardBuilder
from torch._guards import ChainedSource, Source

from npugx_cache import version
from npugx_cache.portable import NotPortable
from npugx_cache.trace.conditions import builder, guards

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(4 * SECONDS),  # the first test of all runs the matrix
]

OF_THEIR_OWN = {"TENSOR_MATCH", "DUPLICATE_INPUT"}
"""Guard kinds that `add_guards` handles besides its table."""


def kinds_of_torch():
    return {name for name in vars(GuardBuilder) if name.isupper() and not name.startswith("_")}


def sources_of_torch():
    members = vars(torchs).items()
    return {n for n, c in members if inspect.isclass(c) and issubclass(c, Source)} - {
        "Source",
        "ChainedSource",
    }


def decided(table, *decisions):
    return sorted(name for name, decision in table.items() if decision.what in decisions)


@pytest.fixture(scope="module")
def seen(asked):
    """What each restarted row's trace met, and what the traces of refused rows met."""
    stored, refused = set(), set()
    for name, row in CHOSEN.items():
        (stored if row.refused is None else refused).update(asked["cold"][name]["seen"])
    return stored, refused


def test_every_guard_kind_of_torch_has_a_decision():
    assert kinds_of_torch() == GUARDS.keys()


def test_every_source_of_torch_has_a_decision():
    assert sources_of_torch() == SOURCES.keys()


@pytest.mark.parametrize("kind", decided(GUARDS, PORTABLE))
def test_a_portable_kind_has_code_for_it(kind):
    assert kind in guards._HANDLERS.keys() | OF_THEIR_OWN
    assert kind not in guards.STATE_KINDS


def test_the_kinds_about_global_state_are_those_decided_on():
    assert set(decided(GUARDS, STATE)) == guards.STATE_KINDS


@pytest.mark.parametrize("kind", decided(GUARDS, REFUSED))
def test_a_refused_kind_refuses_the_trace(kind):
    assert kind not in guards.STATE_KINDS
    with pytest.raises(NotPortable, match=f"a {kind} guard has no portable form"):
        guards._add_guard(None, kind, 0, {})


@pytest.mark.parametrize("name", decided(SOURCES, REFUSED, NEVER, STATE))
def test_a_source_without_a_portable_form_refuses_the_trace(name, caplog):
    caplog.set_level("DEBUG", logger="npugx_cache")
    source = object.__new__(getattr(torchs, name))
    tree = builder.TreeBuilder(None, lambda _: None)
    # Whether it has a base or not, it is refused by its class, before any field is read.
    refuse = builder._step_of if issubclass(type(source), ChainedSource) else tree._add_source
    words = (
        "an array of NumPy's" if name == "NumpyTensorSource" else "in a way that has no condition"
    )
    with pytest.raises(NotPortable, match=words):
        refuse(source)
    assert name in caplog.text or name == "NumpyTensorSource"


@pytest.mark.parametrize("name", decided(SOURCES, TRANSPARENT))
def test_a_transparent_source_is_where_its_base_is(name):
    assert issubclass(getattr(torchs, name), builder.TRANSPARENT_SOURCES)


@pytest.mark.skipif(CHOSEN.keys() != ROWS.keys(), reason="a sample of the rows need not meet each")
@pytest.mark.parametrize(
    "name",
    [
        name
        for table in (GUARDS, SOURCES)
        for name in decided(table, PORTABLE)
        if not table[name].not_in_a_row and name in kinds_of_torch() | sources_of_torch()
    ],
)
def test_what_is_portable_was_met_by_a_row_that_restarts(seen, name):
    assert name in seen[0]


@pytest.mark.parametrize("name", decided(GUARDS, REFUSED) + decided(SOURCES, REFUSED, NEVER))
def test_what_is_refused_is_in_no_row_that_restarts(seen, name):
    if name == "FloatTensorSource" and version.minor_version(torch.__version__) < (2, 12):
        pytest.skip("there the item() of such a tensor is the float, which is portable")
    assert name not in seen[0]
