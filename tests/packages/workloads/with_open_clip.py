"""CLIP models of open_clip: the methods that its users call."""

import torch
from open_clip.model import CLIP, CustomTextCLIP

IMAGES = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
TEXTS = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}


def inputs():
    return torch.randn(2, 3, 32, 32), torch.randint(1, 64, (3, 8))


def similarity(cache):
    model = CLIP(embed_dim=16, vision_cfg=IMAGES, text_cfg=TEXTS).eval()
    model.encode_image, model.encode_text = cache(model.encode_image), cache(model.encode_text)
    images, texts = inputs()

    def calls():
        of_images = model.encode_image(images, normalize=True)
        of_texts = model.encode_text(texts, normalize=True)
        return (100.0 * of_images @ of_texts.T).softmax(-1), model.encode_image(images[:1])

    return calls


def whole(cache):
    model = cache(CLIP(embed_dim=16, vision_cfg=IMAGES, text_cfg=TEXTS).eval())
    images, texts = inputs()
    return lambda: [model(images, texts[:2]), model(image=images), model(text=texts)]


def custom_text_bfloat16(cache):
    model = CustomTextCLIP(embed_dim=16, vision_cfg=IMAGES, text_cfg=TEXTS).eval()
    model = cache(model.bfloat16())
    images, texts = inputs()
    return lambda: model(images.bfloat16(), texts[:2])
