"""What the examples of the documents need and do not say: a model, and a folder with weights."""

import os
from pathlib import Path

import torch

FOLDER = "NPUGX_TEST_MODEL"


class YourModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def qwen3_folder():
    """A Qwen3 with random weights and a tokenizer of bytes, as `from_pretrained` reads them."""
    folder = Path(os.environ[FOLDER])
    if not folder.exists():
        _save(folder)
    return str(folder)


def _save(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    end = "<|endoftext|>"
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), end]
    tokens = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=end)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(alphabet), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.1,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
