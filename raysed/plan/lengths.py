"""Choose how much of each text to read: passages and tokens, by the text, the learner and its teachers."""

import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from raysed.config import CorpusConfig, EncoderConfig
from raysed.data.corpus import passages
from raysed.data.tokens import tokenize
from raysed.model.pretrained import LOAD_ERRORS, configuration_of, load_tokenizer, longest_input
from raysed.model.teacher import kind_of

PASSAGE = 2000
"""Longest passage, in characters, unless a model reads less."""
_COVERED = 0.95
_LEAST = 75  # shorter texts are packed without padding, so less would save nothing
_LONGEST = 512  # tokens, if no model has a limit
_UNLIMITED = 10**6  # tokenizers without a limit report a larger one


@dataclass(frozen=True)
class Lengths:
    """How much of a sample's texts is read.

    Attributes:
        tokens: read of each text, special ones included.
        limit: tokens that the learner and its teachers can read.
        covered: tokens of 95 % of the texts.
        passage_characters: for `corpus.passage_characters`; None if no text is longer.
        cut_texts: share of the texts that are longer than `tokens`.
        cut_tokens: share of all tokens that are cut off.
    """

    tokens: int
    limit: int
    covered: int
    passage_characters: int | None
    cut_texts: float
    cut_tokens: float

    def __str__(self) -> str:
        split = f"lines over {self.passage_characters:,} characters are split" if self.passage_characters else ""
        read = f"95 % of the texts have at most {self.covered} tokens; the first {self.tokens} of each are read"
        cut = f"{100 * self.cut_texts:.1f} % of the texts and {100 * self.cut_tokens:.1f} % of the tokens are cut off"
        return "; ".join(filter(None, [split, read, cut if self.cut_texts else "nothing is cut off"]))


def in_passages(corpus: CorpusConfig) -> CorpusConfig:
    """Return settings that cut only long lines into passages, for `draft.survey_corpus`."""
    longest = corpus.passage_characters or min(PASSAGE, corpus.max_characters)
    return corpus.model_copy(update={"sentences": None, "passage_characters": longest})


def fit_lengths(
    texts: Sequence[str], is_split: bool, corpus: CorpusConfig, encoder: EncoderConfig, teachers: Sequence[str]
) -> Lengths:
    """Choose passages and tokens that the models can read, for texts that were read `in_passages`.

    With a file of embeddings as a teacher, choose no passages: it has vectors of whole lines only.
    """
    tokenizer = load_tokenizer(encoder.model_copy(update={"static": None}))
    limit = limit_of(encoder, tokenizer, teachers)
    tokens_N, longest = tokenize(tokenizer, texts, sys.maxsize).lengths, min(PASSAGE, corpus.max_characters)
    may_split = not corpus.passage_characters and not any(kind_of(path).is_stored for path in teachers)
    if tokens_N.max() > limit and may_split:
        per_token_N = np.array([len(text) for text in texts]) / tokens_N
        longest = max(50, min(longest, int(0.9 * np.quantile(per_token_N, 1 - _COVERED) * limit)))
        parts = [part for text in texts for part in passages(text, longest)]
        is_split |= len(parts) > len(texts)
        tokens_N = tokenize(tokenizer, parts, sys.maxsize).lengths
    found = choose_lengths(tokens_N, limit)
    return replace(found, passage_characters=longest if is_split and may_split else None)


def limit_of(encoder: EncoderConfig, tokenizer: PreTrainedTokenizerBase, teachers: Iterable[str]) -> int:
    """Return how many tokens a learner and its teacher models can read."""
    limit = _LONGEST
    if not encoder.static:
        limit = min(longest_input(configuration_of(encoder), encoder.trust_remote_code), tokenizer.model_max_length)
        limit = _LONGEST if limit > _UNLIMITED else limit
    models = [path for path in teachers if kind_of(path).is_model]
    if models:
        from raysed.model.library import most_tokens  # heavy
    for path in models:
        with suppress(*LOAD_ERRORS):  # the run's own checks report a missing model
            limit = min(limit, most_tokens(path))
    return limit


def choose_lengths(tokens_N: np.ndarray, limit: int) -> Lengths:
    """Choose how many tokens to read of texts with these lengths.

    >>> found = choose_lengths(np.array([20, 90, 100, 300]), 256)
    >>> found.tokens, found.covered, found.cut_texts
    (256, 300, 0.25)
    """
    covered = int(np.quantile(tokens_N, _COVERED, method="higher"))
    tokens = min(limit, max(_LEAST, 8 * math.ceil(covered / 8)))
    lost = np.maximum(tokens_N - tokens, 0).sum() / max(tokens_N.sum(), 1)
    return Lengths(tokens, limit, covered, None, float(np.mean(tokens_N > tokens)), float(lost))
