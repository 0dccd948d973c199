"""Programs about Python: how code is spread over functions and classes, and what it is called with.

Like `programs`: each takes `cached` and returns what it computed.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import typing

import torch
from torch import nn

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


# ---- functions


def calls_nested(x):
    def outer(y, factor=2):
        def inner(z):
            return z * factor + x

        return inner(y) + 1

    return outer(x) + outer(x, factor=3)


@program
def nested_functions(cached):
    return [cached(calls_nested)(tensor(3))]


STEPS = [lambda x: x + 1, lambda x: x * 2, torch.relu]
NAMED_STEPS = {"double": lambda x: x * 2, "sine": torch.sin}


def applies_steps(x, names):
    for step in STEPS:
        x = step(x)
    for name in names:
        x = NAMED_STEPS[name](x)
    return x


@program
def lambdas_in_a_list_and_a_dict(cached):
    return [cached(applies_steps)(tensor(3), ["double", "sine"])]


local_lambda = lambda x: x.sin() + 1  # noqa: E731


@program
def a_lambda_itself(cached):
    return [cached(local_lambda)(tensor(3)), cached(lambda x: x.cos() * 2)(tensor(3))]


def wrapping(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


def bare(function):
    def wrapper(x):
        return function(x) + 1

    return wrapper


def with_argument(amount):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) - amount

        return wrapper

    return decorate


@wrapping
def wrapped_helper(x):
    return x + 3


@bare
def bare_helper(x):
    return x * 5


@with_argument(0.25)
def shifted_helper(x):
    return x.cos()


@with_argument(1)
@wrapping
@bare
def thrice_decorated(x):
    return x.sin()


def uses_decorated(x):
    return wrapped_helper(x) + bare_helper(x) + shifted_helper(x) + thrice_decorated(x)


@program
def decorated_helpers(cached):
    return [cached(uses_decorated)(tensor(3))]


@program
def decorated_functions_themselves(cached):
    functions = (wrapped_helper, bare_helper, shifted_helper, thrice_decorated)
    return [cached(function)(tensor(3)) for function in functions]


def scaled_by(x, factor, *, shift=0.0):
    return x * factor + shift


triple = functools.partial(scaled_by, factor=3.0)
shifted = functools.partial(scaled_by, shift=1.5)


def uses_partials(x, extra):
    return triple(x) + shifted(x, 2.0) + extra(x)


@program
def partial_helpers(cached):
    return [cached(uses_partials)(tensor(3), functools.partial(scaled_by, factor=0.5, shift=1))]


def loops_and_comprehensions(xs):
    total = sum([x * i for i, x in enumerate(xs)])
    named = {f"k{i}": x + i for i, x in enumerate(xs) if i % 2 == 0}
    return total, named, [*map(torch.sin, xs)], *zip(xs, reversed(xs), strict=True)


@program
def loops_and_builtins(cached):
    return [cached(loops_and_comprehensions)([tensor(2, seed=i) for i in range(4)])]


def recursive(x, depth):
    return x if depth == 0 else recursive(x * 1.5 + depth, depth - 1)


@program
def recursion(cached):
    return [cached(recursive)(tensor(3), 4)]


def uses_context_and_exceptions(x, table):
    try:
        y = x * table["absent"]
    except KeyError:
        y = x * 7
    with torch.no_grad():
        return y + 1


@program
def exceptions_inside(cached):
    return [cached(uses_context_and_exceptions)(tensor(3), {"present": 1})]


# ---- classes


class Shape:
    sides = 4

    def __init__(self, size):
        self._size = size

    @property
    def size(self):
        return self._size * 2

    @staticmethod
    def half(x):
        return x / 2

    @classmethod
    def by_sides(cls, x):
        return x * cls.sides

    def __call__(self, x):
        return self.half(x) * self.size + self.by_sides(x)

    def __len__(self):
        return self.sides


class Triangle(Shape):
    sides = 3

    @property
    def size(self):
        return self._size * 3

    @staticmethod
    def half(x):
        return Shape.half(x) + 0.5


def uses_objects(x, shapes):
    return sum(shape(x) * len(shape) for shape in shapes)


@program
def properties_and_kinds_of_methods(cached):
    return [cached(uses_objects)(tensor(3), [Shape(1.0), Triangle(2.0)])]


class Layer(nn.Module):
    scale = 2.0

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(width, width)
        self.act = torch.tanh
        self.post = lambda x: x + 1
        self.limits = (0.1, 0.9)

    @property
    def doubled(self):
        return self.scale * 2

    @staticmethod
    def squash(x, lo, hi):
        return x.clamp(lo, hi)

    @classmethod
    def scaled(cls, x):
        return x * cls.scale

    def forward(self, x):
        y = self.post(self.act(self.linear(x))) * self.doubled
        return self.scaled(self.squash(y, *self.limits))


class SubLayer(Layer):
    scale = 0.5

    def forward(self, x):
        return super().forward(x) + getattr(self, "missing", 3)


@program
def module_classes(cached):
    return [cached(kind(4).forward)(tensor(2, 4)) for kind in (Layer, SubLayer)]


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Dynamic:
    def __getattr__(self, name):
        if name.startswith("magic_"):
            return float(name.removeprefix("magic_"))
        raise AttributeError(name)


def reads_odd_objects(x, slotted, dynamic):
    return x * slotted.a + slotted.b + dynamic.magic_3


@program
def slots_and_getattr(cached):
    return [cached(reads_odd_objects)(tensor(3), Slotted(2, tensor(3, seed=1)), Dynamic())]


# ---- arguments


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


def takes_enum(x, mode, level=Level.LOW, flags=Flags.A):
    y = x * 2 if mode is Mode.FAST else x * 3
    y = y * int(level)
    return y + 1 if Flags.B in flags else y


@program
def enum_arguments(cached):
    call = cached(takes_enum)
    x = tensor(3)
    return [
        call(x, Mode.FAST),
        call(x, Mode.EXACT, Level.HIGH),
        call(x, Mode.FAST, flags=Flags.A | Flags.B),
    ]


def takes_dict(batch, scale=1):
    out = {name: value * scale for name, value in batch.items() if isinstance(value, torch.Tensor)}
    out["sum"] = batch["ids"] + batch["nested"]["mask"]
    return out


@program
def dict_of_tensors(cached):
    batch = {"ids": tensor(3), "nested": {"mask": tensor(3, seed=1)}, "label": "x", "w": tensor(3)}
    return [cached(takes_dict)(batch), cached(takes_dict)(batch, scale=2)]


def keyword_only(x, *, alpha, beta=2.0, gamma=None):
    y = x * alpha + beta
    return y if gamma is None else y + gamma


def any_keywords(x, **named):
    for name in sorted(named):
        x = x * named[name] + len(name)
    return x


@program
def keyword_arguments(cached):
    x = tensor(3)
    only, some = cached(keyword_only), cached(any_keywords)
    return [
        only(x, alpha=1.5),
        only(x=x, alpha=2, beta=1, gamma=tensor(3, seed=2)),
        some(x, b=2, a=tensor(3, seed=1)),
        some(x=x),
    ]


class ModelOutput(collections.OrderedDict):
    """The way transformers returns results: a dataclass that is an OrderedDict of its fields."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __setattr__(self, name, value):
        if name in self and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@dataclasses.dataclass
