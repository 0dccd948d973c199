"""What a caller is handling is no exception of the call (the thorough ones: tests/faults)."""

import torch

from npugx_cache import cache_compile


def prints(x):
    print(end="")
    return x + 1


def test_a_refused_call_in_a_handler_of_the_caller_does_not_raise_what_is_handled():
    cached = cache_compile(prints)
    try:
        raise MemoryError("big")
    except MemoryError:
        assert cached(torch.ones(2)).tolist() == [2.0, 2.0]
