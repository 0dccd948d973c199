"""What setup, a second call, later calls and a get of the store are made of.

Where an aim of `before_after.py` is not met, these parts say what would have to be left out. Parts
of setup and of the second call are medians over fresh processes; the others are medians over rounds
in one process. CPU time, one thread. "Cold": each round begins after an eager call of another
model, which leaves little of what the check reads in the processor's caches; but a part finds there
what parts before it have read.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from measuring import Numbers, Stopwatch, fresh, markdown, medians, rounds, run_script
from models import qwen3, tiny
from phases import Phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    Parts = dict[str, Callable[[], object]]

LAYERS, RUNS, ROUNDS, COLD_ROUNDS = 28, 5, 300, 60
TINY, MLP, GIVEN = 0, -3, -28
"""In the place of a number of layers: a function of two tensors, three linear layers, and 28 layers
that are an argument of the function. In all other rows the function is bound to the model.
"""
TITLES = {TINY: "tiny", MLP: "MLP", GIVEN: "28 layers, given"}
COLUMNS = (
    *((TINY, "later"), (MLP, "later"), (LAYERS, "later"), (GIVEN, "later"), (64, "later")),
    *((LAYERS, "cold"), (64, "cold")),
)
QUICK_COLUMNS = ((TINY, "later"), (MLP, "later"), (2, "cold"))
ENTRIES, SIZE = 200, 1 << 16
CONDITIONS = "npugx_cache.conditions"
SECOND = {
    "every condition once more, in Python": (f"{CONDITIONS}.check:Checker.holds",),
    "source facts": (f"{CONDITIONS}.check:Checker.code_holds",),
    "what versions of dicts stand for": (f"{CONDITIONS}.dict_versions:Found.__init__",),
    "the watch on code": (f"{CONDITIONS}.code_watch:Watch.__init__",),
    "C++ managers for the rest": (f"{CONDITIONS}.cpp_check:NativeCheck.__init__",),
}
SETUP = {
    "find the modules": "find",
    "read and load their code": "load",
    "run their bodies": "bodies",
    "decoration, with the bodies of the store's modules": "decorate",
}


def measure(quick: bool) -> Numbers:
    layers, runs = (2, 1) if quick else (LAYERS, RUNS)
    with tempfile.TemporaryDirectory() as folder:
        run = partial(fresh, Path(__file__), layers, folder)
        run("second")  # fills the cache
        whats = ("setup", "code", "eager", "second")
        found = rounds([partial(run, what) for what in whats], runs)
        columns = QUICK_COLUMNS if quick else COLUMNS
        later = {_title(*column): run_later(*column, folder) for column in columns}
    with tempfile.TemporaryDirectory() as folder:
        get = fresh(Path(__file__), 0, folder, "get")
    return {**dict(zip(whats, found, strict=True)), "later": later, "get": get, "layers": layers}


def _title(layers: int, what: str) -> str:
    return TITLES.get(layers, f"{layers} layers") + (", cold" if what == "cold" else "")


def run_later(layers: int, what: str, folder: str) -> Numbers:
    run = partial(fresh, Path(__file__), layers, folder)
    run("fill")
    return run(what)


def text(found: Numbers) -> str:
    return "\n\n".join(
        [
            markdown(["setup", "CPU ms"], _setup(found)),
            markdown([f"second call, {found['layers']} layers", "CPU ms"], _second(found)),
            markdown(["a later call, us", *found["later"]], _later(found["later"])),
            markdown(["store get, 64 KiB", "us", "/ one file"], _get(found["get"])),
        ]
    )


def _setup(found: Numbers) -> Iterator[tuple[str, str]]:
    parts, code = found["setup"], found["code"]
    for title, name in SETUP.items():
        yield title, _ms(parts[name])
    yield "**all**", _ms(sum(parts[name] for name in SETUP.values()))
    share = code["ran"] / code["loaded"]
    yield f"modules: {code['modules']}; code loaded, kB", f"{code['loaded'] / 1e3:.0f}"
    yield "code that ran until the second call was over, kB", f"{code['ran'] / 1e3:.0f}"
    rest = sum(parts[name] for name in SETUP.values() if name != "load")
    yield "**floor**: all, with that code alone", _ms(rest + share * parts["load"])


def _second(found: Numbers) -> Iterator[tuple[str, str]]:
    phases, eager = found["second"]["phases"], found["eager"]["second_cpu"]
    for title in SECOND:
        yield title, _ms(phases[title])
    whole = found["second"]["second_cpu"]
    yield "import of what later calls need", _ms(found["second"]["import_cpu"])
    yield "the graph and the rest", _ms(whole - sum(phases.values()))
    yield "**all**", _ms(whole + found["second"]["import_cpu"])
    yield "eager's second call", _ms(eager)
    yield "1.3 times eager's", _ms(1.3 * eager)


def _later(sizes: dict[str, Numbers]) -> Iterator[list[str]]:
    for title in dict.fromkeys(title for parts in sizes.values() for title in parts):
        yield [
            title,
            *(f"{parts[title]:.1f}" if title in parts else "-" for parts in sizes.values()),
        ]


def _get(parts: Numbers) -> Iterator[list[str]]:
    unit = next(iter(parts.values()))
    for title, spent in parts.items():
        yield [title, f"{spent:.1f}", f"{spent / unit:.2f}"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


# --- in a process of its own


def setup(*_: Any) -> Numbers:
    import gc
    import importlib._bootstrap_external as external

    import torch
    import transformers.models.qwen3.modeling_qwen3

    spent = dict.fromkeys(SETUP.values(), 0.0)

    def timed(function: Any, name: str) -> Any:
        def run(*args: Any) -> Any:
            started = time.process_time()
            try:
                return function(*args)
            finally:
                spent[name] += time.process_time() - started

        return run

    private: Any = external
    private.FileFinder.find_spec = timed(private.FileFinder.find_spec, "find")
    private.SourceLoader.get_code = timed(private.SourceLoader.get_code, "load")
    gc.collect()
    started = time.process_time()
    from npugx_cache import cache_compile

    imported, of_import = time.process_time(), spent["find"] + spent["load"]
    spent["bodies"] = imported - started - of_import
    cache_compile(torch.nn.Linear(2, 2))
    spent["decorate"] = time.process_time() - imported - (spent["find"] + spent["load"] - of_import)
    assert transformers
    return spent


def code(layers: int, folder: str) -> Numbers:
    """How much code two calls load, and how much of it runs."""
    import importlib.machinery
    import marshal
    from types import CodeType

    import torch

    model, inputs = qwen3(layers)
    before, ran = set(sys.modules), set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            ran.add(_name(frame.f_code))

    with torch.no_grad():
        sys.setprofile(note)
        from npugx_cache import cache_compile

        cached: Any = cache_compile(model, cache_dir=folder)
        cached(**inputs), cached(**inputs)
        sys.setprofile(None)

    def size(code: CodeType, of: Callable[[CodeType], bool]) -> int:
        inner = [each for each in code.co_consts if isinstance(each, CodeType)]
        own = len(marshal.dumps(code)) - sum(len(marshal.dumps(each)) for each in inner)
        return own * of(code) + sum(size(each, of) for each in inner)

    loaders = [getattr(sys.modules[name], "__loader__", None) for name in set(sys.modules) - before]
    files = [each for each in loaders if isinstance(each, importlib.machinery.SourceFileLoader)]
    found = [each.get_code(each.name) for each in files]
    return {
        "modules": len(found),
        "loaded": sum(size(each, lambda _: True) for each in found if each),
        "ran": sum(size(each, lambda own: _name(own) in ran) for each in found if each),
    }


def _name(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def eager(layers: int, _: str) -> Numbers:
    import torch

    model, inputs = qwen3(layers)
    with torch.no_grad():
        model(**inputs)
        watch = Stopwatch()
        model(**inputs)
        return watch.read("second")


def second(layers: int, folder: str) -> Numbers:
    import torch

    model, inputs = qwen3(layers)
    with torch.no_grad():
        from npugx_cache import cache_compile

        cached: Any = cache_compile(model, cache_dir=folder)
        cached(**inputs)
        watch = Stopwatch()
        from npugx_cache.conditions import cpp_check, dict_versions

        found: Numbers = watch.read("import")
        phases = Phases(SECOND)
        watch = Stopwatch()
        cached(**inputs)
        found |= watch.read("second")
    assert cpp_check
    assert dict_versions
    return found | {"phases": phases.seconds}


def fill(layers: int, folder: str) -> Numbers:
    """So that all that is measured is of a restored graph, as in a worker."""
    _parts_of_calls(layers, folder)
    return {}


def later(layers: int, folder: str) -> Numbers:
    """The parts of a later call, of a model or of a small function, each again and again."""
    calls, *groups = _parts_of_calls(layers, folder)
    if layers in {TINY, MLP}:  # a large model's graph takes longer than its check varies
        groups = [calls, *groups]
    nothing = _us(lambda: None)
    return {title: _us(part) - nothing for group in groups for title, part in group.items()}


def cold(layers: int, folder: str) -> Numbers:
    """The same parts; those of a group one after the other, as in a call."""
    _, *groups = _parts_of_calls(layers, folder)
    other, inputs = qwen3(layers)
    found: Numbers = {}
    for group in groups:
        runs = [_in_a_row(group, partial(other, **inputs)) for _ in range(COLD_ROUNDS)]
        found |= medians(runs)
    return found


def _in_a_row(parts: Parts, evict: Callable[[], object]) -> Numbers:
    evict()
    found = {}
    for title, part in parts.items():
        started = time.process_time_ns()
        part()
        found[title] = (time.process_time_ns() - started) / 1e3
    return found


def _parts_of_calls(layers: int, folder: str) -> list[Parts]:
    """Groups of what a call is made of: calls, the check, its parts, and those of one of them."""
    import torch

    from npugx_cache import cache_compile
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.key import environment

    torch.set_grad_enabled(False)
    called, owner, inputs = _subject(layers)
    cached: Any = cache_compile(called, cache_dir=folder, dynamic=False)
    for _ in range(5):
        cached(**inputs)
    [known] = cached._state.specialisations
    checker, function = known.conditions, cached._recipe.function
    native, read = checker._native, partial(cached._locals, owner, inputs)
    names, code = read(), function.__code__
    scope = Scope(names, function.__globals__, code, environment.call_state())
    versions = native.versions
    parts: Parts = {
        "before the check: locals of the call": read,
        "before the check: switches": environment.call_state,
        "torch's state": native._state.holds,
        "C++ managers": partial(native._managers.check, names),
        "versions of dicts": versions.hold if versions else lambda: None,
        "names in classes": native._names.is_unchanged,
        "bases of classes": native._reads.have_bases,
        "functions": native._functions.is_unchanged,
        "conditions in Python": partial(native._residue.accept, scope),
        "the watch on code": checker._watch.is_unchanged,
    }
    calls: Parts = {
        "eager": partial(called, **inputs),
        "**a call**": partial(cached, **inputs),
        "the graph alone": partial(known.run, *owner, **inputs),
    }
    check: Parts = {"**check**": partial(checker.holds_quickly, scope)}
    return [calls, check, parts, *(_of_versions(versions) if versions else ())]


def _subject(layers: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A function to be cached, what it is bound to, and the arguments of a call."""
    import torch

    if layers == TINY:
        return tiny, (), {"x": torch.randn(8), "y": torch.randn(8)}
    if layers == MLP:
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        mlp = torch.nn.Sequential(
            linear(256, 256), relu(), linear(256, 256), relu(), linear(256, 256)
        )
        return mlp.forward, (mlp,), {"input": torch.randn(4, 256)}
    model, inputs = qwen3(abs(layers))
    if layers == GIVEN:
        return _given, (), {"model": model, **inputs}
    return model.forward, (model,), inputs


