"""Stands in the place of torch.compile in torch's own tests, and records what each call did.

A pytest plugin: TORCH_SUITE_MODE is `eager` (the function itself) or `cached` (`cache_compile`,
with the folder TORCH_SUITE_CACHE), and TORCH_SUITE_OUT the file that gets one line of JSON for each
test.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import logging
import os
import random
import re
import sys
import threading
import types
import unittest
from pathlib import Path
from unittest.case import _AssertRaisesContext

import numpy as np
import pytest
import torch
import torch._dynamo.test_case
import torch._dynamo.testing
import torch.testing._internal.inductor_utils
import torch.testing._internal.jit_utils
import torch.testing._internal.logging_utils
import torch.testing._internal.triton_utils
import torch.testing._internal.two_tensor
from torch.testing._internal import common_utils
from torch.utils.hooks import RemovableHandle

sys.path.append(str(Path(__file__).parents[1] / "soundness"))

from reachable import World

MODE, OUT = os.environ["TORCH_SUITE_MODE"], Path(os.environ["TORCH_SUITE_OUT"])
MAX_CALLS, MAX_LINES = 200, 400
SKIPPED = ("cuda", "gpu", "inductor", "export", "backward", "logging", "_log", "recompiles_")
SKIPPED = (*SKIPPED, "profiler", "hpu", "xpu", "minifier", "ddp", "fsdp", "iterator_limit")
"""Parts of the names of tests that are about something else, need another machine, or never end."""


class Rounded(World):
    """Numbers to three digits: a graph may round otherwise than eager's kernels."""

    def reach(self, path, value):
        if type(value) is float:
            self.lines.append(f"{path}: float {value:.3g}")
        elif len(self.lines) < MAX_LINES and not _is_of_the_harness(value):
            super().reach(path, value)

    def _attributes(self, path, space):
        hidden = {"__vectorcalloffset__", "forward"}  # an address; what we stand in the place of
        super()._attributes(path, {k: v for k, v in space.items() if k not in hidden})

    def _object(self, path, value):
        if isinstance(value, RemovableHandle):  # its number counts the hooks of the process
            self._say(path, value)
        else:
            super()._object(path, value)

    def _tensor(self, path, value):
        plain = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_meta
        text = f"{value.dtype} {tuple(value.shape)}"
        if plain and value.layout is torch.strided:
            flat = value.detach().flatten().tolist()[:50]
            numbers = [f"{each:.3g}" if isinstance(each, float) else str(each) for each in flat]
            text += f" {' '.join(numbers)}"
        self._say(path, value, text)


def _is_of_the_harness(value):
    """True of what differs by itself: the test, a counter of compiles, what is run in our place."""
    kind = type(value)
    return (
        isinstance(value, unittest.TestCase)
        or kind.__module__.startswith(_OF_THE_HARNESS)
        or (kind is types.FunctionType and getattr(value, "__wrapped__", None) is not None)
        or (kind is functools.partial and value.func is compiled)
    )


_OF_THE_HARNESS = (
    "torch._dynamo",
    "torch._library",
    "torch.fx",
    "torch._ops",
    "torch._higher_order_ops",
    "torch.testing",
    "unittest",
    "pytest",
)


def described(*reached):
    """Each object that can be reached from these pairs of a path and a value, one in a line."""
    world = Rounded(types.ModuleType("nowhere"))
    try:
        for path, value in reached:
            world.reach(path, value)
    except Exception as error:
        world.lines.append(f"can't be described: {type(error).__name__}")
    return [_without_addresses(line) for line in world.lines]


def _without_addresses(text):
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def _globals_of(target):
    """The values that a function may write: its globals, other than modules, classes, functions."""
    function = inspect.unwrap(target.__func__ if isinstance(target, types.MethodType) else target)
    if not isinstance(function, types.FunctionType):
        return
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if not isinstance(value, (types.ModuleType, types.FunctionType, type)):
            yield f"global {name}", value


