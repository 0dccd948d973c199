"""Bad options and settings are refused at once, by name and with the valid range."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npugx_cache import cache_compile, config
from npugx_cache.backend import options
from npugx_cache.backend.options.ranges import MAX_INT
from npugx_cache.errors import BackendUnavailable, OptionError


def f(x):
    return x


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"remove_noop_ops": 1}, "option 'remove_noop_ops' is 1; valid values are True and False"),
        ({"clone_output": "yes"}, "option 'clone_output' is 'yes'"),
        ({"capture_limit": 0}, f"valid range is 1 to {MAX_INT}"),
        ({"capture_limit": MAX_INT + 1}, "valid range is 1 to"),
        ({"capture_limit": True}, "option 'capture_limit' is True; expected an int"),
        ({"capture_limit": 2.0}, "expected an int"),
        ({"capture_limits": 2}, "unknown option 'capture_limits'; valid options are"),
        ({"use_graph_pool": "x"}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": (0, 0)}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": (3, 4)}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": (False, 1)}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": [0, 5]}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": (5,)}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": (0, 5, 5)}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": (0, -5)}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": (0, 5.0)}, "a pool handle: two ints of which exactly one is 0"),
        ({"use_graph_pool": 5}, "a pool handle: two ints of which exactly one is 0"),
        ({"capture_error_mode": "none"}, "'global', 'thread_local', 'relaxed' and None"),
        ({"data_dump_stage": 1}, "valid values are 'original', 'optimized'"),
        ({"data_dump_dir": "/no/such/folder"}, "expected the path of an existing folder"),
        ({"post_grad_custom_pre_pass": "f"}, "valid values are None and a function"),
        ({"super_kernel_debug_options": {1: 2}}, "valid values are None and a dict with str keys"),
        ({"super_kernel_debug_options": {"a": object()}}, "a dict with str keys and plain values"),
        ({"_vllm_aclnn_static_kernel_sym_range": 5}, "valid values are None and a list of ints"),
        ({"_vllm_aclnn_static_kernel_sym_index": -1}, "valid range is 0 to"),
    ],
)
def test_a_bad_option_is_refused_by_name_with_its_range(given_options, said):
    with pytest.raises(OptionError) as caught:
        options.parse(given_options)
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(OptionError):
        cache_compile(f, options=given_options)


@pytest.mark.parametrize("pool", [(0, 1), (1, 0), (0, 5)])
def test_a_pool_handle_is_taken(pool):
    assert options.parse({"use_graph_pool": pool}).use_graph_pool == pool


@pytest.mark.parametrize(
    "name", [name for name, spec in options.SPECS.items() if spec.range.type == "bool"]
)
def test_no_number_and_no_text_is_a_boolean(name):
    for value in (0, 1, "True", None, 0.0):
        with pytest.raises(OptionError, match=f"'{name}' is .*; valid values are True and False"):
            options.parse({name: value})


def test_an_option_of_the_npu_is_refused_where_there_can_be_none():
    assert importlib.util.find_spec("torch_npu") is None, "these tests run without torch_npu"
    with pytest.raises(BackendUnavailable, match=r"'static_kernel_compile'.*an NPU only"):
        options.parse({"static_kernel_compile": True})
    assert options.parse({"static_kernel_compile": False}) == options.Options()


def test_an_option_is_refused_on_a_graph_of_another_kind_of_device():
    asked = options.Options(deadlock_check=True)
    asked.require_devices(["cpu", "npu"])
    asked.require_devices([])
    with pytest.raises(BackendUnavailable, match=r"'deadlock_check' has an effect on npu only"):
        asked.require_devices(["cpu"])
    options.Options().require_devices(["cpu"])
    options.Options().require_devices(["meta"])


def test_the_option_that_was_given_is_named_for_a_device_and_none_that_follows():
    with pytest.raises(BackendUnavailable, match="'use_graph_pool' has an effect on"):
        options.parse({"use_graph_pool": (0, 5)}).require_devices(["cpu"])


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"data_dump_stage": "original"}, "only with dump_tensor_data=True"),
        ({"use_graph_pool": (0, 5), "reuse_graph_pool_in_same_fx": True}, "exclude each other"),
        ({"use_graph_pool": (0, 5), "force_eager": True}, "'force_eager' and 'use_graph_pool'"),
        ({"force_recapture": True, "force_eager": True}, "nothing is captured"),
    ],
)
def test_options_that_exclude_each_other_are_named(given_options, said):
    with pytest.raises(OptionError, match=said):
        options.parse(given_options)


@pytest.mark.parametrize(
    ("backend", "given_options", "said"),
    [
        ("aot_eager", {"capture_limit": 3}, "which captures nothing"),
        ("aot_eager", {"use_graph_pool": (0, 5)}, "'use_graph_pool' has no effect"),
        ("aot_eager", {"clone_output": False}, "which captures nothing"),
        ("aot_eager", {"dump_tensor_data": True}, "which runs no graph passes"),
        ("npugraphs", {"dump_tensor_data": True}, "no effect with 'npugraphs'"),
        ("cudagraphs", {"post_grad_custom_pre_pass": f}, "which runs no graph passes"),
    ],
)
def test_what_a_backend_would_ignore_is_refused(backend, given_options, said):
    with pytest.raises(OptionError, match=said):
        cache_compile(f, backend=backend, options=given_options)


@pytest.mark.parametrize("backend", ["aot_eager", "npugraphs", "cudagraphs"])
def test_what_a_backend_does_anyway_may_be_said(backend):
    switches = {name: spec.off for name, spec in options.SPECS.items() if not spec.needs}
    assert switches["remove_noop_ops"] is False
    for given_options in (switches, {"force_eager": True}, {"inplace_pass": True}):
        cache_compile(f, backend=backend, options=given_options)


def test_defaults_and_given_options_are_factors():
    factors = dict(options.parse({"inplace_pass": False}).as_factors())
    assert factors["inplace_pass"] == "False"
    assert factors["remove_noop_ops"] == "True"
    assert set(factors) == {name for name, spec in options.SPECS.items() if spec.shapes_graph}


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"dynamic": 1}, OptionError, "dynamic=1: valid values are None, True and False"),
        ({"strict": "no"}, OptionError, "strict='no'"),
        ({"guards": "none"}, OptionError, "guards='none'"),
        ({"backend": "nothing"}, OptionError, "unknown backend 'nothing'"),
        ({"backend": "npu"}, OptionError, "the vendor's GE mode; write 'max-autotune'"),
        ({"backend": "GeConcreteGraph"}, OptionError, "of the vendor's GE mode; write 'max-aut"),
        ({"backend": "reduce-overhead"}, OptionError, "the old name of 'npugraph_ex'; write 'npu"),
        ({"backend": None}, OptionError, "unknown backend None"),
        ({"custom_decompositions": {"aten::silu": f}}, OptionError, "custom_decompositions"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_a_bad_argument_is_refused_when_a_function_is_decorated(arguments, error, said):
    with pytest.raises(error) as caught:
        cache_compile(f, **arguments)
    assert said in str(caught.value)


def load(**environ):
    return config.load(environ=environ)


def test_arguments_go_before_the_environment_and_that_before_defaults(tmp_path):
    ours, vendors = tmp_path / "ours", tmp_path / "vendors"
    both = {"NPUGX_CACHE_DIR": str(ours), "TORCH_NPU_COMPILE_CACHE_DIR": str(vendors)}
    assert config.load(cache_dir=tmp_path, environ=both).cache_dir == tmp_path
    assert load(**both).cache_dir == ours
    assert load(TORCH_NPU_COMPILE_CACHE_DIR=str(vendors)).cache_dir == vendors
    assert load().cache_dir.name == "npugx_cache"
    assert config.load(strict=True, environ={"NPUGX_CACHE_STRICT": "0"}).strict
    assert load(NPUGX_CACHE_STRICT="1").strict
    assert not load().untested_torch
    assert load(NPUGX_CACHE_UNTESTED_TORCH="1").untested_torch


def test_a_relative_folder_is_made_absolute_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(NPUGX_CACHE_DIR="here").cache_dir == tmp_path / "here"
    assert load(NPUGX_CACHE_DIR="~/here").cache_dir == Path.home() / "here"


def test_empty_variables_count_as_not_set():
    assert load(NPUGX_CACHE_DIR="", NPUGX_CACHE="", NPUGX_CACHE_MAX_SIZE="") == load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NPUGX_CACHE", "maybe"),
        ("NPUGX_CACHE", "ON"),
        ("NPUGX_CACHE_TRUST", "everybody"),
        ("NPUGX_CACHE_STRICT", "yes"),
        ("NPUGX_CACHE_UNTESTED_TORCH", "2.15"),
        ("NPUGX_CACHE_LOCK_WAIT", "-1"),
        ("NPUGX_CACHE_LOCK_WAIT", "soon"),
        ("NPUGX_CACHE_LOCK_WAIT", "nan"),
        ("NPUGX_CACHE_LOCK_WAIT", "inf"),
        ("NPUGX_CACHE_MAX_SIZE", "10X"),
        ("NPUGX_CACHE_MAX_SIZE", "-1G"),
        ("NPUGX_CACHE_MAX_SIZE", "much"),
        ("NPUGX_CACHE_MAX_SIZE", "nan"),
        ("NPUGX_CACHE_MAX_SIZE", "1e999"),
    ],
)
def test_an_unusable_value_is_refused_by_the_name_of_its_variable(name, value):
    with pytest.raises(OptionError, match=name):
        load(**{name: value})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("123456", 123456),
        ("1k", 1024),
        ("500M", 500 << 20),
        ("500 MB", 500 << 20),
        ("2GiB", 2 << 30),
        ("1.5G", 3 << 29),
        ("1T", 1 << 40),
        ("7B", 7),
    ],
)
def test_sizes_are_read_in_the_usual_spellings(text, size):
    assert config.parse_size(text) == size


@given(text=st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text):
    try:
        assert config.parse_size(text) >= 0
    except ValueError:
        return


def test_environment_variables_of_the_compiler_count_unless_they_only_report(monkeypatch):
    given = {"TORCHDYNAMO_VERBOSE": "1", "TORCHDYNAMO_X": "2", "AOT_Y": "3", "HOME": "/"}
    monkeypatch.setattr("os.environ", given)
    assert config.compiler_environment() == (("AOT_Y", "3"), ("TORCHDYNAMO_X", "2"))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("NPUGX_CACHE_DIR", "/graphs", "/graphs"),
        ("NPUGX_CACHE_KEY_FILE", "/k", "(set)"),
        ("NPUGX_CACHE_REMOTE", "s3://bucket/folder", "(set)"),
        ("PYTHON_HUB_AUTH", "s", "(set)"),
        ("TORCH_HUB_PASSWD", "s", "(set)"),
        ("TORCH_MIRROR", "https://me:s@host/x", "(set)"),
        ("TORCH_MIRROR", "https://host/x@y", "https://host/x@y"),
    ],
)
def test_a_value_that_may_be_secret_is_not_shown(monkeypatch, name, value, shown):
    monkeypatch.setenv(name, value)
    assert config.steering_environment()[name] == shown


def test_variables_that_steer_nothing_are_not_shown(monkeypatch):
    monkeypatch.setenv("HOMEPAGE", "x")
    assert "HOMEPAGE" not in config.steering_environment()


def test_variables_of_engines_count_unless_they_are_about_one_process(monkeypatch):
    kept = ("VLLM_LOGITS_X", "VLLM_SUPPORT_X", "VLLM_DIRECT_X", "SGLANG_USE_X", "VLLM_PLUGINS")
    left_out = ("VLLM_HOST_IP", "VLLM_PORT", "VLLM_DP_RANK", "VLLM_API_KEY", "VLLM_CACHE_ROOT")
    for name in (*kept, *left_out):
        monkeypatch.setenv(name, "1")
    found = config.engine_environment()
    assert found.keys() >= {*kept}
    assert found.keys().isdisjoint(left_out)
