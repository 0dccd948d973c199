"""Makes conditions for tensors that hold other tensors, such as quantised weights.

What an operator does with such a tensor is Python code of its class (`__torch_dispatch__`). Dynamo
does not look into that code, so it has no guards on what the code reads: the attributes of the
tensor, the tables of its class, globals. All of that becomes a condition here, and the code itself.
What can't be written down, or changes while the code runs, refuses the trace.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensorMode

from npugx_cache import location
from npugx_cache.backend.inner_tensors import wrappers_in
from npugx_cache.conditions import Kind, Step
from npugx_cache.conditions.contents import Contents
from npugx_cache.conditions.kinds import attribute_names
from npugx_cache.portable import NotPortable, encode, is_covered_class
from npugx_cache.private import meshes
from npugx_cache.private.runtime import is_wrapper
from npugx_cache.trace.conditions.untraced_code import UntracedCode, Words, classes_of
from npugx_cache.trace.observe.observation import Observation, Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.conditions import Check
    from npugx_cache.trace.conditions.builder import TreeBuilder

RUN = "npugx_wrappers"
"""A key of the lowered graph's `meta`. The value is the `CodeRun`."""

# --- the attributes of a tensor


def add_attributes(builder: TreeBuilder, node: int) -> None:
    """Add a check of each attribute of a tensor that holds others, but for those that it holds.

    Dynamo guards the tensors that it holds as it guards any tensor.
    """
    value = builder.value(node)
    _add_names(builder, node, frozenset(value.__tensor_flatten__()[0]), 0)


def _add_names(builder: TreeBuilder, node: int, without: frozenset[str], depth: int) -> None:
    value = builder.value(node)
    builder.described.update(dict.fromkeys(classes_of(type(value))))
    builder.check(node, Kind.ATTRIBUTES, attribute_names(value))
    for name, own in _own(value):
        if name not in without:
            child = builder.step(node, Step.ATTR, name)
            if builder.value(child) is not own:
                raise NotPortable(f"{name} is another thing in the class of the object")
            _add_value(builder, child, name, depth + 1)


def _own(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object has of its own, by name: in its `__dict__`, and in slots of its classes."""
    yield from ((name, vars(value)[name]) for name in attribute_names(value))
    for cls in type(value).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and not is_covered_class(cls):
                try:
                    yield name, member.__get__(value)
                except AttributeError:
                    raise NotPortable(f"the slot {name} is empty") from None


def _add_value(builder: TreeBuilder, node: int, name: str, depth: int) -> None:
    value = builder.value(node)
    kind = type(value)
    classes: dict[type, None] = {}
    if _is_plain(value, classes):
        builder.described.update(classes)
        builder.check(node, Kind.EQUALS, encode(value))
    elif isinstance(value, torch.Tensor):
        raise NotPortable(f"{name} is a tensor that __tensor_flatten__ does not name")
    elif depth > _MAX_DEPTH or is_covered_class(kind) or not hasattr(value, "__dict__"):
        raise NotPortable(f"{name} is a {kind.__qualname__}, which no condition can hold")
    else:
        Contents(value)  # refuses what shows only a part of what it holds
        builder.check_type(node)
        _add_names(builder, node, frozenset(), depth)


_MAX_DEPTH = 8


def _is_plain(value: Any, classes: dict[type, None]) -> bool:
    """Whether the encoding says all about a value; `classes` gets the classes in it."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset, torch.Size):
        return all(_is_plain(each, classes) for each in value)
    if kind is dict:
        return all(_is_plain(each, classes) for pair in value.items() for each in pair)
    if isinstance(value, (enum.Enum, type)):
        classes.update(dict.fromkeys(classes_of(value if isinstance(value, type) else kind)))
        return True
    return kind in _PLAIN


_PLAIN = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)


def _is_of_users(value: Any) -> bool:
    """Whether it is a tensor that holds others, and may be of a class of the user's.

    What torch's own code reads of a sharded tensor is guarded, and that code is in the key.
    """
    return is_wrapper(value) and not meshes.is_sharded(value)


def _describe_attributes(value: Any) -> str:
    """The attributes of a tensor that holds others, apart from the tensors, as one text."""
    made = []
    for each in wrappers_in(value):
        inner = each.__tensor_flatten__()[0]
        own = {name: own for name, own in _own(each) if name not in inner}
        made.append([type(each).__qualname__, list(inner), Contents(own).text])
    return repr(made)


# --- the code of its class


_WORDS = Words("code of a tensor that holds others", "a tensor that holds others")


