"""What users do with transformers beyond the ways of docs/models.md."""

import torch
import transformers

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


def llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **more)).eval()


def tokens(length=6):
    return torch.arange(1, 1 + 2 * length).view(2, length)


GENERATE = {"max_new_tokens": 5, "min_new_tokens": 5}


def hidden_states(cache):
    model = cache(llama())
    given = {"input_ids": tokens(), "use_cache": False}

    def calls():
        out = model(**given, output_hidden_states=True)
        return out.logits, out.hidden_states, model(**given).logits

    return calls


def router_logits(cache):
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    model = cache(transformers.MixtralForCausalLM(config).eval())

    def calls():
        out = model(input_ids=tokens(), use_cache=False, output_router_logits=True)
        return out.logits, out.router_logits

    return calls


def beams(cache):
    model = cache(llama())
    mask = torch.ones(2, 6, dtype=torch.long)
    return lambda: model.generate(tokens(), attention_mask=mask, num_beams=3, **GENERATE)


def sampled(cache):
    model = cache(llama())
    mask = torch.ones(2, 6, dtype=torch.long)

    def calls():
        torch.manual_seed(5)
        return model.generate(
            tokens(), attention_mask=mask, do_sample=True, top_k=8, temperature=0.7, **GENERATE
        )

    return calls


def assisted(cache):
    model, small = cache(llama()), cache(llama())
    given = {"input_ids": tokens()[:1], "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    return lambda: model.generate(**given, assistant_model=small, do_sample=False, **GENERATE)


def wav2vec2(cache):
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        vocab_size=8, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    model = cache(transformers.Wav2Vec2ForCTC(config).eval())
    sounds = [torch.randn(1, 400), torch.randn(2, 480)]
    return lambda: [model(sound).logits for sound in sounds]


def longrope(cache):
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4, "factor": 4.0, "original_max_position_embeddings": 16,
    }  # fmt: skip
    model = cache(llama(rope_parameters=rope))
    return lambda: [
        model(torch.arange(n).view(1, n), use_cache=False).logits for n in (8, 24, 8)
    ]  # fmt: skip


def whisper_generate(cache):
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=16, max_target_positions=16, vocab_size=96, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, init_std=0.3,
    )  # fmt: skip
    model = cache(transformers.WhisperForConditionalGeneration(config).eval())
    sound = torch.randn(2, 8, 32)
    return lambda: model.generate(sound, max_new_tokens=4, do_sample=False)
