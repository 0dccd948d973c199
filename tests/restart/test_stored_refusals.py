"""What can't be cached is not traced in vain by the next process, until something changes (P5)."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("refusing.py")
NOISY = "def helper(x):\n    print('', end='')\n    return x + 1\n"
QUIET = "def helper(x):\n    return x + 1\n"


def run(surroundings, name, helper=NOISY, **environment):
    (surroundings.folder / "refusing_helper.py").write_text(helper)
    row = surroundings.run(
        SCRIPT, name, cwd=surroundings.folder, PYTHONDONTWRITEBYTECODE="1", **environment
    )
    assert row["right"]
    return row


@pytest.mark.parametrize(
    "name", ["untraceable", pytest.param("unstorable", marks=pytest.mark.thorough)]
)
def test_a_restarted_process_answers_a_refusal_without_a_trace(surroundings, name):
    cold, warm = run(surroundings, name), run(surroundings, name)
    assert cold["traces"] == 1  # the second call has other sizes, and was refused with the first
    assert warm["traces"] == 0
    assert not warm["dynamo"]
    assert warm["counts"] == [0, 0, 2, 0]
    assert warm["warnings"] == cold["warnings"]
    assert len(warm["warnings"]) == 1


@pytest.mark.thorough
def test_numbers_that_the_refusal_does_not_depend_on_are_not_traced_again(surroundings):
    cold, warm = run(surroundings, "numbers"), run(surroundings, "numbers")
    assert cold["traces"] == 1
    assert warm["traces"] == 0
    assert warm["counts"] == [0, 0, 4, 0]


@pytest.mark.thorough
def test_other_values_of_what_the_refusal_depends_on_are_compiled(surroundings):
    """In the same process and after a restart: of a text, a number, `self`."""
    for _ in range(2):
        row = run(surroundings, "choices")
        assert row["counts"][2] == 3  # each of the three once, with the value that prints
        assert row["counts"][0] + row["counts"][1] == 3


@pytest.mark.thorough
def test_an_edit_of_traced_code_is_tried_again(surroundings):
    assert run(surroundings, "untraceable")["counts"][2] == 2
    edited = run(surroundings, "untraceable", QUIET)
    assert edited["counts"][1] >= 1
    assert edited["counts"][2] == 0
    assert run(surroundings, "untraceable")["counts"] == [0, 0, 2, 0]


@pytest.mark.thorough
def test_another_configuration_is_tried_again(surroundings):
    assert run(surroundings, "noisy")["counts"] == [0, 0, 1, 0]
    assert run(surroundings, "quiet")["counts"] == [0, 1, 0, 1]
    assert run(surroundings, "noisy")["traces"] == 0
    assert run(surroundings, "quiet")["counts"] == [1, 0, 0, 0]


@pytest.mark.thorough
def test_strict_raises_a_stored_refusal_without_a_trace(surroundings):
    run(surroundings, "untraceable")
    worker = surroundings.start(
        SCRIPT, "untraceable", cwd=surroundings.folder, NPUGX_CACHE_STRICT="1"
    )
    _, err = worker.process.communicate()
    assert "npugx_cache.errors.Uncacheable" in err
    assert "in helper" in err


@pytest.mark.thorough
def test_a_readonly_store_answers_too(surroundings):
    run(surroundings, "untraceable")
    assert run(surroundings, "untraceable", NPUGX_CACHE="readonly")["traces"] == 0


@pytest.mark.thorough
def test_code_without_a_file_is_refused_until_there_is_a_file(surroundings):
    text = SCRIPT.with_name("without_file.py").read_text()
    script = surroundings.folder / "in_a_file.py"
    script.write_text(text)

    def run_as(*arguments):
        return surroundings.run(*arguments, cwd=surroundings.folder)

    executed = ("-c", f"exec({text!r})")
    rows = [run_as(*each) for each in (executed, executed, (script,), (script,))]
    assert [row["counts"] for row in rows] == [[0, 0, 1], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert [row["traces"] for row in rows] == [1, 0, 1, 0]
    assert "can't be found again" in rows[1]["reason"]
