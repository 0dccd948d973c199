"""Small programs that must hit after a restart, one per thing a trace has to get right.

Each takes `cached`, which is `cache_compile` or does nothing, and returns what it computed, with
everything the call changed. Results of the cached and of the plain run must be equal.
"""

from __future__ import annotations

import collections
import dataclasses
import typing

import torch
from torch import nn

SCALE = 0.5
TABLE = {"eps": 1e-5, "mode": "a"}
STATE = {"calls": 0}
LOG: list[int] = []
COUNTER = 0
BIAS = torch.full((4,), 2.0)

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


# ---- the vendor's example: dataclass input, a list of KV tensors, prompt and decode


@dataclasses.dataclass
class InputMeta:
    data: torch.Tensor
    is_prompt: bool


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear1 = nn.Linear(2, 1)
        self.linear2 = nn.Linear(2, 1)
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x: InputMeta, kv: list[torch.Tensor]):
        return self.prompt(x, kv) if x.is_prompt else self.decode(x, kv)

    def _forward(self, x, kv):
        return self.linear2(x.data) + self.linear2(kv[0])

    def prompt(self, x: InputMeta, kv: list[torch.Tensor], scale: float = 2.0):
        return self._forward(x, kv) * scale

    def decode(self, x: InputMeta, kv: list[torch.Tensor], *, shift: int = 1):
        return self._forward(x, kv) + shift


@program
def vendor_example(cached):
    model = Decoder()
    prompt, decode = cached(model.prompt), cached(model.decode)
    x, kv = tensor(2, 2), [tensor(2, 2, seed=1)]
    return [
        prompt(InputMeta(x, True), kv),
        prompt(InputMeta(x, True), kv, scale=3.0),
        decode(InputMeta(x, False), kv),
        decode(x=InputMeta(x, False), kv=kv, shift=4),
    ]


# ---- outputs


class Pair(typing.NamedTuple):
    first: torch.Tensor
    second: int


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    label: str = "r"


def gives_named_tuple(x):
    return Pair(x + 1, 3)


def gives_dataclass(x):
    return Result(x * 2, "double")


def gives_dict(x):
    return {"a": x + 1, "b": {"c": x - 1, "n": None}, "k": [x, 2.5]}


def gives_none(x):
    x.add_(1)


def gives_ordered_dict(x):
    return collections.OrderedDict(b=x.sin(), a=x.cos())


@program
def output_structures(cached):
    x = tensor(3)
    functions = (gives_named_tuple, gives_dataclass, gives_dict, gives_none, gives_ordered_dict)
    return [cached(function)(x) for function in functions] + [x]


# ---- side effects in Python


class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.seen = []
        self.last = None
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x, log):
        y = x * 2 + self.total
        self.steps += 1
        self.last = y
        log.append(y.sum())
        self.total.add_(x)
        return y


@program
def python_side_effects(cached):
    model, log, x = Recorder(), [], tensor(3)
    call = cached(model.forward)
    out = call(x, log)
    return [out, log, model.steps, model.last is out, model.total]


def counts_globally(x):
    global COUNTER  # noqa: PLW0603 - the side effect under test
    COUNTER += 1
    STATE["calls"] = 7
    LOG.append(1)
    return x + SCALE


@program
def global_side_effects(cached):
    global COUNTER  # noqa: PLW0603 - the side effect under test
    COUNTER = 0
    LOG.clear()
    out = cached(counts_globally)(tensor(3))
    return [out, COUNTER, dict(STATE), list(LOG)]


# ---- mutation and aliasing


def writes_input(x, y):
    x.mul_(2).add_(y)
    return x.sum()


def returns_view(x):
    return x.view(-1), x[0], x, x.t()


def writes_then_views(x):
    v = x.view(-1)
    v.add_(1)
    return v, x * 2


def same_tensor_twice(x, y):
    x.add_(1)
    return x + y, y is x


def returns_same_twice(x):
    y = x + 1
    return y, y, y.view(-1)


