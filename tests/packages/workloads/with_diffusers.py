"""Image generation: denoising loops of schedulers, autoencoders, a pipeline."""

import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTTransformer2DModel,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxTransformer2DModel,
    PixArtTransformer2DModel,
    SD3Transformer2DModel,
    UNet2DConditionModel,
    UNet2DModel,
)

SMALL = {
    "sample_size": 8, "in_channels": 4, "out_channels": 4, "layers_per_block": 1,
    "block_out_channels": (32, 32), "norm_num_groups": 8, "cross_attention_dim": 16,
    "attention_head_dim": 8,
}  # fmt: skip
DOWN_UP = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}


def guided(scheduler, latents, predict, scale=5.0):
    """A denoising loop with classifier-free guidance, as the pipelines write it."""
    for t in scheduler.timesteps:
        both = scheduler.scale_model_input(torch.cat([latents] * 2), t)
        without, with_text = predict(both, t).chunk(2)
        noise = without + scale * (with_text - without)
        latents = scheduler.step(noise, t, latents, return_dict=False)[0]
    return latents


def unet_ddim(cache):
    unet = cache(UNet2DConditionModel(**SMALL, **DOWN_UP).eval())
    text = torch.randn(2, 5, 16)
    starts = [torch.randn(1, 4, 8, 8), torch.randn(1, 4, 16, 8)]

    def calls():
        made = []
        for latents in starts:
            scheduler = DDIMScheduler(num_train_timesteps=100)
            scheduler.set_timesteps(3)

            def predict(both, t):
                return unet(both, t, encoder_hidden_states=text, return_dict=False)[0]

            made.append(guided(scheduler, latents, predict))
        return made, unet(starts[0], 7, encoder_hidden_states=text[:1]).sample

    return calls


def unet_sdxl(cache):
    unet = UNet2DConditionModel(
        **SMALL, **DOWN_UP, addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=64, transformer_layers_per_block=1,
    ).eval()  # fmt: skip
    unet = cache(unet)
    text, latents = torch.randn(2, 5, 16), torch.randn(1, 4, 8, 8)
    given = {"text_embeds": torch.randn(2, 16), "time_ids": torch.randn(2, 6)}

    def calls():
        scheduler = EulerDiscreteScheduler(num_train_timesteps=100)
        scheduler.set_timesteps(3)

        def predict(both, t):
            return unet(
                both, t, encoder_hidden_states=text, added_cond_kwargs=given, return_dict=False
            )[0]

        return guided(scheduler, latents * scheduler.init_noise_sigma, predict)

    return calls


def controlnet(cache):
    sizes = {**SMALL, "down_block_types": DOWN_UP["down_block_types"]}
    sizes.pop("sample_size"), sizes.pop("out_channels")
    net = cache(ControlNetModel(**sizes, conditioning_embedding_out_channels=(8, 16)).eval())
    unet = cache(UNet2DConditionModel(**SMALL, **DOWN_UP).eval())
    x, text, image = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16), torch.randn(1, 3, 16, 16)

    def calls():
        made = []
        for scale in (1.0, 0.5):
            down, mid = net(
                x, 3, text, controlnet_cond=image, conditioning_scale=scale, return_dict=False
            )
            made.append(
                unet(
                    x, 3, text, down_block_additional_residuals=down,
                    mid_block_additional_residual=mid,
                ).sample
            )  # fmt: skip
        return made

    return calls


def autoencoder():
    return AutoencoderKL(
        block_out_channels=(16, 16), latent_channels=4, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    ).eval()  # fmt: skip


def decode(cache):
    vae = autoencoder()
    vae.decode = cache(vae.decode)
    latents = [torch.randn(2, 4, 8, 8), torch.randn(3, 4, 8, 12)]

    def calls():
        return [vae.decode(x / vae.config.scaling_factor, return_dict=False)[0] for x in latents]

    return calls


def encode_one(cache):
    vae = autoencoder()
    vae.encode = cache(vae.encode)
    image = torch.randn(1, 3, 16, 16)
    return lambda: vae.encode(image).latent_dist.mode()


def flux(cache):
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval()  # fmt: skip
    model = cache(model.to(torch.bfloat16))
    start = torch.randn(1, 16, 4, dtype=torch.bfloat16)
    text, pooled = torch.randn(1, 5, 32).bfloat16(), torch.randn(1, 32).bfloat16()
    places = {"img_ids": torch.randn(16, 3), "txt_ids": torch.zeros(5, 3)}

    def calls():
        scheduler = FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(3)
        latents = start
        for t in scheduler.timesteps:
            noise = model(
                hidden_states=latents, timestep=t.expand(1).to(latents.dtype) / 1000,
                encoder_hidden_states=text, pooled_projections=pooled, **places,
                return_dict=False,
            )[0]  # fmt: skip
            latents = scheduler.step(noise, t, latents, return_dict=False)[0]
        return latents

    return calls


def dit(cache):
    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=1,
        sample_size=8, patch_size=2, num_embeds_ada_norm=10, norm_num_groups=4,
    ).eval()  # fmt: skip
    model = cache(model)
    x = torch.randn(2, 4, 8, 8)

    def calls():
        return [
            model(x, timestep=torch.tensor([t, t]), class_labels=torch.tensor([1, 2])).sample
            for t in (90, 50, 10)
        ]

    return calls


def sd3(cache):
    model = SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, num_layers=1, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=32,
        pooled_projection_dim=64, out_channels=4,
    ).eval()  # fmt: skip
    model = cache(model)
    text, pooled, start = torch.randn(2, 5, 32), torch.randn(2, 64), torch.randn(1, 4, 8, 8)

    def calls():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        scheduler.set_timesteps(3)
        latents = start
        for t in scheduler.timesteps:
            both = torch.cat([latents] * 2)
            noise = model(both, text, pooled, t.expand(2), return_dict=False)[0]
            without, with_text = noise.chunk(2)
            noise = without + 4.0 * (with_text - without)
            latents = scheduler.step(noise, t, latents, return_dict=False)[0]
        return latents

    return calls


def pixart(cache):
    model = PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=1,
        cross_attention_dim=16, sample_size=8, caption_channels=16, use_additional_conditions=False,
    ).eval()  # fmt: skip
    model = cache(model)
    x, text = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 16)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])

    def calls():
        return [
            model(
                x, text, timestep=torch.tensor([t, t]), encoder_attention_mask=mask,
                added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            ).sample
            for t in (90, 10)
        ]  # fmt: skip

    return calls


def ddpm_pipeline(cache):
    unet = UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, layers_per_block=1,
        block_out_channels=(16, 16), norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    pipe = DDPMPipeline(unet=unet, scheduler=DDPMScheduler(num_train_timesteps=100))
    pipe.set_progress_bar_config(disable=True)
    pipe.unet = cache(pipe.unet)

    def calls():
        seed = torch.Generator().manual_seed(3)
        images = pipe(batch_size=2, generator=seed, num_inference_steps=4, output_type="np").images
        return torch.from_numpy(images)

    return calls
