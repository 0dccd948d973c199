"""Models of torchvision."""

import torch
import torchvision


def resnet(cache):
    model = cache(torchvision.models.resnet18(num_classes=5).eval())
    inputs = [torch.randn(1, 3, 64, 64), torch.randn(2, 3, 64, 64), torch.randn(1, 3, 96, 64)]
    return lambda: [model(x) for x in inputs]


def vision_transformer(cache):
    model = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64,
        num_classes=5,
    ).eval()  # fmt: skip
    torch.nn.init.normal_(model.heads.head.weight)
    model = cache(model)
    x = torch.randn(2, 3, 32, 32)
    return lambda: [model(x), model(x[:1])]


def segmentation(cache):
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )
    model = cache(model.eval())
    x = torch.randn(1, 3, 64, 64)
    return lambda: [model(x), model(x.flip(3))]


def extracted_features(cache):
    from torchvision.models.feature_extraction import create_feature_extractor

    model = torchvision.models.mobilenet_v3_small(num_classes=5).eval()
    model = cache(create_feature_extractor(model, {"features.3": "low", "features.12": "high"}))
    x = torch.randn(1, 3, 64, 64)
    return lambda: [model(x), model(x.flip(3))]
