"""Graphs that raise where the function itself may not: `python failing.py NAME [BACKEND]`.

A function that catches what an operator raises is traced without the handler, because no operator
raises in a trace.
"""

import json
import logging
import sys

import torch

from npugx_cache import cache_compile


@torch.library.custom_op("npugx_failing::sends", mutates_args=())
def sends(x: torch.Tensor) -> torch.Tensor:
    SENT.append(len(SENT))
    if len(SENT) == 2:
        raise RuntimeError("the network is down")
    return x + 1


@sends.register_fake
def sends_fake(x):
    return torch.empty_like(x)


SENT = []


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def doubled(x):
    return torch.take(x, (x * 2).long())


def fails(x):
    try:
        return doubled(x)
    except IndexError:
        return -x


def writes_and_fails(x, total):
    total.add_(1)
    return doubled(x)


def sends_and_fails(x):
    return doubled(sends(x))


def looks_up(table, index):
    return torch.nn.functional.embedding(index, table)


def calls_a_network(x):
    return sends(x) * 2


class Cached(torch.nn.Module):
    """A cached function in a function that runs eagerly, because it prints."""

    def __init__(self):
        super().__init__()
        self.inner = cache_compile(fails)

    def forward(self, x):
        print(end="")
        return self.inner(x)


def run_fails(_):
    cached, x = cache_compile(fails), torch.arange(3.0)
    right = [torch.equal(cached(each), fails(each)) for each in (x, x, x.double() / 2)]
    return cached, {"right": right}


def run_writes_and_fails(_):
    cached, x, total = cache_compile(writes_and_fails), torch.arange(3.0), torch.zeros(())
    error = raised_by(cached, x, total)
    return cached, {"error": error, "total": total.item()}


def run_looks_up(_):
    cached, table = cache_compile(looks_up), torch.arange(6.0).reshape(3, 2)
    bad, good = torch.tensor([0, 3]), torch.tensor([0, 2])
    errors = [raised_by(run, table, bad) for run in (cached, looks_up)]
    return cached, {"errors": errors, "right": torch.equal(cached(table, good), table[[0, 2]])}


def run_calls_a_network(_):
    cached, x = cache_compile(calls_a_network), torch.ones(3)
    return cached, {"errors": [raised_by(cached, x) for _ in range(3)], "sent": len(SENT)}


def run_sends_and_fails(_):
    cached, x = cache_compile(sends_and_fails), torch.arange(3.0)
    return cached, {"error": raised_by(cached, x), "sent": len(SENT)}


def squeezes(x):
    chosen = x[x > 0].squeeze(0)
    return chosen + 1 if chosen.dim() == 1 else chosen - 1


def adds_two_selections(x, y):
    return x[x > 0] + y[y > 0]


def takes_a_size_for_three(x):
    chosen = x[x > 0]
    return torch.broadcast_tensors(chosen.new_ones(2, chosen.shape[0]), x.new_ones(2, 3))[0]


def run_meets_other_sizes(_, backend):
    """A trace takes a size that only data tell for another one than 1, and two for equal ones."""
    squeezed, added = (
        cache_compile(function, backend=backend) for function in (squeezes, adds_two_selections)
    )
    given = [torch.tensor(row) for row in ([0.0, 1, 2], [0.0, 0, 2], [0.0, 0, 0], [3.0, 1, 2])]
    right = [torch.equal(squeezed(x), squeezes(x)) for x in given]
    ones = torch.tensor([0.0, 1, 0])
    right += [torch.equal(added(x, y), adds_two_selections(x, y)) for x in given for y in (x, ones)]
    errors = [raised_by(run, given[0], given[3]) for run in (added, adds_two_selections)]
    three = cache_compile(takes_a_size_for_three, backend=backend)
    right += [torch.equal(three(x), takes_a_size_for_three(x)) for x in (given[3], given[1])]
    errors += [raised_by(run, given[0]) for run in (three, takes_a_size_for_three)]
    return squeezed, {"right": right, "errors": errors, "added": added.cache_info()[:4]}


def run_inside(_):
    module, x = Cached(), torch.arange(3.0)
    cached = cache_compile(module)
    return module.inner, {"right": torch.equal(cached(x), fails(x))}


def raised_by(run, *args):
    try:
        run(*args)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def main(name, *arguments):
    records = Records()
    logging.getLogger("npugx_cache").addHandler(records)
    cached, found = globals()[f"run_{name}"](name, *arguments)
    counts = cached.cache_info()[:4]
    loaded = "torch._dynamo" in sys.modules
    print(json.dumps({**found, "counts": counts, "warnings": records.texts, "dynamo": loaded}))


if __name__ == "__main__":
    main(*sys.argv[1:])