class Record:
    """What the test that runs now did."""

    def __init__(self):
        self.begin()

    def begin(self):
        self.calls, self.log, self.failed = [], [], []
        self.infos = {}
        self.thread = threading.local()

    def as_data(self):
        counts = dict.fromkeys(("hits", "misses", "bypasses", "stored"), 0)
        reasons = []
        for info, refusals in self.infos.values():
            counts = {name: count + getattr(info, name) for name, count in counts.items()}
            reasons += [text for refusal in refusals for text in refusal.reasons]
        faults = [text for text in self.log if "a fault of the cache" in text]
        shown = {"reasons": reasons[:5], "warnings": [text[:1500] for text in self.log[:20]]}
        noted = {"calls": self.calls, "failed": self.failed}
        return {**counts, **shown, "faults": faults, **noted}


_running = Record()


class Logged(logging.Handler):
    def emit(self, record):
        _running.log.append(record.getMessage())


_NUMBERS = itertools.count()


def watched(call, target, name, cached=None):
    """The call, noted in the record of the test: its result or error, and what it left behind."""

    number = next(_NUMBERS)

    def run(*args, **kwargs):
        if torch.compiler.is_compiling() or vars(_running.thread):
            return call(*args, **kwargs)
        calls = _running.calls
        note = {"function": name}
        if len(calls) < MAX_CALLS:
            calls.append(note)
        _running.thread.is_inside = True  # of calls in a call, a cached one sees none
        try:
            with torch.no_grad():
                result = call(*args, **kwargs)
        except BaseException as error:
            note["raised"] = type(error).__name__
            note["text"] = _without_addresses(str(error))[:300]
            note["lines"] = described(("args", args), ("kwargs", kwargs), *_left_by(target))
            raise
        finally:
            vars(_running.thread).clear()
            note["drawn"] = _drawn()
            if cached is not None:  # which is not kept, or a test may find that its model is
                _running.infos[number] = cached.cache_info(), cached.explain()
        reached = ("result", result), ("args", args), ("kwargs", kwargs)
        note["lines"] = described(*reached, *_left_by(target))
        return result

    return run


def _drawn():
    """Where the three generators of random numbers stand."""
    texts = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()  # noqa: NPY002
    return [hashlib.sha256(str(each).encode()).hexdigest()[:8] for each in texts]


def _left_by(target):
    return ("the target", target), *_globals_of(target)


def _folder():
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return Path(os.environ["TORCH_SUITE_CACHE"]) / hashlib.sha256(test.encode()).hexdigest()[:16]


def _cached(target, dynamic):
    from npugx_cache import cache_compile

    return cache_compile(target, backend="aot_eager", dynamic=dynamic, cache_dir=_folder())


def rerouted(target, dynamic=None):
    """What `torch.compile(target)` shall be."""
    if isinstance(target, torch.nn.Module):
        made = _cached(target, dynamic) if MODE == "cached" else target
        cached = made.forward if MODE == "cached" else None
        made.forward = watched(made.forward, target, type(target).__name__, cached)
        return made
    call, cached = target, None
    if MODE == "cached":
        with contextlib.suppress(TypeError, ValueError):  # what no function is stays itself
            call = cached = _cached(target, dynamic)
    run = watched(call, target, getattr(target, "__qualname__", type(target).__name__), cached)
    return functools.wraps(target, updated=())(run)


def compiled(model=None, *, dynamic=None, disable=False, **more):
    caller = sys._getframe(1).f_globals["__name__"]
    if caller.startswith("torch._higher_order_ops"):  # torch.cond is compiled in eager, too
        with _torchs_own():
            return _COMPILE(model, dynamic=dynamic, disable=disable, **more)
    if model is None:
        return functools.partial(compiled, dynamic=dynamic, disable=disable)
    return model if disable else rerouted(model, dynamic)


_COMPILE, _OPTIMIZE = torch.compile, torch._dynamo.optimize


@contextlib.contextmanager
def _torchs_own():
    before, torch._dynamo.optimize = torch._dynamo.optimize, _OPTIMIZE
    try:
        yield
    finally:
        torch._dynamo.optimize = before


class Optimized(contextlib.nullcontext):
    """What `torch._dynamo.optimize` gives: a decorator, and a context (in which we do nothing)."""

    def __init__(self, *_, dynamic=None, disable=False, **__):
        super().__init__()
        self.dynamic, self.disable = dynamic, disable

    def __call__(self, target):
        return compiled(target, dynamic=self.dynamic, disable=self.disable)


