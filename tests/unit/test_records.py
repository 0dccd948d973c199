"""Classes of `records` do what those of the standard library do."""

import copy
import dataclasses
import enum
import pickle
import typing
import weakref

import pytest

from npugx_cache import records


def tuple_with(base):
    class Place(base):
        """A place."""

        file: str
        line: int = 1
        code: str = ""

        def shown(self):
            return f"{self.file}:{self.line}"

    return Place


def numbers_with(base):
    class Colour(base):
        """A colour."""

        RED = 1
        BLUE = 3

        @property
        def twice(self):
            return 2 * self

    return Colour


def dataclasses_with(made, field):
    @made(frozen=True, slots=True)
    class Plain:
        name: str
        size: int = 2
        seen: set = field(default_factory=set)

        @property
        def twice(self):
            return 2 * self.size

    @made(frozen=True, slots=True, kw_only=True)
    class Named:
        name: str
        size: int = 2

    @made(frozen=True, slots=True, kw_only=True)
    class Derived(Named):
        more: tuple

    return Plain, Named, Derived


OURS, THEIRS = tuple_with(records.NamedTuple), tuple_with(typing.NamedTuple)
OUR_CLASSES = Plain, Named, Derived = dataclasses_with(records.dataclass, records.field)
THEIR_CLASSES = dataclasses_with(dataclasses.dataclass, dataclasses.field)
BOTH = pytest.mark.parametrize(("place", "classes"), [(OURS, OUR_CLASSES), (THEIRS, THEIR_CLASSES)])
for _cls in (OURS, *OUR_CLASSES):  # where pickle looks for the classes
    _cls.__qualname__ = _cls.__name__
Place = OURS
Colour = numbers_with(records.IntEnum)
Colour.__qualname__ = "Colour"


@BOTH
def test_a_named_tuple(place, classes):
    one = place("a.py", code="x")
    assert one == ("a.py", 1, "x")
    assert (one.file, one.line, one.code, one.shown()) == ("a.py", 1, "x", "a.py:1")
    assert repr(one) == "Place(file='a.py', line=1, code='x')"
    assert one._replace(line=3) == place._make(["a.py", 3, "x"]) == place("a.py", 3, "x")
    assert one._asdict() == {"file": "a.py", "line": 1, "code": "x"}
    assert (place._fields, place._field_defaults) == (
        ("file", "line", "code"),
        {"line": 1, "code": ""},
    )
    assert hash(one) == hash(tuple(one))
    assert (type(place), place.__mro__[-2:]) == (type, (tuple, object))
    assert (type(copy.deepcopy(one)), place.__doc__) == (place, "A place.")
    for wrong in (lambda: place(), lambda: place(1, 2, 3, 4), lambda: place(1, file=2)):
        with pytest.raises(TypeError):
            wrong()
    for wrong in (lambda: place(1, other=2), lambda: place._make([])):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="other"):
        one._replace(other=1)
    with pytest.raises(AttributeError):
        one.line = 2
    with pytest.raises(AttributeError):
        one.new = 2


@BOTH
def test_a_dataclass(place, classes):
    plain, named, derived = classes
    one = plain("a")
    assert (one.name, one.size, one.seen, one.twice) == ("a", 2, set(), 4)
    assert one.seen is not plain("a").seen
    assert one == plain("a", 2, set()) == plain(name="a")
    assert one != plain("b")
    assert named(name="a") != ("a", 2)
    assert named(name="a") != derived(name="a", more=())
    assert hash(named(name="a")) == hash(named(name="a", size=2)) == hash(("a", 2))
    shown = repr(derived(name="a", more=(1,)))
    assert shown.rpartition(".")[2] == "Derived(name='a', size=2, more=(1,))"
    for wrong in (
        lambda: plain(),
        lambda: plain("a", 1, set(), 4),
        lambda: plain("a", name="b"),
        lambda: plain("a", other=1),
        lambda: named("a"),
        lambda: derived(name="a"),
    ):
        with pytest.raises(TypeError):
            wrong()
    for wrong in (lambda: setattr(one, "size", 3), lambda: delattr(one, "size")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            wrong()
    with pytest.raises((AttributeError, TypeError)):
        one.new = 1
    assert not hasattr(one, "__dict__")


@BOTH
def test_the_functions_of_dataclasses_take_a_dataclass(place, classes):
    _, named, derived = classes
    one = derived(name="a", more=())
    assert dataclasses.is_dataclass(one)
    assert [field.name for field in dataclasses.fields(derived)] == ["name", "size", "more"]
    assert [field.name for field in dataclasses.fields(named)] == ["name", "size"]
    assert dataclasses.fields(named)[1].default == 2
    assert dataclasses.asdict(one) == {"name": "a", "size": 2, "more": ()}
    assert dataclasses.replace(one, size=5) == derived(name="a", size=5, more=())
    assert copy.deepcopy(one) == one


def test_a_record_is_replaced_pickled_and_referred_to():
    one = Named(name="a")
    assert records.replace(one, size=7) == Named(name="a", size=7)
    with pytest.raises(TypeError):
        records.replace(one, other=7)
    for value in (Place("a.py", 3), one, Plain("b", 3), Derived(name="c", more=(1,))):
        again = pickle.loads(pickle.dumps(value))
        assert (again, type(again)) == (value, type(value))

    @records.dataclass(frozen=True, slots=True, weakref_slot=True)
    class Kept:
        name: str

    kept = Kept("a")
    assert weakref.ref(kept)() is kept
    with pytest.raises(TypeError):
        records.dataclass(frozen=False, slots=True)


@pytest.mark.parametrize("base", [records.IntEnum, enum.IntEnum])
def test_an_enumeration(base):
    colour = numbers_with(base)
    red, blue = colour
    assert (red, blue, colour.RED, colour["BLUE"], colour(3)) == (1, 3, 1, 3, 3)
    assert colour(1) is colour.RED is red
    assert isinstance(red, int)
    assert isinstance(red, colour)
    assert (red.name, red.value, repr(red), str(red), f"{red}", red.twice) == (
        *("RED", 1, "<Colour.RED: 1>", "1", "1", 2),
    )
    assert (type(red.value), len(colour), list(colour.__members__)) == (int, 2, ["RED", "BLUE"])
    assert (red in colour, {red: 1}[1], copy.deepcopy(red) is red) == (True, 1, True)
    with pytest.raises(ValueError, match="2 is not a valid"):
        colour(2)
    with pytest.raises(KeyError):
        colour["GREEN"]


def test_a_number_is_pickled():
    assert pickle.loads(pickle.dumps(Colour.BLUE)) is Colour.BLUE


def test_what_records_do_not_know_is_refused():
    with pytest.raises(TypeError, match="Own: no __post_init__; of a field only its default"):

        @records.dataclass(frozen=True, slots=True)
        class Own:
            size: int

            def __post_init__(self):
                pass

    for default in (records.field(default=1, compare=False), records.field(), [1]):
        with pytest.raises(TypeError, match="of a field only its default"):
            records.dataclass(frozen=True, slots=True)(
                type("Other", (), {"__annotations__": {"size": "int"}, "size": default})
            )
