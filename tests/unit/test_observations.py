"""What a trace reads without a guard is recorded once, and each question has a consequence."""

from __future__ import annotations

import threading

import pytest

from npugx_cache.conditions import Kind, Step
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.location import Place
from npugx_cache.portable import NotPortable
from npugx_cache.trace.conditions import observed
from npugx_cache.trace.conditions.builder import TreeBuilder
from npugx_cache.trace.conditions.surroundings import refuse_names
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Observation, Question, Recorder
from npugx_cache.trace.observe.set_history import Leaf, Walk

PLACE = Place("model.py", 7, "forward", "for name in names:")
OTHER = Place("model.py", 9, "forward", "list(names)")
REFUSED_BEFORE = (Question.UNCHECKABLE, Question.UNWATCHED)


class Users:
    pass


class Derived(Users):
    limit = 3
    kind = Users

    def method(self):
        return self

    def scaled(self, x, by=2):
        return x * by


@pytest.mark.parametrize("question", [each for each in Question if each not in REFUSED_BEFORE])
def test_every_question_has_one_consequence(question):
    places = (
        observed._FACTS,
        observed._PLACES,
        observed._ELSEWHERE,
        {Question.SET_ORDER, Question.METHODS, Question.VALUE, Question.CHILD},
        {Question.FUNCTION_VALUE, Question.HIDDEN, Question.APART, Question.GENERATED},
    )
    assert sum(question in each for each in places) == 1


@pytest.mark.parametrize("question", REFUSED_BEFORE)
def test_an_observation_without_a_consequence_is_never_skipped(question):
    with pytest.raises(NotPortable, match=question.name):
        observed.add_observed(builder(), [Observation(question, None, "what it is")], {})


def test_an_observation_is_kept_once_where_it_was_made_first():
    recorder = Recorder()
    recorder.note(Question.NAME, Users, "b", PLACE)
    recorder.note(Question.NAME, Users, "a")
    recorder.note(Question.NAME, Users, "b", OTHER)
    found = recorder.observations()
    assert [(each.argument, each.where) for each in found] == [("b", PLACE), ("a", None)]


def test_walks_over_sets_that_came_about_alike_are_one_observation():
    recorder = Recorder()
    for order in (["a", "b"], ["b", "a"]):
        recorder.note(Question.SET_ORDER, None, walk(["filled", "set", ["a", "b"]], order))
    [found] = recorder.observations()
    assert found.argument.order == ["a", "b"]


def test_a_hook_runs_in_traces_of_ours_only_and_in_their_thread():
    seen = []

    @observation.around
    def hook(recorder, original, number):
        seen.append(recorder)
        return -original(number)

    hooked = hook(abs)
    recorder = Recorder()
    elsewhere = []
    with observation.recording(recorder):
        inside = hooked(-3)
        thread = threading.Thread(target=lambda: elsewhere.append(hooked(-3)))
        thread.start()
        thread.join()
    assert (inside, elsewhere, hooked(-3)) == (-3, [3], 3)
    assert seen == [recorder]


def test_what_hooks_remember_is_theirs_and_of_one_trace():
    one, other = Recorder(), Recorder()
    one.state(dict)["a"] = 1
    assert one.state(dict) == {"a": 1}
    assert one.state(list) == []
    assert other.state(dict) == {}
    assert one.observations() == ()


def test_the_first_refusal_of_a_kind_is_the_reason():
    found = [
        Observation(Question.UNCHECKABLE, None, "the base has no guard", PLACE),
        Observation(Question.UNCHECKABLE, None, "something else"),
        Observation(Question.UNWATCHED, None, "torch has no such method", OTHER),
    ]
    reason = observation.refusal(found, Question.UNCHECKABLE)
    assert reason is not None
    assert "the base has no guard at model.py:7" in reason
    assert "do this outside the cached function" in reason
    assert "use a torch" in (observation.refusal(found, Question.UNWATCHED) or "")
    assert observation.refusal(found[2:], Question.UNCHECKABLE) is None


