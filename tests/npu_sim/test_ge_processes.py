"""The backend `ge` cold and restarted, each in a process of its own, and what is kept of GE."""

import os
from importlib import metadata
from pathlib import Path

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)
if not metadata.version("torch_npu").startswith("2.13."):
    pytest.skip("GE mode knows the converters of torch_npu 2.13", allow_module_level=True)

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "run_ge.py"
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
PROGRAMS = {"add": 1, "mlp": 1, "mlp_dynamic": 1, "qwen3": 1, "qwen3_dynamic": 2}
"""Each with the number of its graphs: one of sizes that vary has another for a size of heads."""
CONVERTERS = {"torchair._ge_concrete_graph.fx2ge_converter", "google.protobuf"}
KEY = "ge.graph_key"


def run(surroundings, program, **changes):
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    options = changes.pop("options", ())
    return surroundings.run("-W", "ignore", SCRIPT, program, *options, **{**kept, **changes})


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_restart_gives_the_same_bits_without_converters_and_dynamo(surroundings, program):
    cold, warm = run(surroundings, program), run(surroundings, program)
    graphs = PROGRAMS[program]
    assert (cold["close"], cold["misses"], cold["bypasses"]) == (True, graphs, 0)
    assert (warm["close"], warm["hits"], warm["misses"], warm["bypasses"]) == (True, graphs, 0, 0)
    assert warm["digest"] == cold["digest"]
    assert {*cold["loaded"]} >= CONVERTERS
    assert warm["loaded"] == []
    assert warm["engine"] == cold["engine"]
    assert warm["engine"].count("compile") == graphs


def test_a_program_may_import_torchair_after_a_restart(surroundings):
    run(surroundings, "add")
    warm = run(surroundings, "add_then_torchair")
    assert (warm["hits"], warm["close"], warm["config"]) == (1, True, "max-autotune")


WITH_MODEL = ("ge_cache=true",)


def test_a_kept_model_is_used_and_nothing_is_compiled(surroundings):
    cold, warm = (run(surroundings, "add", options=WITH_MODEL) for _ in range(2))
    assert cold["engine"] == ["compile", "load", "run", "run"]
    assert warm["engine"] == ["load", "run", "run"]
    assert warm["options"][KEY] == cold["options"][KEY]
    assert warm["digest"] == cold["digest"]
    assert len(cold["options"][KEY]) == 64


@pytest.mark.parametrize("options", [(), WITH_MODEL], ids=["without models", "with models"])
def test_an_edited_function_gets_no_graph_of_the_old_one(surroundings, options):
    """The vendor names a compiled model by a counter, and answers x + 2 for x * 2."""
    before = run(surroundings, "edited", NPUGX_TEST_SIGN="+", options=options)
    after = run(surroundings, "edited", NPUGX_TEST_SIGN="*", options=options)
    again = run(surroundings, "edited", NPUGX_TEST_SIGN="+", options=options)
    assert [each["result"] for each in (before, after, again)] == [7.0, 10.0, 7.0]
    assert [each["hits"] for each in (before, after, again)] == [0, 0, 1]
    assert "compile" in after["engine"]


def test_another_cann_and_another_chip_are_other_keys(surroundings):
    first = run(surroundings, "add", options=WITH_MODEL)
    cann = run(surroundings, "add", options=WITH_MODEL, NPU_STUB_CANN="9.1.0")
    chip = run(surroundings, "add", options=WITH_MODEL, NPU_STUB_SOC="Ascend910_9391")
    assert [each["misses"] for each in (first, cann, chip)] == [1, 1, 1]
    assert len({each["options"][KEY] for each in (first, cann, chip)}) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("NPUGX_TEST_HF32", "1"), ("GE_USE_STATIC_MEMORY", "2"), ("AUTOFUSE_FLAGS", "--x=y")],
)
def test_what_steers_ge_is_part_of_the_key(surroundings, name, value):
    run(surroundings, "add")
    assert run(surroundings, "add", **{name: value})["misses"] == 1
    assert run(surroundings, "add")["hits"] == 1


def test_a_file_in_the_folder_of_models_that_is_not_ours_is_not_read(surroundings):
    """GE takes any file of the right name, so it never sees a folder that others can fill."""
    cold = run(surroundings, "add", options=WITH_MODEL)
    other = surroundings.folder / "elsewhere"
    other.mkdir()
    (other / f"{cold['options'][KEY]}.om").write_bytes(b"no model")
    warm = run(surroundings, "add", options=WITH_MODEL, TMPDIR=str(other))
    assert warm["engine"] == ["load", "run", "run"]
    assert warm["digest"] == cold["digest"]
    assert Path(warm["options"]["ge.graph_compiler_cache_dir"]).parent == other
    assert [path.name for path in other.iterdir()] == [f"{cold['options'][KEY]}.om"]


def test_a_group_of_users_shares_no_graph_for_ge(surroundings):
    found = run(surroundings, "add", options=WITH_MODEL, NPUGX_CACHE_TRUST="group")
    assert (found["close"], found["stored"]) == (True, 0)


def test_a_model_that_ge_does_not_take_is_compiled_anew(surroundings):
    run(surroundings, "add", options=WITH_MODEL)
    warm = run(surroundings, "add", options=WITH_MODEL, NPUGX_TEST_MODELS="refused")
    assert (warm["hits"], warm["close"]) == (1, True)
    assert warm["engine"] == ["compile", "run", "run"]


def test_without_protobuf_a_graph_is_not_converted_and_the_reason_says_so(surroundings):
    cold = run(surroundings, "add", NPUGX_TEST_PROTOBUF="none")
    assert (cold["close"], cold["stored"]) == (True, 0)
    assert "torchair, which converts graphs for the graph engine, can't be loaded" in cold["said"]
    again = run(surroundings, "add")
    assert (again["misses"], again["stored"]) == (1, 1)


def test_the_vendors_cache_answers_for_the_old_function_on_this_engine(surroundings):
    """What the models of the simulated engine are checked against: its caller, as CANN's does."""
    answers = [
        run(surroundings, "vendors_edited", NPUGX_TEST_SIGN=sign)["result"] for sign in ("+", "*")
    ]
    assert answers == [7.0, 7.0]
