from __future__ import annotations

import pytest

from npugx_cache.store import Draft, Published

ODD = "\x1b]0;owned\x07\x1b[2J\u202e\nFAKE LINE\r\x9b31m"


def test_nothing_that_an_entry_holds_steers_the_terminal_that_show_writes_to(filled, run):
    about = dict.fromkeys(("function", "reason", f"name{ODD}", "entry", "kind"), f"x{ODD}")
    answer = filled.publish(
        Draft(
            key="f" * 64,
            identity="1d" * 16,
            kind="bypass",
            cost_seconds=0,
            factors=(),
            about=about,
            blobs={},
        )
    )
    assert isinstance(answer, Published)
    done = run("show", answer.manifest.entry)
    assert done.returncode == 0
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert not any(line.startswith("FAKE") for line in done.stdout.splitlines())
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line[0] in "ek")
    assert lines == {"entry": answer.manifest.entry, "kind": "bypass"}


@pytest.mark.parametrize("command", ["show", "readable"])
def test_an_entry_is_found_by_the_name_of_its_function(run, publish, command):
    entry = publish("a", kind="bypass", function="model.Decoder.forward", reason="has a print")
    publish("b", kind="bypass", function="model.Encoder.embed", reason="other")
    for name in ("Decoder.forward", "forward", "model.Decoder.forward", entry[:10], entry.upper()):
        done = run(command, name)
        assert (done.returncode, done.stderr) == (0, "")
        assert "has a print" in done.stdout


@pytest.mark.parametrize("command", ["show", "readable"])
def test_a_function_of_several_entries_names_their_ids(run, publish, command):
    entries = [publish(digit, function="m.f", signature=digit) for digit in "ab"]
    done = run(command, "f")
    assert done.returncode == 2
    assert all(entry[:16] in done.stderr for entry in entries)
    assert "--filter 'function=f'" in done.stderr


@pytest.mark.parametrize("name", ["g", "m.", "orm.f", "0123456789ab", "", "\x1b[2J"])
def test_a_name_that_means_nothing_is_one_clear_error(run, publish, name):
    publish("a", function="form.f")
    done = run("show", name)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert "npugx-cache ls" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_note_shows_nothing_of_graphs_and_a_graph_does(filled, run, publish):
    shown = run("show", publish("a", kind="bypass", function="f", reason="r")).stdout
    assert not any(word in shown for word in ("compile seconds", "blobs", "capture plan"))
    shown = run("show", "f1").stdout
    assert all(word in shown for word in ("compile seconds", "blobs", "capture plan"))
