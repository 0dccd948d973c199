"""Adapters of peft: switched, disabled, merged, one for each row of a batch."""

import torch
import transformers
from peft import IA3Config, LoraConfig, get_peft_model

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "head_dim": 8, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    "initializer_range": 0.3,
}  # fmt: skip
LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}


def tokens(rows=2, length=6):
    return torch.arange(1, 1 + rows * length).view(rows, length)


def qwen():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)).eval()


def switched(cache):
    model = get_peft_model(qwen(), LoraConfig(**LORA), adapter_name="one")
    model.add_adapter("two", LoraConfig(**LORA))
    model = cache(model.eval())

    def calls():
        made = []
        for name in ("one", "two"):
            model.set_adapter(name)
            made.append(model(input_ids=tokens(), use_cache=False).logits)
        with model.disable_adapter():
            made.append(model(input_ids=tokens(), use_cache=False).logits)
        return made

    return calls


def merged(cache):
    model = cache(get_peft_model(qwen(), LoraConfig(**LORA)).eval())

    def calls():
        apart = model(input_ids=tokens(), use_cache=False).logits
        model.merge_adapter()
        together = model(input_ids=tokens(), use_cache=False).logits
        model.unmerge_adapter()
        return apart, together

    return calls


def generate(cache):
    model = get_peft_model(qwen(), LoraConfig(**LORA)).eval()
    model.base_model.model = cache(model.base_model.model)
    return lambda: model.generate(
        input_ids=tokens(), attention_mask=torch.ones(2, 6, dtype=torch.long), max_new_tokens=5,
        do_sample=False,
    )  # fmt: skip


def batch_of_adapters(cache):
    model = get_peft_model(qwen(), LoraConfig(**LORA), adapter_name="one")
    model.add_adapter("two", LoraConfig(**LORA))
    model = cache(model.eval())
    names = ["one", "two"]

    def calls():
        given = {"input_ids": tokens(), "use_cache": False}
        return [
            model(**given, adapter_names=names).logits,
            model(**given, adapter_names=["__base__", "two"]).logits,
        ]

    return calls


def dora(cache):
    model = cache(get_peft_model(qwen(), LoraConfig(**LORA, use_dora=True)).eval())
    return lambda: [model(input_ids=tokens(length=n), use_cache=False).logits for n in (6, 4)]


def ia3_bfloat16(cache):
    config = IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"],
        init_ia3_weights=False,
    )  # fmt: skip
    model = cache(get_peft_model(qwen().bfloat16(), config).eval())
    return lambda: [model(input_ids=tokens(length=n), use_cache=False).logits for n in (6, 4)]
