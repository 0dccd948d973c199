"""Run as a script on a torch that the cache does not serve: what each door does there."""

import importlib
import logging
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import npugx_cache
from npugx_cache import version

WARNINGS = []
LACKING = {"npugx_cache.events.spans", "npugx_cache.counters.prometheus"}
"""Modules that need what is not installed by itself."""


class Keep(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            WARNINGS.append(record.getMessage())


def import_all():
    """All modules but those of the tracer, which need a torch that they were written for."""
    for module in pkgutil.walk_packages(npugx_cache.__path__, "npugx_cache."):
        name = module.name
        if not name.startswith("npugx_cache.trace.") and ".__" not in name and name not in LACKING:
            importlib.import_module(name)


def call_functions(folder):
    @npugx_cache.cache_compile(cache_dir=folder)
    def doubled(x):
        return x * 2 + 1

    @npugx_cache.cache_compile(cache_dir=folder)
    def tripled(x):
        return x * 3

    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(doubled(x), x * 2 + 1)
        assert torch.equal(tripled(x), x * 3)
    for each in (doubled, tripled):
        assert each.cache_info()[:4] == (0, 0, 2, 0), each.cache_info()
        assert "is not served" in str(each.explain())


def compile_graphs():
    compiled = torch.compile(lambda x: x.sin() - 1, backend="npugx")
    x = torch.arange(3.0)
    with torch.no_grad():
        assert torch.equal(compiled(x), x.sin() - 1)
        assert torch.equal(compiled(torch.ones(5)), torch.ones(5).sin() - 1)


def compile_for_an_engine():
    from npugx_cache.integrations.vllm import NpugxCompiler

    compiler = NpugxCompiler()
    compiler.initialize_cache("unused")
    graph = torch.fx.symbolic_trace(torch.nn.Linear(3, 3))
    x = torch.ones(2, 3)
    run, handle = compiler.compile(graph, [x])
    assert handle is None
    found = run(x)
    found = found[0] if isinstance(found, (tuple, list)) else found
    assert torch.equal(found, graph(x))


def ask_the_command_line(folder):
    for command in ("doctor", "config"):
        line = [sys.executable, "-m", "npugx_cache", "--dir", folder, command]
        answer = subprocess.run(line, capture_output=True, text=True, check=False)
        said = answer.stdout + answer.stderr
        assert f"torch {torch.__version__} is not served" in said, said
        assert "Traceback" not in said, said


def main():
    assert version.unserved_torch(torch.__version__) is not None, "this torch is served"
    logging.getLogger("npugx_cache").addHandler(Keep())
    with tempfile.TemporaryDirectory() as folder:
        import_all()
        call_functions(Path(folder))
        compile_graphs()
        compile_for_an_engine()
        ask_the_command_line(folder)
    assert len(WARNINGS) == 1, WARNINGS
    print(f"torch {torch.__version__}: right results, one WARNING: {WARNINGS[0]}")


if __name__ == "__main__":
    main()
