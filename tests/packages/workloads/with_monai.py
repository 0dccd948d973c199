"""Networks of MONAI for medical images, with its sliding window."""

import torch
from monai.inferers import sliding_window_inference
from monai.networks.nets import SegResNet, UNet, ViT


def unet_windows(cache):
    model = UNet(
        spatial_dims=2,
        in_channels=1,
        out_channels=2,
        channels=(4, 8),
        strides=(2,),
        num_res_units=1,
    )
    model = cache(model.eval())
    image = torch.randn(1, 1, 40, 40)
    return lambda: sliding_window_inference(image, (16, 16), 4, model, overlap=0.25)


def segresnet_3d(cache):
    model = cache(SegResNet(spatial_dims=3, init_filters=8, in_channels=1, out_channels=2).eval())
    x = torch.randn(1, 1, 16, 16, 16)
    return lambda: [model(x), model(x.flip(4))]


def vit(cache):
    model = ViT(
        in_channels=1, img_size=(16, 16), patch_size=(8, 8), hidden_size=32, mlp_dim=64,
        num_layers=1, num_heads=2, classification=True, spatial_dims=2, num_classes=3,
    ).eval()  # fmt: skip
    model = cache(model)
    x = torch.randn(2, 1, 16, 16)
    return lambda: [model(x)[0], model(x[:1])[0]]
