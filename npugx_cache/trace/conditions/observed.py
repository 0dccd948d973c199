"""Turns observations into conditions, or refuses the trace.

An observation about a place in the guard tree becomes a check there, and one about something with a
portable name becomes a source fact. What can't be checked in another process is refused. What no
condition at all can check does not come here: `trace.dynamo` refuses the trace before.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from functools import partial
from itertools import filterfalse
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import location
from npugx_cache.conditions import Kind, Step, set_order
from npugx_cache.conditions.code_watch import ABSENT, is_fixed, looked_up, special_names
from npugx_cache.conditions.data import CALL
from npugx_cache.conditions.process import encode_answer
from npugx_cache.conditions.source_facts import (
    answer_facts,
    captured_values,
    class_facts_of,
    function_value_facts,
    import_facts,
    lookup_facts,
    method_facts,
    tensor_method_facts,
    value_fact,
)
from npugx_cache.config import environment_variable
from npugx_cache.portable import (
    NotPortable,
    OnlyHere,
    code_hash,
    encode,
    function_chain,
    is_covered_class,
    name_of,
)
from npugx_cache.trace.conditions.source_facts import names_of
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.refuse import NotEager

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator

    from npugx_cache.conditions import Check
    from npugx_cache.conditions.code_watch import Row
    from npugx_cache.portable import Plain
    from npugx_cache.trace.conditions.builder import TreeBuilder
    from npugx_cache.trace.conditions.source_facts import Owners
    from npugx_cache.trace.observe.observation import Observation
    from npugx_cache.trace.observe.set_history import Walk


def add_observed(
    builder: TreeBuilder, observed: Iterable[Observation], owners: Owners
) -> tuple[Check, ...]:
    """Add checks to the tree, and give the source facts. Raises `NotPortable`.

    `owners` are those of the traced code.
    """
    found: dict[Question, list[tuple[Any, Any]]] = {question: [] for question in _FACTS}
    made: dict[type, location.Place | None] = {}
    values: set[Check] = set()
    attributes: dict[tuple[types.FunctionType, str], location.Place | None] = {}
    for each in observed:
        _refuse_nameless(each)
        _refuse_changed(each)
        if each.question in _FACTS:
            found[each.question].append((each.owner, each.argument))
        elif each.question is Question.SET_ORDER:
            _add_order(builder, each, owners)
        elif each.question is Question.METHODS:
            made[each.owner] = each.where
        elif each.question is Question.VALUE:
            values.add(_value(each))
        elif each.question is Question.FUNCTION_VALUE:
            attributes[each.owner, each.argument] = each.where
        elif each.question not in _ELSEWHERE and not _add_check(builder, each):
            raise NotPortable(f"no condition follows from an observation of {each.question.name}")
    facts = [fact for question, rows in found.items() for fact in _FACTS[question](rows)]
    bodies = ((base, name) for cls in made for base in cls.__mro__ for name in vars(base).copy())
    return (
        *facts,
        *sorted(values),
        *function_value_facts(attributes, (*found[Question.NAME], *bodies) if attributes else ()),
        *method_facts(made, lambda function: id(function.__code__) in owners),
    )


def _add_check(builder: TreeBuilder, each: Observation) -> bool:
    """Add what an observation demands of places in the tree; False if it demands nothing there."""
    if each.question in _PLACES:
        step, kind, argument = _PLACES[each.question]
        builder.check(builder.step(-1, step, each.owner), kind, argument(each))
    elif each.question is Question.GENERATED:
        builder.check(builder.step(-1, Step.CALLED, list(each.owner)), Kind.EQUALS, each.argument)
    elif each.question is Question.HIDDEN:
        builder.check(builder.step(-1, *each.owner), Kind.NOT_CONTAINS, each.argument)
    elif each.question is Question.CHILD:
        if not builder.in_compiler(each.owner):
            builder.check_child(builder.node(each.owner), each.argument)
    elif each.question is Question.APART:
        # A setting of torch's that the key holds is compared with "not set": no place leads there.
        sources = filterfalse(builder.in_compiler, each.owner)
        builder.tell_apart(map(builder.node, sources))
    else:
        return False
    return True


_PLACES: dict[Question, tuple[Step, Kind, Callable[[Observation], Plain]]] = {
    Question.ENVIRONMENT: (
        Step.ENVIRONMENT,
        Kind.EQUALS,
        lambda each: encode(environment_variable(each.owner)),
    ),
    Question.ANSWER: (Step.ANSWER, Kind.EQUALS, lambda each: encode_answer(each.owner)),
}
"""The step that leads to the owner from the root of the tree, and the check there."""

_FACTS: dict[Question, Callable[[list[tuple[Any, Any]]], tuple[Check, ...]]] = {
    Question.NAME: lookup_facts,
    Question.SUBCLASS: lambda pairs: class_facts_of(pairs, (), ()),
    Question.MEMBERS: lambda pairs: class_facts_of((), [cls for cls, _ in pairs], ()),
    Question.SPECIAL_NAMES: lambda pairs: class_facts_of((), (), [cls for cls, _ in pairs]),
    Question.CONSTANT: answer_facts,
    Question.TENSOR_METHOD: lambda pairs: tensor_method_facts(name for _, name in pairs),
    Question.IMPORT: lambda pairs: import_facts(name for _, name in pairs),
}
"""The facts of one question, by owner and argument; the order of questions is that of the facts."""

_ELSEWHERE = frozenset(
    {
        Question.SUBCLASSES,  # torch's guards are the condition
        Question.SET_CALLED,  # no other trace can show that the order of a set does not matter
        Question.KEY_ORDER,  # matters to the caller frame, and to a graph for this process alone
        Question.THREAD_LOCAL,  # a stored frame writes them, Dynamo's own need not
        *(Question.DEVICE, Question.INDEX),  # `trace.device` looks at the graph as well
    }
)
"""Questions whose consequence is not a condition."""


def _add_order(builder: TreeBuilder, each: Observation, owners: Owners) -> None:
    walk: Walk = each.argument
    if walk.made is None:
        raise OnlyHere(_unknown_order(each))
    if not set_order.is_same_everywhere(walk.made):
        made = set_order.replace_nodes(walk.made, partial(_leaf, builder, each, owners))
        builder.check(CALL, Kind.ORDER, [made, walk.order])


def _refuse_nameless(each: Observation) -> None:
    """Refuse to ask whether a class is a kind of an abstract one, if one of them has no name.

    Somebody may register any class with an abstract one, or not. A class is always a kind of
    itself.
    """
    if each.question is not Question.SUBCLASS or each.owner is each.argument:
        return
    cls, abstract = each.owner, each.argument
    named = is_covered_class(cls) or bool(name_of(cls))
    if isinstance(abstract, ABCMeta) and not (named and name_of(abstract)):
        nameless = abstract if named else cls
        what = (
            f"no name leads to {nameless.__qualname__}, so that nobody knows in another process "
            f"whether {cls.__qualname__} is a {abstract.__qualname__}"
        )
        change = "define the class at the top level of a module"
        raise OnlyHere(location.reason(what, each.where, change))


def _value(each: Observation) -> Check:
    try:
        return value_fact(each.owner, each.argument)
    except NotPortable as error:
        what = f"the value of {each.owner.__qualname__}.{each.argument} has no guard ({error})"
        change = "define the class at the top level of a module"
        raise type(error)(location.reason(what, each.where, change)) from None


def _leaf(builder: TreeBuilder, each: Observation, owners: Owners, place: int) -> Plain:
    leaf = each.argument.leaves[place]
    if leaf.code is None:
        return ["node", builder.node(leaf.source)]
    code = code_hash(leaf.code)
    for module, name in names_of(leaf.code, owners.get(id(leaf.code), [])):
        try:
            if set_order.constant(module, name, code, leaf.place) is leaf.value:
                return ["constant", module, name, code, leaf.place]
        except NotPortable:
            continue
    raise OnlyHere(_unknown_order(each))


def _unknown_order(each: Observation) -> str:
    what = "a set is walked, the order of which can't be checked in another process"
    return location.reason(what, each.where, "walk sorted(...) of it")


# What has to hold in this process alone, where no class needs a portable name.


def is_asked_again_here(each: Observation) -> bool:
    """Whether a later call of this process asks the question again, or can't get another answer.

    A question that is not known here counts as one that nobody asks again.
    """
    if each.question is Question.SET_ORDER:
        return not each.argument.may_differ_here()
    if each.question is Question.HIDDEN:
        return each.owner[0] is Step.NAMESPACE
    return each.question in _ASKED_AGAIN


_ASKED_AGAIN = frozenset(
    {
        *(Question.NAME, Question.VALUE, Question.FUNCTION_VALUE, Question.METHODS),  # `rows_here`
        *(Question.SPECIAL_NAMES, Question.SUBCLASS),  # `classes_here` and `pairs_here`
        Question.TENSOR_METHOD,  # `rows_here`
        Question.IMPORT,  # it is imported
        Question.SUBCLASSES,  # torch's guards
        Question.DEVICE,  # a constant, or torch's guards
    }
)


def rows_here(observed: Iterable[Observation]) -> Iterator[Row]:
    """Names in classes, which must be what they are now. Raises `NotPortable`."""
    yield from special_names(torch.Tensor)
    for each in observed:
        if each.question in (Question.NAME, Question.VALUE):
            yield from looked_up(each.owner, each.argument)
        elif each.question is Question.SPECIAL_NAMES:
            for base in each.owner.__mro__:
                yield from special_names(base)
        elif each.question is Question.FUNCTION_VALUE:
            yield _attribute_of(each.owner, each.argument)
        elif each.question is Question.METHODS:
            yield from map(_methods, filterfalse(is_covered_class, each.owner.__mro__))
        elif each.question is Question.TENSOR_METHOD:
            yield from looked_up(torch.Tensor, each.argument)
        elif each.question is Question.HIDDEN:
            yield sys.modules[each.owner[1]], {each.argument: ABSENT}


def classes_here(observed: Iterable[Observation]) -> list[type]:
    """Classes whose bases and metaclass must be what they are now."""
    return [each.owner for each in observed if each.question is Question.SPECIAL_NAMES]


def _refuse_changed(each: Observation) -> None:
    """Refuse a trace during which a class was made of which the code had asked the subclasses.

    The guards hold the subclasses at the end of the trace. They would let the graph run that was
    made with fewer, such as when the code imports a module of subclasses after the question.
    """
    if each.question is not Question.SUBCLASSES:
        return
    if tuple(each.owner.__subclasses__()) != each.argument:
        what = f"the subclasses of {each.owner.__qualname__} changed during the trace"
        raise NotEager(location.reason(what, each.where, "make the classes before the first call"))


def pairs_here(observed: Iterable[Observation]) -> list[tuple[type, type]]:
    """Classes of which the first is derived from the second, or not, as now."""
    asked = (each for each in observed if each.question is Question.SUBCLASS)
    return [(each.owner, each.argument) for each in asked]


def _attribute_of(function: types.FunctionType, name: str) -> Row:
    value = vars(function).get(name, ABSENT)
    if not (is_fixed(value) or (value is ABSENT and not hasattr(function, name))):
        raise NotPortable(f"the attribute {name} of {function.__qualname__} has no guard")
    return function, {name: value}


def _methods(cls: type) -> Row:
    functions = {name: each for name, each in vars(cls).copy().items() if function_chain(each)}
    for name, member in functions.items():
        if not all(
            is_fixed(value) for each in function_chain(member) for value in captured_values(each)
        ):
            raise NotPortable(f"{cls.__qualname__}.{name} captured what can change in place")
    return cls, functions


# What is asked once more, in another trace.


def order_to_flip(observed: Iterable[Observation]) -> Observation | None:
    """The one walk over a set of two elements that the trace itself filled, if there is but one.

    A trace that walks the set the other way round shows whether the order matters at all.
    """
    walks = [each for each in observed if each.question is Question.SET_ORDER]
    walks = [each for each in walks if _is_made_here(each.argument)]
    called = any(each.question is Question.SET_CALLED for each in observed)
    if called or len(walks) != 1 or len(walks[0].argument.order) != 2:
        return None
    return walks[0]


def _is_made_here(walk: Walk) -> bool:
    if walk.made is None or set_order.is_same_everywhere(walk.made):
        return False
    return not set_order.nodes_in([walk.made, walk.order])