def test_an_owner_that_the_tree_reaches_becomes_a_check_there(monkeypatch):
    monkeypatch.setenv("NPUGX_TEST_OBSERVED", "7")
    tree = builder()
    asked = [
        Observation(Question.ENVIRONMENT, "NPUGX_TEST_OBSERVED"),
        Observation(Question.ANSWER, "getrecursionlimit"),
        Observation(Question.HIDDEN, (Step.NAMESPACE, __name__), "len"),
        Observation(Question.HIDDEN, (Step.OWN_GLOBALS, None), "len"),
    ]
    assert observed.add_observed(tree, asked, {}) == ()
    made = [(tree.nodes[c.node].step, c.kind) for c in tree.checks.values()]
    assert made == [
        (Step.ENVIRONMENT, Kind.EQUALS),
        (Step.ANSWER, Kind.EQUALS),
        (Step.NAMESPACE, Kind.NOT_CONTAINS),
        (Step.OWN_GLOBALS, Kind.NOT_CONTAINS),
    ]


def test_a_class_with_a_portable_name_becomes_a_fact_and_one_without_those_of_its_bases():
    class Local(Users):
        pass

    tree = builder()
    asked = [
        Observation(Question.SUBCLASS, Derived, Users),
        Observation(Question.NAME, Derived, "method"),
        Observation(Question.NAME, Local, "method"),
        Observation(Question.SPECIAL_NAMES, Derived),
        Observation(Question.TENSOR_METHOD, None, "add"),
    ]
    facts = observed.add_observed(tree, asked, {})
    assert [(fact.kind, fact.arg[1]) for fact in facts] == [
        (Kind.LOOKUP, "Derived"),
        (Kind.LOOKUP, "Users"),
        (Kind.SUBCLASS, f"Derived < {__name__}:Users"),
        (Kind.SPECIAL_NAMES, "Derived"),
        (Kind.TENSOR_METHOD, "add"),
    ]
    assert [fact.arg[2::2] for fact in facts[:2]] == [("method",), ("method",)]
    rows = list(observed.rows_here(asked))
    named = {(owner, name) for owner, names in rows for name in names}
    assert named >= {(Local, "method"), (Derived, "__bool__")}
    assert tree.checks == {}


def made_by_a_factory(scale):
    class Local:
        limit = 3

        def grow(self, x):
            return x * scale

    return Local


def test_what_a_traced_method_captured_becomes_a_fact_where_the_class_has_a_name():
    scaled = made_by_a_factory(2)
    traced = {id(function.__code__): [function] for function in (Derived.scaled, scaled.grow)}
    made = Observation(Question.METHODS, Derived)
    [fact] = observed.add_observed(builder(), [made], traced)
    assert (fact.kind, fact.arg[:2]) == (Kind.METHOD, (__name__, "Derived.scaled"))
    assert observed.add_observed(builder(), [made], {}) == ()
    with pytest.raises(
        NotPortable, match=r"grow captured values, and the class has no name at model\.py:7"
    ):
        observed.add_observed(
            builder(), [Observation(Question.METHODS, scaled, None, PLACE)], traced
        )


def test_a_value_in_a_class_becomes_a_fact_where_the_class_has_a_name():
    asked = [Observation(Question.VALUE, Derived, name) for name in ("limit", "kind")]
    facts = observed.add_observed(builder(), asked, {})
    assert [(fact.kind, fact.arg[1]) for fact in facts] == [
        (Kind.CLASS_VALUE, "Derived.kind"),
        (Kind.CLASS_VALUE, "Derived.limit"),
    ]
    assert (Derived, {"limit": 3}) in list(observed.rows_here(asked))
    unnamed = Observation(Question.VALUE, made_by_a_factory(2), "limit", PLACE)
    with pytest.raises(NotPortable, match=r"Local.limit has no guard \(no name .* model\.py:7"):
        observed.add_observed(builder(), [unnamed], {})


