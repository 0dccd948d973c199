"""Programs on one device, eager and cached; prints JSON as tests/restart/run.py does.

python programs.py DEVICE
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "restart"))

from run import run

DEVICE = sys.argv[1]


def made(module):
    torch.manual_seed(0)
    return module().eval().to(DEVICE)


def tensor(*size):
    numbers = torch.arange(float(torch.Size(size).numel())) / 7
    return numbers.sin().reshape(size).to(DEVICE)


def three_calls(call, *sizes):
    """A GPU captures a shape at its second call, and replays it from then on."""
    return [call(tensor(*size)) for size in sizes for _ in range(3)]


def perceptron(cached):
    model = made(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)))
    return three_calls(cached(model.forward), (2, 8), (5, 8), (3, 8))


def convolutions(cached):
    model = made(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2)))
    return three_calls(cached(model.forward), (2, 2, 6, 6))


def attention(cached):
    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    return three_calls(cached(attend), (1, 2, 8, 16))


def a_cache_written_in_place(cached):
    def step(x, kv, position):
        kv.index_copy_(0, position, x)
        return (kv * 2).sum(0)

    call, kv = cached(step), torch.zeros(4, 8, device=DEVICE)
    places = [torch.tensor([n], device=DEVICE) for n in range(4)]
    return [*(call(tensor(1, 8) + n, kv, place) for n, place in enumerate(places)), kv]


def half_precision_under_autocast(cached):
    model = made(lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True))

    def call(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(x).float()

    return three_calls(cached(call), (2, 5, 32), (2, 9, 32))


def channels_last(cached):
    model = made(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()))
    model = model.to(memory_format=torch.channels_last)
    call = cached(model.forward)
    image = tensor(2, 3, 8, 8).to(memory_format=torch.channels_last)
    return [call(image + n) for n in range(3)]


def made_inside(cached):
    def call(x):
        places = torch.arange(x.shape[0], device=x.device, dtype=x.dtype)
        mask = torch.ones(x.shape[0], x.shape[0], device="cuda").tril()
        return (mask @ x + places[:, None], torch.zeros_like(x), x.new_full((2,), 3.0))

    return three_calls(cached(call), (3, 4), (5, 4))


def between_the_host_and_the_device(cached):
    def call(x, scale, host):
        moved = host.to(x.device, non_blocking=True)
        return x * scale + moved, (x + 1).cpu()

    call, scale = cached(call), torch.tensor(2.0)  # a number on the host
    return [call(tensor(3) + n, scale + n, torch.ones(3) * n) for n in range(4)]


def sorted_and_chosen(cached):
    def call(x):
        values, places = x.topk(3)
        return values, places, x.argmax(-1), x.sort(-1).values, torch.fft.rfft(x).abs()

    return three_calls(cached(call), (4, 16))


def statistics_written_in_training(cached):
    model = made(lambda: nn.BatchNorm1d(4)).train()
    call = cached(model.forward)
    found = [call(tensor(8, 4) + n) for n in range(4)]
    return [*found, model.running_mean.clone(), model.running_var.clone()]


def on_another_stream(cached):
    call, stream, found = cached(lambda x: (x @ x.T).relu()), torch.cuda.Stream(), []
    for n in range(4):
        x = tensor(16, 16) + n
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(call(x))
        torch.cuda.current_stream().wait_stream(stream)
    return found


def generated_tokens(cached):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    model = made(lambda: Qwen3ForCausalLM(config))
    model.forward = cached(model.forward)
    prompt = torch.arange(6, device=DEVICE)[None]
    return [
        model.generate(prompt, max_new_tokens=6, do_sample=False, cache_implementation=kind)
        for kind in ("static", "dynamic")
    ]


def views_and_passed_through(cached):
    def several(x):
        y = x * 2
        return x, x[1:], y, y.t()

    return three_calls(cached(several), (3, 4))


PROGRAMS = (
    perceptron,
    convolutions,
    attention,
    a_cache_written_in_place,
    half_precision_under_autocast,
    channels_last,
    made_inside,
    between_the_host_and_the_device,
    sorted_and_chosen,
    statistics_written_in_training,
    on_another_stream,
    generated_tokens,
    views_and_passed_through,
)

if __name__ == "__main__":
    print(json.dumps({program.__name__: run(program) for program in PROGRAMS}))
