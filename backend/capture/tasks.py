"""Updates calls in a captured graph that need new lengths from the host at every replay.

While a program is captured, a number that is not part of the graph's key is a `Length`: an int that
remembers how it was computed from the inputs. An operator call that takes a `Length` is captured as
a separate task. At a replay, the device starts the graph, the graph waits before each task, and the
host gives each task the numbers that follow from the inputs of this call.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import torch

from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_active = threading.local()


class Length(int):
    """A number, and how to compute it from the inputs of another call."""

    of: Callable[[Sequence[Any]], int]

    @classmethod
    def make(cls, value: int, of: Callable[[Sequence[Any]], int]) -> Length:
        made = cls(value)
        made.of = of
        return made

    @classmethod
    def of_input(cls, position: int, value: int) -> Length:
        return cls.make(value, itemgetter(position))


ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "neg")
"""The operations on a `Length` whose result is a `Length`; others give a plain number."""


def _method(name: str) -> Callable[..., Any]:
    operation: Any = getattr(int, name)

    def method(self: Length, *others: Any) -> Any:
        value = operation(int(self), *map(_plain, others))
        if value is NotImplemented:
            return value

        def of(inputs: Sequence[Any]) -> int:
            given = (each.of(inputs) if isinstance(each, Length) else each for each in others)
            return int(operation(self.of(inputs), *given))

        return Length.make(value, of)

    return method


for _name in ARITHMETIC:
    setattr(Length, f"__{_name}__", _method(f"__{_name}__"))
    if _name != "neg":
        setattr(Length, f"__r{_name}__", _method(f"__r{_name}__"))


class Updates(Protocol):
    """The tasks of one graph on its device, in the order of their capture."""

    def begin(self) -> None:
        """Begin a task in the capture: the graph waits here for an update at each replay."""

    def end(self) -> None:
        """End the task that `begin` began."""

    def run(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Update each task by its call, after the graph was started.

        If a call raises, the graph still goes on, and the error is raised at the end.
        """

    def borrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor over the same memory that does not keep the memory alive.

        The graph or a caller keeps the memory alive.
        """


@dataclass(frozen=True, slots=True)
class Task:
    """An operator call as it was captured.

    `args` and `kwargs` hold a `Length` or an `_Input` for each argument that a replay updates.
    """

    operator: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def call(self, inputs: Sequence[Any]) -> Any:
        args = [_now(each, inputs) for each in self.args]
        return self.operator(*args, **{k: _now(v, inputs) for k, v in self.kwargs.items()})


@dataclass(frozen=True, slots=True)
class _Input:
    """Stands for the program's input at `position`, a tensor on the host."""

    position: int


class Recorder:
    """Collects the tasks of one capture. `hosts`: inputs that are tensors on the host."""

    def __init__(self, updates: Updates, hosts: Mapping[int, torch.Tensor]) -> None:
        self._updates = updates
        self._hosts = {id(tensor): _Input(position) for position, tensor in hosts.items()}
        self._tasks: list[Task] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls that this thread makes inside."""
        _active.recorder = self
        try:
            yield
        finally:
            _active.recorder = None

    def call(
        self, operator: Any, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        schema = schemas.schema_of(operator)
        assert schema is not None
        position = {each.name: index for index, each in enumerate(schema.arguments)}
        changing = {name for name in names if self._changes(_given(position, name, args, kwargs))}
        plain = [_plain(each) for each in args]
        named = {name: _plain(value) for name, value in kwargs.items()}
        if not changing:
            return operator(*plain, **named)
        places = {position[name] for name in changing}
        task = Task(
            operator,
            tuple(self._kept(v, i in places) for i, v in enumerate(args)),
            {name: self._kept(value, name in changing) for name, value in kwargs.items()},
        )
        self._updates.begin()
        try:
            result = operator(*plain, **named)
        finally:
            self._updates.end()
        self._tasks.append(task)
        return result

    def replayed(self, inputs: Sequence[Any]) -> None:
        """Update the tasks of a replay that has been started."""
        if self._tasks:
            self._updates.run([_bound(task, inputs) for task in self._tasks])

    def _changes(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(isinstance(each, Length) for each in value)
        return isinstance(value, Length) or id(value) in self._hosts

    def _kept(self, value: Any, changing: bool) -> Any:
        if changing:
            return self._hosts.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._kept(each, changing) for each in value)
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            return self._updates.borrowed(value)
        return _plain(value)


class UpdatableCall:
    """An operator in a program's namespace. During a capture, its calls with lengths are tasks."""

    def __init__(self, operator: Any, names: Sequence[str]) -> None:
        self._operator, self._names = operator, names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder: Recorder | None = getattr(_active, "recorder", None)
        if recorder is None:
            return self._operator(*args, **kwargs)
        return recorder.call(self._operator, self._names, args, kwargs)


def _given(
    position: Mapping[str, int], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[position[name]] if position[name] < len(args) else None


def _bound(task: Task, inputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: task.call(inputs)


def _now(value: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(value, _Input):
        return inputs[value.position]
    if isinstance(value, Length):
        return value.of(inputs)
    if isinstance(value, (list, tuple)):
        return type(value)(_now(each, inputs) for each in value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Length):
        return int(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value
