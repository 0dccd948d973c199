"""Programs for the backend inductor: each is run plain, cold and restarted. Few: g++ takes seconds.

A program gets `wrap`, which is `cache_compile` or leaves a function as it is.
"""

import torch

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


class Step(torch.nn.Module):
    """A decode step with parameters, a buffer, a cache that is written to, and a position."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x, position):
        self.cache.index_copy_(0, position, self.linear(x).relu()[None])
        return self.cache.softmax(-1) * x, self.cache


@program
def a_module_with_a_cache(wrap):
    step = Step().eval()
    run = wrap(step.forward)
    results = []
    for position in range(3):
        out, cache = run(torch.arange(8.0), torch.tensor([position]))
        results += [out, cache.clone(), cache is step.cache, step.cache._version]
    with torch.no_grad():
        step.linear.weight.mul_(2)  # parameters are arguments, not part of the library
    return [*results, run(torch.arange(8.0), torch.tensor([3]))[0]]


@program
def sizes_views_numbers_and_writes(wrap):
    def function(x, w, kv, n):
        kv.copy_(kv + x)
        y = torch.relu(x @ w) * n
        z = y * 2
        return y.sum(0), x.t(), z[:2], z[1:], x.shape[0] * n, kv[1:]

    run = wrap(function, dynamic=True)
    torch.manual_seed(0)
    w, results = torch.randn(8, 8), []
    for rows in (5, 7, 9):
        x, kv = torch.randn(rows, 8), torch.zeros(rows, 8)
        out = run(x, w, kv, rows)
        results += [out, kv, kv._version, out[1].data_ptr() == x.data_ptr()]
        results.append(out[5]._base is kv or out[5].data_ptr() == kv[1:].data_ptr())
        results.append(out[3].data_ptr() == out[2][1:].data_ptr())
        out[5].zero_()  # a view of the argument, not a copy
        results.append(kv.clone())
    # Written to and overlapping: only call by call this has a defined result.
    whole = torch.arange(80.0).reshape(10, 8)
    results += [run(whole[:6], w, whole[2:8], 3), whole]
    return results


@program
def nothing_is_returned(wrap):
    def function(x, out):
        out.copy_(x.sin() + 1)

    run = wrap(function)
    out = torch.zeros(6)
    return [run(torch.arange(6.0), out), out]


@program
def views_alone(wrap):
    run = wrap(lambda x: (x.t(), x[1:]))
    return run(torch.arange(6.0).reshape(2, 3))


@program
def a_captured_library(wrap):
    def function(x, kv):
        kv.mul_(0.5).add_(x)
        return kv.sum(-1).cos()

    run = wrap(function, options={"triton.cudagraphs": True, "capture_limit": 2})
    kv, results = torch.zeros(3, 4), []
    for value in range(4):
        results.append(run(torch.full((3, 4), float(value)), kv))
    return [*results, kv]


@program
def complex_numbers(wrap):
    run = wrap(lambda x: (x * x.conj()).abs() + torch.view_as_real(x * 2).sum())
    return run(torch.complex(torch.arange(3.0), torch.ones(3)))
