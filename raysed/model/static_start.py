"""Initialise a static model: an encoder's embedding of each token alone, with frequent tokens weighted down.

A row is scaled by a / (a + p), where p is the token's share of the corpus: SIF weights (Arora et al. 2017, "A simple
but tough-to-beat baseline for sentence embeddings"), with their a = 1e-3. model2vec also embeds each token and reduces
by PCA, but estimates p from the token's rank.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from raysed.config import CorpusConfig, EncoderConfig
from raysed.data.corpus import CorpusReport, column_chunks
from raysed.data.tokens import TokenTable, tokenize
from raysed.errors import UserError
from raysed.model.combination import principal_directions
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.pretrained import load_encoder, save_encoder
from raysed.model.static import StaticVectors, without_special_tokens
from raysed.store.progress import Progress

SIF = 1e-3


def write_static(encoder: EncoderConfig, corpus: CorpusConfig, seed: int, path: Path) -> None:
    """Write a static model in Hugging Face layout, with a tokenizer that adds no special tokens."""
    # A static model takes any length, so the encoder's limit must not matter: one token needs 3.
    teacher, tokenizer = load_encoder(encoder.model_copy(update={"max_length": 3}))
    if not tokenizer.is_fast:
        problem = f"needs a fast tokenizer, but {encoder.path!r} has none; use a model with a tokenizer.json"
        raise UserError(problem, setting="encoder.static")
    plain = without_special_tokens(tokenizer)
    rows_VD = token_embeddings(teacher, tokenizer)
    counts_V = np.zeros(len(rows_VD), np.int64)
    for columns in column_chunks(corpus, seed, CorpusReport()):
        table = tokenize(plain, [text for column in columns for text in column], encoder.max_length)
        counts_V += np.bincount(table.input_ids, minlength=len(rows_VD))
    rows_VD = start_rows(rows_VD, counts_V, encoder.static.width or teacher.width)
    save_encoder(Encoder(StaticVectors.from_rows(torch.from_numpy(rows_VD))), plain, path)


def token_embeddings(encoder: Encoder, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Embed every token of the vocabulary as a sentence, with special tokens, float32 [V, D]."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    first = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
    before, after = whole[:first], whole[first + len(inner) :]
    size = min(max(tokenizer.get_vocab().values()) + 1, encoder.transformer.config.vocab_size)
    table = TokenTable.from_lists([[*before, token, *after] for token in range(size)])
    progress = Progress("embed tokens", size)
    (rows_VD,) = encode(encoder, table, on_rows=progress.update)
    progress.close()
    return rows_VD


def start_rows(rows_VD: np.ndarray, counts_V: np.ndarray, width: int) -> np.ndarray:
    """Centre rows, scale them by SIF weights, and reduce them by PCA if width < D; float32 [V, width]."""
    x_VD = rows_VD.astype(np.float64) - rows_VD.mean(0, dtype=np.float64)
    share_V = counts_V / max(counts_V.sum(), 1)
    x_VD *= (SIF / (SIF + share_V))[:, None]
    if width < x_VD.shape[1]:
        x_VD = x_VD @ principal_directions(x_VD.T @ x_VD, width)[0]
    return x_VD.astype(np.float32)
