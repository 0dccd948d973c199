"""Calls whose first result is compared with the function's own, or must not be, as JSON."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import logging
import sys
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling as traces

from npugx_cache import cache_compile
from npugx_cache.backend import register_replacement
from npugx_cache.entry import first_result
from npugx_cache.errors import Uncacheable

lines: list[str] = []


class _Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines.append(f"{record.levelname} {record.getMessage()}")


logging.getLogger("npugx_cache").addHandler(_Keep())
logging.getLogger("npugx_cache").setLevel(logging.DEBUG)
ONES = torch.ones(3)
done: collections.Counter[str] = collections.Counter()


# --- what differs


def replaced(x):
    return x + 1, torch.sigmoid(x) * 3


def pattern(x):
    return torch.sigmoid(x) * 3


def wrong(x):
    return torch.sigmoid(x) * 4


def decomposed(x):
    return {"first": x + 1, "last": torch.erf(x)}


# --- what is alike


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    kept: dict[str, torch.Tensor] | None = None


def nan(x):
    return x / 0 - x / 0, torch.log(-x), float("nan")


def empty(x):
    return x[:0], torch.zeros(0, 4), [], x.shape[0], "text", None


def views(x):
    return x[1:], x.view(3, 1).expand(3, 2), x, x.t()


def output(x):
    return Output(x * 2, {"a": x + 1})


def half(x):
    y = x.to(torch.bfloat16)
    for _ in range(40):
        y = torch.softmax(y @ torch.ones(3, 3, dtype=y.dtype) * 0.3, -1) + y * 0.9
    return y.float()


class Flag:
    def __init__(self):
        self.busy = False


FLAG = Flag()


def writes_what_stands_there(x):
    """As transformers' models do, about who collects their hidden states."""
    FLAG.busy = True
    y = x * 2
    FLAG.busy = False
    return y


# --- what is not compared, because more than the result can be seen


class Counted:
    calls = 0


class Holder:
    def __init__(self):
        self.count = 0


class Ended(Holder):
    def __init__(self, value):
        self.value = value

    def __del__(self):
        done["ended"] += 1


class Listed(Holder):
    def __init__(self, value):
        self.value = value
        LISTED.append(1)


class Normed(nn.BatchNorm1d):
    pass


class Cache:
    """As a KV cache: it has a tensor for each layer, and gets a longer one in each call."""

    def __init__(self):
        self.keys = [torch.zeros(1)]

    def update(self, keys):
        self.keys[0] = torch.cat([self.keys[0], keys])
        return self.keys[0]


HELD, HOLDER, LISTED, TOTAL, LOCAL = Holder(), Holder(), [], torch.zeros(3), threading.local()
LOCAL.count, HOLDER.weak = 0, weakref.ref(HELD)
HOOKED, NORMED, MARK = nn.Identity(), Normed(3).train(), object()
HOOKED.register_forward_hook(lambda *_: LISTED.append(2))
operators = torch.library.Library("npugx_first", "DEF")
operators.define("double(Tensor x) -> Tensor")
operators.impl("double", lambda x: done.update(["double"]) or x * 2, "CPU")
torch.library.register_fake("npugx_first::double", torch.empty_like)


def counts_in_a_class(x, counted):
    type(counted).calls += 1
    return x + type(counted).calls


def behind_a_weak_reference(x, holder):
    inner = holder.weak()
    inner.count += 1
    return x + inner.count


def of_the_thread(x):
    LOCAL.count += 1
    return x + LOCAL.count


def of_a_global(x):
    HOLDER.count += 1
    return x + HOLDER.count


def to_a_list(x, seen):
    seen.append(x * 2)
    return x + len(seen)


def to_a_deque(x, seen):
    seen.append(1)
    return x + len(seen)


def of_an_iterator(x, numbers):
    return x + next(numbers)


def in_a_hook(x):
    return HOOKED(x)


def in_place(x):
    return x.add_(1) * 2


def to_a_global_tensor(x):
    return TOTAL.add_(x) * 2


def by_batch_norm(x):
    return NORMED(x.view(1, 3).expand(2, 3))


def of_a_cache(x, cache):
    return cache.update(x) * 2


def by_identity(x, kept, mode):
    kept["last"] = x + 1
    return x * 2 if mode is MARK else x * 3


def of_an_operator(x):
    return torch.ops.npugx_first.double(x)


def of_a_new_object(x):
    return Listed(x + 1)


