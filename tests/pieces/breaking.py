"""Functions that can't be one graph. Each gives what to cache, and calls of it.

A call is a function of the cached target; what it returns is compared with eager, arguments and
states that it may have changed included. `HELPER` is the part that a test edits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from npugx_cache import cache_compile


def scaled(x):
    return x * 2


def prints():
    def f(x, w):
        y = scaled(torch.sin(x @ w))
        print("in the middle", y.shape)
        return y.relu() + x.shape[0], y

    calls = [(torch.randn(n, 8), torch.randn(8, 8)) for n in (4, 5, 6)]
    return f, [lambda run, args=args: (run(*args), args) for args in calls]


def item():
    def f(x, y):
        x.add_(1)
        if x.sum().item() > 0:
            return x * y
        return x - y.cos()

    calls = [(torch.ones(3) * sign, torch.randn(3)) for sign in (1, -5, 2)]
    return f, [lambda run, args=args: (run(*args), args) for args in calls]


def raises():
    """An exception that the function catches, and one that the caller sees."""

    def checked(x):
        if bool((x < 0).any()):
            raise ValueError(f"{int((x < 0).sum())} are below 0")
        return x.sqrt()

    def f(x, written):
        written.add_(1)
        try:
            return checked(x) + 1
        except ValueError:
            if x.shape[0] > 3:
                raise
            return checked(-x) * 2

    def caught(run, *args):
        try:
            return run(*args), args
        except ValueError as error:
            return [*str(error).encode()], args

    values = (torch.ones(3), -torch.ones(3), -torch.ones(4))
    calls = [(x, torch.zeros(2)) for x in values]
    return f, [lambda run, args=args: caught(run, *args) for args in calls]


def generators():
    def parts(x):
        for row in x.unbind(0):
            print("a row")
            yield row.sin() * 2

    def f(x):
        return sum(part.sum() for part in parts(x)), [part.cos() for part in parts(x + 1)]

    x = torch.randn(3, 4)
    return f, [lambda run: run(x), lambda run: run(x + 1)]


def with_numpy():
    def f(x):
        y = torch.relu(x) * 3
        kept = np.unique(y.round().numpy())
        seed = np.random.default_rng(0).random(len(kept))
        return y.mean() + torch.from_numpy(kept), torch.from_numpy(seed)

    return f, [lambda run: run(torch.arange(6.0).view(2, 3)), lambda run: run(torch.ones(2, 3))]


def states():
    """Two objects with a method that writes to the object, and prints."""

    class Counter:
        def __init__(self, start):
            self.total, self.seen = torch.tensor(float(start)), []

        def add(self, x):
            self.total += x.sum()
            print("added")
            self.seen.append(x.shape[0])
            return self.total * x

    def wrapped(run):
        return type("Counter", (Counter,), {"add": run})

    def calls(run):
        objects = [wrapped(run)(start) for start in (1, 2)]
        results = [each.add(torch.ones(n)) for n in (2, 3) for each in objects]
        return results, [(each.total, each.seen) for each in objects]

    return Counter.add, [calls]


def nested():
    """A function that breaks calls a cached one, and one that breaks itself, between breaks too."""
    plain = cache_compile(lambda x: x.sin() * 2)
    noisy = cache_compile(prints()[0], fullgraph=None)

    def f(x, w):
        y = plain(x)
        print("outside")
        return noisy(y, w), plain(y)

    args = torch.randn(4, 8), torch.randn(8, 8)
    return f, [lambda run: run(*args), lambda run: run(args[0] + 1, args[1])]


def gradients():
    """With grad on, and switched on inside: what a cached call returns carries none."""

    def f(x):
        y = x * 2
        with torch.enable_grad():
            z = y.sin()
            print("in the middle", torch.is_grad_enabled())
            z = z * 2
        print(torch.is_grad_enabled())
        return z.exp()

    def call(run):
        weight = torch.ones(3, requires_grad=True)
        result = run(weight)
        return result.detach(), weight.grad

    return f, [call]


class Detector(nn.Module):
    """The structure of Faster R-CNN: proposals of a grid, kept by a loop of NMS, then heads.

    The number of boxes depends on the data at each step, and each image has its own.
    """

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.objectness, self.deltas = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 8, 1)
        self.box_head = nn.Sequential(nn.Linear(8 * 4, 16), nn.ReLU(), nn.Linear(16, 3 + 4))

    def proposals(self, features):
        scores = self.objectness(features).flatten(1).sigmoid()
        n, _, h, w = features.shape
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        centres = torch.stack([columns, rows], -1).reshape(1, 1, -1, 2) * 4.0 + 2
        deltas = self.deltas(features).view(n, 2, 4, -1).permute(0, 1, 3, 2)
        sides = torch.tensor([4.0, 8.0]).view(1, 2, 1, 1) * deltas[..., 2:].clamp(-1, 1).exp()
        middles = centres + deltas[..., :2]
        return torch.cat([middles - sides, middles + sides], -1).flatten(1, 2), scores

    def forward(self, images):
        batch = torch.stack([(image - image.mean()) / (image.std() + 1e-3) for image in images])
        features = self.backbone(batch)
        found = []
        for boxes, scores, planes in zip(*self.proposals(features), features, strict=True):
            size = torch.tensor(batch.shape[-2:]).flip(0).repeat(2)
            clipped = torch.minimum(boxes.clamp(min=0), size - 1.0)
            good = torch.nonzero((scores > scores.mean()) & (areas(clipped) > 4)).squeeze(1)
            kept = good[nms(clipped[good], scores[good], 0.5)][:8]
            if kept.numel() == 0:
                found.append({"boxes": clipped[:0], "scores": scores[:0]})
                continue
            pooled = torch.stack([pool(planes, box) for box in clipped[kept]])
            logits = self.box_head(pooled)
            classes = logits[:, :3].softmax(-1)
            best, labels = classes[:, 1:].max(-1)
            moved = clipped[kept] + logits[:, 3:]
            keep = nms(moved, best, 0.4)
            found.append({"boxes": moved[keep], "scores": best[keep], "labels": labels[keep]})
        return found


def areas(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def nms(boxes, scores, threshold):
    order, kept = scores.argsort(descending=True), []
    while order.numel() > 0:
        first, rest = order[0], order[1:]
        kept.append(int(first))
        low = torch.maximum(boxes[first, :2], boxes[rest, :2])
        high = torch.minimum(boxes[first, 2:], boxes[rest, 2:])
        inside = (high - low).clamp(min=0).prod(-1)
        union = areas(boxes[first][None]) + areas(boxes[rest]) - inside
        order = rest[inside / union <= threshold]
    return torch.tensor(kept, dtype=torch.long)


def pool(planes, box):
    left, top, right, bottom = [int(each) // 4 for each in box.tolist()]
    part = planes[:, top : max(bottom, top) + 1, left : max(right, left) + 1]
    return nn.functional.adaptive_max_pool2d(part[None], 2).flatten()


def detector():
    images = [torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32), torch.zeros(1, 3, 32, 48)]
    return Detector().eval(), [lambda run, each=each: run(list(each)) for each in images]


PROGRAMS = {
    each.__name__: each
    for each in (
        prints,
        item,
        raises,
        generators,
        with_numpy,
        states,
        nested,
        gradients,
        detector,
    )
}