@program
def mutation_and_aliasing(cached):
    x, y = tensor(2, 3), tensor(2, 3, seed=1)
    first = cached(writes_input)(x, y)
    flat, row, same, turned = cached(returns_view)(x)
    flat.add_(1)  # seen through every alias
    base = tensor(2, 2)
    view, doubled = cached(writes_then_views)(base)
    view.mul_(3)
    twice = tensor(3)
    summed = cached(same_tensor_twice)(twice, twice)
    a, b, c = cached(returns_same_twice)(tensor(2, 2))
    return [
        first, x, flat, row, same is x, turned, base, view, doubled, summed, twice,
        a is b, c.data_ptr() == a.data_ptr(), a,
    ]  # fmt: skip


def overlapping(x, y):
    x.add_(1)
    return y * 2


@program
def overlapping_inputs(cached):
    base = tensor(6)
    out = cached(overlapping)(base[:4], base[2:])
    return [out, base]


def smaller_input_broadcasts(x, y):
    x = x + y
    return torch.diff(x.flatten()) * 2


@program
def broadcasting(cached):
    return [cached(smaller_input_broadcasts)(tensor(2), tensor(1, 2, seed=3))]


# ---- KV caches


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, kv, position):
        kv.index_copy_(0, position, self.k(x))
        return torch.softmax(self.q(x) @ kv.T, -1) @ kv


@program
def kv_update(cached):
    model, kv = Cache(), torch.zeros(6, 8)
    call = cached(model.forward)
    outs = [call(tensor(1, 8, seed=i), kv, torch.tensor([i])) for i in range(3)]
    return [outs, kv]


# ---- constants, globals, closures, defaults


def with_constants(x):
    table = torch.tensor([1.0, 2.0, 3.0])
    return x * table + torch.arange(3) + SCALE * TABLE["eps"] + BIAS[:3]


def closure_over(n, weights):
    def inner(x, m=2):
        return x * n * m + weights

    return inner


@program
def constants_and_closures(cached):
    inner = cached(closure_over(3, tensor(3, seed=5)))
    return [cached(with_constants)(tensor(3)), inner(tensor(3)), inner(tensor(3), 4)]


# ---- dtypes, shapes, modes


@program
def specialisations(cached):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.ReLU())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    call = cached(model.forward)
    results = [call(tensor(2, 4)), call(tensor(5, 4))]
    model.train()
    results.append(call(tensor(2, 4)))
    model.eval()
    double = cached(with_dtype)
    results += [double(tensor(3, dtype=d)) for d in (torch.float32, torch.float64, torch.bfloat16)]
    return results


def with_dtype(x):
    return x * 2 if x.dtype == torch.float32 else x * 3


def branches_on_size(x):
    return x * 2 if x.size(0) % 2 == 0 else x.flip(0)


@program
def dynamic_sizes(cached):
    call = cached(branches_on_size, dynamic=True)
    return [call(tensor(n, 3)) for n in (4, 5, 6, 7, 8)]


def autocasts(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y, x @ w


@program
def autocast_inside_and_outside(cached):
    call = cached(autocasts)
    x, w = tensor(3, 3), tensor(3, 3, seed=2)
    inside = call(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return [inside, call(x, w), cached(plain_matmul)(x, w)]


def plain_matmul(x, w):
    return (x @ w).exp() @ w


def no_tensors(n):
    return n + 1


@program
def without_a_graph(cached):
    return [cached(no_tensors)(3), cached(no_tensors)(4)]


def takes_everything(a, /, b, *rest, c=1, **more):
    return a + b + sum(rest) + c + more["d"]


@program
def all_kinds_of_parameters(cached):
    call = cached(takes_everything)
    return [call(tensor(2), 1, tensor(2, seed=1), 3, c=2, d=tensor(2, seed=4))]


@program
def one_binding_per_instance(cached, kept=[]):  # noqa: B006 - as long as the process lives
    class Scaled(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def run(self, x):
            return x * self.factor

    Scaled.run = cached(Scaled.run)
    kept += [Scaled(2), Scaled(3)]
    return [each.run(tensor(2)) for each in kept[-2:]]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.tied = self.net[0]

    def forward(self, x):
        for layer in self.net:
            x = torch.relu(layer(x))
        return self.tied(x)


@program
def module_in_place(cached):
    model = Block()
    same = cached(model)
    return [same is model, model(tensor(2, 4)), sorted(dict(model.named_parameters()))]