class Whatever(int):
    """A count of compiles or of operators, which is another one here: equal to every number."""

    __hash__ = int.__hash__

    def _agrees(self, _):
        return True

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _agrees

    def __ne__(self, _):
        return False

    def _stays(self, _):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = _stays


class Stub:
    """A decorator, a condition or a context of another torch's test helpers."""

    def __call__(self, *args, **kwargs):
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else lambda target: target

    def __bool__(self):
        return False


def _noted(check):
    """An assertion of a test's: where it fails, that is noted, and the test goes on.

    Many tests assert what eager does not do: that a hook was compiled, or an error of Dynamo's.
    """

    @functools.wraps(check)
    def run(self, *args, **kwargs):
        frame = sys._getframe(1)
        try:
            return check(self, *args, **kwargs)
        except AssertionError:
            if frame.f_globals["__name__"].startswith(("unittest", "torch.testing")):
                raise  # of an assertion that another one makes
            _running.failed.append(f"{check.__name__} in line {frame.f_lineno}")
            return None

    return run


def _leave(self, kind, *more):
    if kind is not None:
        return _LEAVE(self, kind, *more)
    _running.failed.append(f"nothing is raised before line {sys._getframe(1).f_lineno}")
    return True


_LEAVE = _AssertRaisesContext.__exit__


def _backward(self, *args, **kwargs):
    """Nothing, of a result of ours: we run without gradients."""
    return _BACKWARD(self, *args, **kwargs) if self.requires_grad else None


_BACKWARD = torch.Tensor.backward


def _begin_alike(*_):
    """Let the three processes draw the same numbers."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what the tests draw from


def _lenient(name):
    """Let test files of another torch import names that this torch does not have."""
    module = sys.modules.get(name)
    before = getattr(module, "__getattr__", None)

    def missing(attribute):
        if before is not None:
            with contextlib.suppress(AttributeError):
                return before(attribute)
        if attribute.startswith("__") or sys._getframe(1).f_code.co_name != "<module>":
            raise AttributeError(attribute)
        return Stub()

    if type(module) is types.ModuleType:  # the modules of settings take no other names
        module.__getattr__ = missing


_CATCHING = "assertRaises", "assertWarns", "assertLogs", "assertNoLogs", "assertExpected"


def pytest_configure():
    torch.compile = compiled
    torch._dynamo.optimize = torch._dynamo.optimize_assert = Optimized
    torch._dynamo.testing.optimize_assert = Optimized
    counters = torch._dynamo.testing.CompileCounter, torch._dynamo.testing.CompileCounterWithBackend
    for kind in counters:
        for name in ("frame_count", "op_count"):
            setattr(kind, name, property(lambda _: Whatever(), lambda *_: None))
    case = common_utils.TestCase
    case.assertExpectedInline = case.assertExpected = lambda *_, **__: None
    for name in dir(case):
        if name.startswith("assert") and not name.startswith(_CATCHING):
            setattr(case, name, _noted(getattr(case, name)))
    _AssertRaisesContext.__exit__ = _leave
    torch.Tensor.backward = _backward
    for name in list(sys.modules):
        if name.startswith(("torch.testing._internal", "torch._dynamo")):
            _lenient(name)
    logger = logging.getLogger("npugx_cache")
    logger.addHandler(Logged())
    logger.propagate = False


def pytest_collection_modifyitems(items):
    lines = OUT.read_text().splitlines() if OUT.exists() else []
    ran = {json.loads(line)["id"] for line in lines}  # by a process that a test killed
    items[:] = [
        item
        for item in items
        if item.nodeid not in ran and not any(part in item.name.lower() for part in SKIPPED)
    ]


def pytest_pycollect_makemodule():
    _begin_alike()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    _running.begin()
    _begin_alike()
    item.outcome = "begun"
    _write(item)
    yield
    _write(item)


def _write(item):
    line = {"id": item.nodeid, "outcome": item.outcome, **_running.as_data()}
    with OUT.open("a") as out:
        out.write(json.dumps(line) + "\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed or call.when == "call" or report.skipped:
        item.outcome = report.outcome