def test_an_attribute_of_a_method_becomes_a_fact_where_a_name_leads_to_the_method(monkeypatch):
    monkeypatch.setattr(Derived.scaled, "k", 3, raising=False)
    asked = [
        Observation(Question.NAME, Derived, "scaled"),
        Observation(Question.FUNCTION_VALUE, Derived.scaled, "k", PLACE),
    ]
    [fact] = [f for f in observed.add_observed(builder(), asked, {}) if f.kind is not Kind.LOOKUP]
    assert (fact.kind, fact.arg[1]) == (Kind.FUNCTION_VALUE, "Derived.scaled.k")
    assert (Derived.scaled, {"k": 3}) in list(observed.rows_here(asked))
    with pytest.raises(NotPortable, match=r"k of .*scaled has no guard \(no name .* model\.py:7"):
        observed.add_observed(builder(), asked[1:], {})
    monkeypatch.setattr(Derived.scaled, "k", object())
    with pytest.raises(NotPortable, match=r"k of .*scaled has no guard \(an object .* model\.py:7"):
        observed.add_observed(builder(), asked, {})


def test_hash_is_refused_in_a_function_that_somebody_executed_and_cached():
    space = {}
    exec("def f(x):\n    return hash(x)\n", space)
    code = space["f"].__code__
    owners = {id(code): [space["f"]]}
    with pytest.raises(NotPortable, match=r"hash\(\) gives another number"):
        refuse_names([code], code, owners)
    refuse_names([code], (lambda: None).__code__, owners)  # of a library that generates code


def test_a_set_whose_order_cannot_be_checked_refuses_at_its_line():
    unknown = Observation(Question.SET_ORDER, None, walk(None, []), PLACE)
    with pytest.raises(NotPortable, match=r"can't be checked in another process at model\.py:7"):
        observed.add_observed(builder(), [unknown], {})
    assert not observed.is_asked_again_here(unknown)


def test_the_order_of_a_set_of_texts_is_a_condition_and_that_of_numbers_is_none():
    texts = Observation(Question.SET_ORDER, None, walk(["filled", "set", ["a", "b"]], ["a", "b"]))
    numbers = Observation(Question.SET_ORDER, None, walk(["filled", "set", [1, 2]], [1, 2]))
    tree = builder()
    observed.add_observed(tree, [texts, numbers], {})
    assert [check.kind for check in tree.checks.values()] == [Kind.ORDER]
    assert all(map(observed.is_asked_again_here, (texts, numbers)))


def test_one_set_of_two_elements_that_the_trace_filled_is_walked_the_other_way_too():
    texts = Observation(Question.SET_ORDER, None, walk(["filled", "set", ["a", "b"]], ["a", "b"]))
    others = Observation(Question.SET_ORDER, None, walk(["filled", "set", ["c", "d"]], ["c", "d"]))
    called = Observation(Question.SET_CALLED)
    assert observed.order_to_flip([texts]) is texts
    assert observed.order_to_flip([texts, others]) is None
    assert observed.order_to_flip([texts, called]) is None


def test_a_set_from_outside_may_be_another_at_a_later_call():
    leaf = Leaf({"a", "b"}, source="a source")
    outside = Walk("outside", ["node", 0], ["a", "b"], [leaf])
    asked_again = observed.is_asked_again_here
    assert not asked_again(Observation(Question.SET_ORDER, None, outside))
    assert not asked_again(Observation(Question.KEY_ORDER, None, False))
    assert asked_again(Observation(Question.NAME, Users, "a"))


def test_in_this_process_alone_only_what_somebody_asks_again_may_have_been_asked():
    here = (Step.NAMESPACE, "torch"), (Step.OWN_GLOBALS, None)
    assert [observed.is_asked_again_here(Observation(Question.HIDDEN, at)) for at in here] == [
        True,  # `rows_here` watches the module
        False,
    ]
    for name in ("ENVIRONMENT", "ANSWER", "CONSTANT", "APART", "CHILD", "THREAD_LOCAL"):
        assert not observed.is_asked_again_here(Observation(Question[name])), name


def walk(made, order):
    return Walk(repr(made), made, order, [])


def builder():
    return TreeBuilder(Scope({}, {}), lambda _: (Step.MODULE, "torch"))
