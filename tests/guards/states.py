"""Changes to a traced toy: its arguments, its modules, its code and the state of torch.

Each takes the traced toy, changes it, and gives back a way to undo it.
"""

import builtins
import contextlib
import os
import sys
from collections import OrderedDict

import torch
from torch import nn


@contextlib.contextmanager
def swapped(owner, name, value):
    space = owner if isinstance(owner, dict) else None
    absent = object()
    old = (owner if space is not None else vars(owner)).get(name, absent)
    put = owner.__setitem__ if space is not None else lambda n, v: setattr(owner, n, v)
    drop = owner.__delitem__ if space is not None else lambda n: delattr(owner, n)
    put(name, value)
    try:
        yield
    finally:
        drop(name) if old is absent else put(name, old)


@contextlib.contextmanager
def assigned(owner, name, value):
    """Through a descriptor: what is read is put back."""
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextlib.contextmanager
def hook(module, register):
    handle = getattr(module, register)(lambda *a: None)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def threads(count):
    old = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(old)


@contextlib.contextmanager
def dtype(new):
    old = torch.get_default_dtype()
    torch.set_default_dtype(new)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


@contextlib.contextmanager
def marked(tensor):
    torch._dynamo.mark_dynamic(tensor, 0)
    try:
        yield
    finally:
        vars(tensor).clear()


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def edited(items, value):
    old, items[0] = items[0], value
    try:
        yield
    finally:
        items[0] = old


@contextlib.contextmanager
def cell(function, value):
    index = function.__code__.co_freevars.index("amount")
    held = function.__closure__[index]
    old, held.cell_contents = held.cell_contents, value
    try:
        yield
    finally:
        held.cell_contents = old


@contextlib.contextmanager
def merged(table, more):
    table |= more
    try:
        yield
    finally:
        for name in more:
            table.pop(name, None)


@contextlib.contextmanager
def in_place(parameter):
    other = frozen(*parameter.shape).double()
    torch.utils.swap_tensors(parameter, other)
    try:
        yield
    finally:
        torch.utils.swap_tensors(parameter, other)


def frozen(*size):
    return nn.Parameter(torch.randn(*size), requires_grad=False)


