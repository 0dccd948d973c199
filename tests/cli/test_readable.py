from __future__ import annotations

import re

import pytest

from npugx_cache.cli.output import harmless
from npugx_cache.cli.reading import highlight

CODE = 'def f(x):\n    """A long line. """ + "' + "y" * 300 + '"\n    return x  # [bold]ä[/bold]\n'


def test_highlighting_adds_colours_and_nothing_else():
    coloured = highlight(CODE)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == CODE


def test_control_characters_are_replaced_and_lines_and_tabs_are_kept():
    assert harmless("a\tb\nc ä") == "a\tb\nc ä"
    assert harmless("a\x1b[2Jb\r\x00\x9b\u202ec") == "a\ufffd[2Jb\ufffd\ufffd\ufffd\ufffdc"


def test_an_unknown_entry_is_one_clear_error(filled, run):
    pytest.importorskip("npugx_cache.readable", reason="readable_cache is not there yet")
    done = run("readable", "0123456789ab")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "npugx-cache ls" in done.stderr
