"""Two views of a sentence: itself, and with a share of its tokens filled by a masked language model (BSL section 4.4).

The paper gives only the share and the model. Here the draw is from all tokens of text, punctuation included, which are
masked together. Each becomes the likeliest token of its kind (`_texts_and_kinds`): a word's beginning for a beginning,
punctuation for punctuation. The rest keeps its spelling. Tokens beyond `max_length` are neither drawn nor counted.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import decoders
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from raysed.config import EncoderConfig, derive_seed
from raysed.errors import UserError, first_line
from raysed.model.precision import has_bf16
from raysed.model.pretrained import LOAD_ERRORS, load_tokenizer, read_weights

RATE = 0.2
"""Share of tokens to mask and fill (BSL section 4.4)."""
_CELLS = 2048
"""Tokens and padding per forward pass; with a large vocabulary their logits take half a gigabyte."""
_RESERVED = re.compile(r"\[.+\]|<.+>")
"""Vocabulary entries without text: `[unused7]`, `<0x0A>`, `<extra_id_3>`."""
_CONTINUES, _BYTES_START, _STARTS = "##", "Ġ", "▁"
"""WordPiece marks tokens that continue a word; byte-level BPE and SentencePiece mark those that begin one."""


class GeneratedViews(NamedTuple):
    """Two views of each of B sentences; `chosen` of `total` units (here tokens) were drawn to be rewritten."""

    pairs: list[tuple[str, str]]
    chosen: int
    total: int


Maker = Callable[[Sequence[str], np.ndarray], GeneratedViews]
"""From B sentences and their ids, int64 [B], to views. Draws depend on the seed and the id only, not on calls and
workers."""


def masked_views(
    filler: EncoderConfig, setting: str, rate: float, max_length: int, seed: int, device: str = "cpu"
) -> Maker:
    """Return the maker; the model runs in bf16 on GPUs that have it.

    Args:
        filler: the masked language model, which errors call `setting`.
        rate: share of tokens to mask and fill.
    """
    model, tokenizer = load_filler(filler, setting)
    model, seed = model.to(device, dtype_on(device)).eval(), derive_seed(seed, "mlm")
    longest = min(max_length, usable_positions(model.config))
    options = dict(truncation=True, max_length=longest, return_offsets_mapping=True)
    texts, kinds = _texts_and_kinds(tokenizer)
    kinds_V = np.pad(kinds, (0, model.config.vocab_size - len(kinds)), constant_values=-1)
    is_lower_case = tokenizer.tokenize("A") == tokenizer.tokenize("a")

    def rewritten(sentence: str, tokens: np.ndarray, spans: np.ndarray, chosen: np.ndarray, filled: np.ndarray) -> str:
        replacements = []
        for place, token in zip(chosen.tolist(), filled.tolist()):
            if token == tokens[place]:  # keep capitals and accents that the vocabulary may lack
                continue
            start, stop = spans[place].tolist()
            old = sentence[start:stop].lstrip()  # some tokenizers include the space before a word
            new = capital_as(old, texts[token]) if is_lower_case else texts[token]
            replacements.append((stop - len(old), stop, new))
        return replace_spans(sentence, replacements)

    def make(sentences: Sequence[str], ids: np.ndarray) -> GeneratedViews:
        if not len(sentences):
            return GeneratedViews([], 0, 0)
        coded = tokenizer(list(sentences), **options, verbose=False)
        tokens = [np.array(row, np.int64) for row in coded["input_ids"]]
        spans = [np.array(row, np.int64).reshape(-1, 2) for row in coded["offset_mapping"]]
        chosen, total = [], 0
        for tokens_L, spans_L2, key in zip(tokens, spans, ids.tolist()):
            places = _alone(spans_L2)
            places = places[kinds_V[tokens_L[places]] >= 0]
            rng = np.random.default_rng([seed, key])
            chosen.append(places[draw(len(places), rate * len(places), rng)])
            total += len(places)
        filled = _fill(model, tokenizer, torch.from_numpy(kinds_V).to(device), tokens, chosen)
        pairs = [(one[0], rewritten(*one)) for one in zip(sentences, tokens, spans, chosen, filled)]
        return GeneratedViews(pairs, sum(map(len, chosen)), total)

    return make


def _alone(spans_L2: np.ndarray) -> np.ndarray:
    """Return ascending places of tokens with text that share no character with another."""
    starts, stops = spans_L2.T
    real = np.flatnonzero(starts < stops)
    shared = starts[real[1:]] < stops[real[:-1]]
    return real[~(np.append(False, shared) | np.append(shared, False))[: len(real)]]


@torch.no_grad()
def _fill(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    kinds_V: torch.Tensor,
    tokens: list[np.ndarray],
    chosen: list[np.ndarray],
) -> list[np.ndarray]:
    """Return each sentence's likeliest tokens of the original kinds at its chosen places."""
    filled = [np.empty(0, np.int64)] * len(tokens)
    for rows in padded_batches([len(row) for row in tokens]):
        some = {"input_ids": [tokens[row].tolist() for row in rows]}
        batch = tokenizer.pad(some, padding_side="right", return_tensors="pt", verbose=False).to(model.device)
        chosen_BL = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        for i, row in enumerate(rows):
            chosen_BL[i, chosen[row]] = True
        masked_BL = batch["input_ids"].masked_fill(chosen_BL, tokenizer.mask_token_id)
        logits_PV = model(input_ids=masked_BL, attention_mask=batch["attention_mask"]).logits[chosen_BL]
        logits_PV.masked_fill_(kinds_V != kinds_V[batch["input_ids"][chosen_BL]][:, None], -torch.inf)
        best_P = logits_PV.argmax(-1).cpu().numpy()
        for row, part in zip(rows, np.split(best_P, np.cumsum([len(chosen[row]) for row in rows])[:-1])):
            filled[row] = part
    return filled


