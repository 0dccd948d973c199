"""Programs about modules of torch that take a way of their own through a trace."""

from __future__ import annotations

import gc
import typing

import torch
from torch import nn

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


@program
def recurrent_modules(cached):
    outs = []
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        for dtype in (torch.float32, torch.float16):
            torch.manual_seed(0)
            module = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True).to(dtype).eval()
            call, x = cached(module.forward), tensor(2, 5, 3, dtype=dtype)
            out, state = call(x)
            outs += [out, state, call(x, state)]
    return outs


@program
def a_weight_of_a_recurrent_module_replaced(cached):
    torch.manual_seed(0)
    module = nn.GRU(3, 4).eval()
    call = cached(module.forward)
    before = call(tensor(5, 2, 3))
    module.weight_ih_l0 = nn.Parameter(tensor(12, 3, seed=1))
    gc.collect()  # the module has a weak reference to the old weight, which is guarded
    return [before, call(tensor(5, 2, 3))]


@program
def channels_last_through_pooling(cached):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = net.to(memory_format=torch.channels_last).eval()
    x = tensor(2, 3, 6, 6).to(memory_format=torch.channels_last)
    return [cached(net.forward)(x), cached(net[:2].forward)(x)]


@program
def an_encoder_that_asks_whether_its_mask_is_causal(cached):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    call = cached(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval().forward)
    masks = [torch.ones(5, 5).triu(1).bool(), torch.ones(5, 5).tril(-2).bool()]
    return [call(tensor(2, 5, 8), mask) for mask in masks]
