"""Tensors without an array: a graph must not go on where `Tensor.numpy()` raises (P1)."""

import numpy as np
import pytest
import torch

from npugx_cache import cache_compile


def of_bfloat16(x):
    return x.bfloat16().numpy().copy()


def of_bfloat16_by_force(x):
    return x.bfloat16().numpy(force=True).copy()


def of_a_conjugated_tensor(x):
    return torch.complex(x, x).conj().numpy().copy()


def of_a_negated_tensor(x):
    return torch.complex(x, x).conj().imag.numpy()[1:]


def of_a_tensor_without_memory(x):
    return x.to("meta").numpy().copy()


def by_the_function_of_the_class(x):
    return torch.Tensor.numpy(x.bfloat16()).copy()


def while_gradients_are_recorded(x):
    with torch.enable_grad():
        return (x.clone().requires_grad_() * 2).numpy().copy()


RAISING = [
    of_bfloat16,
    of_bfloat16_by_force,
    of_a_conjugated_tensor,
    of_a_negated_tensor,
    of_a_tensor_without_memory,
    by_the_function_of_the_class,
    while_gradients_are_recorded,
]


@pytest.mark.parametrize("function", RAISING)
@pytest.mark.parametrize("verify", ["", "off"])
@torch.no_grad()
def test_what_raises_in_eager_raises_cached(function, verify, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_VERIFY", verify)
    x, cached = torch.arange(3.0), cache_compile(lambda x: torch.from_numpy(function(x)))
    with pytest.raises((RuntimeError, TypeError)) as eager:
        function(x)
    for _ in range(2):
        with pytest.raises(type(eager.value)) as raised:
            cached(x)
        assert str(raised.value) == str(eager.value)


def by_force(x):
    return torch.complex(x, x).numpy(force=True), x.bfloat16().float().numpy(force=True)


@torch.no_grad()
def test_a_conjugated_tensor_is_resolved_by_force():
    x, cached = torch.arange(3.0), cache_compile(conjugated_by_force)
    for _ in range(2):
        assert np.array_equal(cached(x), conjugated_by_force(x))


def conjugated_by_force(x):
    return torch.complex(x, x).conj().numpy(force=True)


@torch.no_grad()
def test_an_array_that_is_forced_is_eagers(tmp_path):
    x, cached = torch.arange(3.0), cache_compile(by_force, cache_dir=tmp_path)
    for _ in range(2):
        for found, expected in zip(cached(x), by_force(x), strict=True):
            assert (found.dtype, found.strides) == (expected.dtype, expected.strides)
            assert np.array_equal(found, expected)
    assert cached.cache_info().misses == 1
