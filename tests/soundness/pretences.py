"""Surroundings that one process can only pretend: versions and platforms that are not installed."""

from __future__ import annotations

from unittest.mock import patch

import torch

_HAS_VNNI = torch.cpu._is_vnni_supported()
_MINOR = torch.__version__.rpartition(".")[0]
PRETENCES = {
    "another torch": (lambda: patch("torch.__version__", f"{_MINOR}.99"), "torch was"),
    "another build of torch": (lambda: patch("torch.version.git_version", "0" * 40), "torch was"),
    "another Python": (lambda: patch("platform.python_version", lambda: "3.11.99"), "python was"),
    "another architecture": (lambda: patch("platform.machine", lambda: "riscv64"), "platform was"),
    "another system": (lambda: patch("platform.system", lambda: "Darwin"), "platform was"),
    "another CPU": (
        lambda: patch("torch.backends.cpu.get_cpu_capability", lambda: "AVX9000"),
        "cpu was",
    ),
    "a CPU with other instructions": (
        lambda: patch("torch.cpu._is_vnni_supported", lambda: not _HAS_VNNI),
        "cpu.features was",
    ),
    "another npugx_cache": (
        lambda: patch("npugx_cache.key.environment.VERSION", "0.0.0"),
        "npugx_cache was",
    ),
    "another format": (lambda: patch("npugx_cache.key.environment.FORMAT", "0"), "format was"),
}
"""A context in which the process is in other surroundings, and what a miss says of it."""
