"""A static model: one vector per token; a sentence's embedding is the mean over its tokens.

It replaces an encoder's transformer and is exported as `StaticEmbedding`. Its tokenizer adds no special tokens.
"""

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from raysed.data.tokens import PackedTokens


class StaticVectorsConfig(PreTrainedConfig):
    """Number and width of the vectors."""

    model_type = "raysed-static"
    vocab_size: int = 1
    hidden_size: int = 1
    num_hidden_layers: int = 1


class StaticVectors(PreTrainedModel):
    """One vector per token, as a model that transformers can save and load."""

    config_class = StaticVectorsConfig

    def __init__(self, config: StaticVectorsConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    @classmethod
    def from_rows(cls, rows_VD: torch.Tensor) -> "StaticVectors":
        vectors = cls(StaticVectorsConfig(vocab_size=len(rows_VD), hidden_size=rows_VD.shape[1]))
        with torch.no_grad():
            vectors.embedding.weight.copy_(rows_VD)
        return vectors

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, tokens: PackedTokens) -> torch.Tensor:
        """Return the mean of each sentence's rows, emb_BD; 0 for a sentence without tokens."""
        by_sentence = tokens.segments.flatten().argsort(stable=True)  # empty slots come last
        input_ids = tokens.input_ids.flatten()[by_sentence[: tokens.lengths.sum()]]
        offsets = tokens.lengths.cumsum(0) - tokens.lengths
        sums_BD = F.embedding_bag(input_ids, self.embedding.weight, offsets, mode="sum")  # three times as fast as mean
        return sums_BD / tokens.lengths[:, None].clamp(min=1)


AutoConfig.register(StaticVectorsConfig.model_type, StaticVectorsConfig)
AutoModel.register(StaticVectorsConfig, StaticVectors)


def without_special_tokens(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Copy a fast tokenizer; the copy and its files add no special tokens and neither truncate nor pad."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = None
    backend.no_truncation()
    backend.no_padding()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **tokenizer.special_tokens_map)
