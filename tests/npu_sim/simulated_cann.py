"""A simulated installation of CANN for tests of static kernels, and calls of a function with it."""

import json
import logging

import cann_folder
import npu_sim
import torch

from npugx_cache import cache_compile
from npugx_cache.backend import scope, static_kernels
from npugx_cache.backend.static_kernels.installed import Installed

npu_sim.install()

ON = {"static_kernel_compile": True}
PAST = "select kernels"


class Cann:
    """An installation of CANN in a folder, and what its op_compiler has been asked for."""

    def __init__(self, folder):
        self.home, self.log, self.store = folder / "cann", folder / "calls", folder / "store"
        self.tool = self.home / "bin" / "op_compiler"
        self.environment = {
            **cann_folder.install(self.home),
            "OP_COMPILER_LOG": str(self.log),
        }

    def calls(self):
        return (
            [json.loads(line) for line in self.log.read_text().splitlines()] if self.asked else []
        )

    @property
    def asked(self):
        return self.log.exists()

    def installed(self):
        return sorted(path.name for path in self.home.glob("opp/static_kernel/ai_core/*"))

    def packages(self):
        """The blobs of the store that hold a package."""
        blobs = self.store.glob("v1/cas/*/*")
        return [path for path in blobs if path.read_bytes().startswith(b"#!/bin/sh")]


def restart(monkeypatch):
    """Forget what this process has installed, as a new one has not installed anything."""
    monkeypatch.setattr(static_kernels, "INSTALLED", Installed())


def program(x, y):
    return (x * 2 + y.sum()).relu()


def run(cann, *sizes, function=program, **options):
    """What is issued while a function is called; its results are right."""
    cached = cache_compile(function, dynamic=True, options={**ON, **options}, cache_dir=cann.store)
    given = [(torch.randn(size, 2).npu(), torch.randn(5).npu()) for size in sizes]
    want = [function(*each) for each in given]
    with npu_sim.issued() as found:
        got = [cached(*each) for each in given]
    torch.testing.assert_close(got, want)
    return [each.what for each in found]


def selected(found):
    """How often kernels were selected, and whether that was before all replays."""
    first = found.index("replay") if "replay" in found else len(found)
    return found.count(PAST), PAST in found[:first]


def said(caplog):
    records = [r for r in caplog.records if "static kernels" in r.getMessage()]
    return [(r.levelno, r.getMessage()) for r in records]


def warned(caplog, reason):
    ((level, text),) = said(caplog)
    return level == logging.WARNING and "runs without static kernels" in text and reason in text


def limited(x, y):
    with scope.limit_core_num(8, 16):
        return program(x, y)