def _texts_and_kinds(tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], np.ndarray]:
    """Return each vocabulary entry's text and kind, int64 [V].

    Kinds: 2 if it begins a word, plus 1 if it has a letter or digit; -1 for special tokens and parts of characters.
    """
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    mark = max((_CONTINUES, _BYTES_START, _STARTS), key=lambda mark: sum(token.startswith(mark) for token in tokens))
    texts = [token.removeprefix(mark) for token in tokens]
    begins = np.array([token.startswith(mark) for token in tokens]) != (mark == _CONTINUES)
    if mark == _BYTES_START:
        texts = [decoders.ByteLevel().decode([text]) for text in texts]
    kinds = 2 * begins + np.array([any(map(str.isalnum, text)) for text in texts])
    for index, text in enumerate(texts):  # incomplete characters decode to the replacement character
        is_whole = text.isprintable() and "\ufffd" not in text and _STARTS not in text
        if not is_whole or text != text.strip() or not text or _RESERVED.fullmatch(text):
            kinds[index] = -1
    kinds[tokenizer.all_special_ids] = -1
    return texts, kinds


def load_filler(config: EncoderConfig, setting: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the filling model; raise UserError if it or its tokenizer cannot fill masks."""
    problem = None
    with view_errors(setting, config.path):
        try:
            model, _ = read_weights(AutoModelForMaskedLM, config)
        except UserError as error:  # such as a head without weights
            problem = error.problem.removeprefix(f"{config.path!r} ")
        tokenizer = load_tokenizer(config)
    if tokenizer.mask_token_id is None:
        problem = "has a tokenizer without a mask token"
    elif not tokenizer.is_fast:
        problem = "has a slow tokenizer, which does not report the positions of its tokens"
    if problem:
        raise UserError(
            f"{config.path!r} {problem}, so it cannot fill masks; name a model with a masked-language-model head in "
            "--model, such as bundled:raw or FacebookAI/roberta-base",
            setting=setting,
        )
    return model, tokenizer


# -- shared with the other makers ------------------------------------------------------------------------------------


def usable_positions(config: PretrainedConfig) -> int:
    """Return how many tokens a model takes: its positions less two, which RoBERTa does not use."""
    positions = getattr(config, "max_position_embeddings", None) or 0
    return positions - 2 if positions > 0 else sys.maxsize


def draw(count: int, expected: float, rng: np.random.Generator) -> np.ndarray:
    """Draw `expected` of `count` places on average, at least one; ascending."""
    wanted = max(1, int(expected + rng.random()))
    return np.sort(rng.permutation(count)[:wanted])


def capital_as(old: str, new: str) -> str:
    """Capitalise the new word if the old one is."""
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def replace_spans(text: str, replacements: Sequence[tuple[int, int, str]]) -> str:
    """Replace text[start:stop] by `new` for each (start, stop, new), ascending and without overlap."""
    for start, stop, new in reversed(replacements):
        text = text[:start] + new + text[stop:]
    return text


@contextmanager
def view_errors(setting: str, name: str) -> Iterator[None]:
    """Turn loading errors into UserErrors of the setting."""
    try:
        yield
    except UserError as error:
        raise error.at(setting) from None
    except LOAD_ERRORS as error:
        # transformers' message about missing safetensors names an argument that is no setting here.
        if any(word in str(error) for word in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, "use_safetensors")):
            raise UserError(
                f"{name!r} has no {SAFE_WEIGHTS_NAME}, and weights are read from safetensors only; load the model with "
                "transformers, save it with save_pretrained and name that directory, or name another model",
                setting=setting,
            ) from None
        raise UserError(f"{name!r} cannot be loaded: {first_line(error)}", setting=setting) from None


def dtype_on(device: str) -> torch.dtype:
    """Return bf16 on GPUs that have it, else float32, so views are equal on all kinds of CPUs."""
    return torch.bfloat16 if has_bf16(device) else torch.float32


def padded_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of non-empty rows, longest first, of at most `_CELLS` padded cells (or one row)."""
    order = np.argsort(-np.asarray(lengths), kind="stable")[: np.count_nonzero(lengths)].tolist()
    while order:
        count = max(1, _CELLS // lengths[order[0]])
        yield order[:count]
        order = order[count:]
