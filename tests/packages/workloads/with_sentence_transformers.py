"""Sentence embeddings: a small BERT and its tokenizer, made in a temporary folder."""

import tempfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, models

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sat", "on", "the", "mat", "dog",
    "ran", "home", "now",
]  # fmt: skip
SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "max_position_embeddings": 32, "initializer_range": 0.3,
}  # fmt: skip
SENTENCES = ["a cat sat on the mat", "the dog ran home", "now", "a dog sat on a cat on a mat"]


def saved(folder, architecture, **more):
    Path(folder, "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(Path(folder, "vocab.txt"))).save_pretrained(folder)
    config = transformers.BertConfig(**SIZES, **more)
    getattr(transformers, architecture)(config).save_pretrained(folder)
    return folder


def encode(cache):
    with tempfile.TemporaryDirectory() as folder:
        words = models.Transformer(saved(folder, "BertModel"), max_seq_length=16)
        pooling = models.Pooling(32, pooling_mode="mean")
        model = SentenceTransformer(modules=[words, pooling, models.Normalize()], device="cpu")
    model = cache(model.eval())

    def calls():
        return [
            model.encode(SENTENCES, batch_size=2, convert_to_tensor=True, show_progress_bar=False),
            model.encode(SENTENCES[:1], convert_to_tensor=True, show_progress_bar=False),
        ]

    return calls


def rank(cache):
    with tempfile.TemporaryDirectory() as folder:
        saved(folder, "BertForSequenceClassification", num_labels=1)
        model = CrossEncoder(folder, max_length=16, device="cpu")
    cache(model.model.eval())
    pairs = [(SENTENCES[0], other) for other in SENTENCES]
    return lambda: torch.as_tensor(model.predict(pairs, batch_size=2, show_progress_bar=False))
