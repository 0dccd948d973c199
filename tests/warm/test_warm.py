"""`npugx-cache warm` fills a store in a build step, and fails where something is not stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from npugx_cache.triage.targets import WrongTarget
from npugx_cache.warming.inputs import calls

HERE = Path(__file__).parent


@pytest.fixture
def warm(surroundings):
    def warming(*args, cwd=HERE, **environment):
        return subprocess.run(
            [sys.executable, "-m", "npugx_cache", "warm", *map(str, args)],
            cwd=cwd,
            env=surroundings.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return warming


def told(done):
    return json.loads(done.stdout)


INPUTS = ("--inputs", "float32[4, 8]", "--inputs", "x: int64[3], by: 5")


def test_a_store_is_filled_with_what_calls_need(warm, surroundings):
    first = warm("model:scale", *INPUTS, "--format", "json")
    assert first.returncode == 0, first.stderr
    found = told(first)
    assert [row["inputs"] for row in found["stored"]] == [
        "x: float32[4, 8], by: 2",
        "x: int64[*], by: *",
    ]
    assert {row["entry"] for row in found["stored"]} == {
        row["entry"] for row in surroundings.listing()
    }
    assert (found["hits"], found["faults"]) == (0, [])


@pytest.mark.thorough
def test_a_second_build_step_finds_all_there(warm):
    assert warm("model:scale", *INPUTS).returncode == 0
    again = warm("model:scale", *INPUTS)
    assert again.returncode == 0
    assert again.stdout.startswith("0 graphs compiled in 0.0 s, 2 lookups found a graph")


@pytest.mark.thorough
def test_settings_of_workers_that_must_hit_do_not_hinder_the_build(warm):
    forbidding = {"NPUGX_CACHE_ON_MISS": "raise", "NPUGX_CACHE_RECOMPILE_LIMIT": "0"}
    done = warm("serving.py", "scale:3", "shift:3", NPUGX_CACHE_STRICT="1", **forbidding)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stored model.") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["prints", "strict"])
def test_what_is_refused_fails_the_build_with_one_line_for_each(warm, name):
    done = warm(f"model:{name}", "--inputs", "float32[2]", "--inputs", "float32[3]")
    assert done.returncode == 1
    (refused, summary) = done.stdout.splitlines()
    assert refused.startswith(f"refused model.{name}: ")
    assert "`print(" in refused
    assert summary.startswith("0 graphs compiled")
    assert done.stderr.splitlines()[-1] == "Error: 1 call is refused"
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_what_is_not_stored_fails_the_build_with_the_reason(warm, tmp_path):
    script = tmp_path / "small_files.py"
    script.write_text(
        f"import resource, sys\nsys.path.insert(0, {str(HERE)!r})\nimport serving\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))\n"
        "serving.main('scale:2')\n"
        "shift = serving.cache_compile(serving.model.shift)\n"
        "print(shift.warm(serving.torch.ones(2)).refused)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))\n"
    )
    done = warm(script, "--format", "json")
    assert done.returncode == 1
    rows = told(done)["not_stored"]
    assert [row["function"] for row in rows] == ["model.scale", "model.shift"]
    assert all("File too large" in row["reason"] for row in rows)
    assert told(done)["faults"] == ["2 graphs are not stored"]
    assert "\n('not stored: " in done.stderr  # what `.warm()` gives


def test_a_folder_that_can_not_be_used_is_refused_before_anything_runs(warm, surroundings):
    surroundings.store.write_text("in the place of a folder")
    done = warm("model:scale", "--inputs", "float32[2]")
    assert done.returncode == 1
    assert str(surroundings.store) in done.stderr
    assert "compiled" not in done.stdout


@pytest.mark.thorough
def test_what_a_limit_removes_again_is_not_stored(warm):
    inputs = ("--inputs", "float32[2]", "--inputs", "int64[3]", "--inputs", "float64[2, 2]")
    done = warm("model:scale", *inputs, "--format", "json", NPUGX_CACHE_MAX_ENTRIES="1")
    assert done.returncode == 1
    assert {row["reason"] for row in told(done)["not_stored"]} == {
        "removed again at once, to keep a limit of the folder"
    }
    assert len(told(done)["stored"]) == 1


@pytest.mark.thorough
def test_a_script_that_fails_caches_nothing_or_caches_elsewhere_fails_the_build(warm, tmp_path):
    failing = warm("serving.py", "--", "scale:2", "nothing:2")
    assert failing.returncode == 1
    assert "stored model.scale: x: float32[2], by: 2" in failing.stdout
    assert "serving.py ended with exit code 1" in failing.stderr
    idle = tmp_path / "idle.py"
    idle.write_text("import sys\nprint(sys.argv[1:])\n")
    done = warm(idle, "--", "--batch", "4")
    assert (done.returncode, "['--batch', '4']" in done.stderr) == (1, True)
    assert "idle.py calls no cached function" in done.stderr
    done = warm("serving.py", "--", "--dir", tmp_path / "other", "scale:2")
    assert done.returncode == 1
    assert "functions with a cache_dir of their own use another folder" in done.stderr


@pytest.mark.thorough
def test_a_build_step_that_is_ended_ends_its_script_and_leaves_nothing(surroundings, tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(
        "import os, pathlib, signal\npathlib.Path('pid').write_text(f'{os.getpid()}.')\n"
        "signal.pause()\n"
    )
    (tmp_path / "temporary").mkdir()
    environment = surroundings.environment(TMPDIR=str(tmp_path / "temporary"))
    command = [sys.executable, "-m", "npugx_cache", "warm", script]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        pid = tmp_path / "pid"
        while not (pid.exists() and pid.read_text().endswith(".")):
            assert process.poll() is None
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()[:-1]), 0)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.thorough
def test_processes_that_a_script_starts_are_told_too(warm, tmp_path):
    script = tmp_path / "spawning.py"
    script.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, {str(HERE / 'serving.py')!r}, "
        "'scale:2', 'prints:2'], check=True)\n"
    )
    done = warm(script, "--format", "json")
    assert done.returncode == 1
    assert [row["function"] for row in told(done)["stored"]] == ["model.scale"]
    assert [row["function"] for row in told(done)["refused"]] == ["model.prints"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["serving.py", "--inputs", "3"], "a script makes its own inputs"),
        (["nothing.py"], "there is no script 'nothing.py' here"),
        (["model"], "is neither module:callable nor a script"),
        (["model:scale", "--", "3"], "takes no arguments: see --inputs"),
    ],
)
def test_wrong_arguments_are_named(warm, args, said):
    done = warm(*args)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing_of_this_name:f"], "there is no module 'nothing_of_this_name' here"),
        (["model:nothing"], "has no attribute 'nothing'"),
        (["model:scale"], "model:scale takes arguments: name them with --inputs"),
        (["model:scale", "--inputs", ""], "model:scale takes arguments: name them with --inputs"),
        (["model:scale", "--inputs", "nothing.pt"], "nothing.pt: "),
        (["model:scale", "--inputs", "3, " * 9_000], "'3, 3, 3"),
        (["os:system", "--inputs", "'true'"], "cache_compile takes a Python function"),
        (["../model:scale"], "'../model:scale' is not module:name"),
        (["model:scale", "--inputs", "float32[2], 3, 4"], "takes from 1 to 2 positional"),
        (["model:scale", "--inputs", "float33[2]"], "torch has no type 'float33'"),
    ],
)
def test_what_is_not_there_is_named(warm, args, said):
    done = warm(*args)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", ["readonly", "off"])
def test_a_cache_that_may_not_be_changed_is_not_warmed(warm, surroundings, mode):
    done = warm("model:scale", "--inputs", "float32[2]", NPUGX_CACHE=mode)
    assert done.returncode == 1
    assert f"NPUGX_CACHE={mode} forbids changes to the cache; unset it" in done.stderr
    assert not surroundings.store.exists()


def shapes(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return type(value)(map(shapes, value))
    return {k: shapes(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        ("float32[4,8]", ("torch.float32 [4, 8]",), {}),
        ("int64 cpu[3], 2, 'a', None", ("torch.int64 [3]", 2, "a", None), {}),
        ("bool[], x: float16[2, 0]", ("torch.bool []",), {"x": "torch.float16 [2, 0]"}),
        ("[float32[1], (int8[2], True)]", (["torch.float32 [1]", ("torch.int8 [2]", True)],), {}),
        ("a: {'k': float32[1]}, b: -1.5", (), {"a": {"k": "torch.float32 [1]"}, "b": -1.5}),
    ],
)
def test_inputs_are_written_as_ls_shows_them(text, args, kwargs):
    ((got, named),) = calls(text)
    assert (shapes(got), shapes(named)) == (args, kwargs)


@pytest.mark.parametrize(
    "text",
    [
        *("float32[*]", "float32[2", "x", "print(1)", "1) + (2", "x: ", "float32[-1]", "f(*[1])"),
        *("a: 1, a: 2", "**{'a': 1}", "{**{'a': 1}}", "{'a': 1, **{}}", "{[1]: 2}"),
        pytest.param("-" * 9_000 + "1", id="deep"),
    ],
)
def test_inputs_that_mean_nothing_are_refused(text):
    with pytest.raises(WrongTarget, match="--inputs"):
        list(calls(text))


def test_inputs_are_values_functions_generators_and_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    assert [shapes(call) for call in calls("model:example")] == [(("torch.float32 [2]", 3), {})]
    assert [shapes(call) for call in calls("model:examples")] == [
        (("torch.float32 [2]", 3), {}),
        (("torch.float32 [2]",), {"by": 4}),
        (("torch.float32 [2, 5]",), {}),
    ]
    torch.save((torch.ones(7),), tmp_path / "inputs.pt")
    ((args, _),) = calls(str(tmp_path / "inputs.pt"))
    assert shapes(args) == ("torch.float32 [7]",)
