"""Differential equations of torchdiffeq, whose right-hand side is cached."""

import torch
from torch import nn
from torchdiffeq import odeint


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, t, y):
        return self.net(y**3) * torch.cos(t)


def fixed_steps(cache):
    field = cache(Field().eval())
    y, t = torch.tensor([[2.0, 0.5]]), torch.linspace(0, 1, 4)
    return lambda: odeint(field, y, t, method="rk4")


def adaptive(cache):
    field = cache(Field().eval())
    y, t = torch.tensor([[1.0, 0.5], [0.2, 0.1]]), torch.linspace(0, 1, 3)
    return lambda: odeint(field, y, t, method="dopri5", rtol=1e-3, atol=1e-3)
