"""Every example runs, in small, in processes of its own: first on an empty cache, then again.

`tests/docs` runs those that docs/start.md shows.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
COMPARED = {"restart_qwen3", "generation_loops", "qwen3_generation"}
"""The main example, and the two files that it imports."""
ON_THE_START_PAGE = {"function", "module", "generate", "prefill_decode"}
"""`tests/docs` runs them twice, and compares all that they print with docs/start.md."""
TWICE = [
    "dynamic_shapes",
    "custom_operator",
    "custom_pass",
    "inductor_engine",
    "migration",
    "part_of_a_model",
]
IN_ITSELF = {"read_only_image"}
"""It starts both processes by itself."""
ON_RANKS = {"torchrun_tp"}
"""torchrun starts it."""
SERVER = {"serve_decode", "decode_worker"}
"""The server and what it imports: `test_serving.py`."""
OF_ENGINES = {"engine_cpu"}
"""`tests/pieces/test_plugins.py` runs it, where vLLM is installed."""
# By default gloo asks the resolver for the name of the host, and takes whatever answers.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def run(surroundings, name, *arguments, launcher=()):
    script = str(EXAMPLES / f"{name}.py")
    command = [sys.executable, *launcher, script, *map(str, arguments)]
    environment = surroundings.environment(HF_HUB_OFFLINE="1", **LOOPBACK)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs uncached" not in done.stderr
    return done.stdout


def results(printed):
    return [line for line in printed.splitlines() if line.startswith("result")]


def counts(printed):
    """Hits, misses, bypasses and stored, of each `CacheInfo` that was printed."""
    found = re.findall(r"hits=(\d+), misses=(\d+), bypasses=(\d+), stored=(\d+)", printed)
    return [tuple(map(int, each)) for each in found]


def test_each_example_is_run_and_stays_short():
    sizes = {path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    others = IN_ITSELF | ON_RANKS | SERVER | COMPARED | OF_ENGINES
    assert {*sizes} == {*TWICE} | ON_THE_START_PAGE | others
    page = (EXAMPLES.parent / "docs/start.md").read_text()
    assert all(f"<!-- examples/{name}.py -->\n```python\n" in page for name in ON_THE_START_PAGE)
    assert {name: size for name, size in sizes.items() if size >= 60} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TWICE)
def test_an_example_traces_nothing_when_it_runs_again(surroundings, name):
    cold, again = (run(surroundings, name) for _ in range(2))
    assert results(cold)
    assert results(again) == results(cold)
    assert counts(cold)
    assert len(counts(again)) == len(counts(cold))
    for hits, misses, bypasses, stored in counts(cold):
        assert (hits, bypasses) == (0, 0)
        assert misses == stored > 0
    for hits, *others in counts(again):
        assert hits > 0
        assert others == [0, 0, 0]


@pytest.mark.thorough
def test_a_worker_serves_from_a_cache_that_it_can_only_read(surroundings):
    printed = run(surroundings, "read_only_image")
    built, served = results(printed)
    assert served == built
    assert counts(printed) == [(0, 1, 0, 1), (1, 0, 0, 0)]


@pytest.mark.thorough
@pytest.mark.parametrize(("way", "ranks", "graphs"), [("tensors", 2, 2), ("data", 4, 1)])
def test_ranks_compile_each_graph_once_and_none_after_a_restart(surroundings, way, ranks, graphs):
    launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)
    cold, again = (run(surroundings, "torchrun_tp", way, launcher=launcher) for _ in range(2))
    # Ranks print at the same moment, so that one may begin in the line of another.
    first, second = (sorted(re.findall(r"result: rank \d: \S+\.\d{4}", p)) for p in (cold, again))
    assert second == first
    assert len(first) == ranks
    hit, compiled = (1, 0, 0, 0), (0, 1, 0, 1)
    assert sorted(counts(cold)) == [compiled] * graphs + [hit] * (ranks - graphs)
    assert counts(again) == [hit] * ranks


@pytest.mark.thorough
def test_a_restarted_qwen3_generates_the_same_tokens_and_traces_nothing(surroundings):
    arguments = "--layers", 2, "--tokens", 6, "--cache-dir", surroundings.store
    title, *lines, verdict = run(surroundings, "restart_qwen3", *arguments).splitlines()
    columns = ["first_s", "steady_ms", "eager_ms", "same_tokens", "entries", "traced"]
    assert title.split()[-6:] == columns
    assert "nothing traced" in verdict
    table = lines[: 3 * 2 * 2]  # processes, loops, dtypes
    legend, *saved = lines[len(table) :]
    assert "steady_ms: median" in legend
    assert "eager_ms: the same" in legend
    assert len(saved) == 2 * 2
    rows = [line.split() for line in table]
    assert all(float(row[-4]) > 0 < float(row[-5]) for row in rows)
    cold = [row for row in rows if "cold" in row]
    restarted = [row for row in rows if "restarted" in row]
    assert [row[-3] for row in cold + restarted] == ["yes"] * 8
    assert all(row[-1] in ("1", "2") for row in cold)
    assert [row[-1] for row in restarted] == ["0"] * 4
    assert all(row[-2] in ("1", "2") for row in cold + restarted)
    firsts = {(" ".join(row[:-7]), row[-7]): row[-6] for row in rows}
    for line in saved:
        name = " ".join(line.split(":")[1].split("first token")[0].split())
        after, instead = firsts[name, "restarted"], firsts[name, "cold"]
        assert line.endswith(f"after {after} s instead of {instead} s")
