"""What all commands have in common: --dir, help, completion, `python -m`."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from npugx_cache.cli.commands import group

COMMANDS = sorted(group.commands)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("command", ["ls", "stats", "verify", "doctor", "dir", "config"])
def test_dir_is_taken_before_and_after_the_command(filled, run, root, command, where):
    options = ["--dir", root]
    args = [*options, command] if where == "before" else [command, *options]
    done = run(*args, NPUGX_CACHE_DIR="/nowhere")
    assert done.returncode == 0, done.stderr
    assert str(root) in done.stdout


def test_the_dir_after_the_command_counts(filled, run, root):
    assert str(root) in run("--dir", "/nowhere", "ls", "--dir", root).stdout


def test_doctor_takes_one_folder(filled, run, root):
    assert run("doctor", root, "--dir", root).returncode == 0
    done = run("doctor", root, "--dir", "/nowhere")
    assert done.returncode == 2
    assert "give one of them" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_an_example(run, command):
    shown = run(command, "--help").stdout
    assert f"  npugx-cache {command}" in shown.partition("Examples:")[2]


def test_the_summaries_of_the_commands_are_whole(run):
    shown = run("--help").stdout
    for command in COMMANDS:
        assert f"  {command} " in shown
    assert "..." not in shown.partition("Commands:")[2]


@pytest.mark.parametrize("module", ["npugx_cache", "npugx_cache.cli"])
def test_the_package_runs_as_a_module(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("npugx-cache, version ")


def completions(*words):
    """What bash is offered for the last of these words."""
    line = " ".join(("npugx-cache", *words))
    environment = {
        "_NPUGX_CACHE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "npugx_cache.cli"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [row.partition(",")[2] for row in done.stdout.splitlines() if row]


@pytest.mark.parametrize("command", ["show", "readable", "rm"])
def test_entry_ids_are_completed(filled, command):
    entries = [row.manifest.entry for row in filled.listing()]
    for entry in entries:
        assert completions(command, entry[:8]) == [entry[:12]]
    assert sorted(completions(command, "")) == sorted(entry[:12] for entry in entries)
    assert completions("--dir", str(filled.root), command, entries[0][:20]) == [entries[0][:20]]


def test_completion_of_no_cache_and_of_a_bad_one_is_silent(root, filled):
    root.chmod(0o777)
    assert completions("show", "") == []
    assert completions("show", "--dir", "/nowhere", "") == []


def test_every_parameter_has_words_of_help():
    for name, command in group.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)