class CodeRun(UntracedCode):
    """The user code that ran for tensors that hold others, and what it may have read.

    Make it before the code runs, and give `note` each frame.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__()
        self._asking = meshes.asking_for_rank()
        self._asked = False
        self._values = [(each, _describe_attributes(each)) for each in values if _is_of_users(each)]
        self._entries: set[types.CodeType] = set()
        self._inside = 0
        for value, _ in self._values:
            for wrapper in wrappers_in(value):
                for cls in classes_of(type(wrapper)):
                    self.look_at(cls.__module__, cls.__qualname__)
                    self._entries.update(Contents(cls).codes)

    def words(self) -> Words:
        return _WORDS

    def note(self, frame: types.FrameType, event: str, _: object = None) -> None:
        """Note a "call" or a "return", if it is in code of one of the classes or called by it."""
        code = frame.f_code
        if event == "call" and code in self._asking and not meshes.is_same_on_all_ranks(frame):
            self._asked = True
        if code in self._entries and event in ("call", "return"):
            self._inside += 1 if event == "call" else -1
        if event == "call" and self._inside:
            self.look_into(frame)

    def refuse_other_attributes(self, traced: Iterable[Any]) -> None:
        """Raise `NotPortable` if the trace changed an attribute, or did not see one.

        `traced` are the copies of the tensors on which the code ran. torch makes a copy with
        `__tensor_unflatten__`, which may leave out an attribute; objects among the attributes are
        those of the tensor itself.
        """
        copies = [each for each in traced if _is_of_users(each)]
        for (value, text), copy in zip(self._values, copies, strict=True):
            if _describe_attributes(value) != text:
                raise NotPortable(f"code of {type(value).__qualname__} changes its attributes")
            if type(copy) is not type(value) or _describe_attributes(copy) != text:
                kind = type(value).__qualname__
                raise NotPortable(f"{kind}.__tensor_unflatten__ makes a tensor that differs")

    def facts(self, builder: TreeBuilder, root: types.CodeType) -> tuple[Check, ...]:
        """All that the code may have read besides the attributes. Raises `NotPortable`.

        `root` is the traced function.
        """
        if self._reason:  # which names a line already
            raise NotPortable(self._reason)
        try:
            return self.contents_facts(builder.described)
        except NotPortable as error:
            raise NotPortable(reason_with_place(error, root)) from None

    def add_attributes_of_others(
        self, builder: TreeBuilder, nodes: Iterable[int | None], root: types.CodeType
    ) -> None:
        """Check that the plain tensors of a call get no attributes. Raises `NotPortable`.

        The code may look for attributes in each tensor that it is given, and the copies on which it
        was traced have none but those of `nn.Buffer`. `nodes` are those of the graph's inputs.
        `root` is the traced function.
        """
        read = {name for code in self.codes for name in code.co_names}
        for node in nodes if self._values else ():
            if node is None:
                continue
            value = builder.value(node)
            if isinstance(value, torch.Tensor) and not is_wrapper(value):
                names = attribute_names(value)
                for name in names:
                    is_mark = name in _OF_BUFFERS and getattr(value, "_is_buffer", False) is True
                    if is_mark and _is_marked_in_copies():
                        _add_value(builder, builder.step(node, Step.ATTR, name), name, 0)
                    elif is_mark or name in read or (read & _READS_ANY and name not in _MARKS):
                        what = "which code of a tensor that holds others may read"
                        error = NotPortable(f"a tensor has the attribute {name}, {what}")
                        raise NotPortable(reason_with_place(error, root))
                builder.check(node, Kind.ATTRIBUTES, names)

    def observations(self) -> Iterator[Observation]:
        """And the rank, if torch's code for sharded tensors asked for the place of this rank."""
        if self._asked:
            yield Observation(Question.ANSWER, "get_rank")
        yield from super().observations()


@functools.cache
def _is_marked_in_copies() -> bool:
    """Whether the copies on which code is traced tell that a tensor is a buffer."""
    copy = FakeTensorMode().from_tensor(torch.nn.Buffer(torch.empty(0)))
    return getattr(copy, "_is_buffer", False) is True


_READS_ANY = frozenset({"getattr", "hasattr", "vars", "__dict__"})
_OF_BUFFERS = frozenset({"_is_buffer", "persistent"})
"""What `nn.Buffer` sets on a tensor; since torch 2.13 a copy on which code is traced has it too."""
_MARKS = frozenset({"_is_hf_initialized"})
"""Attributes that a library sets on parameters while it makes them, and reads nowhere else."""

_CHANGE = "hand plain tensors to the cached function, and return such, as .to_local() gives them"


def reason_with_place(error: NotPortable, root: types.CodeType) -> str:
    """The reason of a refusal, with the place of the traced function."""
    place = location.Place(root.co_filename, root.co_firstlineno, root.co_name, "")
    return location.reason(str(error), place, _CHANGE)