def copied(function):
    new = type(function)(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    new.__kwdefaults__ = function.__kwdefaults__
    new.__module__, new.__qualname__ = function.__module__, function.__qualname__
    return new


def linear(out, into=16):
    return nn.Linear(into, out).eval().requires_grad_(False)


STATES = {
    # --- nothing that matters
    "new weights": lambda t: swapped(t.model.head._parameters, "weight", frozen(7, 16)),
    "new values in place": lambda t: assigned(t.model.head.weight, "data", torch.randn(7, 16)),
    "a submodule of the same kind": lambda t: swapped(t.model._modules, "head", linear(7)),
    "an equal float": lambda t: swapped(t.model.layers[1], "gain", float("1.5")),
    "an attribute nobody reads": lambda t: swapped(t.model, "unrelated", 3),
    "a copy of a helper": lambda t: swapped(t.toy, "act", copied(t.toy.act)),
    "an environment variable nobody reads": lambda t: swapped(os.environ, "NPUGX_NOBODY", "1"),
    # --- parameters and buffers
    "a dtype in place": lambda t: assigned(
        t.model.head.weight, "data", torch.randn(7, 16).double()
    ),
    "a shape in place": lambda t: assigned(t.model.head.weight, "data", torch.randn(9, 16)),
    "strides in place": lambda t: assigned(t.model.head.weight, "data", torch.randn(16, 7).t()),
    "requires_grad": lambda t: assigned(t.model.head.weight, "requires_grad", True),
    "no bias": lambda t: swapped(t.model.head._parameters, "bias", None),
    "tied weights": lambda t: swapped(
        t.model.layers[0].q._parameters, "weight", t.model.layers[1].q.weight
    ),
    "a plain tensor for a parameter": lambda t: swapped(
        t.model.head._parameters, "weight", torch.randn(7, 16)
    ),
    "a parameter with the name of a submodule": lambda t: swapped(
        t.model._parameters, "head", frozen(1)
    ),
    "a buffer with the name of a submodule": lambda t: swapped(
        t.model.layers[0]._buffers, "q", torch.randn(1)
    ),
    "a dimension mark on a parameter": lambda t: marked(t.model.head.weight),
    # --- modules
    "an attribute that hides a submodule": lambda t: swapped(
        vars(t.model.layers[0]), "k", linear(16)
    ),
    "a class attribute that hides a submodule": lambda t: swapped(t.toy.Block, "o", linear(16)),
    "a property on the class": lambda t: swapped(t.toy.Block, "gain", property(lambda s: 2.0)),
    "another attribute lookup": lambda t: swapped(
        t.toy.Block, "__getattr__", lambda s, n: nn.Module.__getattr__(s, n)
    ),
    "another class of a submodule": lambda t: swapped(
        t.model._modules, "head", type("Linear", (nn.Linear,), {})(16, 7).requires_grad_(False)
    ),
    "a submodule of another size": lambda t: swapped(t.model._modules, "head", linear(9)),
    "a table of another kind": lambda t: swapped(
        vars(t.model), "_modules", OrderedDict(t.model._modules)
    ),
    "training": lambda t: swapped(t.model.layers[2].drop, "training", True),
    "a layer more": lambda t: swapped(t.model.layers._modules, "3", t.toy.Block(16).eval()),
    "a forward hook": lambda t: hook(t.model.layers[0], "register_forward_hook"),
    "a forward pre-hook": lambda t: hook(t.model.layers[1].q, "register_forward_pre_hook"),
    "a hook put there by hand": lambda t: swapped(
        t.model.layers[2].o._forward_hooks, 7, lambda *a: None
    ),
    "a hook for all modules": lambda t: swapped(
        sys.modules["torch.nn.modules.module"]._global_forward_hooks, 1, lambda *a: None
    ),
    "a merge into an empty table": lambda t: merged(
        t.model.layers[0]._buffers, {"k": torch.randn(1)}
    ),
    "a parameter hidden by an attribute": lambda t: swapped(
        vars(t.model.layers[1].o), "bias", frozen(*t.model.layers[1].o.bias.shape)
    ),
    "a module hidden by an attribute": lambda t: swapped(
        vars(t.model), "layers", nn.ModuleList(t.model.layers)
    ),
    "a module hidden by a parameter": lambda t: swapped(
        t.model.layers[2]._parameters, "drop", nn.Identity()
    ),
    "a backward hook": lambda t: hook(t.model.layers[0], "register_full_backward_hook"),
    "another __dict__ of a module": lambda t: assigned(
        t.model.layers[0], "__dict__", {**vars(t.model.layers[0]), "gain": 9.0}
    ),
    "another class in place": lambda t: assigned(
        t.model.layers[0], "__class__", type("Other", (t.toy.Block,), {})
    ),
    "a parameter swapped for another in place": lambda t: in_place(t.model.head.weight),
    # --- values
    "another float": lambda t: swapped(t.model.layers[1], "gain", 2.0),
    "an int for a float": lambda t: swapped(t.model.layers[1], "gain", 1),
    "nan": lambda t: swapped(t.model.layers[1], "gain", float("nan")),
    "a class attribute": lambda t: swapped(t.toy.Block, "limit", 4),
    "True for 1": lambda t: swapped(t.toy.Block, "limit", True),
    "an enum": lambda t: swapped(t.model, "mode", t.toy.Mode.SLOW),
    "another value of an enum's member": lambda t: assigned(t.toy.Mode.FAST, "_value_", 7),
    "another name of an enum's member": lambda t: assigned(t.toy.Mode.FAST, "_name_", "SLOW"),
    "a global": lambda t: swapped(t.toy, "SCALE", 0.25),
    "a global dict's value": lambda t: swapped(t.toy.CFG, "mode", "b"),
    "a global dict": lambda t: swapped(t.toy, "CFG", {"eps": 1e-5, "mode": "a", "new": 1}),
    "a hidden builtin": lambda t: swapped(t.toy, "len", lambda x: 0),
    "a replaced builtin": lambda t: swapped(vars(builtins), "len", lambda x: x.__len__()),
    "a replaced module": lambda t: swapped(
        sys.modules, "torch.nn.functional", type(sys)("torch.nn.functional")
    ),
    # --- code
    "another helper": lambda t: swapped(t.toy, "act", lambda x, a=2.0: x),
    "other code of a helper": lambda t: assigned(
        t.toy.act, "__code__", (lambda x, a=2.0: x).__code__
    ),
    "another default": lambda t: assigned(t.toy.act, "__defaults__", (3.0,)),
    "another keyword default": lambda t: swapped(t.toy.shift.__kwdefaults__, "scale", 2.0),
    "a keyword default of a plain function": lambda t: swapped(
        t.toy.tilt.__kwdefaults__, "by", 2.0
    ),
    "a mutable default": lambda t: edited(t.toy.shift.__kwdefaults__["terms"], 0.75),
    "a free variable": lambda t: cell(t.toy.shift, 0.5),
    "another keyword default dict": lambda t: assigned(
        t.toy.shift, "__kwdefaults__", {"scale": 3.0, "terms": [0.25]}
    ),
    "a forward on an instance": lambda t: swapped(t.model.layers[0], "forward", lambda *a: a[0]),
    # --- torch
    "grad mode": lambda t: torch.enable_grad(),
    "inference mode": lambda t: torch.inference_mode(),
    "autocast": lambda t: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda t: torch.device("meta"),
    "default dtype": lambda t: dtype(torch.float64),
    "deterministic algorithms": lambda t: deterministic(),
    "another number of threads": lambda t: threads(torch.get_num_threads() + 1),
}