def _given(model: Any, **inputs: Any) -> Any:
    return model(**inputs)


def get(_: int, folder: str) -> Numbers:
    """The parts of a get, of entries that this process has not read yet."""
    import hashlib

    from store_floors import EntryFloor, Floor, Ours

    from npugx_cache.store.content import entries

    root = Path(folder)
    one, bare = Floor(root / "one", verify=True), EntryFloor(root / "bare")
    ours, in_parts = Ours(root / "ours"), Ours(root / "in parts")
    keys = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(ENTRIES)]
    for key in keys:
        data = os.urandom(SIZE)
        for store in (one, bare, ours, in_parts):
            store.put(key, data)
    time.sleep(2.1)  # of younger files it is not remembered that they were verified
    place = ours.store.folder
    paths = [str(ours.store.root / place.key(key)) for key in keys]
    stored = [next(path.read_bytes() for path in map(Path, os.scandir(each))) for each in paths]

    def folder_by_path(path: str) -> None:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def key_folder(key: str) -> None:
        os.close(entries.open_key(place, key))

    manifests: dict[str, Any] = {}

    def find(key: str) -> None:
        [manifests[key]] = in_parts.store.candidates(key).manifests

    def read(key: str) -> None:
        in_parts.store.read(manifests[key], ("x",))

    pairs = list(zip(stored, keys, strict=True))
    for key in keys[: ENTRIES // 10]:  # what the first reads load and open
        one.get(key), bare.get(key), ours.get(key), in_parts.get(key)
    rest = keys[ENTRIES // 10 :]
    return {
        "one file, read and hashed": _each_us(one.get, rest),
        "the files of an entry in bare calls": _each_us(bare.get, rest),
        "**get**": _each_us(ours.get, rest),
        "- find and read the manifest": _each_us(find, rest),
        "- read and verify the blob": _each_us(read, rest),
        "decode and check the manifest": _each_us(_decoded, pairs),
        "open the folder of a key, step by step": _each_us(key_folder, keys),
        "the same folder by its path": _each_us(folder_by_path, paths),
    }


def _decoded(pair: tuple[bytes, str]) -> object:
    from npugx_cache.store.format.manifest import decode

    return decode(*pair)


def _each_us(call: Callable[[Any], object], arguments: list[Any]) -> float:
    """The median over calls, each with an argument of its own: what was read is remembered."""
    spent = []
    for argument in arguments:
        started = time.process_time_ns()
        call(argument)
        spent.append((time.process_time_ns() - started) / 1e3)
    return median(spent)


def _of_versions(versions: Any) -> list[Parts]:
    """The parts of the check of versions, and what could take the place of some."""
    from array import array
    from operator import call, is_

    from npugx_cache.conditions import dict_versions

    version, of_dict = dict_versions._version, dict_versions._DICT
    owners = list(map(call, versions._owners))
    own = list(map(of_dict, owners))
    tables = list(versions._tables.read(own))
    tensors = versions._tensors.read(own + tables)
    cpp = _guards_in_cpp(owners, tables)

    def empty() -> bool:
        return any(versions._empty.read(own)) or any(map(call, versions._empty_ordered))

    def attributes() -> bool:
        bare, others = tensors[: versions._bare], tensors[versions._bare :]
        kept = array("Q", map(version, map(of_dict, others))) == versions._attributes
        return kept and not any(map(of_dict, bare))

    parts: Parts = {
        "versions: owners and dicts": lambda: [*map(of_dict, map(call, versions._owners))],
        "versions: of those": lambda: array("Q", map(version, own)) == versions._versions,
        "versions: dicts in them, read": lambda: versions._tables.read(own),
        "versions: of dicts in them": lambda: array("Q", map(version, tables)),
        "versions: tensors, read": lambda: versions._tensors.read(own + tables),
        "versions: empty dicts": empty,
        "versions: classes of owners": lambda: all(map(is_, map(type, owners), versions._types)),
        "versions: metadata of tensors, in C++": lambda: versions._metadata.check(*tensors),
        "versions: attributes of tensors": attributes,
    }
    return [parts, {"classes and versions as C++ guards, if there were such": cpp}]


def _guards_in_cpp(owners: list[Any], tables: list[Any]) -> Callable[[], object]:
    """What could take the place of four of these parts, if lists held all that is checked."""
    from npugx_cache.private import guard_managers

    first, second = guard_managers.RootGuardManager(), guard_managers.RootGuardManager()
    why: Any = ["a benchmark"]
    with guard_managers.building() as kind:
        for number, owner in enumerate(owners):
            manager = first.list_getitem_manager(number, str(number), owner, kind)
            manager.add_type_match_guard(id(type(owner)), why, None)
            held = manager.get_generic_dict_manager(f"{number}.__dict__", owner.__dict__, kind)
            held.add_dict_version_guard(owner.__dict__, why, None)
        for number, table in enumerate(tables):
            manager = second.list_getitem_manager(number, str(number), table, kind)
            manager.add_dict_version_guard(table, why, None)
    return lambda: first.check(owners) and second.check(tables)


def _us(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in range(20):
            work()
        spent.append((time.process_time_ns() - started) / 20e3)
    return median(spent)


FIGURES = {each.__name__: each for each in (setup, code, eager, second, fill, later, cold, get)}

if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3] in FIGURES:
        import torch

        torch.set_num_threads(1)
        count, folder, what = sys.argv[1:]
        print(json.dumps(FIGURES[what](int(count), folder)))
    else:
        run_script(__doc__, measure, text)
