"""A remote tier that fails costs a call little, and changes no result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import faults
import pytest

if TYPE_CHECKING:
    from faults import Case, Engines

pytestmark = pytest.mark.thorough
# Far above the 250 ms that a lookup waits, and below the 10 s and more after which a request ends.
LONGEST = 5_000


@pytest.mark.parametrize("case", faults.CASES, ids=[case.name for case in faults.CASES])
def test_a_worker_meets_a_fault(engines: Engines, case: Case) -> None:
    late = case.fault in {"down at the start", "slow", "silent", "dripping"}
    outcome = faults.meet(engines, case, **({} if late else faults.PATIENT))
    calls = outcome.calls
    assert all(call["equal"] for call in calls)
    assert [call["bypasses"] for call in calls] == [0] * len(calls)
    if late:
        assert max(call["waited_ms"] for call in calls) < LONGEST, calls
    # No line of the log is about an exception of ours.
    assert not [line for line in outcome.lines if "a fault of the cache" in line], outcome.lines
    if case.answer == "hit":
        assert outcome.answers == ["hit"] * len(calls), calls
        return
    missed = [call for call, answer in zip(calls, outcome.answers, strict=True) if answer == "miss"]
    expected = len(calls) - 2 if case.fault == "down in the middle" else len(calls)
    assert len(missed) == expected, calls
    for call in missed:
        assert [reason for reason in call["told"] if "the remote tier" in reason], call
    assert [call for call in missed if any(case.reason in reason for reason in call["told"])]
    # Whatever the tier does, the host's own folder has what the worker compiled.
    assert [call["stored"] for call in missed] == [1] * len(missed)
