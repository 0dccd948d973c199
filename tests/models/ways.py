"""The ways in which a model is called. Each takes the model and what to call, and returns values.

Inputs depend on nothing but the architecture, so that every process gives the same ones.
"""

import torch

PROMPT, STEPS, ROOM = 6, 4, 16


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens(rows=2, length=PROMPT):
    return torch.randint(1, 90, (rows, length), generator=torch.Generator().manual_seed(2))


def padding(length=PROMPT):
    """One whole sequence, and one with two places of padding in front."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, :2] = 0
    return mask


def inputs_of(model):
    """The keyword arguments of one plain forward call."""
    dtype = next(model.parameters()).dtype
    match type(model).__name__:
        case "ViTForImageClassification":
            return {"pixel_values": noise(2, 3, 8, 8).to(dtype)}
        case "WhisperEncoder":
            return {"input_features": noise(2, 8, 32).to(dtype)}
        case "CLIPModel":
            return {"input_ids": tokens(), "pixel_values": noise(2, 3, 8, 8).to(dtype)}
        case "WhisperForConditionalGeneration":
            features = noise(2, 8, 32).to(dtype)
            return {"input_features": features, "decoder_input_ids": tokens(length=3)}
        case "TransformerEncoder":
            return {"src": noise(2, 6, 32).to(dtype)}
        case "LSTM":
            return {"input": noise(2, 5, 16).to(dtype)}
        case "Sequential":
            return {"input": noise(2, 3, 12, 12).to(dtype)}
        case "EmbeddingBag":
            return {"input": tokens(), "per_sample_weights": noise(2, PROMPT).to(dtype)}
        case "Gated":
            return {"x": noise(2, 16).to(dtype)}
        case "BertForMaskedLM" | "LongformerModel":
            return {"input_ids": tokens()}
    if model.config.is_encoder_decoder:
        return {
            "input_ids": tokens(),
            "decoder_input_ids": tokens(length=3),
            "use_cache": False,
        }
    return {"input_ids": tokens(), "use_cache": False}


def forward(model, call):
    return call(**inputs_of(model))


def masked(model, call):
    if isinstance(model, torch.nn.TransformerEncoder):
        return call(**inputs_of(model), src_key_padding_mask=padding().logical_not())
    return call(**inputs_of(model), attention_mask=padding())


def decode(model, call, cache):
    """A prompt, then token by token: the logits of each step, and what the cache holds then."""
    if model.config.is_encoder_decoder:
        with torch.no_grad():  # with grad, attention takes another kernel and rounds differently
            encoded = model.encoder(input_ids=tokens()).last_hidden_state
        given = {"encoder_outputs": (encoded,), "decoder_input_ids": tokens(length=1)}
        ids = "decoder_input_ids"
    else:
        given = {"input_ids": tokens()}
        ids = "input_ids"
    logits = []
    for _ in range(STEPS):
        out = call(**given, past_key_values=cache, use_cache=True)
        logits.append(out.logits.clone())
        given[ids] = out.logits[:, -1:].argmax(-1)
    return logits, held(cache)


def held(cache):
    if hasattr(cache, "cross_attention_cache"):
        return held(cache.self_attention_cache), held(cache.cross_attention_cache)
    return [(layer.keys, layer.values, layer.get_seq_length()) for layer in cache.layers]


def static_cache(model, call):
    from transformers import EncoderDecoderCache, StaticCache

    config = model.config.get_text_config(decoder=True)
    cache = StaticCache(config=config, max_cache_len=ROOM)
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, StaticCache(config=config, max_cache_len=PROMPT))
    return decode(model, call, cache)


def dynamic_cache(model, call):
    from transformers import DynamicCache, EncoderDecoderCache

    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, DynamicCache(config=config))
    return decode(model, call, cache)


def own_cache(model, call):
    """As a user calls it who says nothing of a cache: the model makes one."""
    inputs = inputs_of(model)
    inputs.pop("use_cache", None)
    out = call(**inputs)
    return out.logits, held(out.past_key_values)


def generate(model, _):
    """As a user does it: `generate()` finds the cached forward by itself."""
    return model.generate(
        tokens(), attention_mask=padding(), max_new_tokens=8, min_new_tokens=8, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip


WAYS = {
    "forward": forward,
    "masked": masked,
    "static cache": static_cache,
    "dynamic cache": dynamic_cache,
    "own cache": own_cache,
    "generate": generate,
}
