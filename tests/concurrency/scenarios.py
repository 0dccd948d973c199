"""What several threads and objects of one process do to one store. Prints JSON.

python scenarios.py             all scenarios
python scenarios.py NAME ...    those
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import logging
import os
import sys
import threading
import time
import types
import weakref
from pathlib import Path

import torch
from torch import nn

from npugx_cache import cache_compile

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def info(*cached):
    infos = [each.cache_info() for each in cached]
    return {name: sum(getattr(i, name) for i in infos) for name in ("hits", "misses", "bypasses")}


def in_threads(count, work):
    """Run `work(i)` in threads that start together; what they returned or raised."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(i):
        barrier.wait()
        try:
            results[i] = work(i)
        except Exception as error:
            results[i] = repr(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def all_right(results, expected):
    return [
        isinstance(r, torch.Tensor) and torch.allclose(r, e)
        for r, e in zip(results, expected, strict=True)
    ]


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) + self.extra(x)

    def extra(self, x):
        return x.sin() * 2


def scaled(x):
    return (x * 3).softmax(-1)


@scenario
def many_threads_call_one_function(_):
    cached, x = cache_compile(scaled), tensor(4)
    results = in_threads(8, lambda _: [cached(x) for _ in range(20)][-1])
    return {"right": all_right(results, [scaled(x)] * 8), **info(cached)}


def shifted(x):
    return x.cumsum(0) - 1


@scenario
def threads_call_one_function_with_two_shapes(_):
    cached = cache_compile(shifted, dynamic=False)
    inputs = [tensor(3 + i % 2, seed=i) for i in range(8)]
    results = in_threads(8, lambda i: [cached(inputs[i]) for _ in range(20)][-1])
    return {"right": all_right(results, map(shifted, inputs)), **info(cached)}


def lengthened(x):
    return x * x.shape[0] + 1


@scenario
def threads_call_one_function_with_many_shapes(_):
    cached = cache_compile(lengthened)
    inputs = [tensor(2 + i, seed=i) for i in range(8)]
    results = in_threads(8, lambda i: [cached(inputs[i]) for _ in range(5)][-1])
    return {"right": all_right(results, map(lengthened, inputs)), **info(cached)}


def writes(x, log):
    x.add_(1)
    log.append(x.sum())
    return x * 2


@scenario
def threads_with_side_effects_of_their_own(_):
    cached = cache_compile(writes)

    def work(i):
        x, log = tensor(3, seed=i), []
        for _ in range(10):
            cached(x, log)
        return torch.cat([x, torch.stack(log)])

    def plain(i):
        x, log = tensor(3, seed=i), []
        for _ in range(10):
            writes(x, log)
        return torch.cat([x, torch.stack(log)])

    return {"right": all_right(in_threads(6, work), map(plain, range(6))), **info(cached)}


def multiplied(x):
    return x @ x.T


@scenario
def threads_under_torch_state_of_their_own(_):
    """Autocast belongs to a thread, and so does the graph that was traced under it."""
    cached, x = cache_compile(multiplied), tensor(4, 4)

    def work(i):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i % 2 == 0):
            return [cached(x) for _ in range(10)][-1]

    def plain(i):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i % 2 == 0):
            return multiplied(x)

    results, expected = in_threads(6, work), [plain(i) for i in range(6)]
    right = all_right(results, expected)
    right += [r.dtype == e.dtype for r, e in zip(results, expected, strict=True)]
    return {"right": right, **info(cached)}


@scenario
def threads_call_and_warm_one_module(_):
    model = cache_compile(Net())
    inputs = [tensor(2, 4, seed=i) for i in range(6)]
    with torch.no_grad():
        expected = [Net()(each) for each in inputs]
    results = in_threads(6, lambda i: [model(inputs[i]) for _ in range(10)][-1])
    warmed = in_threads(4, lambda i: model.forward.warm(inputs[i]))
    return {
        "right": [*all_right(results, expected), not any(isinstance(each, str) for each in warmed)],
        **info(model.forward),
    }


