"""`NPUGX_CACHE_VERIFY=recompile` finds what slipped through a check that did not look."""

import textwrap

PROGRAM = """
    import json, sys, torch
    from npugx_cache import cache_compile
    from npugx_cache.errors import VerificationError
    {before}

    def f(x, seen):
        seen.append(1)
        return {body}

    x, seen = torch.ones(3), []
    cached = cache_compile(f)
    try:
        row = {{"result": cached(x, seen).tolist(), "seen": len(seen)}}
    except VerificationError as error:
        row = {{"error": str(error), "texts": [str(error.restored), str(error.recompiled)]}}
    print(json.dumps(row | {{"info": cached.cache_info()._asdict()}}))
"""

BLIND = """
    from npugx_cache import restore, recipe
    restore.Candidate.accepts = lambda self, scope: self.guards.accept(scope)
    recipe.code_hash = lambda code: "edited or not"
"""
"""Switches off what sees an edit of the function: its hash in the key, and source facts."""

MISCOMPUTING = """
    from npugx_cache.backend import runtime
    bind = runtime.bind
    def wrong(*args, **kwargs):
        graph = bind(*args, **kwargs)
        wrong.count += 1
        return (lambda *a: [graph(*a)[0] + 1]) if wrong.count == 1 else graph
    wrong.count = 0
    runtime.bind = wrong
"""
"""The first graph that is bound computes something else, as a damaged kernel would."""


def run(surroundings, body, before="", **environment):
    script = surroundings.folder / "script.py"
    before = textwrap.indent(textwrap.dedent(before), "    ")
    script.write_text(textwrap.dedent(PROGRAM.format(before=before.strip(), body=body)))
    return surroundings.run(script, **environment)


CHECK = {"NPUGX_CACHE_VERIFY": "recompile"}


def test_a_good_entry_passes(surroundings):
    assert run(surroundings, "x * 2")["info"]["misses"] == 1
    row = run(surroundings, "x * 2", **CHECK)
    assert (row["result"], row["seen"]) == ([2.0] * 3, 1)
    assert (row["info"]["hits"], row["info"]["misses"]) == (1, 0)


def test_an_entry_of_other_code_is_an_error_with_both_texts(surroundings):
    run(surroundings, "x * 2", BLIND)
    assert run(surroundings, "x * 3", BLIND)["result"] == [2.0] * 3  # the defect, unseen
    row = run(surroundings, "x * 3", BLIND, **CHECK)
    assert "its entry differs" in row["error"]
    assert "mul_Tensor" in row["texts"][0]
    assert row["texts"][0] != row["texts"][1]
    assert run(surroundings, "x * 3")["result"] == [3.0] * 3  # with the checks on: a miss


def test_a_graph_that_computes_something_else_is_an_error_with_both_results(surroundings):
    run(surroundings, "x * 2")
    assert run(surroundings, "x * 2", MISCOMPUTING)["result"] == [3.0] * 3  # the defect, unseen
    row = run(surroundings, "x * 2", MISCOMPUTING, **CHECK)
    assert "result differs" in row["error"]
    assert row["texts"] == ["tensor([3., 3., 3.])", "tensor([2., 2., 2.])"]


def test_an_unknown_value_is_refused_at_decoration(surroundings):
    script = surroundings.folder / "script.py"
    script.write_text(
        "from npugx_cache import cache_compile\n"
        "try:\n    cache_compile(len)\nexcept ValueError as error:\n"
        "    import json\n    print(json.dumps(str(error)))\n"
    )
    message = surroundings.run(script, NPUGX_CACHE_VERIFY="1")
    assert message == "NPUGX_CACHE_VERIFY='1': valid values are off, recompile"
