from __future__ import annotations

import json
import os
import time

from npugx_cache.config import state_folder
from npugx_cache.store import Journal, JournalLine


def test_stats_count_what_is_there(filled, run):
    shown = json.loads(run("stats", "--format", "json").stdout)
    files = [path for part in ("ac", "cas") for path in (filled.root / "v1" / part).rglob("*")]
    assert shown["size"] == sum(path.stat().st_size for path in files if path.is_file())
    assert (shown["entries"], shown["bypasses"], shown["blobs"]) == (3, 1, 2)
    assert (shown["hits"], shown["never_hit"]) == (3, 2)
    assert shown["saved_seconds"] == 60.0
    text = run("stats").stdout
    assert "60.0 s" in text
    assert str(filled.root) in text


def test_stats_of_no_cache_are_zeros_and_create_none(run, root):
    done = run("stats")
    assert done.returncode == 0
    assert not root.exists()


def test_ls_takes_filters_and_a_limit(filled, run):
    shown = json.loads(run("ls", "--filter", "kind=bypass", "--format", "json").stdout)
    assert [row["kind"] for row in shown["entries"]] == ["bypass"]
    assert shown["total"]["entries"] == 1
    lines = run("ls", "--limit", "1", "--sort", "hits").stdout.splitlines()
    assert len(lines) == 5
    assert "Decoder.f1" in lines[1]
    assert "3 entries" in lines[-1]


def test_stats_reset_prints_the_counts_and_then_counts_from_zero(filled, run, root):
    journal = Journal(str(root), state_folder())
    journal.add(JournalLine(time.time(), "m.f", "miss", ("x was 1, is 2",), os.getpid()))
    journal.flush()
    used = [row["last_used"] for row in json.loads(run("ls", "--format", "json").stdout)["entries"]]

    def counted(*options):
        found = json.loads(run("stats", "--format", "json", *options).stdout)
        lookups = found["lookups"]
        return found["hits"], found["saved_seconds"], lookups["hits"], lookups["misses"]

    before = counted()
    assert (before[0], before[3]) == (3, 1)
    assert counted("--reset") == before
    assert counted() == (0, 0.0, 0, 0)
    assert json.loads(run("misses", "--format", "json").stdout)["misses"] == []
    after = [
        row["last_used"] for row in json.loads(run("ls", "--format", "json").stdout)["entries"]
    ]
    assert after == used
    journal.add(JournalLine(time.time(), "m.f", "miss", ("x was 1, is 2",), os.getpid()))
    journal.flush()
    assert counted()[3] == 1
    assert "now count from zero" in run("stats", "--reset").stdout
