from __future__ import annotations

import json
import os
import re
import time

import pytest


def count(store):
    return len(list(store.listing()))


def test_prune_without_a_criterion_is_an_error_that_names_them(filled, run):
    done = run("prune")
    assert done.returncode == 2
    for option in ("--max-size", "--older-than", "--filter", "--stale", "--refusals", "--all"):
        assert option in done.stderr
    assert count(filled) == 3


@pytest.mark.parametrize(
    ("option", "value"),
    [("--max-size", "10X"), ("--max-size", "-1"), ("--older-than", "30"), ("--older-than", "x d")],
)
def test_a_wrong_value_names_the_option_and_the_form(filled, run, option, value):
    done = run("prune", f"{option}={value}")
    assert done.returncode == 2
    assert option in done.stderr
    assert "such as" in done.stderr


def test_all_together_with_a_limit_is_an_error(filled, run):
    assert run("prune", "--all", "--max-size", "1G").returncode == 2


def test_refusals_go_alone(filled, run):
    kinds = [row.manifest.kind for row in filled.listing()]
    done = run("prune", "--refusals")
    assert f"removed {kinds.count('bypass')} entr" in done.stdout
    assert kinds.count("bypass") >= 1
    left = [row.manifest.kind for row in filled.listing()]
    assert left == [kind for kind in kinds if kind != "bypass"]
    assert run("prune", "--refusals", "--all").returncode == 2


def test_prune_by_size_says_what_it_removed_and_freed(filled, run):
    done = run("prune", "--max-size", "3K")
    assert (done.returncode, done.stderr) == (0, "")
    assert "removed 1 entry and 1 blob, freed 1.4 kB" in done.stdout
    assert "Decoder.f0" in done.stdout
    assert count(filled) == 2


def test_prune_by_age_keeps_what_was_used_since(filled, run):
    done = run("prune", "--older-than", "1h")
    assert "removed 0 entries" in done.stdout
    assert count(filled) == 3


def test_a_dry_run_removes_nothing(filled, run):
    done = run("prune", "--all", "--dry-run")
    assert "would remove 3 entries" in done.stdout
    assert count(filled) == 3


def test_the_json_of_prune_lists_every_removed_entry(filled, run):
    report = json.loads(run("prune", "--all", "--yes", "--format", "json").stdout)
    assert report["entries"] == 3
    assert report["kept_bytes"] == 0
    assert {row["function"] for row in report["removed"]} == {
        f"model.Decoder.f{number}" for number in range(3)
    }
    assert count(filled) == 0


def test_a_choice_of_entries_is_refused_where_nobody_can_be_asked(filled, run):
    done = run("prune", "--filter", "function=f0")
    assert done.returncode == 2
    assert re.search(rf"would remove 1 entry, [\d.]+ k?B, in {filled.root},", done.stderr)
    assert "Add --yes" in done.stderr
    assert count(filled) == 3


@pytest.mark.parametrize("form", ["table", "json"])
def test_all_is_refused_where_nobody_can_be_asked(filled, run, form):
    done = run("prune", "--all", "--format", form)
    assert done.returncode == 2
    assert re.search(rf"would remove 3 entries, \d\.\d kB, in {filled.root},", done.stderr)
    assert "Add --yes" in done.stderr
    assert count(filled) == 3


def test_all_asks_on_a_terminal(filled, on_terminal):
    code, shown = on_terminal("prune", "--all", typed="n\n")
    assert code == 1
    assert re.search(rf"Remove 3 entries, \d\.\d kB, in {filled.root}\?", shown)
    assert count(filled) == 3
    code, _ = on_terminal("prune", "--all", typed="y\n")
    assert code == 0
    assert count(filled) == 0


def test_all_with_yes_does_not_ask(filled, on_terminal):
    code, shown = on_terminal("prune", "--all", "--yes")
    assert code == 0
    assert "?" not in shown
    assert count(filled) == 0


def test_prune_never_makes_a_cache_of_a_folder(run, tmp_path):
    place = tmp_path / "documents"
    place.mkdir()
    (place / "letter").write_text("dear")
    done = run("prune", "--all", "--dir", place)
    assert done.returncode == 2
    assert [path.name for path in place.iterdir()] == ["letter"]


def test_prune_of_a_cache_that_does_not_exist_yet_is_nothing_to_do(run, root):
    done = run("prune", "--all")
    assert done.returncode == 0
    assert not root.exists()


def test_prune_is_refused_where_the_cache_is_declared_read_only(filled, run):
    done = run("prune", "--all", "--yes", NPUGX_CACHE="readonly")
    assert done.returncode == 1
    assert "NPUGX_CACHE=readonly" in done.stderr
    assert run("prune", "--all", "--dry-run", NPUGX_CACHE="readonly").returncode == 0
    assert count(filled) == 3


def test_filters_choose_what_goes(filled, run):
    done = run("prune", "--filter", "kind=graph", "--filter", "hits=0", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Decoder.f0" in done.stdout
    left = {row.manifest.about["function"] for row in filled.listing()}
    assert left == {"model.Decoder.f1", "model.Decoder.f2"}


@pytest.mark.parametrize("test", ["backend!=inductor", "dynamic!=True", "option!=capture_limit=*"])
def test_what_can_not_be_read_is_not_of_another_backend(filled, run, test):
    shards = list((filled.root / "v1/ac").iterdir())
    for shard in shards:
        os.utime(shard, (time.time() - 100,) * 2)  # an index does not rely on one just changed
    assert "3 entries" in run("ls").stdout
    (item, *_) = [each for each in filled.listing() if each.manifest.kind == "graph"]
    path = filled.root / "v1/ac" / item.manifest.key[:2] / item.manifest.key / item.manifest.entry
    times = path.stat()
    path.write_bytes(b"nonsense")  # the index still has the entry
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = run("prune", "--filter", test, "--yes")
    assert "removed 2 entries" in done.stdout
    assert item.manifest.entry[:12] not in done.stdout


def test_a_filter_that_nothing_passes_removes_nothing(filled, run):
    assert "removed 0 entries" in run("prune", "--filter", "function=x", "--yes").stdout
    assert count(filled) == 3


@pytest.mark.parametrize("other", [["--all"], ["--refusals"], ["--max-size", "1G"]])
@pytest.mark.parametrize("choice", [["--filter", "kind=graph"], ["--stale"]])
def test_a_choice_of_entries_goes_with_no_limit(filled, run, choice, other):
    done = run("prune", *choice, *other, "--yes")
    assert done.returncode == 2
    assert "leave" in done.stderr
    assert count(filled) == 3


def test_a_wrong_filter_removes_nothing(filled, run):
    assert run("prune", "--filter", "colour=red", "--yes").returncode == 2
    assert count(filled) == 3
