"""No name of a user's becomes code in a program that a triage writes."""

from __future__ import annotations

import ast

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache import cache_compile
from npugx_cache.cli.triage_report import write_program
from npugx_cache.cli.triage_stages import Stage
from npugx_cache.triage import minimised
from npugx_cache.triage.pass_by_pass import Fault
from npugx_cache.triage.plan import Plan

HOSTILE = ['a"""\nran()\n"""', "a'\nran()\n", "a\rran()\r", "a\x0cran()", "coding: utf-7"]


def plan_of(folder, target):
    return Plan(
        way="dynamo",
        target=target,
        arguments=(),
        inputs=target,
        calls=1,
        seed=0,
        scratch=str(folder),
        events=str(folder / "events"),
        folder=str(folder),
        save_inputs=False,
    )


def calls_nothing_else(file):
    """Whether the file is Python that does not call `ran`."""
    return "id='ran'" not in ast.dump(ast.parse(file.read_bytes()))


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_triaged_stays_a_literal_of_the_program(tmp_path, name):
    bad = Stage("dynamo", "different", "", 0, "f", (), 0, "")
    write_program(tmp_path, plan_of(tmp_path, f"{name}:f"), bad, {"dynamic": None})
    assert calls_nothing_else(tmp_path / "program.py")


@pytest.mark.parametrize("name", HOSTILE)
def test_the_names_of_a_pass_and_a_function_stay_comments(tmp_path, name):
    def function(x):
        return x + 1

    def own_pass(graph):
        del graph

    function.__qualname__ = own_pass.__qualname__ = own_pass.__module__ = name
    options = {"post_grad_custom_pre_pass": own_pass}
    recipe = cache_compile(function, options=options)._recipe
    assert name in recipe.title
    graph = make_fx(function)(torch.ones(2))
    fault = Fault(recipe, 0, name, graph, [torch.ones(2)], raises=False)
    text = minimised._text(fault, plan_of(tmp_path, f"{name}:f"), graph, fault.inputs, stored=False)
    (tmp_path / "program.py").write_text(text, encoding="utf-8", newline="")
    assert calls_nothing_else(tmp_path / "program.py")
