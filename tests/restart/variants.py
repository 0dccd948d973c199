"""Two shapes, two dtypes, train and eval of one method, in turn; prints counts as JSON."""

import json

import torch

from npugx_cache import cache_compile


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop = torch.nn.Linear(4, 4), torch.nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.linear(x))


def main():
    model = Model().eval()
    call = cache_compile(model.forward, dynamic=False)
    right = True
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        for rows, training in ((2, False), (5, False), (2, True)):
            model.train(training)
            x = torch.ones(rows, 4, dtype=dtype)
            with torch.no_grad():
                right &= torch.equal(call(x), Model.forward(model, x))
    print(json.dumps({"right": right, **call.cache_info()._asdict()}))


if __name__ == "__main__":
    main()
