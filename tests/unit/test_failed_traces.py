"""Which calls are traced again after a failed trace."""

from __future__ import annotations

import torch

from npugx_cache.conditions.evaluate import Scope
from npugx_cache.failed_traces import Untraced
from npugx_cache.key.signature import Signature


def test_a_call_that_raises_in_the_function_stops_being_traced_alone():
    untraced = Untraced()

    def reason(size, mode="fast", number=1):
        given = {"x": torch.ones(2, size), "mode": mode, "number": number}
        known = untraced.known(Signature(given), Scope(given, {}))
        return known and known.reason

    wrong = Signature({"x": torch.ones(2, 3), "mode": "fast", "number": 1})
    for _ in range(3):
        assert reason(3) is None
        untraced.raised(wrong, "it raised")
    assert reason(3) == "it raised"
    assert (reason(4), reason(3, mode="slow"), reason(3, number=2)) == (None, None, None)
    for size in range(10, 1000):
        untraced.raised(Signature({"x": torch.ones(2, size)}), "others raised")
    assert len(untraced._raising) <= 256
