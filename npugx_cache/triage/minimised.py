"""Makes a graph small on which a pass is wrong, and writes it as a program that shows this."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.backend import lowering
from npugx_cache.terminal import one_line
from npugx_cache.triage import compared, ways
from npugx_cache.triage.pass_by_pass import (
    Fault,
    copies,
    runnable,
    snapshot,
    values,
    with_constants_as_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from npugx_cache.triage.plan import Plan

_SECONDS = 120.0
_WAIT = 300.0
_VALUES = "program_inputs.pt"


class Written(NamedTuple):
    """A program in the folder. shows: whether it showed the fault when it was run."""

    file: str
    nodes: int
    shows: bool


class _OutOfTime(Exception):
    pass


def write(fault: Fault, plan: Plan) -> Written | None:
    """Write `program.py`; None for a graph that can't be written as one function."""
    lifted = with_constants_as_inputs(fault.before, fault.inputs)
    if lifted is None:
        return None
    graph_module, inputs = _smallest(fault, *lifted)
    file = Path(plan.folder) / "program.py"
    nodes = sum(node.op == "call_function" for node in graph_module.graph.nodes)
    file.write_text(_text(fault, plan, graph_module, inputs, stored=False), encoding="utf-8")
    shows = _shows(file)
    if not shows and plan.save_inputs:
        torch.save(list(inputs), file.parent / _VALUES)
        file.write_text(_text(fault, plan, graph_module, inputs, stored=True), encoding="utf-8")
        shows = _shows(file)
    return Written(file.name, nodes, shows)


def _smallest(
    fault: Fault, graph_module: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, Sequence[Any]]:
    from npugx_cache.private import minifier

    best = graph_module, inputs
    # The minifier first runs the graph on what it is given, and the graph may write to that.
    given_to_it = copies(inputs)
    unwritten = {id(own): value for own, value in zip(given_to_it, inputs, strict=True)}
    end = time.monotonic() + _SECONDS

    def holds(candidate: fx.GraphModule, given: Sequence[Any]) -> bool:
        nonlocal best
        given = [unwritten.get(id(value), value) for value in given]
        if time.monotonic() > end:
            raise _OutOfTime
        if not _is_wrong(fault, candidate, given):
            return False
        if len(candidate.graph.nodes) <= len(best[0].graph.nodes):
            best = candidate, given
        return True

    try:
        minifier.smallest(graph_module, given_to_it, holds)
    except Exception as error:  # noqa: BLE001 - the smallest graph so far is there, whatever ended it
        sys.stderr.write(f"the minifier ended: {error!r}\n")
    return best


def _is_wrong(fault: Fault, candidate: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether the pass is at fault on this graph as it is on the whole one."""
    try:
        lowered = lowering.lower(candidate, copies(inputs), None)
        expected = values(runnable(snapshot(lowered)), inputs)
    except Exception:  # noqa: BLE001 - a part of a graph need not run
        return False
    try:
        fault.run_pass(lowered.graph)
        actual = values(runnable(lowered), inputs)
    except Exception:  # noqa: BLE001 - it may be what we look for
        return fault.raises
    return not fault.raises and compared.worst(expected, actual).kind == "different"


def _shows(file: Path) -> bool:
    """Run the program in a fresh process; it exits with 1 if the results differ."""
    try:
        command = [sys.executable, str(file)]
        done = subprocess.run(command, timeout=_WAIT, check=False)  # noqa: S603 - we wrote the file
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 1


_PROGRAM = '''"""A graph with which a pass of npugx_cache is at fault.

Made by `npugx-cache triage`. `python program.py` exits with 1 if it shows the fault, else with 0.
"""

# The pass: {name}
# The function: {title}

import sys
from functools import reduce
from importlib import import_module

import torch
from torch import device, inf, nan
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache.backend import compile_fx

{imports}


def named(module, name):
    found = import_module(module)
    return reduce(getattr, name.split("."), found)


{graph}


def tensor(size, stride, dtype, where):
    made = torch.empty_strided(size, stride, dtype=dtype, device=where)
    if dtype.is_floating_point or dtype.is_complex:
        return made.normal_()
    return made.random_(0, 2)


def inputs():
    torch.manual_seed(0)
    return {inputs}


OPTIONS = {options}

with torch.no_grad():
    given, expected_inputs, actual_inputs = inputs(), inputs(), inputs()
    expected = graph(*expected_inputs)
    try:
        actual = compile_fx(make_fx(graph)(*inputs()), given, OPTIONS)(*actual_inputs)
        torch.testing.assert_close(actual, expected, equal_nan=True)
        torch.testing.assert_close(actual_inputs, expected_inputs, equal_nan=True)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
        sys.exit(1)
print("the results are equal")
'''


def _text(
    fault: Fault, plan: Plan, graph_module: fx.GraphModule, inputs: Sequence[Any], *, stored: bool
) -> str:
    graph_module.graph.lint()
    graph_module.recompile()
    code = graph_module.code.strip().replace("def forward(self, ", "def graph(")
    values_of = [_input(value) for value in inputs]
    listed = "[\n        " + ",\n        ".join(values_of) + ",\n    ]" if values_of else "[]"
    loaded = f"torch.load({_VALUES!r}, weights_only=True)"
    imports, names = _imports(fault, plan)
    return _PROGRAM.format(
        name=one_line(fault.name),
        title=one_line(fault.recipe.title),
        graph=code.replace("def forward(self)", "def graph()"),
        inputs=loaded if stored else listed,
        imports="\n".join(imports),
        options=_options(fault, names),
    )


def _input(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    place = f"{tuple(value.shape)}, {value.stride()}, {value.dtype}, {str(value.device)!r}"
    return f"tensor({place})"


def _imports(fault: Fault, plan: Plan) -> tuple[list[str], dict[str, str]]:
    """Lines that import the user's code, and how the program names each custom pass."""
    folder = str(Path(plan.target).absolute().parent if plan.is_script else Path.cwd())
    lines = [f"sys.path.insert(0, {folder!r})"]
    script = str(Path(plan.target).absolute())
    if plan.is_script:
        lines += ["import runpy", f"script = runpy.run_path({script!r}, run_name='triaged')"]
    else:
        lines.append(f"import_module({plan.target.partition(':')[0]!r})")
    names: dict[str, str] = {}
    for option, function in fault.recipe.options.functions():
        module, name = function.__module__, getattr(function, "__qualname__", "")
        if module == "__main__":
            names[option] = f"script[{name!r}]"
        else:
            names[option] = f"named({module!r}, {name!r})"
    return list(dict.fromkeys(lines)), names


def _options(fault: Fault, names: dict[str, str]) -> str:
    given = ways.changed_options(fault.recipe)
    rows = [f"{name!r}: {names.get(name, text)}" for name, text in given.items()]
    return "{" + ", ".join(rows) + "}"
