"""Settings that newer versions of torch have: a default is a default, a mode has its own key."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch.compiler import config as compiler_config

from npugx_cache.private import runtime


def test_the_default_precision_of_products_counts_the_same_set_or_not():
    before = runtime.global_state()
    torch.set_float32_matmul_precision("highest")
    assert runtime.global_state() == before


@pytest.mark.skipif(not hasattr(compiler_config, runtime.ONE_RANK), reason="since torch 2.15")
def test_a_compile_on_one_rank_for_all_has_a_key_of_its_own():
    mode = runtime.ONE_RANK, True
    assert mode not in runtime.dynamo_settings()
    with compiler_config.patch({runtime.ONE_RANK: True}):
        assert mode in runtime.dynamo_settings()


BESIDE_A_BUILD = """
import json, sys, threading
import torch
from npugx_cache.key.environment import factors
from npugx_cache.private.guard_managers import building

def read_factors(change=lambda: None):
    found = []

    def look():
        change()  # since torch 2.12 a setting is one of the thread that sets it
        found.extend(factors(frozenset()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return [list(row) for row in found]

before = read_factors()
with building():
    assert "torch._dynamo.config" in sys.modules, "nothing stands in for the settings any more"
    beside = read_factors()
assert "torch._dynamo.config" not in sys.modules

from torch._dynamo import config
other = not config.skip_tensor_guards_with_matching_dict_tags

def change():
    config.skip_tensor_guards_with_matching_dict_tags = other
    config.assume_static_by_default = False

changed = read_factors(change)
with building():
    beside_changed = read_factors(change)
print(json.dumps([before, beside, changed, beside_changed]))
"""


def test_settings_are_torchs_own_while_another_thread_builds_guard_managers(surroundings):
    """A build puts a module of ours in the place of Dynamo's settings; a lookup raised there."""
    before, beside, changed, beside_changed = surroundings.run("-c", BESIDE_A_BUILD)
    assert beside == before
    assert beside_changed == changed != before
    assert any("assume_static_by_default" in name for name, _value in changed)


def test_settings_that_are_being_imported_are_unchanged(monkeypatch):
    """Another thread imports the module, and nothing has made it a module of settings yet."""
    name = "torch._dynamo.config"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert runtime.changed_settings(name, frozenset()) == ()


SETTINGS = """
import json, random, torch
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor
from npugx_cache.key.environment import factors, library_factors

classes = [type(name, (torch.Tensor,), {"__module__": "m"}) for name in "ABCDEFGH"]
dynamo.traceable_tensor_subclasses.update(classes)
dynamo.skipfiles_inline_module_allowlist = {"a": [{("x", frozenset("abcdefgh"))}, set("stuvw")]}
inductor.pre_grad_fusion_options = {"b": {"c": set("abcdefgh")}}
rows = [*factors(frozenset()), *library_factors()]
print(json.dumps([row for row in rows if row[0].partition(".")[0] in ("dynamo", "inductor")]))
"""


@pytest.mark.thorough
def test_the_text_of_a_setting_does_not_depend_on_the_order_of_sets_in_it(surroundings):
    found = [surroundings.run("-c", SETTINGS, PYTHONHASHSEED=seed) for seed in ("1", "2", "3")]
    names = {name for name, _ in found[0]}
    assert "dynamo.traceable_tensor_subclasses" in names
    assert "dynamo.skipfiles_inline_module_allowlist" in names
    assert "inductor.pre_grad_fusion_options" in names
    assert found[0] == found[1] == found[2]
