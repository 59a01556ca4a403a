"""A table of one vector per token, whose mean over a sentence's tokens is its embedding.

It stands where an encoder has its transformer, so that packing, training, embedding and saving are those of every
encoder. It is what sentence-transformers calls `StaticEmbedding`: special tokens do not count, so its tokenizer adds
none.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from raysed.data.tokens import PackedTokens

STATIC = "StaticEmbedding"
"""Its class in sentence-transformers."""
_SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")


class StaticVectorsConfig(PreTrainedConfig):
    """Size of the table."""

    model_type = "raysed-static"
    vocab_size: int = 1
    hidden_size: int = 1
    num_hidden_layers: int = 1


class StaticVectors(PreTrainedModel):
    """The table as a model that transformers saves and loads."""

    config_class = StaticVectorsConfig

    def __init__(self, config: StaticVectorsConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    @classmethod
    def from_rows(cls, rows_VD: torch.Tensor) -> "StaticVectors":
        """Makes the table of these rows.

        Args:
            rows_VD: float32, one row per token.
        """
        vectors = cls(StaticVectorsConfig(vocab_size=len(rows_VD), hidden_size=rows_VD.shape[1]))
        with torch.no_grad():
            vectors.embedding.weight.copy_(rows_VD)
        return vectors

    def get_input_embeddings(self) -> nn.Embedding:
        """Returns the table."""
        return self.embedding

    def forward(self, tokens: PackedTokens) -> torch.Tensor:
        """Returns the mean of each sentence's rows, emb_BD; that of a sentence without tokens is 0."""
        by_sentence = tokens.segments.flatten().argsort(stable=True)  # the empty places are last
        input_ids = tokens.input_ids.flatten()[by_sentence[: tokens.lengths.sum()]]
        offsets = tokens.lengths.cumsum(0) - tokens.lengths
        sums_BD = F.embedding_bag(input_ids, self.embedding.weight, offsets, mode="sum")  # three times as fast as mean
        return sums_BD / tokens.lengths[:, None].clamp(min=1)


AutoConfig.register(StaticVectorsConfig.model_type, StaticVectorsConfig)
AutoModel.register(StaticVectorsConfig, StaticVectors)


def without_special_tokens(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """Returns a copy that adds no special tokens, neither cuts nor pads, and stays so when it is saved.

    Args:
        tokenizer: a fast one; left as it is.
    """
    names = {name: getattr(tokenizer, name, None) for name in _SPECIAL}
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    return _wrapped(backend, **{name: token for name, token in names.items() if token is not None})


def read_static(directory: Path) -> tuple[StaticVectors, PreTrainedTokenizerFast, int | None]:
    """Reads a module `StaticEmbedding` of sentence-transformers, or one that model2vec wrote.

    Returns:
        The table, its tokenizer, and at how many tokens a sentence is cut, None where it is not.
    """
    tensors = load_file(directory / "model.safetensors")
    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    longest = backend.truncation and backend.truncation["max_length"]
    return StaticVectors.from_rows(_rows(tensors)), _wrapped(backend), longest


def _rows(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """One row per token: model2vec can have several tokens share a row, and a weight for each."""
    if "embedding.weight" in tensors:
        return tensors["embedding.weight"].float()
    rows_VD = tensors["embeddings"].float()
    if "mapping" in tensors:
        rows_VD = rows_VD[tensors["mapping"].long()]
    return rows_VD * tensors["weights"].float()[:, None] if "weights" in tensors else rows_VD


def _wrapped(backend: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    backend.post_processor = None
    backend.no_truncation()
    backend.no_padding()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)
