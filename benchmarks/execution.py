"""What a call costs from start to end, guards and graph, against eager's: the ratios of CPU time.

Inductor's kernels give other bits than eager's; what the other ways give is equal.

A decode step of Qwen3 with a StaticCache writes its keys and values in place; each way of running
it has a cache of its own. One process, all in turn; results are compared with eager's first.

The second table is what a plan of buffers could save: single operators that make a tensor for their
result, write to a buffer that is there, or write over an argument.
"""

from __future__ import annotations

import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from measuring import Numbers, in_turn, markdown, run_script
from models import qwen3

if TYPE_CHECKING:
    from collections.abc import Callable

    from measuring import Calls

LAYERS, ROUNDS, LENGTH = 28, 200, 256  # every call makes the cache one longer
WIDTH, ROWS, AT_ONCE = 256, (1, 16, 512), 20
BUFFERS, MLP = "results", "MLP, 3 layers of 256"


def measure(quick: bool) -> Numbers:
    import torch

    torch.set_num_threads(1)
    layers, times = (2, 5) if quick else (LAYERS, ROUNDS)
    subjects = {
        f"decode step, {layers} layers": _decode(layers),
        "forward, 2 layers": _forward(2),
        "BERT, 1 layer": _bert(),
        MLP: _mlp(),
        "resize, 64 x 64 x 64": _resize(),
    }
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        found: Numbers = {
            name: in_turn(_ways(make, folder, kernels=not quick or name == MLP), times, 1)
            for name, make in subjects.items()
        }
        return found | {BUFFERS: _results(times)}


def _results(times: int) -> Numbers:
    import torch

    weight, found = torch.randn(WIDTH, WIDTH), {}
    for count in ROWS:
        x, y, buffer = (torch.randn(count, WIDTH) for _ in range(3))
        multiply: Calls = {
            "a new tensor": partial(torch.mul, x, y),
            "a buffer": partial(torch.mul, x, y, out=buffer),
            "an argument": partial(buffer.copy_(x).mul_, torch.ones(count, WIDTH)),
        }
        project: Calls = {
            "a new tensor": partial(torch.mm, x, weight),
            "a buffer": partial(torch.mm, x, weight, out=buffer),
        }
        found[f"mul, {count} x {WIDTH}"] = in_turn(multiply, times, AT_ONCE)
        found[f"mm, {count} x {WIDTH}"] = in_turn(project, times, AT_ONCE)
    return found


def _ways(
    make: Callable[[], Callable[[], Any]], folder: str, *, kernels: bool
) -> dict[str, Callable[[], object]]:
    """The same call made in several ways, each compiled and found equal to eager's.

    `kernels`: with Inductor's too, which take a minute to compile.
    """
    import torch

    from npugx_cache import cache_compile

    want = make()()
    cached = partial(cache_compile, cache_dir=folder)
    ours = {
        "npugx_cache": cached(make()),
        "npugx_cache, inputs_unsafe": cached(make(), guards="inputs_unsafe"),
    }
    if kernels:
        ours["npugx_cache, inductor"] = cached(make(), backend="inductor")
    ways: dict[str, Callable[[], object]] = {
        "eager": make(),
        **ours,
        "torch.compile, aot_eager": torch.compile(make(), backend="aot_eager"),
    }
    if kernels:
        ways["torch.compile, inductor"] = torch.compile(make(), backend="inductor")
    for call in ways.values():
        torch.testing.assert_close(call(), want)
        for _ in range(3):  # ours makes its C++ managers at the second call
            call()
    for name, each in ours.items():
        if each.cache_info().bypasses:
            raise SystemExit(f"{name} runs uncached: {each.explain()}")
    return ways


def _decode(layers: int) -> Callable[[], Callable[[], Any]]:
    import torch
    from transformers import StaticCache

    model, inputs = qwen3(layers)
    prompt, token = inputs["input_ids"], inputs["input_ids"][:, -1:]
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    at = torch.tensor([prompt.shape[1]])

    def make() -> Callable[[], Any]:
        cache = StaticCache(config=model.config, max_cache_len=LENGTH)
        first = torch.arange(prompt.shape[1])
        with torch.no_grad():
            model(prompt, past_key_values=cache, cache_position=first, use_cache=True)

        def step() -> Any:
            found = model(
                token,
                attention_mask=mask,
                position_ids=at[None],
                cache_position=at,
                past_key_values=cache,
                use_cache=True,
            )
            return found.logits

        return step

    return make


def _forward(layers: int) -> Callable[[], Callable[[], Any]]:
    model, inputs = qwen3(layers)

    def call() -> Any:
        return model(**inputs).logits

    return lambda: call


def _bert() -> Callable[[], Callable[[], Any]]:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=128,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
    )
    model, ids = BertModel(config), torch.randint(128, (1, 16))
    model.train(mode=False)

    def call() -> Any:
        return model(ids).last_hidden_state

    return lambda: call


def _resize() -> Callable[[], Callable[[], Any]]:
    import torch

    torch.manual_seed(0)
    images = torch.randn(1, 64, 64, 64)

    def call() -> Any:
        return torch.nn.functional.interpolate(images, scale_factor=2.0, mode="bilinear")

    return lambda: call


def _mlp() -> Callable[[], Callable[[], Any]]:
    import torch

    torch.manual_seed(0)
    parts = [part for _ in range(3) for part in (torch.nn.Linear(256, 256), torch.nn.SiLU())]
    model, x = torch.nn.Sequential(*parts).eval(), torch.randn(8, 256)

    def call() -> Any:
        return model(x)

    return lambda: call


def text(found: Numbers) -> str:
    calls = {name: row for name, row in found.items() if name != BUFFERS}
    whole = _table("a call (of eager's)", calls, 0)
    return f"{whole}\n\n{_table('an operator whose result is', found[BUFFERS], 2)}"


def _table(what: str, found: Numbers, digits: int) -> str:
    ways = list(dict.fromkeys(way for row in found.values() for way in row))
    rows = []
    for name, row in found.items():
        shown = (
            f"{row[way]['us']:.{digits}f} us ({row[way]['ratio']:.3f})" if way in row else "-"
            for way in ways
        )
        rows.append([name, *shown])
    return markdown([f"CPU of {what}", *ways], rows)


if __name__ == "__main__":
    run_script(__doc__, measure, text)
