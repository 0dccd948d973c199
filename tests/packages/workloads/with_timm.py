"""Image models of timm."""

import timm
import torch


def made(name, **options):
    return timm.create_model(name, pretrained=False, **options).eval()


def convnext(cache):
    model = cache(made("convnext_atto", num_classes=5))
    inputs = [torch.randn(1, 3, 64, 64), torch.randn(2, 3, 64, 64), torch.randn(1, 3, 96, 64)]
    return lambda: [model(x) for x in inputs]


def swin(cache):
    sizes = {"embed_dim": 24, "depths": (1, 1), "num_heads": (2, 2), "img_size": 64}
    model = cache(made("swin_tiny_patch4_window7_224", **sizes, window_size=4, num_classes=5))
    x = torch.randn(2, 3, 64, 64)
    return lambda: [model(x), model(x[:1])]


def mobilenet_bfloat16(cache):
    model = cache(made("mobilenetv4_conv_small_050", num_classes=5).bfloat16())
    x = torch.randn(2, 3, 64, 64).bfloat16()
    return lambda: [model(x), model(x[:1])]


def eva(cache):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    model = cache(made("eva02_tiny_patch14_224", **sizes, num_classes=5))
    x = torch.randn(2, 3, 32, 32)
    return lambda: [model(x), model(x[:1])]


def features_only(cache):
    model = cache(made("resnet10t", features_only=True, out_indices=(1, 3)))
    x = torch.randn(1, 3, 64, 64)
    return lambda: [model(x), model(torch.cat([x, x]))]


def forward_features(cache):
    model = made("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)
    model.forward_features = cache(model.forward_features)
    x = torch.randn(2, 3, 32, 32)

    def calls():
        features = model.forward_features(x)
        return features, model.forward_head(features, pre_logits=True), model(x[:1])

    return calls


def dynamic_size(cache):
    sizes = {"img_size": 32, "depth": 1, "dynamic_img_size": True, "num_classes": 0}
    model = cache(made("vit_tiny_patch16_224", **sizes))
    inputs = [torch.randn(1, 3, 32, 32), torch.randn(1, 3, 48, 32), torch.randn(1, 3, 64, 64)]
    return lambda: [model(x) for x in inputs]


def efficientnet_channels_last(cache):
    model = made("efficientnet_lite0", num_classes=5).to(memory_format=torch.channels_last)
    model = cache(model)
    x = torch.randn(1, 3, 64, 64).to(memory_format=torch.channels_last)
    return lambda: [model(x), model(x.flip(3).contiguous(memory_format=torch.channels_last))]