def when_an_object_ends(x):
    return Ended(x + 1)


def where_it_is_not_traced(x):
    if not traces():
        done["by itself"] += 1
    return x * 2


# --- what is not compared, because the result of a right graph may differ, or for its cost


def asks(x):
    return x * (2 if torch.compiler.is_compiling() else 3)


def unset(x):
    return x.new_empty(4000)


def chooses(x):
    return x.argmax()


def rounds(x):
    return torch.round(x * 8)


def large(x):
    return x.expand(1 << 20, 3) * 2


def no_kernel(x):
    return torch.sigmoid(x) * 2


@torch.compile
def double(x):
    return x * 2


def compiles(x):
    return double(x) + 1


def text_of(value: Any) -> str:
    return f"{type(value).__name__} {vars(value)}" if isinstance(value, Holder) else repr(value)


def row(function: Any, *given: Any, calls: int = 2, **options: Any) -> dict[str, Any]:
    """What calls gave, and what the cache counted and logged."""
    del lines[:]
    cached = cache_compile(function, **options)
    got: list[Any] = []
    for _ in range(calls):
        try:
            got.append(text_of(cached(*given)))
        except Uncacheable as error:
            got.append(f"Uncacheable: {error.reason}")
    info = cached.cache_info()
    return {
        "got": got,
        "counts": [info.hits, info.misses, info.bypasses, info.stored],
        "reasons": dict(info.bypass_reasons),
        "warnings": [each for each in lines if each.startswith("WARNING")],
        "uncompared": [each for each in lines if "not compared" in each],
    }


def wrong_erf(x):
    return x * 2


def differing() -> dict[str, Any]:
    with contextlib.suppress(KeyError):
        register_replacement(search_fn=pattern, replace_fn=wrong, example_inputs=(ONES,))
    of_users = {torch.ops.aten.erf.default: wrong_erf}
    rows = {
        "replaced": row(replaced, ONES),
        "decomposed": row(decomposed, ONES, custom_decompositions=of_users),
        "strict": row(replaced, ONES[:2].clone(), strict=True),
    }
    ahead = cache_compile(replaced)
    rows["warm"] = {"refused": ahead.warm(torch.ones(4)).refused}
    return rows


def alike() -> dict[str, Any]:
    functions = (nan, empty, views, output, half, writes_what_stands_there)
    return {each.__name__: row(each, ONES) for each in functions}


def effects() -> dict[str, Any]:
    functions = (
        *(of_the_thread, of_a_global, in_a_hook, in_place, to_a_global_tensor, by_batch_norm),
        *(of_an_operator, of_a_new_object, when_an_object_ends, where_it_is_not_traced),
    )
    given = [ONES.clone() for _ in functions]
    rows = {each.__name__: row(each, x) for each, x in zip(functions, given, strict=True)}
    others = [{}, [], collections.deque([0]), itertools.count(5), Cache()]
    rows["by_identity"] = row(by_identity, ONES, others[0], MARK)
    rows["to_a_list"] = row(to_a_list, ONES, others[1])
    rows["to_a_deque"] = row(to_a_deque, ONES, others[2])
    rows["of_an_iterator"] = row(of_an_iterator, ONES, others[3])
    rows["of_a_cache"] = row(of_a_cache, ONES, others[4])
    rows["counts_in_a_class"] = row(counts_in_a_class, ONES, Counted())
    rows["behind_a_weak_reference"] = row(behind_a_weak_reference, ONES, HOLDER)
    left = [HELD.count, HOLDER.count, LOCAL.count, Counted.calls, LISTED, TOTAL, done, given]
    left += [each._version for each in (*given, TOTAL)]
    left += [others[:3], next(others[3]), others[4].keys, dict(NORMED.named_buffers())]
    return {"rows": rows, "left": repr(left)}


def uncompared() -> dict[str, Any]:
    first_result.MOST_BYTES = 1 << 20
    rows = {
        each.__name__: row(each, ONES, calls=1)
        for each in (asks, unset, chooses, rounds, large, compiles)
    }
    rows["passes"] = row(
        no_kernel, ONES, calls=1, options={"post_grad_custom_post_pass": lambda *_: None}
    )
    return rows


if __name__ == "__main__":
    groups = {"differing": differing, "alike": alike, "effects": effects, "uncompared": uncompared}
    print(json.dumps(groups[sys.argv[1]]()))
