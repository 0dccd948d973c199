"""Binding of arguments: the same names and the same refusals as Python's own."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npugx_cache.arguments import FrameLocals, name_of, split


def nothing():
    return locals()


def plain(a, b):
    return locals()


def defaults(a, b=2, c=3):
    return locals()


def positional_only(a, /, b, c=3):
    return locals()


def all_positional_only(a, b=2, /):
    return locals()


def keyword_only(a, *, b, c=3):
    return locals()


def rest(a, *others, b=1):
    return locals()


def named(a, **others):
    return locals()


def everything(a, b=2, /, c=3, *others, d, e=5, **more):
    return locals()


def odd_names(self, args=1, kwargs=2, *bind, function=3, **names):
    return locals()


FUNCTIONS = [
    nothing, plain, defaults, positional_only, all_positional_only, keyword_only, rest, named,
    everything, odd_names,
]  # fmt: skip
NAMES = ["a", "b", "c", "d", "e", "z", "self", "args", "kwargs", "function"]


@pytest.mark.parametrize("function", FUNCTIONS)
@given(
    args=st.lists(st.integers(), max_size=5),
    kwargs=st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=4),
)
def test_arguments_are_bound_as_python_binds_them(function, args, kwargs):
    locals_of = FrameLocals(function)
    try:
        # Not inspect's bind: in Python 3.11 it refuses `f(1, b=2)` for `f(a, b=1, /, **more)`.
        bound = function(*args, **kwargs)
    except TypeError as error:
        with pytest.raises(TypeError, match=f"^{re.escape(str(error))}$"):
            locals_of(tuple(args), kwargs)
        return
    assert locals_of(tuple(args), kwargs) == bound


def test_defaults_replaced_at_run_time_count():
    def function(a=1, *, b=2):
        pass

    locals_of = FrameLocals(function)
    assert locals_of((), {}) == {"a": 1, "b": 2}
    function.__defaults__ = (10,)
    function.__kwdefaults__ = {"b": 20}
    assert locals_of((), {}) == {"a": 10, "b": 20}
    function.__defaults__ = None
    with pytest.raises(TypeError):
        locals_of((), {})


def test_free_variables_are_locals_and_empty_cells_are_left_out():
    value = 1

    def function(a):
        return a + value + later

    locals_of = FrameLocals(function)
    assert locals_of((5,), {}) == {"a": 5, "value": 1}
    value = 2
    later = 3
    assert locals_of((5,), {}) == {"a": 5, "value": 2, "later": 3}


def test_private_names_of_a_class_are_bound():
    class Mangled:
        def method(self, __secret=1):  # noqa: PYI063 - not positional-only: mangled
            pass

    assert FrameLocals(Mangled.method)((None,), {}) == {"self": None, "_Mangled__secret": 1}


class Thing:
    def method(self):
        pass

    @staticmethod
    def static():
        pass

    @classmethod
    def of_class(cls):
        pass

    def __call__(self):
        pass


def generator():
    yield 1


async def coroutine():
    pass


async def asynchronous_generator():
    yield 1


def test_a_target_is_a_function_and_what_it_is_bound_to():
    thing = Thing()
    assert split(plain) == (plain, None)
    assert split(thing.method) == (Thing.method, thing)
    assert split(Thing.static) == (Thing.static, None)
    assert split(Thing.of_class) == (Thing.of_class.__func__, Thing)
    assert name_of(Thing.method).endswith("Thing.method")


@pytest.mark.parametrize(
    "target",
    [
        None, 1, "f", len, Thing, Thing(), generator, coroutine, asynchronous_generator,
        vars(Thing)["static"], vars(Thing)["of_class"],
    ],
    ids=range(11),
)  # fmt: skip
def test_other_targets_are_refused(target):
    with pytest.raises(TypeError):
        split(target)
