"""Every factor of a key is in one list, and a change of any of them is another key (P1, P4)."""

from __future__ import annotations

import logging
import platform
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch._inductor.config

from npugx_cache import cache_compile, store
from npugx_cache.backend import patterns, register_replacement
from npugx_cache.backend.options import SPECS
from npugx_cache.backend.static_kernels.wanted import Operators, Wanted
from npugx_cache.config import load
from npugx_cache.entry.kernel_packages import _fingerprint as key_of_kernels
from npugx_cache.errors import OptionError
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import FACTORS, Fingerprint, differences, shorten_value
from npugx_cache.private import cuda


def scale(x, factor=2):
    return x * factor


def other(x, factor=2):
    return x * factor


def edited(x, factor=2):
    return x * factor + 1


def silu(x):
    return x * torch.sigmoid(x)


def gelu(x):
    return torch.sigmoid(x * 1.702) * x


def a_pass(graph_module, example_inputs, options):
    graph_module.recompile()


def another_pass(graph_module, example_inputs, options):
    graph_module.graph.lint()


def searched(x):
    return torch.relu(x) + 1


def replaced(x):
    return torch.clamp_min(x, 0) + 1


SILU = torch.ops.aten.silu.default


def key(function=scale, devices=("cpu",), **arguments):
    """The fingerprint of a lookup, made by the parts that make it in `Lookup`."""
    recipe = cache_compile(function, **arguments)._recipe
    return Fingerprint.of((*recipe.factors(), *environment.factors(frozenset(devices))))


@pytest.fixture
def process(monkeypatch):
    """A monkeypatch that forgets what of the process is remembered, before and after."""

    def forget():
        environment._process_factors.cache_clear()
        environment._instructions.cache_clear()

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def renamed(function, name):
    made = types.FunctionType(function.__code__, function.__globals__, name, (2,))
    made.__qualname__ = name
    return made


def with_gpu(process, *, name="A", driver="1"):
    process.setattr(torch.cuda, "get_device_name", lambda: name)
    process.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    process.setattr(cuda, "driver_version", lambda: driver)
    return key(devices=("cuda",))


def with_npu(process, *, name="A", version="2.13", cann="9.0"):
    utils = types.SimpleNamespace(get_cann_version=lambda: cann)
    process.setitem(sys.modules, "torch_npu", types.SimpleNamespace(__version__=version))
    process.setitem(sys.modules, "torch_npu.npu.utils", utils)
    device = types.SimpleNamespace(get_device_name=lambda: name)
    process.setattr(torch, "npu", device, raising=False)
    return key(devices=("npu",))


def with_graph_engine(process, *, cann="9.0", hf32=False, **environ):
    utils = types.SimpleNamespace(get_cann_version=lambda part="CANN": f"{part} {cann}")
    npu = types.SimpleNamespace(
        conv=types.SimpleNamespace(allow_hf32=True),
        matmul=types.SimpleNamespace(allow_hf32=hf32),
        current_device=lambda: 0,
        _get_deterministic_level=lambda: 0,
    )
    process.setitem(sys.modules, "torch_npu", types.SimpleNamespace(npu=npu))
    process.setitem(sys.modules, "torch_npu.npu.utils", utils)
    for name, value in environ.items():
        process.setenv(name, value)
    return key(backend="ge")


def with_settings(config, **settings):
    with config.patch(**settings):
        return key(backend="inductor" if config is torch._inductor.config else "npugraph_ex")


def with_environment(process, **variables):
    for name, value in variables.items():
        process.setenv(name, value)
    return key()


HAS_VNNI = torch.cpu._is_vnni_supported()


def with_answer(process, where, name, answer):
    process.setattr(where, name, answer)
    environment._process_factors.cache_clear()
    environment._instructions.cache_clear()
    return key(backend="inductor" if name == "_instructions" else "npugraph_ex")


