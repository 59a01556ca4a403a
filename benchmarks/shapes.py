"""Encoders of known shapes with random weights and the bundled tokenizer, for machines without a model hub."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from raysed.bundled import ENCODER

SHAPES = {
    "base": {},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "small": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256},
}
"""By name, how a BERT differs from BERT-base."""


def config_of(shape: str, **changes: object) -> BertConfig:
    """Returns the configuration of a shape, with the bundled tokenizer's vocabulary.

    Args:
        shape: one of `SHAPES`.
        changes: to it.
    """
    return BertConfig(
        **{**SHAPES[shape], **changes}, vocab_size=len(AutoTokenizer.from_pretrained(ENCODER, trust_remote_code=False))
    )


def write(shape: str, path: Path) -> None:
    """Writes an encoder of a shape as a Hugging Face directory.

    Args:
        shape: one of `SHAPES`.
        path: the directory.
    """
    torch.manual_seed(0)
    BertModel(config_of(shape)).save_pretrained(path)
    AutoTokenizer.from_pretrained(ENCODER, trust_remote_code=False).save_pretrained(path)
