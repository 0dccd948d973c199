"""Functions in a place that C++ can't read: Python compares which they are, and their parts."""

from operator import is_

import pytest
import torch

from npugx_cache import cache_compile


def scaled_by(factor):
    def scaled(x, more=1.0):
        return x * factor + more

    return scaled


def freed(factor):
    def scaled(x, more=1.0):
        return x - factor * more

    return scaled


EDITS = {
    "its code": lambda f: setattr(f, "__code__", freed(3.0).__code__),
    "its defaults": lambda f: setattr(f, "__defaults__", (7.0,)),
    "what it captured": lambda f: setattr(f.__closure__[0], "cell_contents", 5.0),
    "another function": lambda f: TABLE.update({torch.nn.Linear: scaled_by(9.0)}),
}
TABLE = {}


def all_of_them(x):
    for function in TABLE.values():
        x = function(x)
    return x


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_noticed(tmp_path, edit):
    TABLE.clear()
    function = TABLE[torch.nn.Linear] = scaled_by(2.0)
    x = torch.ones(3)
    call = cache_compile(all_of_them, cache_dir=tmp_path)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(call(x), all_of_them(x))
        (known,) = call._state.specialisations
        tests = known.conditions._native._residue._on_values
        assert is_ in [test for _, test, _ in tests]
        EDITS[edit](function)
        for _ in range(4):
            assert torch.equal(call(x), all_of_them(x))
