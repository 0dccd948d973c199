"""Why did yesterday's start miss? Workers end, and the commands tell it a day later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

WORKER = Path(__file__).with_name("missing.py")


def shown(surroundings, *args):
    return json.loads(surroundings.command(*args, "--format", "json").stdout)


def a_day_later(surroundings):
    """Make every line of the journal a day older."""
    (path,) = (surroundings.folder / "state").rglob("misses.jsonl")
    lines = [json.loads(text) for text in path.read_text().splitlines() if text]
    for line in lines:
        line["time"] -= 86400
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_why_did_yesterdays_start_miss(surroundings):
    """A cold worker, a restarted one, one with another size and global; and then the commands."""
    none = [["", ["no entry for this function"]]]
    cold = surroundings.run(WORKER, 4, 2.0, RANK="5")
    assert (cold["scale"], cold["shift"]) == (none, none)
    assert cold["branch"][0][0] == ""
    assert "a branch depends on the data" in cold["branch"][0][1][0]
    a_day_later(surroundings)

    def noted(*options):
        return shown(surroundings, "misses", *options)["misses"]

    first = {row["function"].rpartition(".")[2]: row for row in noted()}
    assert {name: row["outcome"] for name, row in first.items()} == {
        "scale": "miss",
        "shift": "miss",
        "branch": "bypass",
    }
    assert {row["rank"] for row in first.values()} == {5}
    assert first["scale"]["seconds"] > 0

    warm = surroundings.run(WORKER, 4, 2.0)
    stored = {name: first[name]["stored"] for name in ("scale", "shift")}
    for name, entry in stored.items():
        assert warm[name] == [[entry, ["used, because its conditions hold"]]]
    assert warm["branch"] == cold["branch"]

    changed = surroundings.run(WORKER, 5, 3.0)
    ((entry, reasons),) = changed["shift"]
    assert entry == stored["shift"]
    assert reasons == ["x: size was (4, 3), is (5, 3); dynamic=True would serve both"]
    rows = {row["function"].rpartition(".")[2]: row for row in noted("--since", "12h")}
    assert rows.keys() == {"scale", "shift", "branch"}
    assert rows["shift"]["nearest"] == stored["shift"]
    assert "globals()['SCALE'] was 2.0, is 3.0" in "; ".join(rows["scale"]["reasons"])

    counted = shown(surroundings, "stats")["lookups"]
    assert (counted["misses"], counted["hits"], counted["hit_rate"]) == (4, 2, 2 / 6)

    def differing(name):
        ids = stored[name][:12], rows[name]["stored"][:12]
        return shown(surroundings, "diff", *ids)

    assert "x: size was (4, 3), is (*, 3)" in differing("shift")["conditions"]["changed"]
    changes = differing("scale")["conditions"]["changed"]
    assert "globals()['SCALE'] was 2.0, is 3.0" in changes
    text = surroundings.command("diff", stored["scale"], stored["shift"]).stdout
    assert "function.code changed" in text
    assert surroundings.command("diff", stored["scale"], "ffff").returncode == 2
    assert "no difference" in surroundings.command("diff", stored["scale"], stored["scale"]).stdout


def test_a_cache_that_is_off_says_so_and_notes_nothing(surroundings):
    said = surroundings.run(WORKER, 4, 2.0, NPUGX_CACHE="off")
    assert said["shift"] == [["", ["the cache is switched off (NPUGX_CACHE=off)"]]]
    assert not (surroundings.folder / "state").exists()


def test_misses_of_a_read_only_store_are_noted(surroundings):
    surroundings.run(WORKER, 4, 2.0)
    surroundings.run(WORKER, 6, 2.0, NPUGX_CACHE="readonly")
    rows = shown(surroundings, "misses")["misses"]
    readonly = [row for row in rows if row["readonly"] and row["outcome"] == "miss"]
    assert len(readonly) == 2
    assert [row["stored"] for row in readonly] == ["", ""]


def test_an_edit_names_the_function_and_python_o_is_named(surroundings):
    surroundings.run(WORKER, 4, 2.0)
    edited = surroundings.folder / "edited" / WORKER.name
    edited.parent.mkdir()
    edited.write_text(WORKER.read_text().replace("return x + 1\n", "return x + 2\n"))
    ((_, reasons),) = surroundings.run(edited, 4, 2.0)["shift"]
    line = edited.read_text().splitlines().index("def shift(x):")
    assert reasons == [f"function.code changed at missing.py:{line} in shift"]
    optimised = surroundings.run("-O", WORKER, 4, 2.0)["scale"]
    assert optimised[0][1] == ["optimize was 0 (python), is 1 (python -O)"]


def test_diff_writes_autocast_as_explain_does(surroundings):
    surroundings.run(WORKER, 4, 2.0)
    ((entry, reasons),) = surroundings.run(WORKER, 4, 2.0, DTYPE_OF_AUTOCAST="float16")["shift"]
    assert reasons == ["torch.autocast('cpu') was off with bfloat16, is on with float16"]
    rows = shown(surroundings, "misses", "--function", "*shift")["misses"]
    (stored,) = (row["stored"] for row in rows if row["nearest"] == entry)
    changed = shown(surroundings, "diff", entry[:12], stored[:12])["conditions"]["changed"]
    assert changed == reasons
