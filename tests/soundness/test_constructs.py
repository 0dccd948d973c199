"""Each change that a construct lists can be made in a program that holds the construct."""

from __future__ import annotations

import pytest
from constructs import CONSTRUCTS, UNRELATED
from matrix import parse
from random_programs import EDITS, IS_EDIT, Part, text_of


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_edits_name_text_of_the_program(name):
    construct = CONSTRUCTS[name]
    for change in (*construct.changes, *construct.unrelated, *UNRELATED, *EDITS):
        if change.startswith(IS_EDIT):
            text = text_of([Part(name, list(construct.lines))], change=change)
            row = parse("random", text)
            assert row.edits
            assert all(old in row.files[file] for file, old, _new in row.edits), change
