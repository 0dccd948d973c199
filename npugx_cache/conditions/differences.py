"""Says in words how the conditions of two graphs differ. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.conditions import paths, set_order, shapes, torch_state
from npugx_cache.conditions.data import Kind
from npugx_cache.conditions.explain import Wording
from npugx_cache.portable import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npugx_cache.conditions.data import Check, Conditions

_CODE = {
    Kind.FUNCTION: "source of",
    Kind.METHOD: "source of",
    Kind.FILE: "source of",
    Kind.TENSOR_METHOD: "code of",
    Kind.MEMBERS: "members of",
    Kind.SPECIAL_NAMES: "special methods of",
}
"""Source facts that are recorded as a digest, and what the digest is of."""


class Differences(NamedTuple):
    """`changed` says what differs; the others, which conditions one of two graphs has alone."""

    changed: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


def between(first: Conditions, second: Conditions) -> Differences:
    """The differences of the conditions of two graphs. Raises anything for malformed conditions."""
    a, b = dict(_subjects(first)), dict(_subjects(second))
    changed = [
        f"{subject} changed" if value == _DIGEST else f"{subject} was {value}, is {b[subject][0]}"
        for subject, (value, compared) in a.items()
        if subject in b and b[subject][1] != compared
    ]
    changed.extend(torch_state.differences(first.state, second.state))
    return Differences(tuple(changed), tuple(_alone(a, b)), tuple(_alone(b, a)))


_DIGEST = "<digest>"
_Found = tuple[str, object]
"""The value that a condition demands: as a text for people, and as it is compared."""


def _alone(a: Mapping[str, _Found], b: Mapping[str, _Found]) -> Iterator[str]:
    for subject, (value, _) in a.items():
        if subject not in b:
            yield f"{subject} == {value}" if value and value != _DIGEST else subject


def _subjects(tree: Conditions) -> Iterator[tuple[str, _Found]]:
    """What each condition is about, and the value that it demands.

    A condition that demands no value is a subject in whole.
    """
    words = Wording(tree)
    for check in tree.all_checks():
        row = _ROWS.get(check.kind)
        if row is not None:
            for subject, value in row(words, words.path(check.node), check):
                yield paths.as_written(subject), value
        elif check.kind in _CODE:
            module, name, digest = check.arg
            yield f"{_CODE[check.kind]} {module}.{name}", (_DIGEST, digest)
        elif check.kind is Kind.LOOKUP:
            module, cls, *found = check.arg
            for name, provider in zip(found[::2], found[1::2], strict=True):
                yield f"{_kind(check)} of {module}.{cls}.{name}", (provider, provider)
        elif check.kind >= Kind.FUNCTION:
            module, name, found = check.arg
            yield f"{_kind(check)} of {module}.{name}", (found, found)
        else:
            about = paths.as_written(words.path(check.node))
            yield f"{_kind(check)}: {about} {describe(check.arg)}".strip(), ("", "")


def _kind(check: Check) -> str:
    return check.kind.name.lower().replace("_", " ")


def _tensor(words: Wording, path: str, check: Check) -> Iterator[tuple[str, _Found]]:
    fact = words.fact(check.arg)
    values = {
        "type": words.ident(fact.type),
        "dtype": fact.dtype,
        "device": fact.device,
        "requires_grad": str(fact.requires_grad),
        "size": str(fact.size).replace("None", "*"),
        "stride": str(fact.stride).replace("None", "*"),
    }
    for name, value in values.items():
        yield f"{path}: {name}", (value, value)


def _one(
    say: Callable[[Wording, str, Any], tuple[str, object]],
) -> Callable[[Wording, str, Check], Iterator[tuple[str, _Found]]]:
    def row(words: Wording, path: str, check: Check) -> Iterator[tuple[str, _Found]]:
        subject, value = say(words, path, check.arg)
        yield subject, (str(value), value)

    return row


def _whole(
    say: Callable[[Wording, str, Any], str],
) -> Callable[[Wording, str, Check], Iterator[tuple[str, _Found]]]:
    return _one(lambda words, path, arg: (say(words, path, arg), ""))


_ROWS: dict[Kind, Callable[[Wording, str, Check], Iterator[tuple[str, _Found]]]] = {
    Kind.TYPE: _one(lambda words, path, arg: (f"type({path})", words.ident(arg))),
    Kind.IDENTITY: _one(lambda words, path, arg: (path, words.ident(arg))),
    Kind.EQUALS: _one(lambda _, path, arg: (path, describe(arg))),
    Kind.TENSOR: _tensor,
    Kind.LENGTH: _one(lambda _, path, arg: (f"len({path})", arg)),
    Kind.ABSENT_ATTRS: _whole(lambda _, path, arg: f"{path} has no own {', '.join(arg)}"),
    Kind.HAS_ATTR: _whole(lambda _, path, arg: f"{path} has an attribute {arg}"),
    Kind.LACKS_ATTR: _whole(lambda _, path, arg: f"{path} has no attribute {arg}"),
    Kind.CONTAINS: _whole(lambda _, path, arg: f"{describe(arg)} in {path}"),
    Kind.NOT_CONTAINS: _whole(lambda _, path, arg: f"{describe(arg)} not in {path}"),
    Kind.KEYS: _one(lambda _, path, arg: (f"list({path})", describe(arg))),
    Kind.KEY_SET: _one(lambda _, path, arg: (f"set({path})", describe(arg))),
    Kind.NOT_NONE: _whole(lambda _, path, _arg: f"{path} is not None"),
    Kind.UNSHADOWED: _one(lambda _, path, names: (f"what {path} gives from its dicts", names[:3])),
    Kind.ITERATOR: _one(lambda _, path, arg: (f"remaining({path})", describe(arg))),
    Kind.SAME: _whole(lambda words, _, pair: " is ".join(map(words.path, pair))),
    Kind.DIFFERENT: _whole(
        lambda words, _, group: f"all different: {', '.join(map(words.path, group))}"
    ),
    Kind.SHAPE: _whole(lambda words, _, arg: shapes.wording(arg, words.path)),
    Kind.ORDER: _whole(lambda words, _, arg: set_order.as_python(arg, words.path)),
    Kind.STATE: lambda *_: iter(()),  # `between` compares the states as wholes
    Kind.IMPORT: _whole(lambda _, _path, name: f"{name} is imported"),
    Kind.THREADS: _one(lambda _, _path, count: ("torch.get_num_threads()", count)),
    Kind.DEVICE: _one(lambda _, _path, arg: ("the current device", describe(["device", *arg]))),
}
