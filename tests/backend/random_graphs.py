"""Random programs over a few tensors that view, copy, write and return as they come.

A program is a list of steps, each an operation and the values it takes. `run` interprets it with
aten operators, eagerly or under a trace; a step that does not fit the shapes it meets is skipped,
which depends on sizes and strides alone. `check` holds an optimised graph against the program: its
results to the last bit, their layout, what is written to the inputs, and who shares memory.
"""

from __future__ import annotations

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache.backend import lowering

aten = torch.ops.aten

LIBRARY = torch.library.Library("npugx_random", "DEF")
LIBRARY.define("bump_(Tensor(a!) x, float by) -> Tensor(a!)")
LIBRARY.define("write_into(Tensor x, Tensor(a!) out) -> ()")


@torch.library.impl(LIBRARY, "bump_", "CompositeExplicitAutograd")
def _bump_(x, by):
    return x.add_(by)


@torch.library.impl(LIBRARY, "write_into", "CompositeExplicitAutograd")
def _write_into(x, out):
    out.copy_(x * 3)


def fits(x, y):
    return x.shape == y.shape and x.dtype == y.dtype


def writable(x):
    return all(stride != 0 or size <= 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def pointwise(op):
    return lambda x, y: op(x, y) if fits(x, y) else None


def in_place(op):
    return lambda x, y: op(x, y) if fits(x, y) and writable(x) else None


def on_matrix(op):
    return lambda x, y: op(x, y) if x.dim() == 2 else None


def index(x):
    return torch.zeros(1, dtype=torch.int64, device=x.device)


def cat_of(dim):
    def op(x, y):
        if x.dim() != 2 or y.dim() != 2 or x.shape[1 - dim] != y.shape[1 - dim]:
            return None
        return aten.cat.default([x, y], dim) if x.dtype == y.dtype else None

    return op


def mm(x, y):
    if x.dim() != 2 or not fits(x, y):
        return None
    return aten.mm.default(x, aten.t.default(y))


def flat(x, _):
    return aten.view.default(x, [-1]) if x.is_contiguous() else None


def window(x, at):
    n = x.shape[0] if x.dim() == 1 else 0
    return aten.slice.Tensor(x, 0, at, n - 1 + at) if n > 2 else None


FUNCTIONAL = {
    "add": pointwise(lambda x, y: aten.add.Tensor(x, y)),
    "sub": pointwise(lambda x, y: aten.sub.Tensor(x, y)),
    "mul": lambda x, _: aten.mul.Tensor(x, 2),
    "broadcast": lambda x, y: (
        (aten.add.Tensor(x, y) if x.dim() == 1 and y.dim() == 2 and x.dtype == y.dtype else None)
        if x.shape[-1:] == y.shape[-1:]
        else None
    ),
    "sin": lambda x, _: aten.sin.default(x),
    "relu": lambda x, _: aten.relu.default(x),
    "where": pointwise(lambda x, y: aten.where.self(aten.gt.Scalar(x, 0), x, y)),
    "mm": mm,
    "clone": lambda x, _: aten.clone.default(x),
    "contiguous": lambda x, _: aten.clone.default(x, memory_format=torch.contiguous_format),
    "same type": lambda x, _: aten._to_copy.default(x, dtype=x.dtype),
    "to double": lambda x, _: aten._to_copy.default(x, dtype=torch.float64),
    "to float": lambda x, _: aten._to_copy.default(x, dtype=torch.float32),
    "pow 1": lambda x, _: aten.pow.Tensor_Scalar(x, 1),
    "cat one": lambda x, _: aten.cat.default([x]) if x.dim() else None,
    "cat 0": cat_of(0),
    "cat 1": cat_of(1),
    "cat new": lambda x, y: (
        aten.cat.default([aten.sin.default(x), aten.mul.Tensor(y, 2)])
        if x.dim() and x.shape[1:] == y.shape[1:] and x.dtype == y.dtype
        else None
    ),
    "sum": lambda x, _: aten.sum.dim_IntList(x, [0], True) if x.dim() else None,
    "cumsum": lambda x, _: aten.cumsum.default(x, 0) if x.dim() else None,
    "index_put": on_matrix(
        lambda x, _: aten.index_put.default(x, [index(x)], aten.select.int(x, 0, -1))
    ),
    "slice_scatter": on_matrix(
        lambda x, _: aten.slice_scatter.default(x, aten.slice.Tensor(x, 0, 0, 1), 0, 0, 1)
    ),
    "select_scatter": on_matrix(
        lambda x, _: aten.select_scatter.default(x, aten.select.int(x, 0, 0), 0, -1)
    ),
    "copy": pointwise(lambda x, y: aten.copy.default(x, y)),
}
VIEWS = {
    "alias": lambda x, _: aten.alias.default(x),
    "t": on_matrix(lambda x, _: aten.t.default(x)),
    "flat": flat,
    "matrix": lambda x, _: (
        aten.view.default(x, [2, 3]) if x.is_contiguous() and x.numel() == 6 else None
    ),
    "same view": lambda x, _: (
        aten.view.default(x, list(x.shape)) if x.is_contiguous() and x.dim() else None
    ),
    "all": lambda x, _: aten.slice.Tensor(x, 0, 0, 1 << 62) if x.dim() else None,
    "first": on_matrix(lambda x, _: aten.slice.Tensor(x, 0, 0, 1)),
    "row": on_matrix(lambda x, _: aten.select.int(x, 0, -1)),
    "early": lambda x, _: window(x, 0),
    "late": lambda x, _: window(x, 1),
    "as_strided": lambda x, _: (
        aten.as_strided.default(x, [2], [1], 0) if x.dim() and x.numel() > 1 else None
    ),
    "expand": lambda x, _: (
        aten.expand.default(x, [2, 3]) if x.dim() == 2 and tuple(x.shape) == (1, 3) else None
    ),
}
WRITES = {
    "add_": in_place(lambda x, y: aten.add_.Tensor(x, y)),
    "mul_": lambda x, _: aten.mul_.Tensor(x, 3) if writable(x) else None,
    "copy_": in_place(lambda x, y: aten.copy_.default(x, y)),
    "self copy": lambda x, _: aten.copy_.default(x, x) if writable(x) else None,
    "copy back": in_place(lambda x, y: aten.copy_.default(x, aten.add.Tensor(x, y))),
    "copy back alone": lambda x, _: (
        aten.copy_.default(x, aten.add.Tensor(x, 1)) if writable(x) else None
    ),
    "copy back flat": lambda x, _: (
        aten.copy_.default(x, aten.view.default(aten.add.Tensor(flat(x, 0), 1), list(x.shape)))
        if x.is_contiguous()
        else None
    ),
    "copy back clone": lambda x, _: (
        aten.copy_.default(x, torch.ops.npugx_random.bump_(aten.clone.default(x), 0.5))
        if writable(x)
        else None
    ),
    "copy back row": lambda x, _: (
        aten.copy_.default(aten.select.int(x, 0, 0), aten.add.Tensor(aten.select.int(x, 0, 0), 1))
        if x.dim() == 2 and writable(x)
        else None
    ),
    "copy back late": in_place(
        lambda x, y: aten.copy_.default(x, aten.relu.default(aten.mul.Tensor(x, y)))
    ),
    "index_put_": lambda x, _: (
        aten.index_put_.default(x, [index(x)], aten.select.int(x, 0, -1))
        if x.dim() == 2 and writable(x)
        else None
    ),
    "bump_": lambda x, _: torch.ops.npugx_random.bump_(x, 0.5) if writable(x) else None,
    "write_into": in_place(lambda x, y: torch.ops.npugx_random.write_into(y, x)),
}
OPERATIONS = {**FUNCTIONAL, **VIEWS, **WRITES}

PHRASES = {
    "two copies of one value": [("mul", 0, 0), ("clone", 0, 0), ("clone", 1, 0)],
    "two readers of one part, after a write to another view": [
        *(("mul", 1, 0), ("row", 0, 0), ("mul_", 0, 0), ("flat", 2, 0), ("flat", 3, 0)),
        *(("sum", 1, 0), ("sum", 1, 0), ("add", 0, 1)),
    ],
    "two copies of what was there": [("clone", 0, 0), ("clone", 1, 0)],
    "a copy of a copy, and another": [
        ("sin", 0, 0),
        ("clone", 0, 0),
        ("clone", 0, 0),
        ("mul", 2, 0),
    ],
    "a write that reads its source through a view": [
        *(("mm", 0, 0), ("clone", 0, 0), ("t", 1, 0), ("add_", 1, 0)),
    ],
    "a write that reads a part of its source": [
        *(("mul", 0, 0), ("flat", 0, 0), ("early", 0, 0), ("clone", 0, 0)),
        *(("late", 2, 0), ("add_", 1, 0)),
    ],
}
"""Steps that are rare one after another, each by what it makes."""


def programs_of(operations, returned, *more):
    """Steps, one in four the beginning of a phrase, and which values besides the last are returned.

    The values are counted from the end; the last but one is returned the most often.
    """
    step = st.tuples(st.sampled_from(sorted(operations)), st.integers(0, 6), st.integers(0, 6))
    whole = [
        phrase for phrase in PHRASES.values() if {name for name, *_ in phrase} <= {*operations}
    ]
    phrase = st.integers(0, 3).flatmap(
        lambda n: st.sampled_from(whole) if n == 0 else st.tuples(step)
    )
    steps = st.lists(phrase, min_size=1, max_size=10)
    return st.tuples(
        steps.map(lambda parts: [one for part in parts for one in part]),
        st.lists(st.sampled_from([1, 1, *range(7)]), min_size=0, max_size=returned),
        *more,
    )


PROGRAMS = programs_of(OPERATIONS, 3)
FUNCTIONALISED = programs_of({**FUNCTIONAL, **VIEWS}, 2, st.permutations(range(3)))
"""As PROGRAMS without writes, and the inputs that results are copied into at the end."""

OVERLAPS = st.sampled_from(["apart", "same", "shifted", "transposed"])


def run(program, inputs):
    """All that a program returns. The newest values are the likeliest to be used."""
    steps, returned, *written = program
    values = list(inputs)
    for name, a, b in steps:
        operands = [values[-1 - n % len(values)] for n in (a, b)]
        made = OPERATIONS[name](*operands)
        if made is not None:
            values.append(made)
    outputs = [values[-1 - n % len(values)] for n in (0, *returned)]
    for target in written[0] if written else ():
        fitting = [v for v in reversed(values[3:]) if fits(v, inputs[target])]
        if fitting:
            aten.copy_.default(inputs[target], fitting[target % len(fitting)])
    return outputs


def inputs(overlap="apart"):
    """Two matrices and a vector; `overlap` says how they share memory."""
    base = torch.arange(1.0, 25.0) / 7
    at = {"apart": (0, 6, 12), "same": (0, 0, 0), "shifted": (0, 1, 2), "transposed": (0, 0, 12)}
    x, y, z = (base[start : start + 6] for start in at[overlap])
    return [x.view(2, 3), y.view(2, 3), z[:3]]


def traced(program, *, symbolic=False):
    """The graph of a program, traced for inputs that share nothing."""

    def function(*values):
        return run(program, values)

    if symbolic:
        return make_fx(function, tracing_mode="symbolic")(*inputs())
    return lowering.lower(function, inputs(), None)


def check(graph_module, program, overlap="apart"):
    """Hold the graph against the program on fresh inputs; skips what eager refuses to run."""
    mine, plain = inputs(overlap), inputs(overlap)
    try:
        want = run(program, plain)
    except RuntimeError:
        assume(False)  # operators refuse some overlapping arguments
    graph_module.recompile()
    got = graph_module(*mine)
    for left, right in zip([*mine, *got], [*plain, *want], strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
        assert left.stride() == right.stride()
        assert left.untyped_storage().nbytes() == right.untyped_storage().nbytes()
    assert sharing([*mine, *got]) == sharing([*plain, *want])


def sharing(tensors):
    """For each pair: how far apart they start in one storage; None if they share none."""
    return [
        [
            a.data_ptr() - b.data_ptr()
            if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            else None
            for b in tensors
        ]
        for a in tensors
    ]
