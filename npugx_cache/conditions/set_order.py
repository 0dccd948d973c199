"""Conditions on the order of a set that a trace walked.

The order of a set follows from the hashes of its elements and from its history. Hashes of strings
differ between processes. So a condition stores how the set came about and the order that the trace
saw; to check the condition, we make the set again in the same way and compare.

How a set came about, as nested lists:
["node", n]                              the value of a node of the guard tree
["constant", module, name, hash, index]  a constant in the code of a function
["filled", type, elements]               elements that were added one after the other
["list", elements]                       an operand that is no set and no dict
["dict", keys]                           a dict as an operand: a set makes room for all at once
["without", set, elements]               a set after removals
["call", method, operand, ...]           the result of a method such as `union`
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from npugx_cache.portable import (
    NotPortable,
    all_code,
    code_hash,
    decode,
    describe,
    encode,
    expression,
    function_chain,
    look_up,
    same,
    seal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from npugx_cache.conditions.explain import Wording
    from npugx_cache.portable import Plain

OPERATIONS = frozenset(
    {
        *("union", "intersection", "difference", "symmetric_difference", "copy"),
        *("__or__", "__and__", "__sub__", "__xor__"),
    }
)
"""Methods that return a new set."""

MADE = {"set": set, "frozenset": frozenset}


def order(made: Plain, values: Sequence[Any]) -> list[Plain]:
    """The elements in the order in which this process walks them; raises anything."""
    if made[0] == "without":
        return [each for each in order(made[1], values) if each not in made[2]]
    return [encode(each) for each in live(made, values)]


def holds(condition: Plain, values: Sequence[Any]) -> bool:
    made, expected = condition
    return same(order(made, values), expected)


def live(made: Plain, values: Sequence[Any]) -> Any:
    """The set itself; one after removals can't be made again."""
    match made:
        case ["node", node]:
            return values[node]
        case ["constant", module, name, code, index]:
            return constant(module, name, code, index)
        case ["filled", kind, elements]:
            return MADE[kind](map(decode, elements))
        case ["list", elements]:
            return list(map(decode, elements))
        case ["dict", keys]:
            return dict.fromkeys(map(decode, keys))
        case ["call", "update", base, other] if base[0] != "node":
            changed = live(base, values)  # an object of our own: the user's sets stay as they are
            changed.update(live(other, values))
            return changed
        case ["call", name, base, *others]:
            operands = [live(each, values) for each in (base, *others)]
            if name in MADE:
                return MADE[name](*operands)
            if name in OPERATIONS:
                return getattr(operands[0], name)(*operands[1:])
    raise NotPortable(f"no way to make a set: {str(made)[:60]}")


@functools.lru_cache(maxsize=1024)
def constant(module: str, name: str, code: str, index: int) -> frozenset[Any]:
    """A constant of the code with this hash, in or behind the function of that name."""
    for function in function_chain(look_up(module, name)):
        for each in all_code(function.__code__):
            if code_hash(each) == code and type(each.co_consts[index]) is frozenset:
                found: frozenset[Any] = each.co_consts[index]
                return found
    raise NotPortable(f"{module}.{name} has no such constant")


def is_same_everywhere(made: Plain) -> bool:
    """Whether every process walks the set in the same order: no hash in it differs."""
    if made[0] in ("filled", "list", "dict"):
        return all(map(_hash_is_fixed, made[-1]))
    if made[0] == "call":
        return all(map(is_same_everywhere, made[2:]))
    return made[0] == "without" and is_same_everywhere(made[1])


def _hash_is_fixed(element: Plain) -> bool:
    if isinstance(element, list):
        if element[0] == "tuple":
            return all(map(_hash_is_fixed, element[1]))
        return element[0] in ("int", "bool") or (element[0] == "float" and element[1] != "nan")
    return isinstance(element, int)


def replace_nodes(made: Plain, leaf: Callable[[int], Plain]) -> Plain:
    """The condition with the result of `leaf` in the place of each node."""
    match made:
        case ["node", node]:
            return leaf(node)
        case ["call", name, *operands]:
            return ["call", name, *(replace_nodes(each, leaf) for each in operands)]
        case ["without", base, elements]:
            return ["without", replace_nodes(base, leaf), elements]
    return made


def renumber_nodes(condition: Plain, place: Mapping[int, int]) -> Plain:
    """The condition for another numbering of nodes."""
    made, expected = condition
    return [replace_nodes(made, lambda node: ["node", place[node]]), expected]


def seal_texts(condition: Plain, known: Container[object]) -> Plain:
    """The condition without the texts in a set that was there before; a literal needs its own."""
    made, expected = condition
    return [made, [seal(each, known) for each in expected]] if nodes_in(condition) else condition


def reveal_texts(condition: Plain, values: Sequence[Any]) -> Plain:
    """The condition with the live texts in the place of sealed ones, once it has held of them."""
    made, expected = condition
    found = order(made, values)
    return [made, found if same(found, expected) else expected]


def nodes_in(condition: Plain) -> set[int]:
    """The nodes whose values a condition is about."""
    found: set[int] = set()

    def leaf(node: int) -> Plain:
        found.add(node)
        return ["node", node]

    replace_nodes(condition[0], leaf)
    return found


def wording(made: Plain, name: Callable[[int], str]) -> str:
    """A set as Python would make it; `name` gives the text of a node."""
    match made:
        case ["node", node]:
            return name(node)
        case ["constant", module, function, _, index]:
            return f"{module}.{function}.__code__.co_consts[{index}]"
        case ["filled", kind, elements]:
            return f"{kind}({describe(['list', elements])})"
        case ["dict", keys]:
            return f"dict.fromkeys({describe(['list', keys])})"
        case ["call", operation, base, *others]:
            parts = [wording(each, name) for each in (base, *others)]
            if operation in MADE:
                return f"{operation}({parts[0]})"
            return f"{parts[0]}.{operation}({', '.join(parts[1:])})"
        case ["without", base, elements]:
            return f"{wording(base, name)} without {describe(['list', elements])}"
    return describe(made)


def as_python(condition: Plain, name: Callable[[int], str]) -> str:
    made, expected = condition
    return f"list({wording(made, name)}) == {expression(['list', expected])}"


_KEEPS_THE_ORDER = "; sorted(), or one PYTHONHASHSEED for all processes, keeps the order"


def failure(condition: Plain, values: Sequence[Any], words: Wording) -> str:
    """Why a condition does not hold."""
    made, expected = condition
    advice = ""
    try:
        found = order(made, values)
        now = f"is {words.describe_data(['list', found])}"
        are_alike = all(any(same(each, was) for each in found) for was in expected)
        if are_alike and any(isinstance(each, str) for each in found):
            advice = _KEEPS_THE_ORDER
    except Exception as error:  # noqa: BLE001 - user code raises anything
        now = f"can't be told: {error}"
    was = describe(["list", expected])
    return f"{wording(made, words.path)}: the order of the set was {was}, {now}{advice}"
