"""Vision transformers of vit-pytorch."""

import torch
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.cait import CaiT
from vit_pytorch.cct import CCT

SIZES = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 16, "heads": 2, "mlp_dim": 32}


def vit(cache):
    model = cache(ViT(**SIZES, depth=2).eval())
    x = torch.randn(2, 3, 32, 32)
    return lambda: [model(x), model(x[:1]), model(x)]


def simple_vit_bfloat16(cache):
    model = cache(SimpleViT(**SIZES, depth=1).eval().bfloat16())
    x = torch.randn(2, 3, 32, 32).bfloat16()
    return lambda: [model(x), model(x * 2)]


def cait(cache):
    model = cache(CaiT(**SIZES, depth=1, cls_depth=1).eval())
    x = torch.randn(2, 3, 32, 32)
    return lambda: [model(x), model(x * 2)]


def cct(cache):
    model = CCT(
        img_size=32, embedding_dim=16, n_conv_layers=1, num_layers=1, num_heads=2, mlp_ratio=1.0,
        num_classes=5,
    ).eval()  # fmt: skip
    model = cache(model)
    x = torch.randn(2, 3, 32, 32)
    return lambda: [model(x), model(x[:1])]
