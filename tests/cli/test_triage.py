"""`npugx-cache triage`: wrong arguments. tests/triage has what it finds."""

from __future__ import annotations

import pytest

from npugx_cache.cli import triage_report
from npugx_cache.cli.opening import WrongInput


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
        (["json:dumps", "--inputs", "nothing.pt"], "nothing.pt: No such file or directory"),
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


@pytest.fixture
def earlier(tmp_path):
    """The folder of a triage that was stopped at once."""
    return triage_report.prepare_folder(str(tmp_path / "issue"), [])


def test_a_folder_of_an_earlier_triage_is_replaced(earlier):
    written = ["program.py", "logs/1-eager-again.log", "entries/0123456789ab.py"]
    for name in written:
        (earlier / name).parent.mkdir(exist_ok=True)
        (earlier / name).write_text("of the earlier one")
    triage_report.prepare_folder(str(earlier), ["model:net", "model:example"])
    assert sorted(each.name for each in earlier.rglob("*")) == ["logs", "triage.json"]


@pytest.mark.parametrize("name", ["notes.md", "logs/app.log", "program/x.py", "entries/mine.py"])
def test_nothing_of_the_user_beside_an_earlier_triage_is_removed(earlier, name):
    kept = earlier / name
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    with pytest.raises(WrongInput, match="holds other files"):
        triage_report.prepare_folder(str(earlier), [])
    assert kept.read_text() == "mine"


def test_no_link_in_an_earlier_triage_is_followed(earlier, tmp_path):
    kept = tmp_path / "mine" / "1-eager.log"
    kept.parent.mkdir()
    kept.write_text("mine")
    (earlier / "graphs").symlink_to(kept.parent)
    with pytest.raises(WrongInput, match="holds other files: graphs"):
        triage_report.prepare_folder(str(earlier), [])
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"agree": true}'])
def test_a_folder_is_of_a_triage_only_if_its_file_says_so(earlier, text):
    (earlier / "triage.json").write_text(text)
    (earlier / "program.py").write_text("mine")
    with pytest.raises(WrongInput, match="holds other files"):
        triage_report.prepare_folder(str(earlier), [])
    assert (earlier / "program.py").read_text() == "mine"


@pytest.mark.parametrize("args", [["model:net", "--inputs", "{}/inputs.pt"], ["{}/program.py"]])
def test_what_a_triage_is_made_from_is_not_removed_with_an_earlier_one(
    earlier, run, tmp_path, args
):
    for name in ("inputs.pt", "program.py"):
        (earlier / name).write_text("kept")
    named(run, tmp_path, [each.format(earlier) for each in args], "which is replaced")
    assert (earlier / "inputs.pt").read_text() == (earlier / "program.py").read_text() == "kept"


def test_a_folder_that_cannot_be_made_is_one_clear_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = run("triage", "--out", tmp_path / "file" / "issue", "model:net")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: --out {tmp_path}/file/issue: ")
