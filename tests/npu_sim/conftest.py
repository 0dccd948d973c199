"""Fixtures of tests on the simulated NPU."""

import pytest


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