def with_pattern(process, replacement):
    process.setattr(patterns, "_registered", [])
    register_replacement(searched, replacement, (torch.ones(2),))
    return key()


def with_switch(value):
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value)
    try:
        return key()
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


CHANGES = {
    "function": lambda _: (key(), key(renamed(scale, "renamed"))),
    "function.code": lambda _: (key(), key(_with_code(scale, edited))),
    "backend": lambda _: (key(backend="cudagraphs"), key(backend="npugraphs")),
    "dynamic": lambda _: (key(), key(dynamic=True)),
    "option.*": lambda _: (key(), key(options={"inplace_pass": False})),
    "option.post_grad_custom_pre_pass": lambda _: tuple(
        key(options={"post_grad_custom_pre_pass": each}) for each in (a_pass, another_pass)
    ),
    "pattern.*": lambda p: (with_pattern(p, replaced), with_pattern(p, searched)),
    "npu_fusions": lambda p: (key(), with_answer(p, patterns, "NPU_FUSIONS", "0")),
    "decomposition.*": lambda _: tuple(
        key(custom_decompositions={SILU: each}) for each in (silu, gelu)
    ),
    "format": lambda p: (key(), with_answer(p, environment, "FORMAT", "0")),
    "npugx_cache": lambda p: (key(), with_answer(p, environment, "VERSION", "0")),
    "python": lambda p: (key(), with_answer(p, platform, "python_version", lambda: "3.10")),
    "optimize": lambda p: (key(), with_answer(p, sys, "flags", types.SimpleNamespace(optimize=2))),
    "platform": lambda p: (key(), with_answer(p, platform, "machine", lambda: "riscv")),
    "torch": lambda p: (key(), with_answer(p, torch, "__version__", "2.0")),
    "torch.*": lambda _: (with_switch(True), with_switch(False)),
    "cpu": lambda p: (
        key(),
        with_answer(p, torch.backends.cpu, "get_cpu_capability", lambda: "none"),
    ),
    "cpu.features": lambda p: (
        key(),
        with_answer(p, torch.cpu, "_is_vnni_supported", lambda: not HAS_VNNI),
    ),
    "device.*": lambda _: (key(), key(devices=("cpu", "meta"))),
    "cuda": lambda p: (with_gpu(p), with_gpu(p, driver="2")),
    "cuda.device": lambda p: (with_gpu(p), with_gpu(p, name="B")),
    "npu": lambda p: (with_npu(p), with_npu(p, version="2.14")),
    "npu.cann": lambda p: (with_npu(p), with_npu(p, cann="9.1")),
    "npu.device": lambda p: (with_npu(p), with_npu(p, name="B")),
    "env.*": lambda p: (key(), with_environment(p, TORCHDYNAMO_SOMETHING="1")),
    "dynamo.*": lambda _: (key(), with_settings(torch._dynamo.config, specialize_float=True)),
    "inductor.*": lambda _: (
        key(backend="inductor"),
        with_settings(torch._inductor.config, max_autotune=True),
    ),
    "ge.versions": lambda p: (with_graph_engine(p), with_graph_engine(p, cann="9.1")),
    "ge.*": lambda p: (with_graph_engine(p), with_graph_engine(p, hf32=True)),
    "env.GE_SOMETHING": lambda p: (with_graph_engine(p), with_graph_engine(p, GE_SOMETHING="1")),
    "env.ASCEND_OF_TOMORROW": lambda p: (
        with_graph_engine(p),
        with_graph_engine(p, ASCEND_OF_TOMORROW="1"),
    ),
    "cpu.instructions": lambda p: (
        key(backend="inductor"),
        with_answer(p, environment, "_instructions", _NoInstructions()),
    ),
}


class _NoInstructions:
    def __call__(self):
        return "none"

    def cache_clear(self):
        pass


