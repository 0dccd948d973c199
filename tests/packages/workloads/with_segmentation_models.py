"""Models of segmentation-models-pytorch."""

import segmentation_models_pytorch as smp
import torch

OPTIONS = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 3}


def unet(cache):
    model = cache(smp.Unet(**OPTIONS).eval())
    x = torch.randn(1, 3, 64, 64)
    return lambda: [model(x), model(torch.cat([x, x]))]


def fpn_predict(cache):
    model = smp.FPN(**OPTIONS).eval()
    model.predict = cache(model.predict)
    x = torch.randn(1, 3, 64, 64)
    return lambda: [model.predict(x), model.predict(x.flip(2))]


def deeplab_bfloat16(cache):
    model = cache(smp.DeepLabV3Plus(**OPTIONS, aux_params={"classes": 2}).eval().bfloat16())
    x = torch.randn(2, 3, 64, 64).bfloat16()
    return lambda: [model(x), model(x * 2)]


def segformer(cache):
    model = cache(smp.Segformer(**OPTIONS).eval())
    inputs = [torch.randn(1, 3, 64, 64), torch.randn(1, 3, 64, 96)]
    return lambda: [model(x) for x in inputs]
