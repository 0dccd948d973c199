"""`npugx-cache triage`: wrong arguments. tests/triage has what it finds."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["script.py", "--inputs", "a:b"], "a script makes its own inputs"),
        (["model:net", "--", "more"], "is no script, and takes no arguments"),
        (["model:net", "--timeout", "soon"], "is not a number with s, m, h, d or w"),
        (["model"], "is neither module:callable nor a script"),
    ],
)
def test_wrong_arguments_are_named(run, tmp_path, args, said):
    named(run, tmp_path, args, said)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing_of_this_name:f"], "there is no module 'nothing_of_this_name' here"),
        (["json:nothing"], "json:nothing"),
        (["json:JSONDecoder"], "is no function and no module that is made"),
        (["json:dumps", "--inputs", "json:nothing"], "json:nothing"),
        (["json:dumps", "--inputs", "nothing.pt"], "does not start: FileNotFoundError"),
    ],
)
def test_what_is_not_there_is_named(run, tmp_path, args, said):
    named(run, tmp_path, args, said)


def named(run, tmp_path, args, said):
    done = run("triage", "--out", tmp_path / "issue", *args)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_other_files_is_not_written_to(run, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = run("triage", "--out", tmp_path, "model:net")
    assert done.returncode == 2
    assert "holds other files" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]
