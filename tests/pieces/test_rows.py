"""Rows of graphs and of what changes around them: cold, restarted, and eager are the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
SCRIPT = Path(__file__).with_name("rows.py")

KERNELS = """
import functools
import torch

@torch.library.custom_op("pieces::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * {kernel}

@scaled.register_fake
def _(x):
    return torch.empty_like(x)

@functools.cache
def sizes_of(*sizes):
    return sizes{fake}

def layout_of(x):
    return x.new_empty(sizes_of(*x.shape))

LIBRARY = torch.library.Library("pieces", "DEF")
LIBRARY.define("faked(Tensor x) -> Tensor")
LIBRARY.define("by(Tensor x, float by={default}) -> Tensor")
LIBRARY.impl("faked", lambda x: x * 3, "CPU")
LIBRARY.impl("by", lambda x, by={default}: x * by, "CPU")
torch.library.register_fake("pieces::faked", lambda x: layout_of(x))
torch.library.register_fake("pieces::by", lambda x, by={default}: torch.empty_like(x))
COPIES = {copies}
LIBRARY.define("copied(Tensor x) -> Tensor")
LIBRARY.impl("copied", lambda x: x.repeat(COPIES, 1), "CPU")
torch.library.register_fake("pieces::copied", lambda x: x.new_empty(COPIES * x.shape[0], 8))
"""


def rows(
    place, *names, what="as it is", kernel="3", fake="", default="2.0", copies=2, **environment
):
    """What the rows came to in a process of their own."""
    folder = place.folder / f"{kernel} {default} {len(fake)} {copies}"
    folder.mkdir(exist_ok=True)
    text = KERNELS.format(kernel=kernel, fake=fake, default=default, copies=copies)
    (folder / "kernels.py").write_text(text)
    paths = f"{folder}:{place.environment()['PYTHONPATH']}"
    return place.run(SCRIPT, what, *names, PYTHONPATH=paths, **environment)


@pytest.fixture(scope="module")
def stored(once):
    """The store after all rows ran, and what they came to. Tests work on copies of the folder."""

    def make(place):
        without = [name for name in names_of_rows() if not name.startswith("parity")]
        found = rows(place, *without, "parity", "parity_both", PYTHONHASHSEED="1")
        return {"found": found, "store": str(place.store)}

    return once("pieces of rows", make)


def names_of_rows():
    lines = SCRIPT.read_text().split("@row\ndef ")[1:]
    return [line.partition("(")[0] for line in lines]


@pytest.fixture
def place(stored, surroundings):
    shutil.copytree(stored["store"], surroundings.store)
    return surroundings


REFUSED = {
    "regions": "contains graphs of its own",
}
"""Rows whose graph no entry can hold, and the reason."""


def assert_right(found):
    assert {name: each["difference"] for name, each in found.items()} == dict.fromkeys(found)
    for name, each in found.items():
        if name not in REFUSED:
            assert each["warnings"] == [], name


def test_each_row_is_right_stored_and_found_again(stored, place):
    cold = stored["found"]
    assert_right(cold)
    warm = rows(place, *cold, PYTHONHASHSEED="2")
    assert_right(warm)
    for name in cold:
        if name in REFUSED:
            for each in (cold, warm):
                assert each[name]["info"] == [0, 0, 1, 0], name
                assert any(REFUSED[name] in text for text in each[name]["warnings"]), name
        else:
            hits, misses, _, new = cold[name]["info"]
            assert (misses, misses > 0) == (new, True), name
            assert warm[name]["info"] == [hits + misses, 0, 0, 0], name


def test_every_edit_misses_but_that_of_a_kernel(place):
    names = (
        "kernel",
        "fake",
        "fake_in_a_checkpoint",
        "fake_in_a_branch",
        "schema",
        "reads",
        "plain",
    )
    misses = {
        "kernel": {"kernel": "5"},
        "fake": {"fake": "[:]"},
        "schema": {"default": "4.0"},
        "reads": {"copies": 3},
    }
    for edited, change in misses.items():
        found = rows(place, *names, **change)
        assert_right(found)
        missed = {name for name in names if found[name]["info"] == [0, 1, 0, 1]}
        hit = {name for name in names if found[name]["info"] == [1, 0, 0, 0]}
        assert missed == (set() if edited == "kernel" else {n for n in names if edited in n})
        assert hit == set(names) - missed


def test_an_entry_for_even_sizes_makes_an_odd_size_compile_again(stored, place):
    assert stored["found"]["parity"]["info"] == [0, 1, 0, 1]
    # `parity` stored what `parity_both` meets first.
    assert stored["found"]["parity_both"]["info"] == [1, 1, 0, 1]
    fresh = place.beside("fresh")
    even = rows(fresh, "parity")
    assert_right(even)
    odd_first = rows(fresh, "parity_odd_first")
    assert_right(odd_first)
    assert (even["parity"]["info"], odd_first["parity_odd_first"]["info"]) == (
        [0, 1, 0, 1],
        [1, 1, 0, 1],
    )


@pytest.mark.parametrize("what", ["autocast", "default dtype", "deterministic"])
def test_another_state_of_torch_misses(place, what):
    found = rows(place, "plain", "vary", what=what)
    assert_right(found)
    assert found["plain"]["info"] == [0, 1, 0, 1]


@pytest.mark.parametrize("name", ["sigmoid", "softmax"])
def test_a_patched_method_of_a_tensor_is_not_overlooked(place, name):
    found = rows(place, "plain", "method", "method_in_torch", what=f"patched {name}")
    assert {each["difference"] for each in found.values()} == {None}
    assert {tuple(each["info"]) for each in found.values()} == {(0, 0, 1, 0)}
    assert all(f"torch.Tensor.{name} was replaced" in str(each) for each in found.values())


def test_an_entry_that_is_found_is_the_same_when_compiled_again(place):
    names = [name for name in names_of_rows() if name not in ("parity_odd_first", *REFUSED)]
    found = rows(place, *names, NPUGX_CACHE_VERIFY="recompile")
    assert_right(found)
    assert all(each["info"][1:] == [0, 0, 0] for each in found.values()), found


def test_what_a_miss_does(place, surroundings):
    empty = surroundings.beside("empty")
    raised = rows(empty, "plain", NPUGX_CACHE_ON_MISS="raise")["plain"]
    assert "CacheMiss" in raised["difference"]
    assert raised["info"] == [0, 1, 0, 0]
    eager = rows(empty, "plain", NPUGX_CACHE_ON_MISS="eager")["plain"]
    assert (eager["difference"], eager["info"]) == (None, [0, 0, 1, 0])
    assert len(eager["warnings"]) == 1
    for way in ("raise", "eager"):
        found = rows(place, "plain", "breaks", NPUGX_CACHE_ON_MISS=way)
        assert_right(found)
        assert found["breaks"]["info"] == [2, 0, 0, 0]
    off = rows(place, "plain", NPUGX_CACHE="off")
    assert_right(off)
    assert off["plain"]["info"][0] == 0
    assert off["plain"]["info"][3] == 0


@pytest.mark.parametrize("harm", ["cut", "other bytes"])
def test_a_damaged_entry_is_a_miss_with_a_warning(place, harm):
    for path in place.store.rglob("*"):
        if path.is_file() and path.parent.parent.name == "cas":
            data = path.read_bytes()
            path.chmod(0o600)
            middle = len(data) // 2
            path.write_bytes(data[:middle] if harm == "cut" else data[:middle] + b"x" * middle)
    found = rows(place, "plain", "breaks")
    for name in ("plain", "breaks"):
        assert found[name]["difference"] is None
        assert found[name]["warnings"]
        assert found[name]["info"][0] == 0
    assert all("not used" in text for text in found["plain"]["warnings"])
    again = rows(place, "plain", "breaks")
    assert_right(again)
    assert again["breaks"]["info"] == [2, 0, 0, 0]


def test_a_store_that_may_only_be_read_is_read(place, surroundings):
    empty = surroundings.beside("empty")
    for where, hits, misses in ((place, 2, 0), (empty, 0, 2)):
        found = rows(where, "plain", "breaks", NPUGX_CACHE="readonly")
        assert all(each["difference"] is None for each in found.values())
        said = {text.partition(":")[0] for each in found.values() for text in each["warnings"]}
        assert said == (set() if hits else {"cache not used"})
        assert found["breaks"]["info"] == [hits, misses, 0, 0]


def test_threads_that_compile_at_once_have_right_results(surroundings):
    (surroundings.folder / "kernels.py").write_text(
        KERNELS.format(kernel=3, fake="", default=2.0, copies=2)
    )
    for _ in range(2):
        paths = f"{surroundings.folder}:{surroundings.environment()['PYTHONPATH']}"
        assert surroundings.run(SCRIPT, "threads", PYTHONPATH=paths) == [None] * 8
    keys = [entry["key"] for entry in surroundings.listing()]
    assert keys
    assert len(keys) == len(set(keys))


def test_a_library_of_inductor_is_found_again(surroundings):
    """Inputs that overlap are for the program, because the library takes them to be apart."""
    name = "overlapping_later"
    cold = rows(surroundings, name, "inductor")[name]
    warm = rows(surroundings, name, "inductor")[name]
    for found in (cold, warm):
        assert found["difference"] is None
        assert all("overlap others: it runs call by call" in text for text in found["warnings"])
    hits, misses, bypasses, stored = cold["info"]
    assert (misses > 0, bypasses, stored) == (True, 0, misses)
    assert warm["info"] == [hits + misses, 0, 0, 0]
