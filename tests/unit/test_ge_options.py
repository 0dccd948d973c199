"""Options of the vendor's GE configuration: served, or refused by name at decoration."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest

from npugx_cache import cache_compile
from npugx_cache.backend import options
from npugx_cache.backend.ge import options as ge
from npugx_cache.errors import BackendUnavailable, OptionError


def f(x):
    return x * 2


BAD = {
    "ge_cache": 1,
    "experimental_config.cc_parallel_enable": "1",
    "experimental_config.enable_view_optimize": None,
    "experimental_config.memory_efficiency": 0,
    "experimental_config.static_model_ops_lower_limit": -2,
    "experimental_config.tiling_schedule_optimize": "True",
    "experimental_config.topology_sorting_strategy": "dfs",
    "ge_config.aicore_num": 24,
    "ge_config.enable_single_stream": "false",
    "ge_config.export_compile_stat": 2,
    "ge_config.multistream_parallel_mode": None,
    "ge_config.oo_constant_folding": 1,
    "ge_config.oo_dead_code_elimination": 1,
    "ge_config.oo_level": "O2",
    "ge_config.optimization_switch": ["pass:off"],
}
REFUSED = {
    "aoe_config.aoe_mode": "tuning runs the graph for hours",
    "debug.aclgraph.clone_input": "it is an option of npugraph_ex",
    "debug.data_dump.type": "dump_tensor_data",
    "debug.fx_summary.type": "npugx-cache readable",
    "debug.graph_dump.type": "npugx-cache readable",
    "debug.run_eagerly": "write backend='aot_eager'",
    "dump_config.enable_dump": "dump_tensor_data",
    "experimental_config.aclgraph._aclnn_static_shape_kernel": "it is an option of npugraph_ex",
    "experimental_config.aot_config_enable_joint_graph": "it is for training",
    "experimental_config.enable_ref_data": "it has addresses of this process in the graph",
    "experimental_config.frozen_parameter": "it has addresses of weights in the graph",
    "experimental_config.jit_compile": "leave it out",
    "experimental_config.keep_inference_input_mutations": "are always kept",
    "experimental_config.npu_fx_pass": "changes torch for the whole process",
    "experimental_config.pattern_fusion_pass": "no part of a key",
    "experimental_config.remove_noop_ops": "GE removes them itself",
    "export.export_mode": "use torchair.dynamo_export",
    "fusion_config.fusion_switch_file": "the file that it names is no part of a key",
    "inference_config.dynamic_gears_merge_policy": "write dynamic=True",
    "mode": "the argument `backend` names the way to compile",
    "post_grad_custom_pre_pass": "write backend='npugraph_ex'",
    "capture_limit": "it is an option of npugraph_ex",
    "aclgraph_config.use_custom_pool": "it is an option of npugraph_ex",
    "npugraphex_config.force_eager": "it is an option of npugraph_ex",
}


def test_a_served_option_has_a_range():
    assert {*BAD} == {*ge.SERVED}


@pytest.mark.parametrize(("name", "value"), BAD.items())
def test_a_value_out_of_range_is_refused_with_the_range(name, value):
    with pytest.raises(OptionError) as caught:
        options.parse({name: value}, "ge")
    assert str(caught.value).startswith(f"option {name!r} is {value!r}; ")


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_what_is_not_served_is_refused_by_name(name, why):
    with pytest.raises(OptionError) as caught:
        options.parse({name: True}, "ge")
    assert str(caught.value).startswith(f"option {name!r} is not served by backend 'ge': ")
    assert why in str(caught.value)


def test_each_reason_of_the_table_has_an_option():
    unmet = {each for each in ge.REFUSED if not any(name.startswith(each) for name in REFUSED)}
    assert unmet == set()


def test_an_option_with_a_slip_is_told_the_right_name():
    with pytest.raises(OptionError, match=r"Did you mean 'ge_config.oo_level'\?$"):
        options.parse({"ge_config.oolevel": "O1"}, "ge")


def test_each_option_that_is_given_is_a_factor_and_nothing_is_captured():
    plain = options.parse({}, "ge")
    chosen = options.parse({"ge_config.oo_level": "O1", "ge_cache": True}, "ge")
    assert {*chosen.as_factors()} - {*plain.as_factors()} == {
        ("ge.ge_config.oo_level", "'O1'"),
        ("ge.ge_cache", "True"),
    }
    assert not chosen.captures


@pytest.mark.parametrize("backend", ["ge", "max-autotune"])
def test_without_torch_npu_the_backend_is_not_there(backend, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=f"'{backend}' needs the graph engine of an NPU"):
        cache_compile(f, backend=backend)


def test_the_vendors_name_and_ours_are_one_backend(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace())
    ours, vendors = (cache_compile(f, backend=name)._recipe for name in ("ge", "max-autotune"))
    assert ours.backend == vendors.backend == "ge"
