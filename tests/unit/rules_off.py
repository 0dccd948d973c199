"""Whether a change is noticed between two calls, with each rule of a trace and without it; JSON.

python rules_off.py FOLDER: each case runs in a forked child with a cache of its own.
"""

from __future__ import annotations

import abc
import datetime as dt
import enum
import json
import math
import os
import sys
from pathlib import Path

import torch
import torch._dynamo.convert_frame

from npugx_cache import cache_compile
from npugx_cache.trace import (
    dynamo,  # noqa: F401 - loaded once, before the children
    observer,
)
from npugx_cache.trace.observe import class_caches
from npugx_cache.trace.rules import by_value, containers, kinds, names, operators, sets

X = torch.tensor([-1.0, 2.0])


class Parent:
    def scaled(self, x):
        return x * 2


class Child(Parent):
    pass


class Base(abc.ABC):  # noqa: B024 - classes are registered with it
    pass


class Scaling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.full((2,), 2.0))


class Mode(enum.Enum):
    """A member is a number that somebody may change."""

    FAST = 4.0

    def __float__(self):
        return TABLE["a"]


def scaled(x):
    return x * 2


scaled.flag = True


CHILD, TABLE, SCALING, NUMBERS = Child(), {"a": 2.0}, Scaling(), {8, 0}
DAYS = {"first": dt.date(2001, 1, 1), "second": dt.date(2001, 1, 1)}


def absent_key(x):
    try:
        return x * TABLE["b"]
    except KeyError:
        return x * 7


def without_length(x):
    try:
        return x * len(CHILD)
    except TypeError:
        return x * 7


def absent_name(x):
    try:
        return x * scaled.factor
    except AttributeError:
        return x * 7


def unread_name(x):
    try:
        scaled.flag  # noqa: B018 - whether it is there is all that is asked
    except AttributeError:
        return x * 7
    return x * 2


def in_another_order():
    """Two numbers that collide are walked in the order in which they were added."""
    NUMBERS.clear()
    NUMBERS.add(0)
    NUMBERS.add(8)


def extended(x):
    items = []
    items.extend(TABLE)
    return x * len(items)


RULES = {
    "a name that a class gets": (
        (names, "note_name"),
        lambda x: Child().scaled(x),
        lambda: setattr(Child, "scaled", lambda self, x: x * 3),
    ),
    "a special method that a class gets": (
        (names, "note_class"),
        lambda x: x * (2 if CHILD else 3),
        lambda: setattr(Child, "__bool__", lambda self: False),
    ),
    "a special method that a class gets when Dynamo has asked for it": (
        (class_caches, "forget"),
        without_length,
        lambda: setattr(Child, "__len__", lambda self: 3),
    ),
    "a name that a function may have": (
        (names, "note_question"),
        lambda x: x * (3 if hasattr(scaled, "factor") else 2),
        lambda: setattr(scaled, "factor", 3.0),
    ),
    "a name that a function lacks": (
        (names, "note_absence"),
        absent_name,
        lambda: setattr(scaled, "factor", 3.0),
    ),
    "a name that __getattr__ answers": (
        (names, "note_answer"),
        lambda x: x * SCALING.factor,
        lambda: vars(SCALING).update(factor=torch.full((2,), 3.0)),
    ),
    "a name that is read and not looked at": (
        (observer.Seen, "read"),
        unread_name,
        lambda: delattr(scaled, "flag"),
    ),
    "a special method that a function of Python's own asks": (
        (operators, "obstacle_of_values"),
        lambda x: x * math.sqrt(Mode.FAST),
        lambda: TABLE.update(a=9.0),
    ),
    "a class that is registered with another": (
        (kinds, "note_call"),
        lambda x: x * (2 if isinstance(CHILD, Base) else 3),
        lambda: Base.register(Child),
    ),
    "a key that is absent": (
        (containers, "note_operands", "note_call"),
        absent_key,
        lambda: TABLE.setdefault("b", 3.0),
    ),
    "keys that a method walks": (
        (containers, "note_call"),
        extended,
        lambda: TABLE.setdefault("b", 3.0),
    ),
    "keys that an instruction walks": (
        (containers, "note_operands"),
        lambda x: x * len([*TABLE]),
        lambda: TABLE.setdefault("b", 3.0),
    ),
    "the order of a set that a function walks": (
        (sets, "walks"),
        lambda x: x * next(iter(tuple(NUMBERS))),
        in_another_order,
    ),
    "the value of an object that C code looks into": (
        (by_value, "obstacle"),
        lambda x: x * (2 if DAYS["first"] == DAYS["second"] else 3),
        lambda: DAYS.update(second=dt.date(2002, 1, 1)),
    ),
}
"""A rule, a function that the rule is about, and a change that must be noticed."""


def is_noticed(rule, is_on, folder):
    (module, *functions), function, change = RULES[rule]
    for name in () if is_on else functions:
        setattr(module, name, lambda *_: None)
    cached = cache_compile(function, cache_dir=folder)
    with torch.no_grad():
        cached(X)
        assert is_on or cached.cache_info().stored == 1, cached.explain()
        change()
        return torch.equal(cached(X), function(X))


def in_child(rule, is_on, folder):
    child = os.fork()
    if not child:
        folder.mkdir()
        (folder / "answer").write_text(json.dumps(is_noticed(rule, is_on, folder / "cache")))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, rule
    return json.loads((folder / "answer").read_text())


def main(folder):
    os.environ["NPUGX_CACHE_VERIFY"] = "off"  # a comparison would hide what a trace did not see
    # What Dynamo and the lowering set up in their first trace is there for all children.
    cache_compile(scaled, cache_dir=folder / "first")(X)
    return {
        how: {rule: in_child(rule, how == "on", folder / f"{how} {rule}") for rule in RULES}
        for how in ("on", "off")
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
