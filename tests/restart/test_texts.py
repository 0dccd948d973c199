"""Texts that a function is called with, or reads, are not in the store, in reasons or in logs."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch

from npugx_cache import version

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).with_name("texts.py")
SECRET, OTHER = "hf_QxSecretTokenValue_0123456789", "hf_QxAnotherSecretOne_9876543210"
WORD = "the-word-in-the-code"
READS_PARTIALS = version.minor_version(torch.__version__) < (2, 11)
"""Whether this torch reads each argument of a partial that is called, also one that nobody uses."""
IGNORED = ("ignored", "ignored_inside", *(() if READS_PARTIALS else ("applied",)))
READ = (
    "compared",
    "counted",
    "of_an_object",
    "of_a_global",
    "of_a_global_dict",
    "of_the_environment",
    "walked",
    "keys_walked",
    "in_a_tuple",
    "through_a_default",
    "of_a_member",
    "walked_set",
    *(("applied",) if READS_PARTIALS else ()),
)
UNCACHED = ("raises", "untraceable")


@pytest.fixture(scope="module")
def answers(once):
    """Of processes one after the other on one store; its bytes, its listing, and an entry."""

    def make(surroundings):
        made = {
            name: surroundings.run(PROGRAM, secret, MY_API_KEY=secret)
            for name, secret in (("cold", SECRET), ("warm", SECRET), ("other", OTHER))
        }
        state = surroundings.folder / "state"  # hits and the journal of misses
        made["noted"] = len([*state.rglob("misses.jsonl")])
        made["leaked"] = sorted([*leaked(surroundings.store), *leaked(state)])
        made["word"] = surroundings.run(PROGRAM, WORD, MY_API_KEY=WORD)
        made["listing"] = surroundings.listing()
        made["readable"] = [readable(surroundings, row["entry"]) for row in of(made, "compared")]
        return made

    return once("texts", make)


def of(answers, case):
    return [row for row in answers["listing"] if row["function"] == f"__main__.{case}"]


def readable(surroundings, entry):
    return subprocess.run(
        [sys.executable, "-m", "npugx_cache.cli", "readable", entry],
        env=surroundings.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def leaked(store):
    """Secrets in names of files and in bytes, as they lie there and decompressed, and where."""
    for path in sorted(store.rglob("*")):
        held = path.name.encode()
        if path.is_file():
            data = path.read_bytes()
            held += data
            with contextlib.suppress(zlib.error):
                held += zlib.decompress(data)
        for secret in (SECRET, OTHER):
            if secret.encode() in held:
                yield f"{secret} in {path.relative_to(store)}"


def test_no_secret_is_in_the_store_nor_in_the_journal(answers):
    assert answers["noted"] == 1
    assert answers["leaked"] == []


@pytest.mark.parametrize("case", IGNORED + READ + UNCACHED)
def test_results_are_right_and_no_secret_is_in_reasons_or_logs(answers, case):
    for name in ("cold", "warm", "other"):
        answer = answers[name][case]
        assert answer["right"]
        said = repr([answer["reasons"], answer["said"]])
        assert SECRET not in said
        assert OTHER not in said


@pytest.mark.parametrize("case", IGNORED)
def test_a_text_that_is_not_read_changes_nothing(answers, case):
    found = [answers[name][case] for name in ("cold", "warm", "other")]
    assert [(each["hits"], each["misses"]) for each in found] == [(0, 1), (1, 0), (1, 0)]
    signatures = {row["signature"] for row in of(answers, case)}
    assert not any(name in text for text in signatures for name in ("token", "pass", "user"))


@pytest.mark.parametrize("case", READ)
def test_a_text_that_is_read_is_compared_without_being_stored(answers, case):
    found = [answers[name][case] for name in ("cold", "warm", "other")]
    assert [(each["hits"], each["misses"]) for each in found] == [(0, 1), (1, 0), (0, 1)]
    assert found[2]["reasons"]


def test_a_call_that_can_not_be_cached_is_one_bypass_in_the_store(answers):
    assert answers["cold"]["untraceable"]["bypasses"] > 0
    assert {row["kind"] for row in of(answers, "untraceable")} == {"bypass"}


def test_a_call_that_the_function_can_not_run_is_noted_nowhere(answers):
    assert answers["cold"]["raises"]["bypasses"] > 0
    assert of(answers, "raises") == []


def test_a_reason_says_length_and_digest_and_shows_what_stands_in_the_code(answers):
    (reason,) = answers["other"]["compared"]["reasons"]
    assert re.fullmatch(
        r"token was a text of 32 characters \(sha256 \w{12}\), "
        r"is a text of 32 characters \(sha256 \w{12}\)",
        reason,
    )
    reasons = answers["word"]["compared"]["reasons"]
    assert len(reasons) == 2
    assert all(reason.endswith(f"), is '{WORD}'") for reason in reasons)


def test_what_people_read_has_length_and_digest_too(answers):
    signatures = sorted(row["signature"] for row in of(answers, "compared"))
    assert signatures[0] == f"x: float32[3], token: '{WORD}'"
    for text in signatures[1:]:
        assert text.startswith("x: float32[3], token: a text of 32 characters (sha256 ")
    conditions = [text.partition("def guards")[2] for text in answers["readable"]]
    assert sum(f"token == '{WORD}'" in text for text in conditions) == 1
    assert sum("token == text(length=32, sha256='" in text for text in conditions) == 2
