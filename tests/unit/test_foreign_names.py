"""A name that another compile function takes is told what replaces it here."""

from __future__ import annotations

import inspect

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.config import foreign_names
from npugx_cache.errors import OptionError


def f(x):
    return x * 2


class Backend:
    def __call__(self, graph, inputs):
        return graph


@pytest.mark.parametrize("name", foreign_names.ARGUMENTS)
def test_an_argument_of_another_compile_function_is_told_what_replaces_it(name):
    for value in (None, False, "reduce-overhead", object()):
        with pytest.raises(TypeError) as caught:
            cache_compile(f, **{name: value})
        said = f"unexpected keyword argument '{name}': {foreign_names.ARGUMENTS[name]}"
        assert str(caught.value) == f"cache_compile() got an {said}"


def test_all_foreign_arguments_of_a_line_are_told_at_once():
    with pytest.raises(TypeError, match=r"'config': write .*; .*'ge_cache': write backend="):
        cache_compile(f, config=object(), dynamic=False, ge_cache=True)


def test_torch_compile_has_no_argument_that_is_unknown_here():
    theirs = {*inspect.signature(torch.compile).parameters} - {"model"}
    ours = {*inspect.signature(cache_compile).parameters}
    assert theirs - ours - {*foreign_names.ARGUMENTS} == set()


def test_an_argument_with_a_slip_is_told_the_right_name():
    with pytest.raises(TypeError, match=r"'cachedir'\. Did you mean 'cache_dir'\?$"):
        cache_compile(f, cachedir="here")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'unknown'$"):
        cache_compile(f, unknown=1)


@pytest.mark.parametrize("value", [True, False, None])
def test_torchs_values_of_fullgraph_are_accepted_and_no_others(tmp_path, value):
    assert cache_compile(f, fullgraph=value, cache_dir=tmp_path).__wrapped__ is f
    assert cache_compile(fullgraph=value, dynamic=True, cache_dir=tmp_path)(f).__wrapped__ is f
    with pytest.raises(OptionError, match=r"fullgraph=1: valid values are True .* and None"):
        cache_compile(f, fullgraph=1)


@pytest.mark.parametrize("backend", [Backend(), Backend().__call__, lambda graph, inputs: graph])
def test_a_backend_object_is_told_to_be_a_name(backend):
    with pytest.raises(OptionError, match=r"is an object .*get_npu_backend.*valid backends"):
        cache_compile(f, backend=backend)


@pytest.mark.parametrize("name", foreign_names.BACKENDS)
def test_a_backend_of_another_name_is_told_its_name_here(name):
    with pytest.raises(OptionError) as caught:
        cache_compile(f, backend=name)
    assert str(caught.value) == f"backend {name!r}: {foreign_names.BACKENDS[name]}"


@pytest.mark.parametrize("name", foreign_names.OPTIONS)
def test_an_option_of_another_backend_is_told_what_replaces_it(name):
    with pytest.raises(OptionError) as caught:
        cache_compile(f, options={name: True})
    assert str(caught.value) == f"unknown option {name!r}: {foreign_names.OPTIONS[name]}"


def test_options_of_inductor_are_told_the_same():
    cache_compile(f, backend="inductor", options={"triton.cudagraphs": True, "trace.enabled": True})
    for name in ("mode", "enable_shape_handling"):
        with pytest.raises(OptionError, match=f"unknown option '{name}': leave it out"):
            cache_compile(f, backend="inductor", options={name: True})


def test_an_option_with_a_slip_is_told_the_right_name():
    with pytest.raises(OptionError, match=r"unknown option 'clone_inputs'; .*mean 'clone_input'\?"):
        cache_compile(f, options={"clone_inputs": True})
    with pytest.raises(OptionError, match=r"Did you mean 'max_autotune'\?"):
        cache_compile(f, backend="inductor", options={"max_autotun": True})
