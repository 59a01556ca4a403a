"""What makers share: the sentences that models embed, and how they load the model that they start from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from raysed.config import EncoderConfig
from raysed.data.tokens import TokenTable
from raysed.model.encoder import Encoder, load_checkpoint, load_encoder
from raysed.model.encoder import load_tokenizer as load_own_tokenizer
from raysed.score.tasks import Evaluation


@dataclass(frozen=True)
class Sentences:
    """Sentences that models embed.

    Attributes:
        texts: the sentences.
        tokens: of the run's encoder; None where they depend on an encoder that the run makes.
        evaluation: the tasks whose sentences they are.
    """

    texts: Sequence[str]
    tokens: TokenTable | None
    evaluation: Evaluation | None = None


def load_start(encoder: EncoderConfig, start: Path | None) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Loads the model of an artefact, or the pre-trained encoder where there is none.

    Raises:
        UserError: the encoder cannot be used.
    """
    if start is None:
        return load_encoder(encoder)
    return load_checkpoint(start, encoder.trust_remote_code), load_tokenizer(encoder, start)


def load_tokenizer(encoder: EncoderConfig, start: Path | None = None) -> PreTrainedTokenizerBase:
    """Loads a tokenizer without the weights that it belongs to."""
    if start is None:
        return load_own_tokenizer(encoder)
    return AutoTokenizer.from_pretrained(start, trust_remote_code=encoder.trust_remote_code)


def layers_file(layers: Any) -> str:
    """Returns the file name of embeddings at one pooling."""
    return f"layers-{layers}.npy"
