"""Describes all that can be reached from some objects, so that two worlds can be compared."""

from __future__ import annotations

import collections
import functools
import random
import threading
import types

import torch

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice),
    *(torch.dtype, torch.device),
)
_CACHED = type(functools.lru_cache(len))


class World:
    """What was reached, as lines: a path and what stands there, each object once.

    An object that was reached before is described by the path that led there first, so that two
    worlds differ where an object is shared in one of them only. Modules other than `home`, and what
    the cache itself made, are left out.
    """

    def __init__(self, home):
        self.lines = []
        self._home = home
        self._seen = {}
        self._storages = {}
        self._kept = []
        self._iterators = []

    def reach(self, path, value):
        if isinstance(value, types.ModuleType) or type(value).__module__.startswith("npugx_cache"):
            return
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self._say(path, value, repr(value))
            return
        if id(value) in self._seen:
            self.lines.append(f"{path} is {self._seen[id(value)]}")
            return
        self._seen[id(value)] = path
        self._kept.append(value)  # or its id might be another object's later
        if isinstance(value, type):
            self._class(path, value)
        elif isinstance(value, torch.Tensor):
            self._tensor(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.MethodType):
            self.reach(f"{path}.__self__", value.__self__)
        elif isinstance(value, (_CACHED, staticmethod, classmethod)):
            self.reach(f"{path}.__wrapped__", value.__wrapped__)  # what it remembers can't be seen
        elif hasattr(type(value), "__next__"):
            self._say(path, value)
            self._iterators.append((path, value))
        else:
            self._object(path, value)

    def exhaust(self):
        """Walk every iterator that was reached to its end (the first hundred of an endless one)."""
        for path, iterator in list(self._iterators):
            for index, each in zip(range(100), iterator, strict=False):
                self.reach(f"next({path}) {index}", each)

    def _say(self, path, value, text=""):
        self.lines.append(f"{path}: {type(value).__qualname__} {text}")

    def _attributes(self, path, space):
        for name, value in sorted(space.items()):
            # torch's compiler marks tensors and modules.
            if not name.startswith("_dynamo_") and name != "fake_device":
                self.reach(f"{path}.{name}", value)

    def _class(self, path, value):
        self.lines.append(f"{path}: class {value.__qualname__}")
        if value.__module__ == self._home.__name__:
            members = {k: v for k, v in vars(value).items() if not k.startswith("__")}
            self._attributes(path, {k: v for k, v in members.items() if not _is_slot(v)})

    def _tensor(self, path, value):
        text = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad} "
        self._say(path, value, text + repr(value.detach().flatten().tolist()))
        place = value.untyped_storage().data_ptr()
        self.lines.append(f"{path} lies in {self._storages.setdefault(place, path)}")
        self._attributes(path, vars(value))

    def _function(self, path, value):
        self._say(path, value, value.__qualname__)
        for index, cell in enumerate(value.__closure__ or ()):
            self.reach(f"{path} cell {index}", cell)
        self.reach(f"{path}.__defaults__", value.__defaults__)
        self._attributes(path, vars(value))

    def _object(self, path, value):
        self._say(path, value)
        if isinstance(value, types.CellType):
            self.reach(f"{path}.cell_contents", value.cell_contents)
        elif isinstance(value, random.Random):
            self.reach(f"{path} state", value.getstate())
        elif isinstance(value, dict):
            for index, (key, each) in enumerate(value.items()):
                self.reach(f"{path} key {index}", key)
                self.reach(f"{path} value {index}", each)
        elif isinstance(value, (set, frozenset)):
            for index, each in enumerate(sorted(value, key=repr)):
                self.reach(f"{path} element {index}", each)
        elif isinstance(value, (list, tuple, collections.deque)):
            for index, each in enumerate(value):
                self.reach(f"{path}[{index}]", each)
        for attribute in ("maxlen", "default_factory"):
            if attribute in dir(type(value)):
                self.reach(f"{path}.{attribute}", getattr(value, attribute))
        kind = threading.local if isinstance(value, threading.local) else object
        space = dict(getattr(value, "__dict__", {}))
        if kind is threading.local:
            space = dict(threading.local.__getattribute__(value, "__dict__"))
        self.lines.append(f"{path} has the names {list(space)}")
        slots = [n for c in type(value).__mro__ for n, m in vars(c).items() if _is_slot(m)]
        space |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
        self._attributes(path, space)


def _is_slot(member):
    return isinstance(member, types.MemberDescriptorType)


def lines_of(module, made, result, *, last):
    """All that can be reached from the globals of a row, from what the row made and gave."""
    world = World(module)
    world.reach("result", result)
    for index, each in enumerate(made[1:]):
        world.reach(f"given {index}", each)
    for name, value in sorted(vars(module).items()):
        if not name.startswith("__"):  # Dynamo leaves names of its own behind
            world.reach(name, value)
    if last:
        world.exhaust()
    return world.lines


def first_difference(eager, cached):
    for one, other in zip(eager, cached, strict=False):
        if one != other:
            return f"eager {one!r} and cached {other!r}"
    if len(eager) != len(cached):
        return f"eager has {len(eager)} and cached {len(cached)} objects"
    return None
