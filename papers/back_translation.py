"""Views by greedy translation into another language and back (BSL section 3.2).

With two pairs of models the views are two back-translations, as in the paper; with one, the sentence and its
back-translation. A translation has at most twice as many tokens as `max_length`.
"""

import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase

from papers import masked
from papers.masked import GeneratedViews, Maker
from raysed.config import EncoderConfig
from raysed.errors import UserError
from raysed.model.pretrained import LOAD_ERRORS, safe_loads
from raysed.store.hub import encoder_path

_SETTING = "--pivot"
_TOKENIZERS = {"marian": ("sentencepiece", "sacremoses"), "fsmt": ("sacremoses",)}
"""Types of models with one fixed direction, and their tokenizers' packages. Other types need language names."""


def back_translations(pivots: Sequence[tuple[str, str]], max_length: int, device: str = "cpu") -> Maker:
    """Return a maker that uses pairs of models, there and back. It is greedy, and uses bf16 on a GPU that has it."""
    names = dict.fromkeys(name for pair in pivots for name in pair)
    translators = {name: _translator(EncoderConfig(path=name), max_length, device) for name in names}

    def make(sentences: Sequence[str], ids: np.ndarray) -> GeneratedViews:
        versions = [translators[back](translators[there](sentences)) for there, back in pivots]
        pairs = list(zip(*versions) if len(versions) == 2 else zip(sentences, versions[0]))
        return GeneratedViews(pairs, len(pairs), len(pairs))

    return make


def _translator(config: EncoderConfig, max_length: int, device: str) -> Callable[[Sequence[str]], list[str]]:
    tokenizer = _load_tokenizer(config)
    with masked.view_errors(_SETTING, config.path), safe_loads(config.path):
        model = AutoModelForSeq2SeqLM.from_pretrained(encoder_path(config), trust_remote_code=False)
    model = model.to(device, masked.dtype_on(device)).eval()
    model.generation_config.max_length = None  # avoids a warning per batch that max_new_tokens overrides it
    positions = masked.usable_positions(model.config)
    longest = min(max_length, positions)
    options = dict(num_beams=1, do_sample=False, max_new_tokens=min(2 * max_length, positions))

    @torch.no_grad()
    def translate(sentences: Sequence[str]) -> list[str]:
        if not len(sentences):
            return []
        translations = [""] * len(sentences)
        coded = tokenizer(list(sentences), truncation=True, max_length=longest, verbose=False)["input_ids"]
        for rows in masked.padded_batches([len(tokens) for tokens in coded]):
            some = {"input_ids": [coded[row] for row in rows]}
            batch = tokenizer.pad(some, return_tensors="pt", verbose=False).to(device)
            output = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **options)
            for row, translation in zip(rows, tokenizer.batch_decode(output, skip_special_tokens=True)):
                translations[row] = translation.strip()
        return translations

    return translate


def _load_tokenizer(config: EncoderConfig) -> PreTrainedTokenizerBase:
    """Load a translation model's tokenizer; raise `UserError` if the model or tokenizer cannot be used."""
    name, tokenizer = config.path, None
    with masked.view_errors(_SETTING, name):
        path = encoder_path(config)
        kind = AutoConfig.from_pretrained(path, trust_remote_code=False).model_type
        if kind not in _TOKENIZERS:
            raise UserError(
                f"{name!r} is a {kind} model, but only models of the types {' and '.join(_TOKENIZERS)} translate "
                "between one fixed pair of languages; name one such as Helsinki-NLP/opus-mt-en-de",
                setting=_SETTING,
            )
        needed = [package for package in _TOKENIZERS[kind] if importlib.util.find_spec(package) is None]
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        except LOAD_ERRORS:
            if not needed:
                raise
        if needed and not getattr(tokenizer, "is_fast", False):
            packages = f"{' and '.join(needed)}: run pip install {' '.join(needed)}"
            raise UserError(f"the tokenizer of {name!r} needs {packages}", setting=_SETTING)
    return tokenizer
