"""Functions that are called with secrets, which they read or don't: `python texts.py SECRET`."""

import contextlib
import dataclasses
import enum
import functools
import io
import json
import logging
import os
import sys

import torch
from torch import nn

from npugx_cache import cache_compile

(SECRET,) = sys.argv[1:]
TOKEN = SECRET
TABLE = {SECRET: 2.0, "plain-key-of-a-table": 3.0}
CHOSEN = {"choice": SECRET}


@dataclasses.dataclass
class Request:
    x: torch.Tensor
    user: str
    scale: float = 2.0


class Mode(enum.StrEnum):
    SLOW = SECRET


class Client(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = SECRET

    def forward(self, x):
        return x * len(self.token)


def ignored(x, token, config=None):
    return x * 2


def ignored_inside(request, config):
    return request.x * request.scale * config["factor"]


def compared(x, token):
    return x * (2 if token == "the-word-in-the-code" else 3)


def counted(x, tokens):
    return x * sum(len(token) for token in tokens)


def of_an_object(client, x):
    return client(x)


def of_a_global(x):
    return x * len(TOKEN)


def of_a_global_dict(x):
    return x * len(CHOSEN["choice"])


def of_the_environment(x):
    return x * len(os.environ.get("MY_API_KEY", ""))


def walked(x, config):
    for value in config.values():
        x = x * len(value)
    return x


def keys_walked(x, config):
    return x * len([*config])


def in_a_tuple(x, pair=("a", SECRET)):
    return x * (1 if pair[1] == pair[0] else 2)


def _connected(token):
    def call(x, unused=token, *, also=token):
        return x * 3

    call.__wrapped__ = None
    return call if token else None


connected = _connected(SECRET)


def through_a_default(x):
    return connected(x)


def of_a_member(x, mode):
    return x * (2 if mode is Mode.SLOW else 3)


def applied(x, how):
    return how(x)


def scaled(x, token, by):
    return x * by


def raises(x, token):
    raise ValueError(f"the token {token} is refused")


def untraceable(x, token):
    print(token)
    torch._dynamo.graph_break()
    return x


def walked_set(x, words):
    for word in words:
        x = x * len(word)
    return x


X = torch.ones(3)
CASES = {
    "ignored": (ignored, lambda s: ((X, s), {"config": {"password": s, s: 1}})),
    "ignored_inside": (ignored_inside, lambda s: ((Request(X, s), {"factor": 2, "key": s}), {})),
    "compared": (compared, lambda s: ((X, s), {})),
    "counted": (counted, lambda s: ((X, [s, "x" + s]), {})),
    "of_an_object": (of_an_object, lambda _: ((Client(), X), {})),
    "of_a_global": (of_a_global, lambda _: ((X,), {})),
    "of_a_global_dict": (of_a_global_dict, lambda _: ((X,), {})),
    "of_the_environment": (of_the_environment, lambda _: ((X,), {})),
    "walked": (walked, lambda s: ((X, {"a": s, "b": s + s}), {})),
    "keys_walked": (keys_walked, lambda s: ((X, {s: 1, "b": 2}), {})),
    "in_a_tuple": (in_a_tuple, lambda _: ((X,), {})),
    "through_a_default": (through_a_default, lambda _: ((X,), {})),
    "of_a_member": (of_a_member, lambda _: ((X, Mode.SLOW), {})),
    "applied": (applied, lambda s: ((X, functools.partial(scaled, token=s, by=2)), {})),
    "walked_set": (walked_set, lambda s: ((X, {s}), {})),
    "raises": (raises, lambda s: ((X, s), {})),
    "untraceable": (untraceable, lambda s: ((X, s), {})),
}


def answer(function, args, kwargs):
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        try:
            return function(*args, **kwargs).tolist()
        except ValueError as error:
            return str(error)


def outcome(case):
    function, arguments = CASES[case]
    args, kwargs = arguments(SECRET)
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logger = logging.getLogger("npugx_cache")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    cached = cache_compile(function)
    found = [answer(cached, args, kwargs) for _ in range(4)]
    eager = answer(function, args, kwargs)
    logger.removeHandler(handler)
    info = cached.cache_info()
    return {
        "right": found == [eager] * 4,
        "hits": info.hits,
        "misses": info.misses,
        "bypasses": info.bypasses,
        "reasons": [reason for each in cached.explain() for reason in each.reasons],
        "said": said.getvalue(),
    }


print(json.dumps({case: outcome(case) for case in CASES}))
