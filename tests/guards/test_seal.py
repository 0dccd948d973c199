"""Names behind a seal of dict versions: a patch is seen, and what is put back is accepted."""

import types

import pytest
import torch

from npugx_cache.conditions.code_watch import ABSENT, SealedNames


class Base:
    def act(self):
        return 1


class Derived(Base):
    pass


@pytest.fixture
def module():
    return types.ModuleType("made_here")


@pytest.fixture
def names(module):
    module.helper = len
    rows = [
        (Derived, {"act": ABSENT}),
        (Base, {"act": vars(Base)["act"]}),
        (module, {"helper": len}),
        (object, {"act": ABSENT}),
        (torch.Tensor, {"add": vars(torch.Tensor).get("add", ABSENT)}),
    ]
    made = SealedNames(rows)
    assert made.is_unchanged()
    assert made._seal is None  # a process that calls once makes none
    assert made.is_unchanged()
    assert made._seal.check({})
    return made


PATCHES = {
    "a method replaced": lambda patch, module: patch.setattr(Base, "act", lambda self: 2),
    "a method taken away": lambda patch, module: patch.delattr(Base, "act"),
    "an override": lambda patch, module: patch.setattr(Derived, "act", len, raising=False),
    "a global replaced": lambda patch, module: patch.setattr(module, "helper", max),
    "past setattr": lambda patch, module: patch.setitem(vars(module), "helper", max),
}


@pytest.mark.parametrize("how", PATCHES)
def test_a_patch_is_seen_and_what_is_put_back_accepted(names, module, how):
    with pytest.MonkeyPatch.context() as patch:
        PATCHES[how](patch, module)
        assert not names.is_unchanged()
        assert not names.is_unchanged()
    assert names.is_unchanged()


def test_other_names_do_not_matter(names, module):
    for value in range(10):
        module.counter = Derived.counter = value
        assert names.is_unchanged()
    broken = names._passed
    for _ in range(10):
        assert names.is_unchanged()
    assert names._passed < broken + 10  # sealed again


def test_an_owner_without_versions_is_compared_by_its_names():
    holder = types.SimpleNamespace(f=len)
    names = SealedNames([(holder, {"f": len})])
    assert [names.is_unchanged() for _ in range(4)] == [True] * 4
    assert names._seal is None
    holder.f = max
    assert not names.is_unchanged()
