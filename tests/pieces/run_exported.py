"""Exports Qwen3 with a dynamic length, and compares its module from the cache with eager."""

from __future__ import annotations

import json
import logging

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from npugx_cache.pieces.compiled import cached_graph, counters


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).logits


def main():
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    model = Logits(Qwen3ForCausalLM(config).eval())

    def inputs(length):
        ids = torch.randint(0, 1024, (1, length))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    length = torch.export.Dim("length", max=512)
    shapes = {"input_ids": {1: length}, "attention_mask": {1: length}}
    with torch.no_grad():
        program = torch.export.export(model, (), inputs(16), dynamic_shapes=shapes)
        run = cached_graph(program.module(), program.example_inputs)
        found = [
            float((run(**given) - model(**given)).abs().max()) for given in map(inputs, (16, 33, 2))
        ]
    info = list(counters.info(0)[:4])
    print(json.dumps({"difference": max(found), "info": info, "warnings": warnings}))


if __name__ == "__main__":
    main()
