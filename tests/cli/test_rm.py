from __future__ import annotations

import json
import os

import pytest

from npugx_cache.store import Draft
from npugx_cache.store.format.manifest import assemble


def ids(store):
    return [row.manifest.entry for row in store.listing()]


def test_rm_removes_the_entries_that_are_named_and_no_other(filled, run):
    one, two, three = ids(filled)
    done = run("rm", one[:12], two.upper(), one, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "removed 2 entries" in done.stdout
    assert ids(filled) == [three]


def test_rm_frees_the_blobs_of_the_entry(filled, run, root):
    sizes = {len(row.manifest.blobs): row.manifest.entry for row in filled.listing()}
    files = len(list((root / "v1/cas").rglob("?" * 64)))
    run("rm", sizes[1], "--yes")
    assert len(list((root / "v1/cas").rglob("?" * 64))) == files - 1


@pytest.mark.parametrize("wrong", ["zz", "123", "0" * 64, "0123456789"])
def test_one_wrong_name_removes_nothing(filled, run, wrong):
    entries = ids(filled)
    done = run("rm", entries[0], wrong, "--yes")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert ids(filled) == entries


def test_an_ambiguous_name_removes_nothing_and_lists_what_it_means(filled, run):
    seen = {}
    for number in range(2000):  # among so many ids, two share four digits
        draft = Draft(
            key=f"{number:064x}",
            identity="1d" * 16,
            kind="bypass",
            cost_seconds=0.0,
            factors=(),
            about={"function": f"f{number}"},
            blobs={},
        )
        entry = assemble(draft, (), 0.0).entry
        if entry[:4] in seen:
            break
        seen[entry[:4]] = draft
    entries = [filled.publish(each).manifest.entry for each in (seen[entry[:4]], draft)]
    done = run("rm", entry[:4], "--yes")
    assert done.returncode == 2
    assert "ambiguous" in done.stderr
    assert all(each[:16] in done.stderr for each in entries)
    assert set(entries) <= set(ids(filled))


def test_rm_says_of_an_unreadable_entry_what_to_do(filled, run, root):
    (item, *_) = filled.listing()
    path = root / "v1/ac" / item.manifest.key[:2] / item.manifest.key / item.manifest.entry
    path.write_bytes(b"nonsense" * 10)
    done = run("rm", item.manifest.entry, "--yes")
    assert done.returncode == 2
    assert "verify --repair" in done.stderr
    assert path.exists()


def test_rm_is_refused_where_nobody_can_be_asked(filled, run):
    entries = ids(filled)
    done = run("rm", entries[0])
    assert done.returncode == 2
    assert "1 entry, " in done.stderr
    assert str(filled.root) in done.stderr
    assert "--yes" in done.stderr
    assert ids(filled) == entries


def test_rm_asks_on_a_terminal(filled, on_terminal):
    entries = ids(filled)
    code, shown = on_terminal("rm", entries[0], typed="n\n")
    assert code == 1
    assert f"in {filled.root}?" in shown
    assert ids(filled) == entries
    code, _ = on_terminal("rm", entries[0], typed="y\n")
    assert code == 0
    assert ids(filled) == entries[1:]


def test_a_dry_run_of_rm_removes_nothing(filled, run):
    entries = ids(filled)
    done = run("rm", entries[0], "--dry-run", "--format", "json")
    assert [row["entry"] for row in json.loads(done.stdout)["removed"]] == [entries[0]]
    assert ids(filled) == entries


def test_rm_without_a_cache_is_an_error_and_makes_none(run, root):
    assert run("rm", "0123456789", "--yes").returncode == 2
    assert not root.exists()


def test_rm_is_refused_where_the_cache_is_declared_read_only(filled, run):
    entries = ids(filled)
    done = run("rm", entries[0], "--yes", NPUGX_CACHE="readonly")
    assert done.returncode == 1
    assert ids(filled) == entries


def test_rm_says_that_an_entry_was_used_meanwhile_and_stays(filled, run, root):
    entries = ids(filled)
    for shard in (root / "v1/ac").iterdir():
        os.utime(shard, (1e9, 1e9))
    run("ls")  # makes an index that holds as long as the folder of the shard is that old
    for path in (root / "v1/ac").rglob(entries[0]):
        os.utime(path)
    done = run("rm", entries[0], "--yes")
    assert done.returncode == 1
    assert "1 entry stayed" in done.stderr
    assert ids(filled) == entries
