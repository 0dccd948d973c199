"""Which packages the cache is tried with, and what is done with each: one line per workload.

Importing this imports no package and no torch: test names are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Refusal:
    """A workload that the store does not serve at a restart, as things are today.

    `words` are in the reason that the cache gives; `explanation` is what a user makes of them.
    `torch` are words in what `torch.compile(fullgraph=True, backend="aot_eager")` raises on the
    same workload, also after an eager call; none if torch runs it.
    """

    words: str
    explanation: str
    torch: str = ""


@dataclass(frozen=True)
class Package:
    """A package as pip names it, the modules to import before, and its workloads by name.

    `file` in workloads/ has a function for each: given `cache_compile`, or something that leaves
    targets as they are, the function builds models and returns a callable that uses them.
    """

    name: str
    file: str
    modules: tuple[str, ...]
    workloads: dict[str, str]


# Everything that imports torchvision where there is one.
VISION = "torchvision"

PACKAGES = (
    Package(
        "diffusers", "with_diffusers", (VISION, "diffusers"),
        {
            "unet_ddim": "UNet2DCondition, guided DDIM loops of two sizes, and a step by hand",
            "unet_sdxl": "UNet2DCondition with SDXL's conditions, a guided Euler loop",
            "controlnet": "ControlNet and its UNet, two scales",
            "decode": "AutoencoderKL, bound `decode`, two sizes",
            "encode_one": "AutoencoderKL, bound `encode`, one image",
            "flux": "Flux, bfloat16, a flow-matching loop",
            "dit": "DiT, three timesteps",
            "sd3": "SD3, a guided flow-matching loop",
            "pixart": "PixArt, masked text, two timesteps",
            "ddpm_pipeline": "DDPMPipeline, 4 steps",
        },
    ),
    Package(
        "einops", "with_einops", ("einops",),
        {
            "attention": "attention by `rearrange` and `einsum`, three lengths",
            "attention_bfloat16": "the same in bfloat16, two batch sizes",
            "layers": "`Rearrange` and `Reduce` layers, two sizes",
            "class_token": "a function with `repeat`, `pack`, `unpack`, `reduce`",
        },
    ),
    Package(
        "einx", "with_einx", ("einx",),
        {
            "mixer": "`dot` and `id` in a module, two lengths",
            "normalised": "a function with `mean` and `subtract`",
            "gathered": "a function with `get_at`",
        },
    ),
    Package(
        "timm", "with_timm", (VISION, "timm"),
        {
            "convnext": "ConvNeXt, three shapes",
            "swin": "Swin, two batch sizes",
            "mobilenet_bfloat16": "MobileNetV4, bfloat16, two batch sizes",
            "eva": "EVA-02, two batch sizes",
            "features_only": "`features_only=True` of a ResNet, two batch sizes",
            "forward_features": "bound `forward_features` of a ViT",
            "dynamic_size": "ViT with `dynamic_img_size`, three sizes",
            "efficientnet_channels_last": "EfficientNet, channels last",
        },
    ),
    Package(
        "kornia", "with_kornia", ("kornia",),
        {
            "edges": "a module with `gaussian_blur2d`, `sobel`, two sizes",
            "colours": "a function with HSV and Lab colours",
            "warp": "a function with `rotate` and `resize`, two angles",
            "enhance": "`Normalize`, `AdjustBrightness`, `MedianBlur` as layers",
            "canny": "`Canny`",
        },
    ),
    Package(
        "vit-pytorch", "with_vit_pytorch", (VISION, "vit_pytorch"),
        {
            "vit": "ViT, two batch sizes",
            "simple_vit_bfloat16": "SimpleViT, bfloat16",
            "cait": "CaiT",
            "cct": "CCT, two batch sizes",
        },
    ),
    Package(
        "x-transformers", "with_x_transformers", ("x_transformers",),
        {
            "decoder_flash": "Decoder with flash attention, two sizes",
            "encoder_relative_bias": "Encoder with a relative position bias, masked",
            "generate": "`AutoregressiveWrapper.generate` with rotary positions",
            "continuous": "ContinuousTransformerWrapper with RMS norm, two lengths",
        },
    ),
    Package(
        "peft", "with_peft", (VISION, "peft"),
        {
            "switched": "LoRA on Qwen3: `set_adapter`, `disable_adapter`",
            "merged": "LoRA on Qwen3: `merge_adapter`, `unmerge_adapter`",
            "generate": "LoRA on Qwen3: `generate`, the base model cached",
            "batch_of_adapters": "LoRA on Qwen3: `adapter_names` for each row of a batch",
            "dora": "DoRA on Qwen3, two lengths",
            "ia3_bfloat16": "IA3 on Qwen3, bfloat16, two lengths",
        },
    ),
    Package(
        "accelerate", "with_accelerate", ("accelerate",),
        {
            "dispatched": "`dispatch_model`, two batch sizes",
            "dispatched_inside": "a module that holds a dispatched one",
            "offloaded": "`cpu_offload`",
            "prepared": "`Accelerator.prepare_model` with mixed precision",
        },
    ),
    Package(
        "sentence-transformers", "with_sentence_transformers", (VISION, "sentence_transformers"),
        {
            "encode": "`SentenceTransformer.encode`, texts of several lengths",
            "rank": "`CrossEncoder.predict`",
        },
    ),
    Package(
        "open_clip_torch", "with_open_clip", (VISION, "open_clip"),
        {
            "similarity": "CLIP, bound `encode_image` and `encode_text`",
            "whole": "CLIP, images and texts together and apart",
            "custom_text_bfloat16": "CustomTextCLIP, bfloat16",
        },
    ),
    Package(
        "torch-geometric", "with_torch_geometric", ("torch_geometric",),
        {
            "gcn": "GCN and SAGE, two graphs",
            "gcn_without_loops": "GCN without added self-loops and SAGE, two graphs",
            "gat": "GAT and TransformerConv",
            "graphs": "GIN and `global_mean_pool`",
        },
    ),
    Package(
        "segmentation-models-pytorch", "with_segmentation_models",
        (VISION, "segmentation_models_pytorch"),
        {
            "unet": "Unet, two batch sizes",
            "fpn_predict": "FPN, bound `predict`",
            "deeplab_bfloat16": "DeepLabV3+ with a classifier, bfloat16",
            "segformer": "Segformer, two sizes",
        },
    ),
    Package(
        "torchao", "with_torchao", ("torchao",),
        {
            "int8_weights": "int8 weights",
            "int8_weights_bfloat16": "int8 weights, bfloat16",
            "int8_both": "int8 weights and activations",
        },
    ),
    Package(
        "lightning", "with_lightning", (VISION, "lightning"),
        {
            "forward": "a LightningModule, two batch sizes",
            "layers_inside": "the layers inside a LightningModule",
            "trainer": "`Trainer.predict`, the last batch smaller",
        },
    ),
    Package(
        "torchvision", "with_torchvision", (VISION,),
        {
            "resnet": "ResNet, three shapes",
            "vision_transformer": "VisionTransformer, two batch sizes",
            "segmentation": "LR-ASPP segmentation",
            "extracted_features": "`create_feature_extractor` of a MobileNet",
        },
    ),
    Package(
        "ultralytics", "with_ultralytics", (VISION, "ultralytics"),
        {
            "detection": "YOLO11n, detection",
            "classification": "YOLO11n, classification, two batch sizes",
        },
    ),
    Package(
        "monai", "with_monai", (VISION, "monai"),
        {
            "unet_windows": "UNet under `sliding_window_inference`",
            "segresnet_3d": "SegResNet in three dimensions",
            "vit": "ViT classifier, two batch sizes",
        },
    ),
    Package(
        "vector-quantize-pytorch", "with_vector_quantize", ("vector_quantize_pytorch",),
        {
            "vector_quantize": "VectorQuantize, two batch sizes",
            "residual": "ResidualVQ",
            "finite_scalar": "FSQ",
        },
    ),
    Package(
        "rotary-embedding-torch", "with_rotary_embedding", ("rotary_embedding_torch",),
        {"attention": "attention with rotary positions, two sizes"},
    ),
    Package(
        "local-attention", "with_local_attention", ("local_attention",),
        {
            "windows": "LocalAttention with padding, with and without a mask",
            "transformer": "LocalTransformer",
        },
    ),
    Package(
        "torchdiffeq", "with_torchdiffeq", ("torchdiffeq",),
        {
            "fixed_steps": "`odeint` by rk4, the field cached",
            "adaptive": "`odeint` by dopri5, the field cached",
        },
    ),
    Package(
        "bitsandbytes", "with_bitsandbytes", ("bitsandbytes",),
        {
            "nf4": "`Linear4bit` of type nf4, two batch sizes",
            "fp4": "`Linear4bit` of type fp4, two batch sizes",
            "int8": "`Linear8bitLt` with outliers, two batch sizes",
        },
    ),
    Package(
        "gguf", "with_gguf", ("gguf", "diffusers"),
        {
            "q8_0": "`GGUFLinear` of diffusers, type Q8_0, two batch sizes",
            "q5_1": "`GGUFLinear` of diffusers, type Q5_1, two batch sizes",
            "q4_0": "`GGUFLinear` of diffusers, type Q4_0, two batch sizes",
            "bf16": "`GGUFLinear` of diffusers, type BF16, two batch sizes",
        },
    ),
    Package(
        "e3nn", "with_e3nn", ("e3nn",),
        {
            "layer": "a tensor product with spherical harmonics, two sizes",
            "norm": "Linear and Norm",
        },
    ),
    Package(
        "transformers", "with_transformers", (VISION, "transformers"),
        {
            "hidden_states": "Llama, `output_hidden_states`",
            "router_logits": "Mixtral, `output_router_logits`",
            "beams": "Llama, `generate` with beams",
            "sampled": "Llama, `generate` with sampling",
            "assisted": "Llama, `generate` with an assistant",
            "wav2vec2": "wav2vec2 with CTC, two lengths",
            "longrope": "Llama with longrope, below and above the original length",
            "whisper_generate": "Whisper, `generate`",
        },
    ),
)  # fmt: skip

_DISPATCHED = Refusal(
    "torch.compiler.disable",
    "accelerate has `torch.compiler.disable` on the hooks that move inputs and weights",
    torch="torch.compiler.disable",
)
_BRANCH = "a branch depends on the data"
_BRANCH_OF_TORCH = "Data-dependent branching"

WARNED = {("peft", "switched"): "generate() runs the forward of base_model.model instead"}
"""Workloads of which one WARNING is right, and a part of its text."""

REFUSED: dict[tuple[str, str], Refusal] = {
    ("kornia", "canny"): Refusal(
        _BRANCH,
        "`while` asks values of the image, so no one graph is right for all",
        torch=_BRANCH_OF_TORCH,
    ),
    ("peft", "batch_of_adapters"): Refusal(
        "setattr() on unsupported type",
        "Dynamo does not trace the hooks that peft installs at each call",
        torch="setattr() on unsupported type",
    ),
    ("peft", "dora"): Refusal(
        "torch can't trace the method startswith of str",
        "Dynamo does not trace `startswith` of the name of a class's module",
        torch="method `startswith` of class `str`",
    ),
    ("accelerate", "dispatched"): _DISPATCHED,
    ("accelerate", "dispatched_inside"): _DISPATCHED,
    ("accelerate", "offloaded"): _DISPATCHED,
    ("vector-quantize-pytorch", "vector_quantize"): Refusal(
        _BRANCH, "`if self.initted:` asks the value of a tensor", torch=_BRANCH_OF_TORCH
    ),
    ("vector-quantize-pytorch", "residual"): Refusal(
        _BRANCH, "`if self.initted:` asks the value of a tensor", torch=_BRANCH_OF_TORCH
    ),
    ("diffusers", "encode_one"): Refusal(
        "is_contiguous(memory_format)",
        "torch foresees another memory layout of one image than its kernel gives",
        torch="is_contiguous(memory_format)",
    ),
    ("monai", "vit"): Refusal(
        "input_composition_known_unknown",
        "an einops layer made with two given axes in one group holds them in the order of a set",
    ),
    ("ultralytics", "detection"): Refusal(
        "a branch or a size depends on the data",
        "the first call of each size makes anchors by numbers in a tensor; later calls are served",
        torch="PendingUnbackedSymbolNotFound",
    ),
}

# Served, but a graph's results differ from eager's by more than the tolerance, or in strides.
# `torch.compile(fullgraph=True, backend="aot_eager")` gives the results that the cache gives.
UNLIKE_EAGER: dict[tuple[str, str], str] = {
    ("open_clip_torch", "custom_text_bfloat16"): (
        "eager takes a fast path of attention, which rounds otherwise"
    ),
}


def rows() -> Iterator[tuple[Package, str]]:
    for package in PACKAGES:
        for name in package.workloads:
            yield package, name
