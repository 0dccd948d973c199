"""Programs that must not be stored. Run as a script: each one plain, cached and strict, as JSON."""

from __future__ import annotations

import json
import sys
import typing

import torch
from torch import nn
from torch.nn import functional

from npugx_cache import version

PROGRAMS: dict[str, tuple[typing.Callable, str]] = {}
OLD = {
    "a_stream_of_the_cpu_waited_for": ((2, 12), "synchronize() of a stream or an event"),
    "keys_without_a_name": ((2, 13), "hash"),
    "a_branch_that_returns_a_view": ((2, 12), None),
}
"""The reason before some version of torch, or None where eager torch does not run it either."""


def refused(reason):
    """The reason that must stand in the warning, in the listing and in the strict error."""

    def decorate(function):
        since, before = OLD.get(function.__name__, ((0, 0), None))
        said = before if version.minor_version(torch.__version__) < since else reason
        if said is not None:
            PROGRAMS[function.__name__] = function, said
        return function

    return decorate


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def twice(call, *args):
    torch.manual_seed(0)
    return [call(*args), call(*args)]


LIBRARY = torch.library.Library("npugx_refused", "DEF")
LIBRARY.define("scale(Tensor x, float by=2.0) -> Tensor")


@torch.library.impl(LIBRARY, "scale", "CompositeImplicitAutograd")
def scale(x, by=2.0):
    return x * by


def calls_a_composite_operator(x):
    return torch.ops.npugx_refused.scale(x)


@refused("Python body of operator")
def an_operator_whose_python_body_is_inlined(cached):
    return twice(cached(calls_a_composite_operator), tensor(4))


NUMBERS = map(abs, [1, -2])


def takes_an_iterator_of_the_module(x):
    return x * sum(list(NUMBERS))


@refused("map")  # which Dynamo guards by its length before, and an iterator has none
def an_iterator_of_the_module_is_walked(cached):
    globals()["NUMBERS"] = map(abs, [1, -2])
    return twice(cached(takes_an_iterator_of_the_module), tensor(4))


def drops(x):
    return functional.dropout(x, 0.5, training=True) * 2


@refused("draws random numbers")
def dropout_in_train(cached):
    return twice(cached(drops), tensor(8))


def draws(x):
    return x + torch.rand(3) + torch.randn_like(x)


@refused("draws random numbers")
def random_numbers(cached):
    return twice(cached(draws), tensor(3))


def draws_in_place(x):
    return x.clone().uniform_() + torch.bernoulli(torch.full((3,), 0.5))


@refused("draws random numbers")
def random_numbers_in_place(cached):
    return twice(cached(draws_in_place), tensor(3))


def attends_with_dropout(q):
    return functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


@refused("draws random numbers")
def attention_with_dropout(cached):
    return twice(cached(attends_with_dropout), tensor(1, 1, 4, 8))


class DropoutModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x) + 1


@refused("draws random numbers")
def a_module_in_train(cached):
    return twice(cached(DropoutModel().train().forward), tensor(8))


def adds_to_a_copy_or_a_view(x):
    chosen = x[x[:, 0] > 0].t()
    chosen.reshape(-1).add_(1)
    return chosen


@refused("whether this returns a view or a copy depends on data")
def a_write_to_what_may_be_a_view(cached):
    return twice(cached(adds_to_a_copy_or_a_view), tensor(6, 2))


def returns_a_copy_or_a_view(x):
    chosen = x[x[:, 0] > 0].t()
    return chosen, chosen.reshape(-1)


@refused("whether this returns a view or a copy depends on data")
def a_result_that_may_be_a_view_of_another(cached):
    return twice(cached(returns_a_copy_or_a_view), tensor(6, 2))


def writes_before_it_knows(x, total):
    total.add_(x[x > 0].squeeze(0).sum())
    return x


@refused("the graph can't be left for other sizes: it writes to its inputs")
def a_write_and_a_size_that_is_checked(cached):
    return twice(cached(writes_before_it_knows), tensor(6), torch.zeros(()))


def sum_of_some(x):
    return x[x > 0].sum()


def sum_of_all(x):
    return x.sum()


def chooses_in_a_branch(x):
    return torch.cond(x.sum() > 0, sum_of_some, sum_of_all, (x,))


