"""Says one cause once: joins failed conditions that one change in a process brings about."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.conditions.data import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FEW = 3
_OF_A_MODEL = ("._parameters[", "._buffers[")
_CONVERTED = (": dtype was ", ": device was ")
_TOLD = re.compile(r"(?:os\.environ\[|source of )('[^']*'|\S+)(?:\]| changed at )")
_OTHER_CODE = re.compile(r" was (\S+) \(code \w+\), is \1 \(code \w+\)$")
_VARIABLES = ".environ._data"
_SIZES = re.compile(r".+?: size was \(([^()]*)\), is \(([^()]*)\)")
_OTHER_PROPERTIES = re.compile(r"\b(type|dtype|device|requires_grad) was ")


class Failed(NamedTuple):
    """One condition that does not hold: what it is about, and why it does not hold, in words."""

    kind: Kind | None
    path: str
    text: str


def kind_of(failed: Sequence[Failed]) -> str:
    """What the first of these conditions is about, as one of `counters.MISS_REASONS`."""
    kind = failed[0].kind if failed else None
    if kind in _OF_TENSORS:
        return "tensors"
    if kind in _OF_TORCH:
        return "settings"
    return "code" if kind is not None and kind >= Kind.FUNCTION and kind not in _ASKED else "values"


_OF_TENSORS = (Kind.TENSOR, Kind.SHAPE)
_OF_TORCH = (Kind.STATE, Kind.THREADS, Kind.DEVICE)
_ASKED = (Kind.GROUP, Kind.ANSWER)  # source facts that are about no code


def reasons(failed: Sequence[Failed]) -> Iterator[str]:
    """One text for each cause, in the order of the conditions."""
    alike: dict[object, list[Failed]] = defaultdict(list)
    for each in failed:
        alike[_symptom(each)].append(each)
    told = {match[1] for each in failed if (match := _TOLD.match(each.text))}
    for same in alike.values():
        if len(same) >= _FEW:
            yield _join_failures(same)
        else:
            yield from (each.text for each in same if not _repeats(each.text, told))


def _symptom(failed: Failed) -> object:
    """What failed conditions have in common that are joined."""
    rest = failed.text.removeprefix(failed.path)
    if failed.kind is Kind.TENSOR:
        return failed.kind, rest
    if failed.kind is Kind.EQUALS:  # such as `training` of many modules
        return failed.kind, failed.path.rpartition(".")[2], rest
    return failed.text


def _join_failures(failed: Sequence[Failed]) -> str:
    first, second, *_ = failed
    others = f"{first.text}; the same of {second.path} and others"
    of_a_model = sum(any(mark in each.path for mark in _OF_A_MODEL) for each in failed)
    converted = any(mark in first.text for mark in _CONVERTED)
    return f"{others}, as after .to() of a model" if converted and of_a_model >= _FEW else others


def _repeats(text: str, told: set[str]) -> bool:
    """Whether a reason is about a variable of the environment, or code, that is told already."""
    function = _OTHER_CODE.search(text)
    if function is not None:
        return function[1] in told
    return text.endswith(_VARIABLES) and any(f"b{name} " in text for name in told)


def with_advice(found: tuple[str, ...]) -> tuple[str, ...]:
    """Reasons why a graph with fixed sizes does not fit, and whether one with dynamic sizes would.

    Torch compiles for the sizes 0 and 1 apart, also with `dynamic=True`.
    """
    if not all(map(_differs_in_sizes, found)):
        return found
    return *found[:-1], f"{found[-1]}; dynamic=True would serve both"


def _differs_in_sizes(text: str) -> bool:
    sizes = _SIZES.match(text)
    if sizes is None or _OTHER_PROPERTIES.search(text):
        return False
    was, now = (part.strip(",").split(", ") for part in sizes.groups())
    pairs = [pair for pair in zip(was, now, strict=False) if pair[0] != pair[1]]
    open_to_all = all(each.isdecimal() and int(each) > 1 for pair in pairs for each in pair)
    return len(was) == len(now) and bool(pairs) and open_to_all
