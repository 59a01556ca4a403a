"""The sentence, and the sentence with a share of its tokens filled by a masked language model (BSL section 4.4).

The paper gives the share and the model. Here the tokens are drawn from all that stand for text, punctuation included;
they are masked together, and each becomes the likeliest token of its own kind: one that begins a word where one did,
punctuation for punctuation. The rest of the sentence stays as it is written, and so do the tokens beyond
`encoder.max_length`, which are not counted.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import decoders
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from raysed.config import EncoderConfig, ViewsConfig, derive_seed
from raysed.errors import UserError
from raysed.model.pretrained import longest_input
from raysed.model.views.common import (
    UNUSED_POSITIONS,
    Made,
    Maker,
    capital_as,
    draw,
    dtype_on,
    loading,
    padded_batches,
    replace_spans,
)
from raysed.store.hub import encoder_path

UNIT = "tokens"
_RESERVED = re.compile(r"\[.+\]|<.+>")
"""Entries of a vocabulary that stand for no text: `[unused7]`, `<0x0A>`, `<extra_id_3>`."""
_CONTINUES, _BYTES_START, _STARTS = "##", "Ġ", "▁"
"""How vocabularies tell tokens that begin a word: WordPiece marks the others; byte-level BPE and SentencePiece them."""


def maker(views: ViewsConfig, encoder: EncoderConfig, seed: int, device: str = "cpu") -> Maker:
    """Return what makes the views; the model runs in bf16 on a GPU that has it."""
    model, tokenizer = _load(views, encoder)
    model, seed = model.to(device, dtype_on(device)).eval(), derive_seed(seed, "mlm")
    longest = longest_input(model.config, UNUSED_POSITIONS)
    options = dict(truncation=True, max_length=min(encoder.max_length, longest), return_offsets_mapping=True)
    texts, kinds = _texts_and_kinds(tokenizer)
    kinds_V = np.pad(kinds, (0, model.config.vocab_size - len(kinds)), constant_values=-1)
    is_lower_case = tokenizer.tokenize("A") == tokenizer.tokenize("a")

    def choose(tokens_L: np.ndarray, spans_L2: np.ndarray, key: int) -> tuple[np.ndarray, int]:
        """Return the places of the tokens to mask, ascending, and of how many they were drawn."""
        starts, stops = spans_L2.T
        real = np.flatnonzero(starts < stops)
        shared = starts[real[1:]] < stops[real[:-1]]  # a character that became several tokens
        alone = ~(np.append(False, shared) | np.append(shared, False))[: len(real)]
        places = real[alone & (kinds_V[tokens_L[real]] >= 0)]
        rng = np.random.default_rng([seed, key])
        return places[draw(len(places), views.mlm_rate * len(places), rng)], len(places)

    def rewritten(sentence: str, tokens: np.ndarray, spans: np.ndarray, chosen: np.ndarray, filled: np.ndarray) -> str:
        replacements = []
        for place, token in zip(chosen.tolist(), filled.tolist()):
            if token == tokens[place]:  # its spelling, such as capitals or accents, may not be in the vocabulary
                continue
            start, stop = spans[place].tolist()
            old = sentence[start:stop].lstrip()  # some tokenizers take the blank before a word as a part of it
            new = capital_as(old, texts[token]) if is_lower_case else texts[token]
            replacements.append((stop - len(old), stop, new))
        return replace_spans(sentence, replacements)

    def make(sentences: Sequence[str], ids: np.ndarray) -> Made:
        if not len(sentences):
            return Made([], 0, 0)
        coded = tokenizer(list(sentences), **options, verbose=False)
        tokens = [np.array(row, np.int64) for row in coded["input_ids"]]
        spans = [np.array(row, np.int64).reshape(-1, 2) for row in coded["offset_mapping"]]
        drawn = [choose(*one) for one in zip(tokens, spans, ids.tolist())]
        chosen = [places for places, _ in drawn]
        filled = _fill(model, tokenizer, torch.from_numpy(kinds_V).to(device), tokens, chosen)
        pairs = [(one[0], rewritten(*one)) for one in zip(sentences, tokens, spans, chosen, filled)]
        return Made(pairs, sum(map(len, chosen)), sum(total for _, total in drawn))

    return make


def check(views: ViewsConfig, encoder: EncoderConfig) -> None:
    """Load the model once; whether it has its head is seen in no other way."""
    _load(views, encoder)


def models(views: ViewsConfig, encoder: EncoderConfig) -> list[tuple[str, EncoderConfig]]:
    """Return the masked language model: that of `views.mlm_model`, or the run's encoder."""
    if views.mlm_model is not None:
        return [("views.mlm_model", EncoderConfig(path=views.mlm_model))]
    return [("encoder.path", encoder)]


