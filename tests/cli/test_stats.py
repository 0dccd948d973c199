from __future__ import annotations

import json


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
