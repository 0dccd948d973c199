"""The known defects of the vendor's `cache_compile` that concern keys, guards and loading.

Each names rows of the matrix, or tests elsewhere, that would show it here. `PROTECTIONS` are what
keeps some of them out: each can be switched off, and then the row gives the wrong result.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from unittest.mock import patch

DEFECTS = {
    "D1 stale hit after a source edit": ["own_code_edited", "method_of_a_base_class_edited"],
    "D2 module attributes not in the key": ["attribute_replaced", "config_object_of_a_model"],
    "D3 specialised on a Python argument": ["other_int", "one_for_true", "other_text"],
    "D4 train or eval, and global state": [
        "train_instead_of_eval",
        "train_of_a_submodule",
        "dtype_of_a_parameter",
        "default_dtype",
        "autocast",
        "deterministic_algorithms",
        "matmul_precision",
        "environment_variable",
    ],
    "D5 one name or repr, two classes": ["two_local_classes_of_one_name", "submodule_replaced"],
    "D6 versions not in the key": ["tests/soundness/test_environment.py"],
    "D7 options not in the key": ["option_edited", "option_added", "decomposition_edited"],
    "D8 digest of a custom pass": [
        "arguments_of_a_partial_custom_pass",
        "value_captured_by_a_custom_pass",
        "helper_of_a_custom_pass_edited",
        "function_nested_in_a_custom_pass",
    ],
    "D9 shapes checked once": ["broadcastable_smaller_input", "other_shape"],
    "D10 dtype and device not checked": ["cast_that_was_none", "other_device"],
    "D11 default arguments lost": ["default_argument_of_a_method"],
    "D12 globals of the wrong module": ["global_of_the_module_that_defines_the_method"],
    "D13 grad mode": ["leaf_parameter_written_to", "grad_switched_off_for_a_leaf"],
    "D14 failures after loading": ["tests/faults/test_damaged_entries.py"],
    "D15 random numbers are stored": ["random_numbers", "dropout_in_training"],
    "D16 identities of one process": ["forward_hook_removed", "nothing_changed", "rank_used"],
    "D17 constants that can't be stored": ["tests/restart/programs.py"],
    "D18 two instances of one class": [
        "two_instances_one_of_them_changed",
        "tests/concurrency/scenarios.py",
    ],
    "D19 a recompile deletes the good entry": ["tests/restart/test_side_by_side.py"],
    "D20 an exception at loading deletes all": ["tests/faults/test_damaged_entries.py"],
    "D23 no integrity check": ["tests/faults/test_damaged_entries.py"],
    "D26 thread safety": ["tests/concurrency/scenarios.py"],
    "D30 the key changes with use": ["nothing_changed", "option_edited"],
}
"""D21, D22, D24, D25, D27 to D29, D31 and D32 are about files, races, trust and tools instead."""


def _always(*_, **__):
    return True


PROTECTIONS = {
    "source facts (D1)": (
        "property_edited",
        lambda: _unchecked_code(),
    ),
    "values of attributes (D2)": ("attribute_replaced", lambda: _unchecked("EQUALS")),
    "values of arguments (D3)": ("other_int", lambda: _unchecked("EQUALS")),
    "layout of tensors (D9)": (
        "empty",
        lambda: patch("npugx_cache.conditions.kinds.LiveTensorFact.layout_matches", _always),
    ),
    "all of a tensor (D10)": (
        "memory_format_asked_for",
        lambda: _unchecked("TENSOR"),
    ),
    "which tensors are one (D3)": (
        "same_tensor_twice",
        lambda: _unchecked("SAME", "DIFFERENT"),
    ),
    "answers of the process (D16)": ("rank_used", lambda: _unchecked("EQUALS")),
}
"""The row that shows it, and a context in which the check is left out."""


def _unchecked(*names):
    from npugx_cache.conditions.kinds import KINDS, Kind

    rows = {
        kind: dataclasses.replace(KINDS[kind], test=_always)
        for kind in map(Kind.__getitem__, names)
    }
    return patch.dict(KINDS, rows)


@contextmanager
def _unchecked_code():
    """Code counts twice: as a fact, and in the identity of a function that a guard is about."""
    with (
        patch("npugx_cache.conditions.check.Checker.code_holds", _always),
        patch("npugx_cache.conditions.kinds.Identity.is_of", _always),
        _unchecked("IDENTITY"),
    ):
        yield