@torch.no_grad()
def _fill(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    kinds_V: torch.Tensor,
    tokens: list[np.ndarray],
    chosen: list[np.ndarray],
) -> list[np.ndarray]:
    """Return the likeliest tokens of the chosen places of each sentence, of the kind that was there."""
    filled = [np.empty(0, np.int64)] * len(tokens)
    for rows in padded_batches([len(row) for row in tokens]):
        lengths = [len(tokens[row]) for row in rows]
        input_ids_BL = torch.full((len(rows), max(lengths)), tokenizer.pad_token_id or 0)
        chosen_BL = torch.zeros_like(input_ids_BL, dtype=torch.bool)
        for i, row in enumerate(rows):
            input_ids_BL[i, : lengths[i]] = torch.from_numpy(tokens[row])
            chosen_BL[i, chosen[row]] = True
        real_BL = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
        input_ids_BL, real_BL, chosen_BL = (x.to(model.device) for x in (input_ids_BL, real_BL, chosen_BL))
        masked_BL = input_ids_BL.masked_fill(chosen_BL, tokenizer.mask_token_id)
        logits_PV = _logits_of(model, masked_BL, real_BL, chosen_BL)
        logits_PV.masked_fill_(kinds_V != kinds_V[input_ids_BL[chosen_BL]][:, None], -torch.inf)
        best_P = logits_PV.argmax(-1).cpu().numpy()
        for row, part in zip(rows, np.split(best_P, np.cumsum([len(chosen[row]) for row in rows])[:-1])):
            filled[row] = part
    return filled


def _logits_of(
    model: PreTrainedModel, input_ids_BL: torch.Tensor, real_BL: torch.Tensor, chosen_BL: torch.Tensor
) -> torch.Tensor:
    """Return the logits of the P chosen places, [P, V]: all places of a batch would take a gigabyte with roberta."""

    def keep_chosen(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
        return (inputs[0][chosen_BL],) if inputs[0].shape[:2] == chosen_BL.shape else None

    output_matrix = model.get_output_embeddings()
    hook = output_matrix.register_forward_pre_hook(keep_chosen) if output_matrix is not None else None
    try:
        logits = model(input_ids=input_ids_BL, attention_mask=real_BL).logits
    finally:
        if hook:
            hook.remove()
    return logits[chosen_BL] if logits.ndim == 3 else logits


def _texts_and_kinds(tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], np.ndarray]:
    """Return what each token of the vocabulary stands for, and its kind, int64 [V].

    Kinds: 2 for a token that begins a word, plus 1 for one with a letter or digit; -1 for one that stands for no
    text of its own, such as special tokens and parts of a character.
    """
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    mark = max((_CONTINUES, _BYTES_START, _STARTS), key=lambda mark: sum(token.startswith(mark) for token in tokens))
    texts = [token.removeprefix(mark) for token in tokens]
    begins = np.array([token.startswith(mark) for token in tokens]) != (mark == _CONTINUES)
    if mark == _BYTES_START:
        texts = [decoders.ByteLevel().decode([text]) for text in texts]
    kinds = 2 * begins + np.array([any(map(str.isalnum, text)) for text in texts])
    kinds[[not _is_text(text) for text in texts]] = -1
    kinds[tokenizer.all_special_ids] = -1
    return texts, kinds


def _is_text(text: str) -> bool:
    """Whether it can stand alone in a sentence; bytes that are no character have become the replacement character."""
    is_whole = text.isprintable() and "\ufffd" not in text and _STARTS not in text
    return is_whole and text == text.strip() != "" and not _RESERVED.fullmatch(text)


def _load(views: ViewsConfig, encoder: EncoderConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    ((setting, config),) = models(views, encoder)
    with loading(setting, config.path):
        path, options = encoder_path(config), {"trust_remote_code": config.trust_remote_code}
        model, info = AutoModelForMaskedLM.from_pretrained(
            path, output_loading_info=True, use_safetensors=True, dtype=torch.float32, **options, **config.model_kwargs
        )
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    problem = None
    if missing:
        problem = f"lacks {len(missing)} weights of a masked language model, such as {missing[0]}"
    elif tokenizer.mask_token_id is None:
        problem = "has a tokenizer without a mask token"
    elif not tokenizer.is_fast:
        problem = "has a slow tokenizer, which does not report the positions of its tokens"
    elif len(tokenizer) > model.config.vocab_size:
        problem = f"has a tokenizer of {len(tokenizer)} tokens, but a model of only {model.config.vocab_size}"
    if problem:
        raise UserError(
            f"{config.path!r} {problem}, so it cannot fill the views of the kind mlm; set views.mlm_model to a model "
            "that was published with its masked-language-model head, such as bundled:encoder or roberta-base",
            setting=setting,
        )
    return model, tokenizer
