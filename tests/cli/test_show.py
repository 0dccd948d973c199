from __future__ import annotations

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
