"""The simulator's two devices."""

import os
import threading

import pytest
import torch

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import npu_sim


@pytest.fixture(autouse=True, scope="module")
def device():
    npu_sim.install()
    yield
    torch.npu.set_device(0)


def test_tensors_stay_on_their_device():
    x = torch.randn(3, 4).to("npu:1")
    results = [x + 1, x @ x.T, torch.cat([x, x]), x.softmax(-1), x.to("npu:0").to("npu:1")]
    assert [each.device.index for each in results] == [1] * 5
    assert torch.equal(x.to("npu:0").cpu(), x.cpu())
    assert x.to("npu:0").device.index == 0


def test_the_current_device_is_that_of_the_thread():
    here = {}
    torch.npu.set_device(1)
    other = threading.Thread(target=lambda: here.update(other=torch.npu.current_device()))
    other.start()
    other.join()
    assert here == {"other": 0}
    assert torch.zeros(2, device="npu").device.index == 1
    with torch.npu.device(0):
        assert torch.zeros(2, device="npu").device.index == 0
        assert torch.zeros(2, device="npu:1").device.index == 1
    assert torch.accelerator.current_device_index() == 1


def test_two_devices_in_one_call_are_refused():
    x, y = torch.ones(2).to("npu:0"), torch.ones(2).to("npu:1")
    with pytest.raises(RuntimeError, match="same device"):
        x + y
    assert torch.equal(x.copy_(y * 3).cpu(), torch.tensor([3.0, 3.0]))


def test_a_graph_replays_on_its_device():
    with torch.npu.device(1):
        x, graph = torch.ones(3).to("npu:1"), torch.npu.NPUGraph()
        # Not `torch.npu.graph`, which keeps a stream of this device for all captures to come.
        with torch.npu.stream(torch.npu.Stream()):
            graph.capture_begin()
            y = x * 2
            graph.capture_end()
        x.fill_(5)
        graph.replay()
    assert y.device.index == 1
    assert y.tolist() == [10.0, 10.0, 10.0]
