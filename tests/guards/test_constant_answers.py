"""Which functions a restore calls again, and compares the answers of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from npugx_cache.conditions import source_facts

if TYPE_CHECKING:
    import pytest


def test_of_numpys_print_options_only_the_function_with_that_name_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code that a program put inside its own version may do anything."""
    numpys = np.get_printoptions
    answer = source_facts.constant_answer(*source_facts.PRINT_OPTIONS)
    called = []

    def inner() -> dict[str, object]:
        called.append("inner")
        return {}

    patched = functools.wraps(inner)(lambda: dict(numpys()))
    monkeypatch.setattr(np, "get_printoptions", patched)
    assert source_facts.constant_answer(*source_facts.PRINT_OPTIONS) == answer
    assert called == []
