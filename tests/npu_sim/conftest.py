"""Fixtures of tests on the simulated NPU."""

import pytest


@pytest.fixture(autouse=True)
def vendors_operators():
    """torch_npu's operators return what they are given as `out`: an error where CI is set."""
    from torch._functorch import config

    if not hasattr(config, "error_on_custom_op_aliasing"):  # torch 2.10 does not look
        yield
        return
    with config.patch(error_on_custom_op_aliasing=False):
        yield


@pytest.fixture
def cann(tmp_path, monkeypatch):
    """CANN in a folder, of which this process has installed nothing yet."""
    import simulated_cann

    made = simulated_cann.Cann(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    simulated_cann.restart(monkeypatch)
    yield made
    simulated_cann.static_kernels.INSTALLED._uninstall()