@refused("depends on data, inside a branch or a loop")
def a_size_inside_a_branch(cached):
    return twice(cached(chooses_in_a_branch), tensor(6))


def branches(x):
    return x * 2 if x.sum() > 0 else x * 3


@refused("a branch depends on the data of a tensor")
def a_branch_on_data(cached):
    return twice(cached(branches), tensor(6))


def conditional(x):
    return torch.cond(x.sum() > 0, lambda y: y[:], lambda y: y * 3, (x,))


@refused("a function that cond calls returns what it was given, or a view of it")
def a_branch_that_returns_a_view(cached):
    return twice(cached(conditional), tensor(6))


class Labelled(torch.Tensor):
    pass


def doubles(x):
    return x * 2


@refused("x: input of type Labelled: tensor subclasses are refused")
def a_tensor_subclass(cached):
    out = twice(cached(doubles), tensor(3).as_subclass(Labelled))
    return [type(value).__name__ for value in out] + [
        value.as_subclass(torch.Tensor) for value in out
    ]


def sparse_product(x, y):
    return (x @ y).relu()


@refused("sparse Tensor")
def a_sparse_input(cached):
    return twice(cached(sparse_product), torch.eye(3).to_sparse(), tensor(3, 2))


def through_sparse(x):
    return x.to_sparse().to_dense() * 2


@refused("sparse Tensor")
def a_sparse_intermediate(cached):
    return twice(cached(through_sparse), tensor(3, 3))


def prints(x):
    print("side effect", file=sys.stderr)
    return x + 1


@refused("torch can't trace print()")
def output_to_a_stream(cached):
    return twice(cached(prints), tensor(3))


def waits_for_a_stream(x, stream):
    stream.synchronize()
    return x + 1


@refused("streams.synchronize_stream is called without an accelerator")
def a_stream_of_the_cpu_waited_for(cached):
    return twice(cached(waits_for_a_stream), tensor(3), torch.Stream(device="cpu"))


def through_numpy(x):
    return torch.from_numpy(x.numpy().copy()) + x.tolist()[0]


@refused("tolist")
def values_taken_to_python(cached):
    return twice(cached(through_numpy), tensor(3))


class Nameless:
    """Compared by identity: a guard on it has no form in another process."""

    def __init__(self):
        self.memo = {object(): 2.0}


def reads_nameless(x, thing):
    return x * sum(thing.memo.values())


@refused("thing.memo: an object of type builtins.object has no name across processes")
def keys_without_a_name(cached):
    return twice(cached(reads_nameless), tensor(3), Nameless())


def waits(x):
    import time

    time.sleep(0)
    return x + 1


@refused("torch can't trace the builtin time.sleep")
def a_call_that_cannot_be_traced(cached):
    return twice(cached(waits), tensor(3))


def transposes_input(x):
    x.t_()
    return x * 2


@refused("Getting an inplace view on a graph input is not supported")
def metadata_of_an_input_changed(cached):
    return [cached(transposes_input)(tensor(2, 3))]


def transposes_temporary(x):
    y = x * 1
    y.transpose_(0, 1)
    return y.shape[0], y


@refused("in place")
def metadata_of_a_temporary_changed(cached):
    return [cached(transposes_temporary)(tensor(2, 3))]


def takes_four_rows(x):
    return x.view(2, 2, 3).sum(0)


@refused("a size marked with mark_dynamic can't vary freely")
def a_size_marked_dynamic_that_is_fixed(cached):
    x = tensor(4, 3)
    torch._dynamo.mark_dynamic(x, 0)
    return [cached(takes_four_rows)(x)]


def run_strictly(program, cache_compile):
    from npugx_cache.errors import Uncacheable

    try:
        program(lambda target, **arguments: cache_compile(target, strict=True, **arguments))
    except Uncacheable as error:
        return {"function": error.function, "reason": error.reason, "text": str(error)}
    return None


def main():
    from run import run

    from npugx_cache import cache_compile

    results = {}
    for name, (program, reason) in PROGRAMS.items():
        # Strict first: nothing is known yet of the function.
        strict = run_strictly(program, cache_compile)
        results[name] = {**run(program), "strict": strict, "reason": reason}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
