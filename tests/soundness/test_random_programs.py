"""Random programs and random changes: cold and, in another process, changed, they equal eager.

NPUGX_TEST_EXAMPLES sets how many, for a run by night; NPUGX_TEST_SEED which. A failure is shrunk
and printed in the notation of the matrix, where it belongs once it is understood.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from processes import run, write
from random_programs import KERNEL, row, texts

EXAMPLES = int(os.environ.get("NPUGX_TEST_EXAMPLES", "25"))
SEED = int(os.environ.get("NPUGX_TEST_SEED", "1"))
BATCH = 150
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600 + 20 * EXAMPLES)]
NOTHING_CHANGED = "def change(call, model, given):\n    pass\n"


def examined(look, *phases):
    """`look` at each of the same random programs, in the same order."""
    bounds = settings(
        max_examples=EXAMPLES,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    hypothesis.seed(SEED)(bounds(given(texts())(look)))()


def faults(surroundings, programs):
    """What was wrong with each program, by its text; None where nothing was."""
    rows = {f"program{index}": row(text) for index, text in enumerate(programs)}
    tree = surroundings.folder / "tree"
    write(tree, rows, changed=False)
    cold = run(surroundings, tree, "cold", list(rows))
    write(tree, rows, changed=True)
    warm = run(surroundings, tree, "warm", list(rows))
    return {
        text: _fault(text, cold[name], warm[name])
        for name, text in zip(rows, programs, strict=True)
    }


def _fault(text, cold, warm):
    differences = [_not_documented(each["difference"]) for each in (cold, warm)]
    if any(differences):
        return "cold: {}; changed: {}".format(*differences)
    unchanged = NOTHING_CHANGED in text and "# edit" not in text
    if unchanged and not cold["bypasses"] and warm["misses"]:
        return f"a needless miss: {warm['reasons']}"
    return None


def _not_documented(difference):
    """None where a kernel raised in eager, in a call that the graph has dropped as unused."""
    dropped = (f"['list', {KERNEL!r}, ", f"eager {KERNEL!r} and cached ")
    return None if (difference or "").startswith(dropped) else difference


def test_random_programs_give_eagers_results_after_a_restart_and_a_change(surroundings):
    found: dict[str, str | None] = {}
    examined(lambda text: found.setdefault(text), Phase.generate)
    texts_found, batches = list(found), 0
    while texts_found:
        part, texts_found = texts_found[:BATCH], texts_found[BATCH:]
        found |= faults(surroundings.beside(f"batch{batches}"), part)
        batches += 1
    failed = [text for text, fault in found.items() if fault]
    if not failed:
        return
    print(len(failed), "of", len(found), "programs failed, and one of them is shrunk:")
    for text in failed:
        print(f"\n{found[text]}\n### name\n{text}")

    def look(text):
        if text not in found:
            found.update(faults(surroundings.beside(f"shrunk{len(found)}"), [text]))
        assert found[text] is None, f"{found[text]}\n### name\n{text}"

    examined(look, Phase.generate, Phase.shrink)
    pytest.fail("a failure that did not come back")


def test_the_programs_are_of_many_kinds():
    """Not the same few over and over, and most of them change something."""
    found: dict[str, None] = {}
    examined(lambda text: found.setdefault(text), Phase.generate)
    assert len(found) > 0.5 * EXAMPLES
    assert sum(NOTHING_CHANGED not in text for text in found) > 0.5 * len(found)
    assert sum(" if " in text or "for v in" in text for text in found) > 0.3 * len(found)
