"""The store over time, as `npugx-cache report` shows it."""

from __future__ import annotations

import os
from datetime import date, datetime, timedelta

import pytest

from npugx_cache.cli.report import history
from npugx_cache.store import JournalLine


class Made:
    """The two columns of the index that tell when entries were made."""

    def __init__(self, rows):
        self._rows = rows

    def numbers(self, name):
        return [row[("created", "stored_bytes").index(name)] for row in self._rows]


@pytest.fixture
def at():
    """The time at noon so many days before a day."""
    noon = datetime(2026, 11, 26, 12)  # noqa: DTZ001 - of this host
    return lambda days: (noon - timedelta(days=days)).timestamp()


def line(when, outcome):
    return JournalLine(when, "f", outcome, (), os.getpid())


def test_days_without_anything_are_days_too(at):
    made = Made([(at(3), 100), (at(1), 10), (at(1), 1)])
    lines = [line(at(2), "miss"), line(at(2), "bypass"), line(at(0), "miss")]
    days = history.days(made, {int(at(1)): 7}, lines, at(0))
    assert [day.made for day in days] == [1, 0, 2, 0]
    assert [day.entries for day in days] == [1, 1, 3, 3]
    assert [day.size for day in days] == [100, 100, 111, 111]
    assert [day.hits for day in days] == [0, 0, 7, 0]
    assert [day.misses for day in days] == [0, 1, 0, 1]
    assert [day.bypasses for day in days] == [0, 1, 0, 0]


def test_more_than_a_year_begins_with_what_was_there(at):
    days = history.days(Made([(at(1000), 5), (at(1), 2)]), {}, [], at(0))
    assert len(days) == history.MAX_DAYS
    assert (days[0].entries, days[-1].entries, days[-1].size) == (1, 2, 7)


@pytest.mark.parametrize("created", [1e300, 4e9])
def test_a_time_that_nobody_can_have_made_it_at_counts_nowhere(at, created):
    days = history.days(Made([(created, 5), (at(0), 2)]), {}, [], at(0))
    assert [(day.entries, day.size) for day in days] == [(1, 2)]


def test_an_empty_store_has_today(at):
    (day,) = history.days(Made([]), {}, [], at(0))
    assert day[1:] == (0, 0, 0, 0, 0, 0)
    assert day.day == date(2026, 11, 26)
    assert day.stamp % 86400 == 0
