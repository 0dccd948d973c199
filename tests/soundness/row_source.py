"""Source that the rows of the matrix have in common."""

from __future__ import annotations

HEAD = """\
import collections, contextlib, dataclasses, enum, functools, math, operator, os, typing
import torch
from torch import nn
from torch.nn import functional


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


"""
MAKE = """

def make(cached):
    return cached(f{arguments}), GIVEN


def run(call, given):
    return call(*given[0]())


GIVEN = [lambda: ({args},)]
"""
KEPT = """

def make(cached):
    return cached(f{arguments}), ({args},)
"""
RUN_KEPT = """

def run(call, given):
    return call(*given)
"""
"""With the same arguments for every call."""
THEN = """

def change(call, given):
    given[:] = [lambda: ({then},)]
"""
RUN = """

def run(call, *args):
    return call(tensor(3))
"""
TEXTS = {
    "MODEL": """\
class Base(nn.Module):
    factor = 2

    def __init__(self):
        super().__init__()
        self.scale = 2
        self.config = {"a": 1, "b": 2}
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.5)

    @property
    def size(self):
        return self.scale + 1

    @staticmethod
    def fixed(x):
        return x - 1

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    def helper(self, x):
        return x * 1.5


class Model(Base):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = self.helper(self.fixed(self.of_class(x))) * self.size
        if self.training:
            x = x * 2
        for name, value in self.config.items():
            x = x * 0.5 + value + len(name)
        return x


def make(cached):
    model = Model().eval()
    return cached(model.forward), model, tensor(2, 3)


def run(call, model, x):
    return call(x)


""",
    "PACKED": """\
class State:
    def __init__(self, by):
        self.by, self.scale = by, torch.full((3,), 0.5)


FACTOR = 1.5


class Packed(nn.Parameter):
    offset = 0.25

    def __new__(cls, data, state=None, way="up"):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.state, made.way = state, way
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.neg:
            return super().__torch_function__(torch.abs, types, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs or {})

    @property
    def by(self):
        return self.state.by * FACTOR

    def whole(self):
        return (self + self.offset) * self.by


class Plain(nn.Parameter):
    bits = 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Packed(torch.linspace(-1, 1, 9).view(3, 3), State(2.0))
        self.bias = Plain(torch.linspace(0, 1, 3), requires_grad=False)
        self.bias.shift = 3

    def forward(self, x):
        made = functional.linear(x, self.weight.whole(), self.bias) + torch.neg(self.weight)[2]
        made = made + self.weight.state.scale * self.bias.shift + self.bias.bits
        if hasattr(self.weight, "extra"):
            made = made + 7
        return made if self.weight.way == "up" else made * 2, self.weight, self.bias, type(made)


def make(cached):
    model = Model().eval()
    return cached(model.forward), model, tensor(2, 3)


def run(call, model, x):
    return call(x)


""",
    "HOLDING": """\
@dataclasses.dataclass
class Steps:
    by: float = 2.0

    def scaled(self, x):
        return x * self.by


class Way(enum.Enum):
    UP = 1
    DOWN = 2


FACTOR, UNREAD = 1.5, 1
LIMITS = {"high": [7.0, 8.0]}


def whole(weight):
    made = (weight.ints * weight.scale).to(torch.float32) * FACTOR + weight.offset
    return weight.steps.scaled(made).clamp(max=LIMITS["high"][0])


def under(power):
    def raised(x):
        return x + power

    return raised


class Holding(torch.Tensor):
    offset = 0.25
    table = {}

    @staticmethod
    def __new__(cls, ints, scale, steps=None, way=Way.UP):
        return torch.Tensor._make_wrapper_subclass(cls, ints.shape, dtype=torch.float32)

    def __init__(self, ints, scale, steps=None, way=Way.UP):
        self.ints, self.scale = ints, scale
        self.steps, self.way = steps or Steps(), way

    def __tensor_flatten__(self):
        return ["ints", "scale"], (self.steps, self.way)

    @classmethod
    def __tensor_unflatten__(cls, inner, kept, size, stride):
        return cls(inner["ints"], inner["scale"], *kept)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.table:
            return cls.table[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls.table[func](*args, **(kwargs or {}))


def linear(x, weight, bias=None, after=under(0.125)):
    made = functional.linear(x, whole(weight), bias)
    return after(made if weight.way is Way.UP else -made)


def detached(weight):
    return type(weight)(weight.ints, weight.scale, weight.steps, weight.way)


def added(weight, number):
    weight.scale.add_(number)
    return weight


Holding.table |= {
    functional.linear: linear,
    torch.ops.aten.detach.default: detached,
    torch.ops.aten.add_.Tensor: added,
}


def held(seed=0, dtype=torch.float32, **more):
    ints = (tensor(3, 3, seed=seed) * 4).to(torch.int8)
    return Holding(ints, tensor(3, 1, seed=seed + 1).abs().to(dtype), **more)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        for seed, layer in enumerate((self.first, self.second)):
            nn.init.constant_(layer.bias, 0.5)
            layer.weight = nn.Parameter(held(seed), requires_grad=False)

    def forward(self, x):
        return self.second(self.first(x))


def make(cached):
    model = Model().eval()
    return cached(model.forward), model, tensor(2, 3)


def run(call, model, x):
    return call(x)


""",
    "OBJECT": """\
class Box:
    def __init__(self, n=2):
        self.n = n

    def __len__(self):
        return 2

    def __bool__(self):
        return True

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    def __contains__(self, item):
        return True

    def __getitem__(self, i):
        return i + 2

    def __getattr__(self, name):
        return len(name)

    def __call__(self, x):
        return x * self.n

    def __enter__(self):
        return 4

    def __exit__(self, *error):
        return None

    def __iter__(self):
        return iter([1, 2])

    def __add__(self, other):
        return 9


BOX = Box()

""",
    "GATHER": """\
@torch.library.custom_op(f"{__package__}::gather", mutates_args=())
def gather(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(copies())


@gather.register_fake
def _(x):
    return x.new_empty(x.shape[0] * copies())


def f(x):
    parts = gather(x)
    return parts / parts.shape[0]


""",
    "ACT": """\
@torch.library.custom_op(f"{__package__}::act", mutates_args=())
def act(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


@act.register_fake
def _(x):
    return torch.empty_like(x)


def f(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return act(x)


""",
    "NAMES": """\
NAMES = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"]


def walk(x, names):
    for name in names:
        x = x * 1.5 + len(name) + ord(name[0]) / 16
    return x


""",
}
"""By the name that a row asks for."""