class CausalOutput(ModelOutput):
    logits: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    states: tuple[torch.Tensor, ...] | None = None


def gives_model_output(x):
    return CausalOutput(logits=x * 2, states=(x, x + 1))


@program
def model_output(cached):
    out = cached(gives_model_output)(tensor(3))
    return [list(out.items()), out.logits, out.loss, type(out) is CausalOutput, len(out)]


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: float


@dataclasses.dataclass(frozen=True)
class Settings:
    scale: float
    names: tuple[str, ...] = ("a",)


def takes_structures(point, settings, sizes, choice, nothing):
    y = point.x * point.y * settings.scale + len(settings.names)
    y = y.reshape(sizes) if choice in {"reshape", "view"} else y
    return y if nothing is None else nothing


@program
def structured_arguments(cached):
    call = cached(takes_structures)
    point = Point(tensor(6), 0.5)
    return [
        call(point, Settings(2.0), torch.Size([2, 3]), "reshape", None),
        call(point, Settings(2.0, ("a", "b")), (3, 2), "none", None),
    ]


def takes_odd_values(x, dtype, device, span, nothing, text, blob, whole):
    y = x.to(dtype=dtype, device=device)[span]
    return y * len(text) + len(blob) + whole.real + (0 if nothing is ... else 1)


@program
def odd_arguments(cached):
    call = cached(takes_odd_values)
    return [call(tensor(4), torch.float64, torch.device("cpu"), slice(1, 3), ..., "ab", b"c", 1j)]


# ---- tensors inside containers


def fills_lists(kv, x, position):
    kv[0][position] = x
    kv[1][...] = kv[1] + x
    kv[0][:1].mul_(2)
    kv.append(kv[0].sum())
    return kv[0] @ x


@program
def lists_of_tensors_changed_in_place(cached):
    kv = [torch.zeros(4, 3), torch.ones(4, 3)]
    call = cached(fills_lists)
    first = call(kv, tensor(3), 1)
    return [first, kv, len(kv)]


class KV:
    def __init__(self):
        self.keys, self.values, self.length = [], torch.zeros(4, 3), 0

    def update(self, key, value):
        self.keys.append(key)
        self.values[self.length] = value
        self.length += 1
        return torch.stack(self.keys), self.values


def uses_cache_object(x, cache):
    keys, values = cache.update(x * 2, x * 3)
    return keys.sum() + values.sum()


@program
def a_cache_object_that_grows(cached):
    call, cache = cached(uses_cache_object), KV()
    outs = [call(tensor(3, seed=i), cache) for i in range(3)]
    return [outs, cache.keys, cache.values, cache.length]
