"""Random programs and random changes: cold, restarted and changed, they equal eager.

NPUGX_TEST_EXAMPLES sets how many, for a run by night; NPUGX_TEST_SEED which. A failure is shrunk
and printed in the notation of the matrix, where it belongs once it is understood, with the file
that `run_program.py` runs.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from constructs import CONSTRUCTS, PLACES, TARGETS
from hypothesis import HealthCheck, Phase, given, settings
from outcomes import is_expected, outcomes, summary
from random_programs import EDITS, NOTHING, programs

EXAMPLES = int(os.environ.get("NPUGX_TEST_EXAMPLES", "25"))
SEED = int(os.environ.get("NPUGX_TEST_SEED", "1"))
BATCH = 150
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600 + 20 * EXAMPLES)]
FEW = 0.04
"""The part of the programs that may be refused for a reason that nobody has judged yet."""


def examined(look, *phases):
    """`look` at each of the same random programs, in the same order."""
    bounds = settings(
        max_examples=4 * EXAMPLES,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    hypothesis.seed(SEED)(bounds(given(programs())(look)))()


def chosen():
    """The programs, each without an outcome.

    hypothesis draws many that differ in a line from the one before: of the same constructs in the
    same places only the first one is taken.
    """
    found = {}

    def look(drawn):
        found.setdefault((drawn.constructs, drawn.places), drawn)

    examined(look, Phase.generate)
    return dict.fromkeys(list(found.values())[:EXAMPLES])


def run_all(surroundings, found):
    """The outcomes of the programs among `found` that have none yet."""
    left = [drawn for drawn, outcome in found.items() if outcome is None]
    for batch in range(0, len(left), BATCH):
        part = left[batch : batch + BATCH]
        beside = surroundings.beside(f"batch{len(found) - len(left) + batch}")
        found |= zip(part, outcomes(beside, part), strict=True)


def written(surroundings, drawn, outcome):
    """The program as a file that `run_program.py` runs, and what is to be printed about it."""
    path = surroundings.folder / "program.txt"
    text = f"### random_program\n{drawn.text}"
    path.write_text(text)
    return f"{outcome.fault}\npython tests/soundness/run_program.py {path}\n{text}"


def test_random_programs_give_eagers_results_after_a_restart_and_a_change(surroundings):
    found = chosen()
    run_all(surroundings, found)
    print(summary(found))
    failed = [drawn for drawn, outcome in found.items() if outcome.fault]
    if not failed:
        most_test_something(found)
        return
    print(len(failed), "of", len(found), "programs failed, and one of them is shrunk:")
    for drawn in failed:
        print(f"\n{found[drawn].fault}\n### {' and '.join(drawn.constructs)}\n{drawn.text}")

    shrinks = False

    def look(drawn):
        nonlocal shrinks
        if drawn not in found and not shrinks:
            return  # it is like another one, and was not chosen
        if found.setdefault(drawn) is None:
            run_all(surroundings, found)
        shrinks = shrinks or found[drawn].fault is not None
        assert found[drawn].fault is None, written(surroundings, drawn, found[drawn])

    examined(look, Phase.generate, Phase.shrink)
    pytest.fail("a failure that did not come back")


def most_test_something(found):
    """A program that is refused, or whose eager run raises, shows nothing about conditions."""
    part = 1 / len(found)
    refused = [drawn for drawn, each in found.items() if each.kind == "refused"]
    unknown = [drawn for drawn in refused if not is_expected(drawn, found[drawn])]
    cached = [each for each in found.values() if each.kind in {"hit", "missed", "refused changed"}]
    missed = sum(each.kind == "missed" for each in cached)
    assert len(unknown) * part <= max(FEW, part), [found[drawn].warning for drawn in unknown]
    assert len(cached) * part >= 0.7
    assert 0.2 <= missed / len(cached) <= 0.9  # neither do all changes matter, nor none


def test_the_programs_are_of_many_kinds():
    """Not the same few over and over; every construct, place and target; most change something."""
    found = chosen()
    assert len(found) > 0.8 * EXAMPLES
    assert sum(drawn.change != NOTHING for drawn in found) > 0.8 * len(found)
    assert sum(drawn.is_related for drawn in found) > 0.4 * len(found)
    nested = [drawn for drawn in found if set(drawn.places) != {"in the forward"}]
    assert len(nested) > 0.5 * len(found)
    if EXAMPLES >= 1000:
        assert {name for drawn in found for name in drawn.constructs} == set(CONSTRUCTS)
        assert {place for drawn in found for place in drawn.places} == set(PLACES)
        assert {drawn.target for drawn in found} == set(TARGETS)
        assert {drawn.change for drawn in found} >= set(EDITS)
