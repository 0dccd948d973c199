"""Which code that ran in a trace has source facts."""

from __future__ import annotations

import collections

import sympy
import torch

from npugx_cache.trace.conditions.source_facts import is_written_by_users


def scaled(size):
    return size * 2


def test_code_of_torch_and_of_what_computes_symbolic_sizes_is_left_out():
    others = [
        torch.nn.Module.__call__,
        collections.OrderedDict.fromkeys,
        sympy.Mod.eval,
        sympy.core.numbers.Integer.__add__,
    ]
    codes = [code for each in others if (code := getattr(each, "__code__", None)) is not None]
    assert len(codes) >= 3
    assert not any(is_written_by_users(code, {}) for code in codes)
    assert is_written_by_users(scaled.__code__, scaled.__globals__)
