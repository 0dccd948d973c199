"""Programs in which aliasing, layout or mutation matter, and what two runs of one must agree in."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx


def graph_of(function, examples, static=()):
    """The aten graph of a function, sizes symbolic; `static` inputs are marked as Dynamo does."""
    examples = [x.clone() if isinstance(x, torch.Tensor) else x for x in examples]  # no aliases
    with torch.no_grad():
        graph = make_fx(lambda *inputs: function(*inputs), tracing_mode="symbolic")(*examples)
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for position in static:
        inputs[position].meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}
    return graph


def tensors(values):
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors(value)]
    return []


def start(tensor):
    return tensor.untyped_storage().data_ptr() + tensor.storage_offset() * tensor.itemsize


def sharing(values):
    """Which tensors share memory, and how far apart they start; which are the same object."""
    found = tensors(values)
    rows = []
    for i, first in enumerate(found):
        for j, second in enumerate(found[:i]):
            same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
            if same and first.untyped_storage().nbytes():
                rows.append((i, j, start(first) - start(second), first is second))
    return rows


def agree(got, want, inputs, eager_inputs):
    """Assert that a call did what eager did: values, layouts, effects on inputs, and aliasing."""
    for ours, theirs in zip(
        tensors([got, list(inputs)]), tensors([want, list(eager_inputs)]), strict=True
    ):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs) or torch.allclose(ours, theirs, equal_nan=True), (
            ours,
            theirs,
        )
    assert sharing([got, list(inputs)]) == sharing([want, list(eager_inputs)])


def twins(*tensors):
    """Copies of tensors that share memory with one another as the originals do."""
    bases, made = {}, {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in made:
            storage = tensor.untyped_storage()
            base = bases.setdefault(storage.data_ptr() or id(tensor), storage.clone())
            twin = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            twin.set_(base, tensor.storage_offset(), tensor.shape, tensor.stride())
            made[id(tensor)] = twin
    return [made.get(id(tensor), tensor) for tensor in tensors]


# --- programs: a function and how one call's inputs are made, of a size


def step(kv, x, position):
    kv.index_copy_(0, position, x)
    return kv.sum(0, keepdim=True) + x


PROGRAMS = {
    "pure": (lambda x, y: (x @ y).relu(), lambda n, d: (randn(d, n, 4), randn(d, 4, 3))),
    "a view of an input": (lambda x: x.view(-1)[1:], lambda n, d: (randn(d, n, 4),)),
    "two views of one result": (
        lambda x: (lambda y: (y[0], y.t(), y))(x + 1),
        lambda n, d: (randn(d, n, 4),),
    ),
    "an input itself": (lambda x, y: (x, x + y, y), lambda n, d: (randn(d, n), randn(d, n))),
    "one result twice": (lambda x: (lambda y: (y, y, x, x))(x * 2), lambda n, d: (randn(d, n),)),
    "an expanded result": (lambda x: (x + 1).expand(3, -1), lambda n, d: (randn(d, n),)),
    "a slice of a result": (lambda x: (x * 2)[-1:], lambda n, d: (randn(d, n, 4),)),
    "a transposed result": (lambda x: (x * 2).t(), lambda n, d: (randn(d, n, 4),)),
    "a real view of a complex input": (
        lambda x: torch.view_as_real(x)[..., 0],
        lambda n, d: (torch.complex(randn(d, n), randn(d, n)),),
    ),
    "nothing to return": (lambda x: [x.add_(1)][1:], lambda n, d: (randn(d, n),)),
    "a number": (lambda x, n: (x * n, n + 1), lambda n, d: (randn(d, n), n)),
    "a size": (lambda x: (x.shape[0], x.sum()), lambda n, d: (randn(d, n),)),
    "an empty tensor": (lambda x, y: (x, y + 1, x + 1), lambda n, d: (randn(d, 0, n), randn(d, n))),
    "written in place": (lambda x, y: y.mul_(2).add_(x), lambda n, d: (randn(d, n), randn(d, n))),
    "written through a view": (
        lambda x, y: (y[1:].copy_(x[1:]), y.sum()),
        lambda n, d: (randn(d, n), randn(d, n)),
    ),
    "an index written to a cache": (
        step,
        lambda n, d: (randn(d, n, 2), randn(d, 1, 2), torch.tensor([n - 1], device=d)),
    ),
    "the same tensor twice": (
        lambda x, y: (x.add_(1), y * 2),
        lambda n, d: (lambda x: (x, x))(randn(d, n)),
    ),
    "a view of what is written": (
        lambda x, y: (x.add_(1), y * 2, y),
        lambda n, d: (lambda x: (x, x[1:]))(randn(d, n)),
    ),
    "a view before what is written": (
        lambda x, y: (y * 2, x.add_(1)),
        lambda n, d: (lambda x: (x[1:], x))(randn(d, n)),
    ),
    "overlapping and neither written": (
        lambda x, y: (x + y, y.view(-1)),
        lambda n, d: (lambda x: (x[1:], x[:-1]))(randn(d, n)),
    ),
    "strided inputs": (
        lambda x, y: (x + y, x.t()),
        lambda n, d: (randn(d, 4, n).t(), randn(d, n, 8)[:, ::2]),
    ),
    "an expanded input": (
        lambda x: (x * 2, x.sum(0)),
        lambda n, d: (randn(d, 1, n).expand(3, n),),
    ),
    "an unfolded input": (lambda x: x.sum(1), lambda n, d: (randn(d, n + 2).unfold(0, 3, 1),)),
    "elements counted from the storage": (
        lambda x: x.as_strided((2,), (1,), 0) * 2,
        lambda n, d: (randn(d, n)[1:],),
    ),
    "integers and booleans": (
        lambda x, y: (x[y], x.cumsum(0), y.logical_not()),
        lambda n, d: (torch.arange(n, device=d), torch.arange(n, device=d)),
    ),
    "a result of several dtypes": (
        lambda x: (x.double(), x.half(), x > 0),
        lambda n, d: (randn(d, n),),
    ),
}


def randn(device, *size):
    return torch.randn(*size).to(device)


class Failing:
    """An operator that returns a copy, and raises for as many calls as it is told to."""

    failures = 0
    library = torch.library.Library("npugx_capture_test", "DEF")
    library.define("copy(Tensor x) -> Tensor")

    @staticmethod
    def copy(x):
        if Failing.failures:
            Failing.failures -= 1
            raise RuntimeError("this kernel can't be captured")
        return x.clone()

    @staticmethod
    def register():
        for key in ("CPU", "CUDA", "PrivateUse1"):
            Failing.library.impl("copy", Failing.copy, key)
        Failing.library.impl("copy", torch.empty_like, "Meta")


Failing.register()


def graphs(run):
    return list(run.captures.graphs.values())
