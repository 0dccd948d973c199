from __future__ import annotations

import re
import subprocess
import sys

import pytest

from npugx_cache.cli.output import harmless
from npugx_cache.cli.reading import highlight
from npugx_cache.entry.artifact import READABLE
from npugx_cache.entry.view.page import to_be_read
from npugx_cache.store import Draft
from npugx_cache.version import FORMAT, VERSION

CODE = 'def f(x):\n    """A long line. """ + "' + "y" * 300 + '"\n    return x  # [bold]ä[/bold]\n'


def test_highlighting_adds_colours_and_nothing_else():
    coloured = highlight(CODE)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == CODE


def test_control_characters_are_replaced_and_lines_and_tabs_are_kept():
    assert harmless("a\tb\nc ä") == "a\tb\nc ä"
    assert harmless("a\x1b[2Jb\r\x00\x9b\u202ec") == "a\ufffd[2Jb\ufffd\ufffd\ufffd\ufffdc"


SHOWN = to_be_read(CODE)


@pytest.fixture
def entry(filled):
    answer = filled.publish(
        Draft(
            key="e" * 64,
            identity="1d" * 16,
            kind="graph",
            cost_seconds=1.0,
            factors=(),
            about={"function": "f"},
            blobs={READABLE: CODE.encode()},
        )
    )
    return answer.manifest.entry


def test_readable_is_plain_when_piped(entry, run):
    done = run("readable", entry[:10])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SHOWN


def test_readable_takes_a_path(entry, run, root):
    done = run("readable", root / "v1/ac/ee" / ("e" * 64) / entry)
    assert done.stdout == SHOWN


def test_readable_is_coloured_on_a_terminal_and_where_asked_for(entry, run, on_terminal):
    code, shown = on_terminal("readable", entry)
    assert code == 0
    assert "\x1b[" in shown
    assert "\x1b[" in run("readable", entry, "--color", "always").stdout
    _, shown = on_terminal("readable", entry, "--color", "never")
    assert shown.replace("\r\n", "\n") == SHOWN


def test_no_color_is_respected_unless_colours_are_asked_for(entry, on_terminal):
    _, shown = on_terminal("readable", entry, NO_COLOR="1")
    assert shown.replace("\r\n", "\n") == SHOWN
    _, shown = on_terminal("readable", entry, "--color", "always", NO_COLOR="1")
    assert "\x1b[" in shown


@pytest.fixture
def long_entry(filled):
    draft = Draft(
        key="f" * 64,
        identity="1d" * 16,
        kind="graph",
        cost_seconds=1.0,
        factors=(),
        about={"function": "g"},
        blobs={READABLE: b"".join(b"line%d = 0\n" % line for line in range(200))},
    )
    return filled.publish(draft).manifest.entry


def test_a_long_text_goes_through_the_pager_of_a_terminal(long_entry, run, on_terminal):
    pager = {"PAGER": "head -n 3", "LINES": "24", "NO_COLOR": "1"}
    _, shown = on_terminal("readable", long_entry, **pager)
    assert shown.splitlines() == to_be_read("line0 = 0").splitlines()
    _, shown = on_terminal("readable", long_entry, "--no-pager", **pager)
    assert len(shown.splitlines()) == 202
    assert len(run("readable", long_entry).stdout.splitlines()) == 202


def test_a_text_without_sections_is_shown_as_it_is_and_does_not_run(entry, run):
    assert run("readable", entry, "--section", "guards").stdout == SHOWN
    done = run("readable", entry, "--section", "no-such")
    assert done.returncode == 2
    assert "overview" in done.stderr


def test_an_entry_of_another_release_is_shown_as_that_release_wrote_it(filled, run):
    answer = filled.publish(
        Draft(
            key="d" * 64,
            identity="1d" * 16,
            kind="graph",
            cost_seconds=1.0,
            factors=(("format", "9999", "process"), ("npugx_cache", "7.1", "process")),
            about={"function": "f"},
            # Its parts are not what this release reads.
            blobs={READABLE: CODE.encode(), "conditions": b"x", "bindings": b"x", "program": b"x"},
        )
    )
    for options in ([], ["--section", "all"], ["--section", "guards"]):
        done = run("readable", answer.manifest.entry, *options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(CODE)
    lines = run("readable", answer.manifest.entry).stdout.splitlines()
    assert lines[0].startswith("raise SystemExit")  # nothing of the text runs
    assert (
        f"# As it was stored: made by npugx_cache 7.1 in format 9999, and this is {VERSION} "
        f"with {FORMAT}."
    ) in lines


def test_readable_writes_to_a_file(entry, run, tmp_path):
    done = run("readable", entry, "--file", tmp_path / "out.py")
    assert done.returncode == 0
    assert (tmp_path / "out.py").read_text() == SHOWN
    done = run("readable", entry, "--file", tmp_path / "none/out.py")
    assert done.returncode == 2
    assert "--file" in done.stderr


def test_a_damaged_entry_exits_1_with_its_reason(entry, run, root):
    for path in (root / "v1/cas").rglob("?" * 64):
        path.write_bytes(b"0" * path.stat().st_size)
    done = run("readable", entry)
    assert done.returncode == 1
    assert "digest mismatch" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("entry", ["0123456789ab", "zz", "/no/such/v1/ac/00/11/22"])
def test_an_unknown_entry_is_one_clear_error(filled, run, entry):
    done = run("readable", entry)
    assert done.returncode in {1, 2}
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_readable_makes_no_cache_of_a_folder(run, root, tmp_path):
    assert run("readable", "0123456789ab").returncode == 2
    assert run("readable", "0123456789ab", "--dir", tmp_path / "typo").returncode == 2
    assert not root.exists()
    assert not (tmp_path / "typo").exists()


def test_readable_loads_no_torch(entry):
    code = """if True:
        import sys
        from npugx_cache.cli import main
        try:
            main(['readable', sys.argv[1]])
        except SystemExit:
            pass
        print(sorted({'torch', 'rich', 'numpy'} & set(sys.modules)))
    """
    command = [sys.executable, "-c", code, entry]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_entry_that_inflates_to_more_than_is_shown_is_one_clear_error(filled, run):
    draft = Draft(
        key="f" * 64,
        identity="1d" * 16,
        kind="graph",
        cost_seconds=1.0,
        factors=(),
        about={"function": "g"},
        blobs={READABLE: bytes(40 << 20)},
    )
    entry = filled.publish(draft).manifest.entry
    for section in ("overview", "all"):
        done = run("readable", entry, "--section", section)
        assert done.returncode == 1
        assert "41943040 bytes to be shown, more than the 33554432" in done.stderr
    assert run("verify").returncode == 0
