"""Modules of Lightning, called by hand and by a Trainer."""

import lightning
import torch
from torch import nn


class Regressor(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.layers(x)

    def predict_step(self, batch, index):
        return self(batch)


def forward(cache):
    model = cache(Regressor().eval())
    x = torch.randn(3, 4)
    return lambda: [model(x), model(x[:2])]


def layers_inside(cache):
    model = Regressor().eval()
    model.layers = cache(model.layers)
    x = torch.randn(3, 4)
    return lambda: [model(x), model.predict_step(x[:2], 0)]


def trainer(cache):
    model = cache(Regressor().eval())
    batches = torch.utils.data.DataLoader(torch.randn(5, 4), batch_size=2)

    def calls():
        quiet = {
            "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
            "enable_model_summary": False, "accelerator": "cpu", "devices": 1,
        }  # fmt: skip
        return lightning.Trainer(**quiet, inference_mode=False).predict(model, batches)

    return calls
