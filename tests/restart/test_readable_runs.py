"""What `npugx-cache readable` prints of a model is a short Python file that computes the graph."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter

import pytest

from npugx_cache.entry.view.page import TO_BE_READ

pytestmark = pytest.mark.thorough

LAYERS = 4

MAKE = f"""
import json, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from npugx_cache import cache_compile
config = Qwen3Config(
    num_hidden_layers={LAYERS}, vocab_size=256, hidden_size=64, intermediate_size=128,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16,
)
model = cache_compile(Qwen3ForCausalLM(config).eval(), dynamic=False, strict=True)
ids = torch.arange(16)[None]
model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

def scaled(x, scale, rows):
    return x.sin() * scale + x.size(0), rows.add_(1), torch.tensor([1.0, 2.0, 3.0])[rows]

cached = cache_compile(scaled, dynamic=True, strict=True)
cached(torch.ones(5, 3), 2.5, torch.zeros(4, dtype=torch.int64))
print(json.dumps(None))
"""

COMPARE = """
import json, sys, torch
from npugx_cache import config, store
from npugx_cache.backend.runtime import bind_program
from npugx_cache.entry.artifact import PROGRAM, program_of

opened = store.open_store(config.load())
manifest = opened.find(sys.argv[1])
program = program_of(opened.read(manifest, [PROGRAM]))
shown = {"__name__": "shown"}
exec(open(sys.argv[2]).read(), shown)
given = shown["inputs"]()
held = given.pop("w")
paths = dict(line.split("\\t") for line in sys.argv[3].splitlines())
values = [given[name] if name in given else held[paths[name]] for name in program.inputs]
with torch.no_grad():
    expected = bind_program(program, {})(*values)
    found = shown["forward"](**given, w=held)
equal = [torch.equal(a, b) and bool(a.isfinite().all()) for a, b in zip(expected, found)]
print(json.dumps([equal, len(expected) == len(found), float(expected[0].std())]))
"""

ALONE = """
import sys
sys.modules["npugx_cache"] = None  # the file runs without the package
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {"__name__": "__main__"})
"""


@pytest.fixture
def shown(surroundings, tmp_path):
    """The file of the model's entry, what is stored, and the id."""
    surroundings.run("-W", "ignore", "-c", MAKE)
    entry = next(row["entry"] for row in surroundings.listing() if "Qwen3" in row["function"])
    file = tmp_path / "entry.py"
    file.write_text(printed(surroundings, entry))
    return entry, file


def printed(surroundings, *args):
    done = surroundings.command("readable", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_alone(surroundings, file):
    return subprocess.run(
        [sys.executable, "-c", ALONE, str(file)],
        env=surroundings.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_model_is_a_short_file_that_runs_and_computes_its_graph(shown, surroundings, tmp_path):
    entry, file = shown
    text = file.read_text()
    assert len(text.splitlines()) < 600
    assert f"for i in range({LAYERS}):\n        hidden = layer(" in text
    assert "# self.model.layers[i].self_attn.q_proj\n" in text
    assert re.search(
        r"aten\.linear\.default\(.*# float32\[1, 16, 64\]  modeling_qwen3\.py:\d+\n", text
    )

    done = run_alone(surroundings, file)
    assert (done.returncode, done.stdout) == (0, "result[0] float32 [1, 16, 256]\n"), done.stderr

    inputs = printed(surroundings, entry, "--section", "inputs")
    from npugx_cache.conditions.paths import as_written

    rows = [line.removeprefix("# ").split(": ", 1) for line in inputs.splitlines()]
    paths = [f"{name}\t{as_written(rest.partition(': ')[0])}" for name, rest in rows]
    command = ["-W", "ignore", "-c", COMPARE, entry, file, "\n".join(paths)]
    equal, as_many, spread = surroundings.run(*command)
    assert all(equal)
    assert as_many
    assert spread > 0

    other = printed(surroundings, "scaled")
    (tmp_path / "scaled.py").write_text(other)
    done = run_alone(surroundings, tmp_path / "scaled.py")
    assert done.stdout.splitlines() == [
        "result[0] float32 [5, 3]",
        "result[1] int64 [4]",
        "result[2] float32 [4]",
    ], done.stderr
    assert "# written to  rows\n" in other

    # Each stored guard is asserted once, and none other.
    guards = printed(surroundings, entry, "--section", "guards")
    stored = printed(surroundings, entry, "--section", "all")
    assert f"for i in range({LAYERS}):" in guards
    ast.parse(guards)
    kinds = Counter(re.findall(r"# (\d+) of", guards))
    lines = stored.partition("def guards_hold")[2].partition("# ---- ")[0].splitlines()
    checks = [line for line in lines if line.startswith("        ")]
    assert sum(int(count) * times for count, times in kinds.items()) == len(checks)
    for section in ("key", "source", "passes", "inputs", "code", "frame"):
        shown = printed(surroundings, entry, "--section", section)
        assert shown.removeprefix(f"{TO_BE_READ}\n").strip() in stored
