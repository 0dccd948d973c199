"""Measures what a compile costs: the time that this process and its children worked."""

from __future__ import annotations

import os
import time


class WorkTime:
    """Measures seconds of work since it was made: processor time, at most the time that passed.

    Processor time, because a process that is stopped for ten hours (SIGSTOP, a frozen container, a
    closed laptop) has not compiled for ten hours, and no other worker may wait that long for the
    same work. At most the time that passed, because several threads use more processor time than
    time passes. A child counts once it has been waited for, as a compiler that ran to its end has.
    """

    def __init__(self) -> None:
        self._started, self._worked = time.perf_counter(), _processor_seconds()

    def seconds(self) -> float:
        passed = time.perf_counter() - self._started
        return max(0.0, min(passed, _processor_seconds() - self._worked))


def _processor_seconds() -> float:
    times = os.times()  # only for the children: it rounds the times of this process to 10 ms
    return time.process_time() + times.children_user + times.children_system
