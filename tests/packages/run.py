"""Run the workloads of one package in this process; print what happened, as JSON.

python run.py eager|cold|restarted|torch FOLDER PACKAGE [WORKLOAD ...]

The processes `eager` and `torch` leave their results in FOLDER, and the others compare theirs.
Cached workloads run in a process that runs none eagerly: an eager call fills tables of packages.
The process `torch` tells whether `torch.compile` runs a workload as one graph.
"""

import importlib
import importlib.util
import json
import logging
import sys
import traceback
import warnings
from pathlib import Path

import packages_zoo as zoo
import torch

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("restart_run", HERE.parent / "restart" / "run.py")
restart = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(restart)


def values(result):
    """Plain containers of tensors and numbers, whatever classes a package has for them."""
    if isinstance(result, dict):
        return {str(key): values(each) for key, each in result.items()}
    if isinstance(result, (list, tuple)):
        return [values(each) for each in result]
    return result.clone() if isinstance(result, torch.Tensor) else result


def import_torchvision():
    """Import torchvision, also where its operators do not load.

    torchvision of PyPI is built for CUDA. On a CPU build of torch none of its operators exist, and
    then it can't be imported, because it asks for two of them. No workload calls any.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        missing = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            missing.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision.missing_operators = missing  # which end with this object


def import_modules(package):
    for name in package.modules:
        if name == zoo.VISION:
            if importlib.util.find_spec(name):
                import_torchvision()
        else:
            importlib.import_module(name)


def compilers():
    return {name for name in restart.COMPILERS if name in sys.modules}


def frames():
    """How many frames Dynamo has traced; none while it is not even loaded."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    counters = sys.modules["torch._dynamo.utils"].counters
    return counters["frames"]["total"] + counters["stats"]["unique_graphs"]


class Cached:
    """`cache_compile` with a store of its own, and the counters of all that it made."""

    def __init__(self, store):
        self.store, self.made = store, []

    def __call__(self, target):
        from npugx_cache import cache_compile

        result = cache_compile(target, cache_dir=self.store)
        self.made.append(result.forward if isinstance(result, torch.nn.Module) else result)
        return result

    def counts(self):
        infos = [each.cache_info() for each in self.made]
        return {
            name: sum(getattr(info, name) for info in infos)
            for name in ("hits", "misses", "bypasses", "stored")
        }

    def reasons(self):
        return [str(reason) for each in self.made for reason in each.explain()]


def run_eagerly(workload, results):
    torch.save(values(workload(lambda target: target)()), results)
    return {}


def compiled(target):
    """The target as `torch.compile` runs it, without an engine that could refuse more."""
    module = isinstance(target, torch.nn.Module)
    function = target.forward if module else target
    function = torch.compile(function, fullgraph=True, backend="aot_eager")
    if module:
        target.forward = function
    return target if module else function


def run_by_torch(workload, results):
    # What an eager call fills is filled, so that what torch can't run now, torch never can.
    torch.manual_seed(0)
    workload(lambda target: target)()
    torch.manual_seed(0)
    seen, calls = frames(), workload(compiled)
    got = values(calls())
    assert frames() > seen, "torch compiled nothing"
    torch.save(got, by_torch(results))
    plain = torch.load(results, weights_only=True)
    return {"difference": restart.difference(plain, got)}


def by_torch(results):
    return results.with_suffix(".torch.pt")


def run_cached(workload, results):
    # A store for each workload: two that use the same function do not find each other's entries.
    store = results.parent / "stores" / results.stem
    cache = Cached(store)
    with restart.warnings_logged() as lines:
        calls = workload(cache)
        before, seen = compilers(), frames()  # packages load them too, when objects are made
        got = values(calls())
        # Before anything is compared: that loads sympy.
        loaded, traced, first = compilers() - before, frames() - seen, cache.counts()
        again = values(calls())
    counts = cache.counts()

    def unlike(file):
        plain = torch.load(file, weights_only=True)
        return restart.difference(plain, got) or restart.difference(plain, again)

    compiled = by_torch(results)
    return {
        "difference": unlike(results),
        "difference from torch": unlike(compiled) if compiled.exists() else "torch has not run it",
        "digest": restart.digest([got, again]),
        **first,
        "missed again": counts["misses"] - first["misses"],
        "reasons": cache.reasons(),
        "warnings": lines,
        "loaded": sorted(loaded),
        "frames": traced,
    }


def main(phase, folder, name, *wanted):
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    (package,) = (each for each in zoo.PACKAGES if each.name == name)
    warnings.simplefilter("ignore")
    import_modules(package)
    sys.path.insert(0, str(HERE / "workloads"))
    workloads = importlib.import_module(package.file)
    # What is refused comes last, because the attempt loads the compiler.
    names = sorted(wanted or package.workloads, key=lambda each: (name, each) in zoo.REFUSED)
    run = {"eager": run_eagerly, "torch": run_by_torch}.get(phase, run_cached)
    found = {}
    for each in names:
        torch.manual_seed(0)
        results = Path(folder, f"{name}.{each}.pt")
        try:
            with torch.no_grad():
                found[each] = run(getattr(workloads, each), results)
        except Exception:
            found[each] = {"error": traceback.format_exc()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
