"""Starts vLLM as a user does, `vllm.LLM`, without its kernels: a Qwen3 of three layers on a CPU.

python run_whole_vllm.py FOLDER prints what came of it. FOLDER gets the model's configuration. The
start loads the model with random weights, compiles it and runs it once on as many tokens as it may
get; attention is left out in that run, as always. To generate text, kernels are needed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_HOST_IP"] = "127.0.0.1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
import transformers

# Kernels that the start calls or asks for.
KERNELS = torch.library.Library("_C", "FRAGMENT")
KERNELS.define("init_cpu_memory_env(int[] nodes) -> ()")
KERNELS.define("cpu_attn_has_isa(str name) -> bool")
KERNELS.define("silu_and_mul(Tensor(a!) out, Tensor input) -> ()")
KERNELS.impl("init_cpu_memory_env", lambda nodes: None, "CompositeExplicitAutograd")
KERNELS.define("greedy_argmax(Tensor logits) -> Tensor")
KERNELS.define("fused_gumbel_argmax(Tensor logits, Tensor seeds) -> Tensor")
KERNELS.impl("cpu_attn_has_isa", lambda name: False, "CompositeExplicitAutograd")
KERNELS.impl("greedy_argmax", lambda logits: logits.argmax(-1), "CompositeExplicitAutograd")
KERNELS.impl(
    "fused_gumbel_argmax", lambda logits, seeds: logits.argmax(-1), "CompositeExplicitAutograd"
)


def write_model(folder):
    config = transformers.Qwen3Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
    )
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)


def main(folder):
    messages = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: messages.append(f"{record.levelname} {record.getMessage()}")
    logger = logging.getLogger("npugx_cache")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    write_model(folder)
    from vllm import LLM

    from npugx_cache.pieces import compiled

    LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        gpu_memory_utilization=0.2,
        compilation_config={"custom_ops": ["none"]},
    )
    print(json.dumps({"info": list(compiled.counters.info(0)[:4]), "messages": messages}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
