"""What a compile costs: the time that this process and its children worked on it."""

from __future__ import annotations

import os
import time


class WorkTime:
    """Counts from when it is made.

    A process that is stopped (SIGSTOP, a frozen container, a closed laptop) for ten hours has not
    compiled for ten hours, and no other worker may wait that long for the same work: so processor
    time counts. A compiler with many threads, and other threads of this process, use more of that
    than time passes: so the time that passed is the limit. Children count once they are waited
    for, as compilers are that were run to their end.
    """

    def __init__(self) -> None:
        self._started, self._worked = time.perf_counter(), _processor_seconds()

    def seconds(self) -> float:
        passed = time.perf_counter() - self._started
        return max(0.0, min(passed, _processor_seconds() - self._worked))


def _processor_seconds() -> float:
    times = os.times()  # its figures for this process itself are rounded to 10 ms
    return time.process_time() + times.children_user + times.children_system
