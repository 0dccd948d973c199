"""What the commands say of a remote tier, of which they show and change nothing."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.thorough
ADDRESS = "redis://cache.example:6379/0/graphs"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("stats",), "not counted here"),
        (("ls",), "may have more"),
        (("prune", "--max-size", "1k"), "its engine has to expire what is old"),
    ],
)
def test_the_commands_name_the_tier_and_what_they_leave_out(filled, run, command, words):
    given = {"NPUGX_CACHE_REMOTE": ADDRESS}
    text = run(*command, **given).stdout
    assert f"the remote tier {ADDRESS}, not used without NPUGX" in text
    assert words in text
    form = (*command, "--format", "json")
    assert json.loads(run(*form, **given).stdout)["remote"] == ADDRESS
    assert json.loads(run(*form).stdout)["remote"] is None
    assert "remote tier" not in run(*command).stdout


def test_a_tier_that_is_used_is_named_without_a_remark(run, tmp_path):
    assert run("key", "new", tmp_path / "key").returncode == 0
    given = {"NPUGX_CACHE_REMOTE": ADDRESS, "NPUGX_CACHE_KEY_FILE": str(tmp_path / "key")}
    assert f"the remote tier {ADDRESS} may have more" in run("ls", **given).stdout


@pytest.mark.parametrize(
    "address",
    [
        "redis://SOMEBODY@127.0.0.1:1/0/graphs",
        "s3://graphs/f?endpoint=http://127.0.0.1:1&region=SOMEBODY",
    ],
)
@pytest.mark.parametrize("form", [(), ("--format", "json")])
@pytest.mark.parametrize(
    "command",
    ["config", "ls", "stats", "prune", pytest.param("doctor", marks=pytest.mark.thorough)],
)
def test_no_command_shows_more_of_an_address_than_place_and_folder(
    filled, run, tmp_path, command, form, address
):
    run("key", "new", tmp_path / "key")
    given = {"NPUGX_CACHE_REMOTE": address, "NPUGX_CACHE_KEY_FILE": str(tmp_path / "key")}
    done = run(command, *(["--max-size", "1g"] if command == "prune" else []), *form, **given)
    said = done.stdout + done.stderr
    assert "graphs" in said
    assert "SOMEBODY" not in said
