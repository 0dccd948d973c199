"""The zoo: which models are tested, in which ways, in which dtypes. One line per model at the end.

Importing this imports neither torch nor transformers: test names are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def of_transformers(name: str, **config: Any) -> Callable[[], Any]:
    """Build a stock architecture from its config, with random weights."""

    def build() -> Any:
        import transformers

        model = getattr(transformers, name)
        return model(model.config_class(**config))

    return build


def clip() -> Any:
    import transformers

    text = {**BERT, "initializer_factor": 5.0, "eos_token_id": 95, "max_position_embeddings": 16}
    image = {**VIT, "initializer_factor": 5.0}
    sizes = {"text_config": text, "vision_config": image, "projection_dim": 16}
    return transformers.CLIPModel(transformers.CLIPConfig(**sizes))


def transformer_encoder() -> Any:
    from torch import nn

    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def conv_net() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    )  # fmt: skip


def lstm() -> Any:
    from torch import nn

    return nn.LSTM(16, 32, num_layers=2, batch_first=True)


def embedding_bag() -> Any:
    from torch import nn

    return nn.EmbeddingBag(96, 32, mode="sum")


def custom_op() -> Any:
    import custom_op

    return custom_op.Gated()


@dataclass(frozen=True)
class Model:
    """A model: how it is built, in which ways (`ways.py`) it is called, and in which dtypes.

    `often` are the rows that every test run has, by dtype; the others are for the whole zoo alone.
    """

    name: str
    build: Callable[[], Any]
    ways: Mapping[str, tuple[str, ...]]
    often: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Row:
    model: Model
    dtype: str
    way: str

    def __str__(self) -> str:
        return f"{self.model.name}, {self.dtype}, {self.way}"

    @property
    def refused(self) -> Refusal | None:
        return REFUSED.get(self.model.name)

    @property
    def often(self) -> bool:
        return self.way in self.model.often.get(self.dtype, ())


@dataclass(frozen=True)
class Refusal:
    """A model that is not cached: what the logged reason says, and what a user makes of it."""

    reason: str
    explanation: str


FORWARD = ("forward",)
MASKED = ("forward", "masked")
GENERATE = ("forward", "generate")
DECODE = ("forward", "dynamic cache")
ALL = ("forward", "masked", "static cache", "dynamic cache", "own cache", "generate")


def decoder(name: str, architecture: str, *, often: Any, **config: Any) -> Model:
    """A model that generates text: every way of calling in float32, fewer in half precision."""
    ways = {"float32": ALL, "bfloat16": DECODE, "float16": DECODE}
    build = of_transformers(architecture, **config)
    return Model(name, build, ways, often if isinstance(often, dict) else {"float32": often})


def translator(name: str, architecture: str, *, often: bool = False, **config: Any) -> Model:
    """An encoder and a decoder, called as a user does, with the cache that the model makes."""
    ways = {"float32": ("own cache",)}
    return Model(name, of_transformers(architecture, **config), ways, ways if often else {})


def encoder(
    name: str,
    build: Callable[[], Any],
    *,
    ways: tuple[str, ...] = FORWARD,
    often: tuple[str, ...] = ("float32",),
) -> Model:
    """A model that is called once for each input."""
    ways_of = {"float32": ways, "bfloat16": FORWARD, "float16": FORWARD}
    return Model(name, build, ways_of, {dtype: ways_of[dtype] for dtype in often})


LLAMA = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    # As wide as the values are, a wrong mask or position shows in the logits.
    "initializer_range": 0.3,
}  # fmt: skip
WINDOW = {"sliding_window": 4}  # shorter than the prompt: what left it must not be attended to
LOCAL_AND_GLOBAL = {
    **LLAMA, **WINDOW, "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GPT2 = {
    "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 96,
    "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 96,
    "decoder_start_token_id": 0, "eos_token_id": None,
}  # fmt: skip
BERT = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "initializer_range": 0.3,
}  # fmt: skip
VIT = {**BERT, "image_size": 8, "patch_size": 4}
WHISPER = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
    "max_source_positions": 16, "vocab_size": 96, "pad_token_id": 0, "init_std": 0.3,
}  # fmt: skip

SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 96,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "forced_eos_token_id": None, "init_std": 0.3,
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "head_dim": 4, "num_key_value_heads": 4, "first_k_dense_replace": 0,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
MAMBA = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4,
    "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
MAMBA2 = {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}
LONGFORMER = {**BERT, "attention_window": [6], "pad_token_id": 0, "max_position_embeddings": 64}

QWEN_OFTEN = {"float32": ALL, "bfloat16": DECODE, "float16": DECODE}
BFLOAT16_TOO = ("float32", "bfloat16")
ALL_DTYPES = ("float32", "bfloat16", "float16")

TRANSFORMERS = (
    decoder("Qwen3", "Qwen3ForCausalLM", often=QWEN_OFTEN, **LLAMA),
    decoder("Llama", "LlamaForCausalLM", often=MASKED, **LLAMA),
    decoder("Gemma 2", "Gemma2ForCausalLM", often=("static cache",), **LOCAL_AND_GLOBAL),
    decoder("Gemma 3 (text)", "Gemma3ForCausalLM", often=MASKED, **LOCAL_AND_GLOBAL),
    decoder("GPT-2", "GPT2LMHeadModel", often=GENERATE, **GPT2),
    decoder("T5", "T5ForConditionalGeneration", often=("masked", "own cache"), **T5),
    decoder("Mixtral", "MixtralForCausalLM", often=GENERATE, num_local_experts=4, **LLAMA),
    decoder(
        "Mistral, sliding window",
        "MistralForCausalLM",
        often=("masked", "static cache", "generate"),
        **LLAMA,
        **WINDOW,
    ),
    decoder("Qwen3-MoE", "Qwen3MoeForCausalLM", often=MASKED, **LLAMA, **EXPERTS),
    Model(
        "DeepSeek-V3",
        of_transformers("DeepseekV3ForCausalLM", **DEEPSEEK),
        {"float32": GENERATE},
        {"float32": FORWARD},
    ),
    encoder("Mamba", of_transformers("MambaForCausalLM", **MAMBA)),
    encoder("Mamba 2", of_transformers("Mamba2ForCausalLM", **MAMBA2), ways=GENERATE),
    encoder("Longformer", of_transformers("LongformerModel", **LONGFORMER)),
    encoder("BERT", of_transformers("BertForMaskedLM", **BERT), ways=MASKED, often=BFLOAT16_TOO),
    encoder("CLIP", clip, ways=MASKED),
    encoder("ViT", of_transformers("ViTForImageClassification", **VIT)),
    encoder("Whisper (encoder)", of_transformers("WhisperModel", **WHISPER)),
    translator("Whisper", "WhisperForConditionalGeneration", often=True, **WHISPER),
    translator("BART", "BartForConditionalGeneration", often=True, **SEQ2SEQ),
    translator("mBART", "MBartForConditionalGeneration", **SEQ2SEQ),
    translator("Marian", "MarianMTModel", **SEQ2SEQ),
    translator("Pegasus", "PegasusForConditionalGeneration", **SEQ2SEQ),
    translator("M2M100", "M2M100ForConditionalGeneration", **SEQ2SEQ),
    translator("BlenderbotSmall", "BlenderbotSmallForConditionalGeneration", **SEQ2SEQ),
    translator("mT5", "MT5ForConditionalGeneration", **T5),
)
PLAIN = (
    encoder("TransformerEncoder", transformer_encoder, ways=MASKED, often=ALL_DTYPES),
    encoder("conv net, batch norm", conv_net, often=ALL_DTYPES),
    encoder("LSTM", lstm, often=ALL_DTYPES),
    encoder("EmbeddingBag", embedding_bag, often=ALL_DTYPES),
    encoder("custom operator", custom_op, often=ALL_DTYPES),
)
# Each in a process of its own; what is not of transformers runs where nothing has loaded Dynamo,
# and the custom operator, whose first call does so (torch does that), comes last.
GROUPS = (TRANSFORMERS[::2], TRANSFORMERS[1::2], PLAIN)

REFUSED = {
    "Longformer": Refusal(
        "a branch or a size depends on the data of a tensor at "
        "transformers/models/longformer/modeling_longformer.py",
        "its forward asks `if is_global_attn:` of the values in the mask, so no one graph is right "
        "for all inputs",
    ),
}


def rows(models: tuple[Model, ...] = TRANSFORMERS + PLAIN) -> Iterator[Row]:
    for model in models:
        for dtype, ways in model.ways.items():
            for way in ways:
                yield Row(model, dtype, way)
