"""Functions that are typed in: at Python's prompt, or in the cells of a notebook.

Each cell has a file of its own, whose name holds the kernel's process and the text of the cell.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FIRST = "import torch, json\nfrom npugx_cache import cache_compile\nx = torch.ones(3)\n"
FIRST += "def helper(x): return x * 2\n"
SHOW = "print(json.dumps([torch.equal(f(x), {wanted}), f.cache_info()[:3]]))\n"
CELLS = [
    FIRST,
    "@cache_compile(dynamic=False)\ndef f(x): return helper(x) + 1\n",
    SHOW.format(wanted="x * 2 + 1"),
    "@cache_compile(dynamic=False)\ndef f(x): return helper(x) + 7\n",
    SHOW.format(wanted="x * 2 + 7"),
    "def helper(x): return x * 5\n",
    SHOW.format(wanted="x * 5 + 7"),
    "class M(torch.nn.Module):\n    def forward(self, x): return helper(x) - 1\n",
    "f = cache_compile(M()).forward\n",
    SHOW.format(wanted="x * 5 - 1"),
]
# As ipykernel runs a cell: compiled under a name of its own, whose text tracebacks find.
KERNEL = """
import json, linecache, os, sys
for number, text in enumerate(json.loads(sys.argv[1])):
    name = f"/tmp/ipykernel_{os.getpid()}/{number + int(sys.argv[2])}.py"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), vars(sys.modules["__main__"]))
"""
COLD = [[True, [0, 1, 0]], [True, [0, 1, 0]], [True, [0, 2, 0]], [True, [0, 1, 0]]]
WARM = [[True, [1, 0, 0]], [True, [1, 0, 0]], [True, [2, 0, 0]], [True, [1, 0, 0]]]


def at_the_prompt(surroundings):
    typed = "\n".join(CELLS)
    return [sys.executable, "-i"], typed


def in_cells(surroundings):
    program = surroundings.folder / "kernel.py"
    program.write_text(KERNEL)
    number = len(list(surroundings.store.glob("v1/ac/*")))  # cells have other numbers each time
    return [sys.executable, str(program), json.dumps(CELLS), str(number)], ""


@pytest.mark.thorough
@pytest.mark.parametrize("way", [in_cells, at_the_prompt])
def test_each_definition_is_right_and_a_hit_after_a_restart(surroundings, way):
    def run():
        command, typed = way(surroundings)
        done = subprocess.run(
            command,
            input=typed,
            cwd=surroundings.folder,
            env=surroundings.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert run() == COLD
    assert run() == WARM
