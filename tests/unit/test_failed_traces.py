"""Which calls are traced again after a failed trace."""

from __future__ import annotations

import torch

from npugx_cache import cache_compile
from npugx_cache.answer.failed_traces import Untraced
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.key.signature import Signature


def test_a_call_that_raises_in_the_function_stops_being_traced_alone():
    untraced = Untraced()

    def reason(size, mode="fast", number=1):
        given = {"x": torch.ones(2, size), "mode": mode, "number": number}
        known = untraced.find_failure(Signature(given), Scope(given, {}))
        return known and known.reason

    wrong = Signature({"x": torch.ones(2, 3), "mode": "fast", "number": 1})
    for _ in range(3):
        assert reason(3) is None
        untraced.note_error(wrong, "it raised")
    assert reason(3) == "it raised"
    assert (reason(4), reason(3, mode="slow"), reason(3, number=2)) == (None, None, None)
    for size in range(10, 1000):
        untraced.note_error(Signature({"x": torch.ones(2, size)}), "others raised")
    assert len(untraced._raising) <= 256


class Asks(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def test_all_instances_of_a_class_share_one_warning(tmp_path, caplog):
    x = torch.ones(3)
    for _ in range(3):
        model = cache_compile(Asks().eval(), cache_dir=tmp_path)
        assert torch.equal(model(x), x + 1)
        assert model.forward.cache_info().bypasses == 1
    (warning,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert warning.getMessage().startswith(f"{__name__}.Asks.forward runs uncached: ")