def _with_code(function, source):
    made = renamed(function, function.__name__)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__code__ = source.__code__
    return made


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_one_factor_is_another_key_and_nothing_else_changes(name, process):
    before, after = CHANGES[name](process)
    changed = [line.split()[0] for line in differences(before.factors, after.factors)]
    assert before.key != after.key
    assert len(changed) == 1, changed
    assert re.fullmatch(name.replace("*", ".+"), changed[0])


def test_what_is_the_same_has_the_same_key():
    assert key() == key()
    assert key(options={"inplace_pass": True}).key == key().key, "a default that is written out"


RUNNING = {
    "capture_limit": 3,
    "clone_input": False,
    "clone_output": False,
    "force_eager": True,
    "force_recapture": True,
    "frozen_parameter": True,
    "record_statistics_debug_info": True,
    "unsafe_skip_npugraph_capture_validation": True,
}


@pytest.mark.parametrize("name", SPECS)
def test_an_option_that_only_says_how_a_graph_is_run_is_no_factor(name):
    assert (name in RUNNING) is not SPECS[name].shapes_graph
    if name in RUNNING:
        changed = {name: RUNNING[name]}
        assert key(options=changed) == key()
        with_pass = {"post_grad_custom_pre_pass": a_pass}  # which is given all options
        assert key(options={**with_pass, **changed}).key != key(options=with_pass).key


KERNELS = {
    "deterministic": "True",
    "deterministic.level": "1",
    "npu.cann": "9.0",
    "npu.custom_operators": "none",
    "npu.device": "A",
    "super_kernel": "{}",
}


def kernels(text=b"{}", **changes):
    rows = {**KERNELS, **changes}
    return key_of_kernels(Wanted(Operators({"add_1.json": text}), tuple(rows.items())))


@pytest.mark.parametrize("name", [*KERNELS, "operators"])
def test_a_change_of_one_factor_of_static_kernels_is_another_key(name):
    before = kernels()
    after = kernels(b"[]") if name == "operators" else kernels(**{name: "other"})
    changed = [line.split()[0] for line in differences(before.factors, after.factors)]
    assert (before.key == after.key, changed) == (False, [name])


OF_A_FAMILY = {
    "option.post_grad_custom_pre_pass",
    "env.GE_SOMETHING",
    "env.ASCEND_OF_TOMORROW",
}
"""Changes of a factor whose family has another change."""
OF_PIECES = {"graph.*", "lowering.*"}
"""The factors that `tests/pieces/test_key.py` changes."""


@pytest.mark.parametrize("name", ["ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_RT_VISIBLE_DEVICES"])
def test_what_is_logged_and_which_devices_there_are_is_no_factor_of_a_graph_for_ge(
    name, monkeypatch
):
    before = with_graph_engine(monkeypatch)
    assert with_graph_engine(monkeypatch, **{name: "1"}).key == before.key


def test_each_row_of_the_list_is_changed_by_a_test():
    assert {kind.name for kind in FACTORS} == (
        {*CHANGES, *KERNELS, "operators", *OF_PIECES} - OF_A_FAMILY
    )


def test_a_name_that_is_not_in_the_list_is_no_factor():
    for name in ("weather", "weather.today", "option"):
        with pytest.raises(KeyError, match=r"add it to fingerprint\.FACTORS"):
            Fingerprint.of([(name, "fine")])


def test_factors_compared_at_every_call_are_the_switches_and_the_code():
    found = {factor.name for factor in key().factors if factor.span == "call"}
    assert found == {"function.code", *(f"torch.{name}" for name in environment._SWITCHES)}


def test_a_real_lookup_logs_each_factor_that_it_stores(tmp_path, caplog):
    cached = cache_compile(scale, cache_dir=tmp_path)
    with caplog.at_level(logging.DEBUG, logger="npugx_cache"):
        cached(torch.ones(2))
    opened = store.open_store(load(cache_dir=tmp_path))
    (manifest,) = opened.siblings(cached._recipe.identity)
    logged = [r.message for r in caplog.records if r.message.startswith(f"key {manifest.key[:12]}")]
    assert logged == [
        f"key {manifest.key[:12]}: {name} = {shorten_value(value)}"
        for name, value, _ in manifest.factors
    ]
    assert manifest.key == key().key, "this file forms keys as a lookup does"


