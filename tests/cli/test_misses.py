"""`misses`, and what `stats` counts of them."""

from __future__ import annotations

import csv
import io
import json
import os
import time

import pytest

from npugx_cache.config import state_folder
from npugx_cache.store import Journal, JournalLine


@pytest.fixture
def noted(root):
    """Three lines: now, an hour ago and two days ago."""
    journal, now = Journal(str(root), state_folder()), time.time()
    reasons = ("x: size was (4, 8), is (5, 8)", "torch was 2.13, is 2.14")
    ids = {"nearest": "ab" * 32, "stored": "cd" * 32}
    journal.add(JournalLine(now - 2 * 86400, "m.Old.f", "miss", reasons[:1], os.getpid()))
    journal.add(
        JournalLine(now - 3600, "m.New.f", "miss", reasons, os.getpid(), rank=7, seconds=9.5, **ids)
    )
    journal.add(JournalLine(now, "m.New.g", "bypass", ("red \x1b[31m\u202e",), os.getpid()))
    journal.flush()
    return ids


def test_misses_are_listed_newest_first_with_their_reasons(noted, filled, run):
    lines = run("misses").stdout.splitlines()
    assert lines[0].startswith("TIME")
    assert lines[0].endswith("STORED AS")
    assert [text.split()[2] for text in lines if "  m." in text] == [
        "m.New.g",
        "m.New.f",
        "m.Old.f",
    ]
    (at,) = [at for at, text in enumerate(lines) if "m.New.f" in text]
    for shown in ("9.5 s", "rank 7", "ab" * 6, "cd" * 6):
        assert shown in lines[at]
    assert lines[at + 1].strip() == "x: size was (4, 8), is (5, 8)"
    assert lines[at + 2].strip() == "torch was 2.13, is 2.14"
    assert lines[-1].startswith("2 misses, 1 bypass, 9.5 s of compiling lost in ")


def test_misses_since_and_of_a_function(noted, filled, run):
    def shown(*options):
        out = json.loads(run("misses", "--format", "json", *options).stdout)
        return [row["function"] for row in out["misses"]]

    assert shown("--since", "1d") == ["m.New.g", "m.New.f"]
    assert shown("--function", "*.f") == ["m.New.f", "m.Old.f"]
    assert shown("--function", "g") == ["m.New.g"]
    assert shown("--function", "New") == []
    assert shown("--function", "*.f", "--since", "12h") == ["m.New.f"]
    assert shown("--limit", "1") == ["m.New.g"]
    assert run("misses", "--since", "soon").returncode == 2


def test_a_line_that_a_wrong_clock_wrote_is_not_the_newest_one(noted, root, filled, run):
    journal, now = Journal(str(root), state_folder()), time.time()
    journal.add(JournalLine(now + 60, "m.ahead", "miss", ("a clock of another host",), os.getpid()))
    journal.add(JournalLine(now + 32 * 365 * 86400, "m.far", "miss", ("of 2058",), os.getpid()))
    journal.flush()
    out = json.loads(run("misses", "--format", "json", "--since", "1d").stdout)["misses"]
    assert [row["function"] for row in out] == ["m.ahead", "m.New.g", "m.New.f"]
    found = json.loads(run("stats", "--since", "1d", "--format", "json").stdout)["lookups"]
    assert found["misses"] == 2
    assert "of 2058" not in str(found["top_reasons"])


def test_misses_as_csv_and_json(noted, filled, run):
    rows = list(csv.DictReader(io.StringIO(run("misses", "--format", "csv").stdout)))
    assert [row["function"] for row in rows] == ["m.New.g", "m.New.f", "m.Old.f"]
    assert (rows[1]["seconds"], rows[1]["rank"], rows[2]["rank"]) == ("9.5", "7", "")
    assert rows[1]["reasons"] == "x: size was (4, 8), is (5, 8); torch was 2.13, is 2.14"
    found = json.loads(run("misses", "--format", "json").stdout)
    assert found["total"] == {"misses": 2, "bypasses": 1, "seconds_lost": 9.5}
    assert found["misses"][1]["stored"] == noted["stored"]


@pytest.mark.parametrize("command", [["misses"], ["misses", "--format", "csv"], ["stats"]])
def test_control_characters_do_not_reach_the_terminal(noted, filled, run, command):
    out = run(*command).stdout
    assert "red" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_no_misses_of_no_cache_and_of_a_wrong_folder(run, root, tmp_path):
    done = run("misses")
    assert (done.returncode, done.stdout.split(" of ")[0]) == (0, "0 misses, 0 bypasses, 0.0 s")
    assert not root.exists()
    assert run("misses", "--dir", tmp_path / "none").returncode == 2


def test_stats_count_misses_and_say_the_top_reasons(noted, filled, run):
    found = json.loads(run("stats", "--format", "json").stdout)["lookups"]
    assert (found["misses"], found["bypasses"], found["seconds_lost"]) == (2, 1, 9.5)
    assert (found["hits"], found["hit_rate"]) == (3, 3 / 5)
    assert found["top_reasons"][0] == {"count": 2, "reason": "x: size was (4, 8), is (5, 8)"}
    found = json.loads(run("stats", "--since", "1d", "--format", "json").stdout)["lookups"]
    assert (found["misses"], found["hit_rate"]) == (1, 3 / 4)
    text = run("stats", "--since", "1d").stdout
    assert "75%" in text
    assert "1 x torch was 2.13, is 2.14" in text