def half(x):
    return x / 2


TWO_MODULES = "def scaled_here(x):\n    return x * SCALE + helper(x)\n"


@scenario
def one_function_in_two_modules(_):
    """The same text twice, with globals and a helper of each module's own."""
    functions, x = [], tensor(3)
    for name, scale in (("npugx_first", 2), ("npugx_second", 5)):
        module = types.ModuleType(name)
        module.SCALE = scale
        module.helper = half if scale == 2 else scaled
        sys.modules[name] = module
        exec(compile(TWO_MODULES, __file__, "exec"), vars(module))
        functions.append(module.scaled_here)
    cached = [cache_compile(function) for function in functions]
    results = in_threads(6, lambda i: [cached[i % 2](x) for _ in range(5)][-1])
    return {"right": all_right(results, [functions[i % 2](x) for i in range(6)]), **info(*cached)}


@scenario
def one_function_cached_twice(_):
    """As where two modules import it and each decorates it."""
    cached, x = [cache_compile(scaled), cache_compile(scaled)], tensor(5)
    results = in_threads(6, lambda i: [cached[i % 2](x) for _ in range(5)][-1])
    return {"right": all_right(results, [scaled(x)] * 6), **info(*cached)}


class Method:
    def __init__(self, factor):
        self.factor, self.calls = factor, 0

    @cache_compile
    def run(self, x):
        self.calls += 1
        return x * self.factor


@scenario
def two_instances_of_a_class(_):
    one, two, x = Method(2.0), Method(3.0), tensor(3)
    results = [one.run(x), two.run(x), one.run(x)]
    expected = [x * 2, x * 3, x * 2]
    return {
        "right": [*all_right(results, expected), (one.calls, two.calls) == (2, 1)],
        **info(one.run, two.run),
    }


@scenario
def threads_on_instances_of_their_own(_):
    objects = [Method(float(i)) for i in range(6)]
    x = tensor(3)
    results = in_threads(6, lambda i: objects[i].run(x))
    expected = [x * i for i in range(6)]
    return {"right": all_right(results, expected), **info(*(each.run for each in objects))}


def build(factor, weight):
    def made(x):
        return x * factor + weight

    return made


def same_code_one(x):
    return x * 5


def same_code_two(x):
    return x * 5


@scenario
def functions_of_equal_code(_):
    x, w = tensor(3), [tensor(3, seed=i) for i in (1, 2)]
    functions = [build(2, w[0]), build(3, w[0]), build(2, w[1]), same_code_one, same_code_two]
    cached = [cache_compile(function) for function in functions]
    results = [each(x) for each in cached]
    return {"right": all_right(results, [f(x) for f in functions]), **info(*cached)}


@scenario
def a_deep_copy_of_a_cached_model(_):
    model, x = cache_compile(Net()), tensor(2, 4)
    first = model(x)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.fill_(0.5)
    plain = Net()
    plain.load_state_dict(twin.state_dict())
    with torch.no_grad():
        expected = [Net()(x), plain(x), Net()(x)]
    right = all_right([first, twin(x), model(x)], expected)
    right += [
        twin.forward.__wrapped__.__self__ is twin,
        model.forward.__wrapped__.__self__ is model,
    ]
    return {"right": right, **info(model.forward, twin.forward)}


@scenario
def a_shallow_copy_of_a_cached_model(_):
    model, x = cache_compile(Net()), tensor(2, 4)
    twin = copy.copy(model)
    with torch.no_grad():
        expected = Net()(x)
    return {"right": all_right([model(x), twin(x)], [expected] * 2), **info(model.forward)}


@scenario
def a_saved_and_loaded_model(folder):
    model, x = cache_compile(Net()), tensor(2, 4)
    path = folder / f"model{os.getpid()}.pt"
    torch.save(model, path)
    loaded = torch.load(path, weights_only=False)
    with torch.no_grad():
        expected = Net()(x)
    return {"right": all_right([model(x), loaded(x)], [expected] * 2), **info(model.forward)}


