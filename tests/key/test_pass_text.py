"""The text of a pass: what code may read counts, however it reads; the rest is refused."""

from __future__ import annotations

import copy
import dataclasses
import re
import threading
import time
import weakref
from functools import cached_property, partial

import pytest
import torch

from npugx_cache.key.pass_text import PassText
from npugx_cache.portable import NotPortable

FACTOR = 1.0


class Setting:
    """Settings of which only a constructor's caller knows, beside one value."""

    __match_args__ = ("value",)

    def __init__(self, value, lock=None):
        self.value = value
        if lock is not None:
            self.lock = lock


@dataclasses.dataclass
class Fields:
    value: object


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Module(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.given = value

    def forward(self, x):
        return x


class Metered(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class Cached:
    def __init__(self, value):
        self.first = value

    @cached_property
    def twice(self):
        return self.first * 2


class Text(str):
    __slots__ = ()


def reading(given, how):
    """A pass that reads `given` by the function `how`."""

    def run(graph):
        return how(given)

    return run


def by_position(given):
    match given:
        case Setting(value):
            return value


def by_name(given):
    match given:
        case Setting(value=found):
            return found


WAYS = {
    "an attribute": (Setting, lambda given: given.value),
    "a slot": (Slotted, lambda given: given.value),
    "a pattern by position": (Setting, by_position),
    "a pattern by name": (Setting, by_name),
    "a computed name": (Setting, lambda given: getattr(given, "val" + "ue")),
    "a format": (Setting, lambda given: "{0.value}".format(given)),  # noqa: UP030, UP032
    "a copy": (Setting, copy.copy),
    "a copy in code": (Setting, lambda given: copy.copy(given)),
    "a field": (Fields, lambda given: dataclasses.replace(given)),
    "an equality": (Fields, lambda given: given == given),
    "a method of torch": (Module, lambda given: given(1)),
    "a cached property": (Cached, lambda given: given.twice),
    "a partial": (lambda value: partial(Setting, value), lambda given: given().value),
    "an item": (lambda value: {"a": [(value,)]}, lambda given: given["a"]),
    "a tensor": (lambda value: torch.tensor([value]), lambda given: given + 1),
    "a method": (lambda value: Setting(value).__init__, lambda given: given(3).value),
}


@pytest.mark.parametrize("way", [name for name in WAYS if name != "a copy"])
def test_a_value_counts_however_code_reads_it(way):
    make, how = WAYS[way]
    texts = [PassText(reading(make(value), how)).digest for value in (1.0, 2.0, 1.0)]
    assert texts[0] == texts[2] != texts[1]


def test_what_no_code_reads_does_not_count_and_may_be_anything():
    def read(given):
        return given.value

    plain, locked = (PassText(reading(Setting(1.0, lock), read)) for lock in (3, threading.Lock()))
    with pytest.raises(NotPortable, match=r"\.lock: an object of type _thread.lock has no name"):
        PassText(reading(Setting(1.0, threading.Lock()), lambda given: given.lock))
    after_another = PassText(reading(Setting(1.0, threading.Lock()), read))
    assert plain.digest == locked.digest == after_another.digest


def test_a_global_counts(monkeypatch):
    run = reading(None, lambda _: FACTOR)
    before = PassText(run).digest
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert PassText(run).digest != before


def test_a_function_that_somebody_put_into_torch_counts(monkeypatch):
    run = reading(torch.ones(1), lambda given: torch.relu(given))
    before = PassText(run).digest
    monkeypatch.setattr(torch, "relu", lambda given: given * FACTOR)
    assert PassText(run).digest != before


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        weakref.ref(Setting(1)),
        iter([1]),
        object(),
        Text("a"),
        {Setting(1)},
        torch.ones(1 << 17),
        (each for each in "ab"),
        re.finditer("a", "a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_not_be_compared_is_refused(value):
    with pytest.raises(NotPortable):
        PassText(reading(Setting(value), lambda given: given.value))


@pytest.mark.parametrize("name", ["environ", "open", "get_rank", "__import__"])
def test_code_that_asks_outside_is_refused(name):
    space = {"__name__": "of_an_engine"}
    exec(f"def run(graph):\n    return graph.{name}", space)
    with pytest.raises(NotPortable, match=f"asks for {name}"):
        PassText(space["run"])


def test_a_run_is_undone_where_it_left_numbers_and_refused_where_it_left_more():
    class Counting:
        def __init__(self):
            self.count, self.last, self.table = 0, None, {}

        def __call__(self, graph):
            self.count += 1
            self.started = time.time()
            self.table["runs"] = self.count
            self.last = graph

    counting = Counting()
    before = PassText(counting)
    counting(3)
    assert PassText(counting).digest != before.digest
    before.put_back()
    assert vars(counting) == {"count": 0, "last": None, "table": {}}
    assert PassText(counting).digest == before.digest
    counting([])
    with pytest.raises(NotPortable, match="a run of the passes changes last"):
        before.put_back()
    assert (counting.count, counting.table) == (0, {})