def test_a_lookup_logs_no_factor_where_debug_is_off(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="npugx_cache"):
        cache_compile(scale, cache_dir=tmp_path)(torch.ones(2))
    assert not [record for record in caplog.records if record.message.startswith("key ")]


def test_long_values_are_logged_by_their_digest():
    assert shorten_value("3.11") == "3.11"
    assert shorten_value("ab" * 32) == "ab" * 6
    assert re.fullmatch(r"<99 characters, sha256 [0-9a-f]{12}>", shorten_value("x" * 99))


def test_the_page_of_promises_has_the_list():
    page = (Path(__file__).parents[2] / "docs" / "promises.md").read_text()
    rows = [f"| `{kind.name}` | {kind.span} | {kind.meaning} |" for kind in FACTORS]
    assert [line for line in page.splitlines() if re.match(r"\| `[\w.*]+` \|", line)] == rows


def test_differences_say_how_python_was_started_and_where_the_code_is():
    assert [*differences([("optimize", "0")], [("optimize", "1")])] == [
        "optimize was 0 (python), is 1 (python -O)"
    ]
    codes = [[("function.code", letter * 32)] for letter in "ab"]
    assert [*differences(*codes)] == ["function.code changed"]
    assert [*differences(*codes, place="at m.py:3 in f")] == [
        "function.code changed at m.py:3 in f"
    ]


@pytest.mark.parametrize(
    ("was", "now", "shown"),
    [
        ("a" * 32, "b" * 64, "option.x changed"),
        ("a" * 31, "b" * 32, f"option.x was {'a' * 31}, is {'b' * 32}"),
        ("a" * 32, "1", f"option.x was {'a' * 32}, is 1"),
        ("1", "2", "option.x was 1, is 2"),
        ("a" * 32, "z" * 32, f"option.x was {'a' * 32}, is {'z' * 32}"),
    ],
)
def test_differences_show_values_unless_both_are_digests(was, now, shown):
    assert [*differences([("option.x", was)], [("option.x", now)])] == [shown]


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_backends_only_what_both_have_is_compared(turned):
    rows = [("backend", "a"), ("dynamic", "None"), ("option.x", "1")]
    others = [("backend", "b"), ("dynamic", "True")]
    before, after = (others, rows) if turned else (rows, others)
    changed = [line.split()[0] for line in differences(before, after)]
    assert changed == ["backend", "dynamic"]
    # The backend may be missing, as in what is compared of a graph that is loaded by its entry.
    assert [*differences(rows[2:], [])] == ["option.x was 1, is not set"]
    assert [*differences([], rows[2:])] == ["option.x was not set, is 1"]


class Halved:
    """A function with state, and no `uuid()` that names the state."""

    def __call__(self, x):
        return x / 2


def test_a_decomposition_that_no_key_can_name_is_refused_at_decoration():
    with pytest.raises(OptionError, match=r"decomposition of aten.silu.*can't be part of a key"):
        cache_compile(lambda x: x, custom_decompositions={SILU: Halved()})


def test_a_custom_pass_that_no_key_can_name_is_refused_at_decoration():
    with pytest.raises(OptionError, match=r"'post_grad_custom_pre_pass' can't be part of a key"):
        cache_compile(lambda x: x, options={"post_grad_custom_pre_pass": Halved()})


@pytest.mark.parametrize("function", [torch.ops.aten.relu.default, torch.relu, torch.sigmoid])
def test_an_operator_or_a_function_of_torchs_may_be_a_decomposition(function):
    made = key(custom_decompositions={SILU: function})
    assert made == key(custom_decompositions={SILU: function})
    assert made.key != key(custom_decompositions={SILU: torch.tanh}).key
