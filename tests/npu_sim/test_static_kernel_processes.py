"""Static kernels in several processes, after a restart, and beside the vendor's own."""

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import npu_sim
import torch
from simulated_cann import ON, PAST, program, run, selected

npu_sim.load_vendors()
vendors = importlib.import_module("npugraph_ex._acl_concrete_graph.static_kernel")
SCRIPT = Path(__file__).parent / "run_static_kernels.py"


def start(cann, function="program", **environment):
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(cann.store), function]
    env = {**os.environ, **environment}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=cann.home)


def answer(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def test_two_workers_compile_once_and_a_restarted_one_not_at_all(cann):
    for each in [
        answer(process) for process in [start(cann, OP_COMPILER_DOES="slow") for _ in "ab"]
    ]:
        assert each["right"]
        assert [PAST, 4] in each["issued"]
    assert len(cann.calls()) == 1
    assert not cann.installed()
    # From CANN 9.1 on in a folder of the process's own; another version has other kernels.
    cold = answer(start(cann, NPU_STUB_CANN="9.1.0"))
    restarted = answer(start(cann, NPU_STUB_CANN="9.1.0"))
    assert len(cann.calls()) == 2
    for each in (cold, restarted):
        assert each["right"]
        assert [PAST, 4] in each["issued"]
        assert not Path(each["folder"]).exists()
    assert not restarted["compiler"]
    assert not cann.installed()


def test_core_limits_come_before_static_kernels_with_an_older_cann(cann):
    found = answer(start(cann, "limited", NPU_STUB_CANN="8.5.0"))
    assert found["right"]
    (text,) = found["warned"]
    assert "it limits cores, which CANN before 9.0.0" in text
    assert "replay" in [what for what, _ in found["issued"]]
    assert not cann.asked


def test_the_vendor_asks_for_the_same(cann, monkeypatch):
    run(cann, 3)
    monkeypatch.chdir(cann.home)
    torch._dynamo.reset()
    theirs = torch.compile(program, backend="npugraph_ex", dynamic=True, options=ON)
    with torch.no_grad(), warnings.catch_warnings(), npu_sim.issued() as found:
        warnings.simplefilter("ignore")
        theirs(torch.randn(3, 2).npu(), torch.randn(5).npu())
    torch._dynamo.reset()
    vendors.uninstall_static_kernel()
    ours, theirs = cann.calls()
    assert ours["operators"] == theirs["operators"]
    folders = ("-p", "-o")
    for call in (ours, theirs):
        for option in folders:
            call["argv"][call["argv"].index(option) + 1] = "a folder"
    assert ours["argv"] == theirs["argv"]
    assert selected([each.what for each in found]) == (1, True)


def test_the_tool_is_asked_for_super_kernels_as_the_vendor_asks(cann):
    run(
        cann,
        3,
        super_kernel_optimize=True,
        super_kernel_optimize_options={"split": 2, "kinds": ["a", "b"]},
        super_kernel_debug_options={"sync": {"all": 1}},
    )
    (call,) = cann.calls()
    at = call["argv"].index("--enable_super_kernel")
    want = ["--enable_super_kernel", "--super_kernel_options", "split=2:kinds=a,b:sync=all=1"]
    assert call["argv"][at : at + 3] == want
    theirs = vendors.format_super_kernel_options
    assert want[2] == theirs({"split": 2, "kinds": ["a", "b"]}, {"sync": {"all": 1}})
