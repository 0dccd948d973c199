"""What became of random programs: wrong results, needless misses, and refusals.

A program runs in processes of its own kind: compiled; unchanged after a restart, where each call
must be a hit; changed after a restart; and changed between two calls of one process.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from constructs import CONSTRUCTS
from processes import run, write
from random_programs import KERNEL, NOTHING, Drawn, row

LIVE = 5
"""Every how many programs one runs in the phase `live`, which takes as long as all others."""
OF_NOTHING = Drawn("", (), (), "", NOTHING, is_unrelated=False, is_related=False)
"""For a program that was written by hand."""
KNOWN = (
    # A dict, a list or a cell was written to before: what the function reads may be among it.
    "is assumed to give a constant",
    "changes while it is walked",
)
"""Parts of the reasons of refusals that are right, and that drawn programs meet."""


class Outcome(NamedTuple):
    """What the cache did with one program; `fault` is None where nothing was wrong."""

    fault: str | None
    kind: str
    """`raised`, `refused`, or what the changed call was: `hit`, `missed` or `refused changed`."""
    warning: str
    """Why it was refused."""
    changes_result: bool
    phases: frozenset[str]


def outcomes(surroundings, programs, *, processes=2, live=LIVE):
    """The outcome of each of the programs, in their order; the folder keeps them as packages."""
    rows = {f"program{index}": row(drawn.text) for index, drawn in enumerate(programs)}
    tree, changed = surroundings.folder / "tree", surroundings.folder / "changed"
    write(tree, rows, changed=False)
    write(changed, rows, changed=True)
    names = list(rows)
    at_once = [name for name in names[::live] if rows[name].edits == []]
    found = {
        "cold": run(surroundings, tree, "cold", names, processes=processes),
        "again": run(surroundings, tree, "cold", names, processes=processes),
        "changed": run(surroundings, changed, "warm", names, processes=processes),
        # In a store of their own: what was compiled above would be hits.
        "live": run(surroundings.beside("live"), tree, "live", at_once, processes=processes),
    }
    return [
        _outcome(drawn, {phase: each[name] for phase, each in found.items() if name in each})
        for name, drawn in zip(names, programs, strict=True)
    ]


def _outcome(drawn, phases):
    cold, again, changed = phases["cold"], phases["again"], phases["changed"]
    return Outcome(
        fault=_wrong(phases) or _needless(drawn, cold, again, changed),
        kind=_kind(cold, changed),
        warning=cold.get("warnings", ""),
        changes_result=cold.get("eager") != changed.get("eager"),
        phases=frozenset(phases),
    )


def _wrong(phases):
    """A result that is not eager's, in words."""
    wrong = [
        f"{phase}: {text}"
        for phase, each in phases.items()
        for text in (each["difference"], *each.get("differing", ()))
        if text and not _is_documented(text)
    ]
    return "; ".join(wrong) or None


def _is_documented(difference):
    """That a kernel raised in eager, in a call that the graph has dropped as unused."""
    return difference.startswith((f"['list', {KERNEL!r}, ", f"eager {KERNEL!r} and cached "))


def _needless(drawn, cold, again, changed):
    """A miss where nothing had changed that the program reads, in words."""
    if cold["raised"] or cold["bypasses"]:
        return None
    if again["misses"] or again["bypasses"] or not again["hits"]:
        return f"a needless miss, unchanged: {again['reasons']}"
    if drawn.is_unrelated and (changed["misses"] or changed["bypasses"]):
        return f"a needless miss after {drawn.change.strip()!r}: {changed['reasons']}"
    return None


def _kind(cold, changed):
    if cold.get("raised"):
        return "raised"
    if cold.get("bypasses"):
        return "refused"
    if changed.get("bypasses"):
        return "refused changed"
    return "missed" if changed.get("misses") else "hit"


def is_expected(drawn, outcome):
    """That the program is refused for a construct of the program, or for a known reason."""
    constructs = any(CONSTRUCTS[name].is_refused for name in drawn.constructs)
    return constructs or any(text in outcome.warning for text in KNOWN)


def reason(warning):
    """The reason of a refusal, without names and lines, so that equal reasons count together."""
    text = warning.partition(" runs uncached: ")[2].partition("; to change that")[0] or warning
    return re.sub(r" at \S+main\.py:\d+ in .*", "", text)[:120]


def summary(found):
    """What became of programs, from a dict of their outcomes, as lines of text."""
    kinds = Counter(each.kind for each in found.values())
    differing = Counter(each.kind for each in found.values() if each.changes_result)
    reasons = Counter(
        reason(each.warning)
        for drawn, each in found.items()
        if each.kind == "refused" and not is_expected(drawn, each)
    )
    lines = [f"{len(found)} programs: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items())]
    lines += [f"the result changed: {dict(differing)}"]
    lines += [f"changed in one process: {sum('live' in each.phases for each in found.values())}"]
    lines += [f"faults: {sum(each.fault is not None for each in found.values())}"]
    return "\n".join([*lines, *(f"refused {n} times: {text}" for text, n in reasons.most_common())])
