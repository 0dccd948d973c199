from __future__ import annotations

import json

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import Draft, Published, open_store
from npugx_cache.version import FORMAT


@pytest.fixture
def stored(root):
    """Store entries with these factors, and return their ids."""
    store = open_store(Settings(cache_dir=root))

    def make(number, factors, **blobs):
        answer = store.publish(
            Draft(
                key=f"{number:064x}",
                identity="1d" * 16,
                kind="graph",
                cost_seconds=1.0,
                factors=tuple((name, value, "process") for name, value in factors.items()),
                about={"function": "model.f"},
                blobs={"program": b"p", **blobs},
            )
        )
        assert isinstance(answer, Published)
        return answer.manifest.entry

    return make


def test_diff_says_old_and_new_of_each_factor(stored, run):
    code = {"function.code": "a" * 32, "option.x": "1"}
    first = stored(1, {"torch": "2.13", "optimize": "0", **code})
    second = stored(2, {"torch": "2.14\x1b[31m", "optimize": "2", "function.code": "b" * 32})
    done = run("diff", first[:12], second)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "key and function:",
        "  function.code changed",
        "  optimize was 0 (python), is 2 (python -OO)",
        "  option.x was 1, is not set",
        "  torch was 2.13, is 2.14�[31m",
    ]
    found = json.loads(run("diff", first, second, "--format", "json").stdout)
    assert (found["first"], found["second"]) == (first, second)
    assert len(found["factors"]) == 4
    assert found["conditions"] == {"changed": [], "only_first": [], "only_second": []}


def test_diff_of_an_entry_with_itself(stored, run):
    entry = stored(1, {"torch": "2.13"})
    assert "no difference" in run("diff", entry, entry).stdout


def test_diff_takes_the_names_of_functions_with_one_entry(stored, publish, run):
    stored(1, {"torch": "2.13"})
    publish("b", function="model.g", factors=(("torch", "2.14", "process"),))
    assert "torch was 2.13, is 2.14" in run("diff", "f", "model.g").stdout
    assert "torch was 2.14, is 2.13" in run("diff", "model.g", "model.f").stdout
    publish("c", function="model.g")
    done = run("diff", "f", "g")
    assert done.returncode == 2
    assert "2 entries are of g" in done.stderr


def test_diff_of_what_is_not_there(stored, run, tmp_path):
    assert run("diff", "aa", "bb").returncode == 2
    entry = stored(1, {})
    done = run("diff", entry, "ffff")
    assert done.returncode == 2
    assert "npugx-cache ls" in done.stderr
    assert run("diff", entry, entry, "--dir", tmp_path / "none").returncode == 2


def test_diff_with_an_entry_of_another_release_compares_the_keys(stored, run):
    ours = stored(1, {"format": FORMAT, "torch": "2.13"})
    other = stored(2, {"format": "9999", "torch": "2.13"}, conditions=b"of the other release")
    done = run("diff", ours, other)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["key and function:", f"  format was {FORMAT}, is 9999"]


@pytest.mark.parametrize("conditions", [b"no msgpack", b"\x80", b"\xc0"])
def test_diff_of_conditions_that_make_no_sense_is_one_error(stored, run, conditions):
    entry = stored(1, {}, conditions=conditions)
    done = run("diff", entry, entry)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