@scenario
def an_instance_is_collected_after_use(_):
    one, x = Method(2.0), tensor(3)
    one.run(x)
    counts = info(one.run)
    reference = weakref.ref(one)
    del one
    gc.collect()
    return {"right": [reference() is None], **counts}


@scenario
def a_model_is_collected_after_use(_):
    model = cache_compile(Net())
    model(tensor(2, 4))
    counts = info(model.forward)
    references = [weakref.ref(model), weakref.ref(model.first.weight)]
    del model
    gc.collect()
    return {"right": [reference() is None for reference in references], **counts}


def takes_list(x, items):
    return x + items[0]


@scenario
def arguments_and_results_are_collected_after_use(_):
    cached, x, y = cache_compile(takes_list), tensor(3), tensor(3, seed=1)
    out = cached(x, [y])
    references = [weakref.ref(each) for each in (x, y, out)]
    del x, y, out
    gc.collect()
    return {"right": [reference() is None for reference in references], **info(cached)}


@scenario
def closures_are_collected_after_use(_):
    weight = tensor(3, seed=8)
    cached = cache_compile(build(7, weight))
    cached(tensor(3))
    counts = info(cached)
    references = [weakref.ref(weight), weakref.ref(cached)]
    del weight, cached
    gc.collect()
    return {"right": [reference() is None for reference in references], **counts}


@scenario
def many_bindings_leave_no_globals_behind(_):
    x, function = tensor(3), same_code_one
    cache_compile(function)(x)
    gc.collect()
    before = len(globals())
    for _ in range(5):
        cache_compile(function)(x)
    gc.collect()
    return {"right": [len(globals()) == before], "hits": 1, "misses": 0, "bypasses": 0}


# ---- one process of several


def doubled(x):
    return x * 2 + scaled(x)


@scenario
def modules_are_imported_during_a_compile(_):
    """Whenever Python collects garbage, another thread may go on, and that thread may import."""
    made = itertools.count()

    def importing(phase, _):
        if phase == "start":
            name = f"imported_during_a_compile_{next(made)}"
            sys.modules[name] = types.ModuleType(name)

    cached, x, before = cache_compile(doubled), tensor(4), gc.get_threshold()
    gc.callbacks.append(importing)
    gc.set_threshold(100)
    try:
        result = cached(x)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(importing)
    return {"right": all_right([result], [doubled(x)]), **info(cached)}


def silu_slowly(x):
    """A decomposition that runs in the middle of a compile."""
    if os.environ.get("NPUGX_TEST_HOLD"):
        Path("holding").touch()
        while not Path("release").exists():
            time.sleep(0.01)
    return x * torch.sigmoid(x)


class SaysThatItWaits(logging.Handler):
    """Leaves a file once this process waits for the compile of another one."""

    def emit(self, record):
        if record.getMessage().startswith("waiting for"):
            Path(f"waiting{os.getpid()}").touch()


def activated(x):
    return nn.functional.silu(x @ x) + 1


def one_of_several(folder):
    decompositions = {torch.ops.aten.silu.default: silu_slowly}
    cached = cache_compile(activated, custom_decompositions=decompositions)
    logger = logging.getLogger("npugx_cache")
    logger.addHandler(SaysThatItWaits())
    logger.setLevel(logging.INFO)
    x = tensor(4, 4)
    (folder / f"ready{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.005)
    return {"right": all_right([cached(x)], [activated(x)]), **info(cached)}


def main(*names):
    results = {}
    for name in names or SCENARIOS:
        try:
            work = one_of_several if name == "one_of_several" else SCENARIOS[name]
            results[name] = work(Path.cwd())
        except Exception as error:
            import traceback

            results[name] = {
                "right": [False],
                "error": traceback.format_exc()[-1500:] + repr(error),
            }
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
