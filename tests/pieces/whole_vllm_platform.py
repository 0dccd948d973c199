"""A platform of vLLM's for CPUs that compiles by pieces, as those for GPUs and NPUs do."""

from __future__ import annotations

import importlib

import torch
import vllm.platforms.cpu


class PiecewiseCpu(vllm.platforms.cpu.CpuPlatform):
    @classmethod
    def check_and_update_config(cls, vllm_config):
        # vLLM's Python for CPUs replaces two methods of tensors, with which nothing is cached.
        importlib.import_module("vllm.v1.worker.cpu.shm")
        for name in ("pin_memory", "record_stream"):
            if name in vars(torch.Tensor):
                delattr(torch.Tensor, name)
        compilation = vllm_config.compilation_config
        before = compilation.mode, compilation.backend
        super().check_and_update_config(vllm_config)
        compilation.mode, compilation.backend = before
        compilation.compile_sizes = compilation.compile_sizes or []
        for name, value in vars(compilation.pass_config).items():
            if value is True:  # these passes are imported for GPUs alone
                setattr(compilation.pass_config, name, False)


def register():
    return "whole_vllm_platform.PiecewiseCpu"
