"""Views by greedy translation into another language and back (BSL section 3.2).

With two pairs of models the views are two back-translations, as in the paper; with one, the sentence and its
back-translation. A translation has at most twice as many tokens as `encoder.max_length`.
"""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import is_offline_mode
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME, cached_file

from raysed.config import EncoderConfig, ViewsConfig
from raysed.errors import UserError
from raysed.model.pretrained import LOAD_ERRORS
from raysed.model.views import common
from raysed.model.views.common import GeneratedViews, Maker
from raysed.store.hub import encoder_path

UNIT = "sentences"
_SETTING = "views.pivots"
_TOKENIZERS = {"marian": ("sentencepiece", "sacremoses"), "fsmt": ("sacremoses",)}
"""Types of models with one fixed direction, and their tokenizers' packages; other types need the languages named."""


def maker(views: ViewsConfig, encoder: EncoderConfig, seed: int, device: str = "cpu") -> Maker:
    """Return the maker, which draws nothing; the models run in bf16 on a GPU that has it."""
    translators = {config.path: _translator(config, encoder.max_length, device) for _, config in models(views, encoder)}

    def make(sentences: Sequence[str], ids: np.ndarray) -> GeneratedViews:
        versions = [translators[back](translators[there](sentences)) for there, back in views.pivots]
        pairs = list(zip(*versions) if len(versions) == 2 else zip(sentences, versions[0]))
        return GeneratedViews(pairs, len(pairs), len(pairs))

    return make


def check(views: ViewsConfig, encoder: EncoderConfig) -> None:
    """Load configurations and tokenizers; look for weights."""
    for _, config in models(views, encoder):
        _load_tokenizer(config)


def models(views: ViewsConfig, encoder: EncoderConfig) -> list[tuple[str, EncoderConfig]]:
    """Return the models of all pivots, each once."""
    names = dict.fromkeys(name for pair in views.pivots for name in pair)
    return [(_SETTING, EncoderConfig(path=name)) for name in names]


def _translator(config: EncoderConfig, max_length: int, device: str) -> Callable[[Sequence[str]], list[str]]:
    tokenizer = _load_tokenizer(config)
    with common.view_errors(_SETTING, config.path):
        options = {"use_safetensors": True, "dtype": common.dtype_on(device)}
        path = encoder_path(config)
        model = AutoModelForSeq2SeqLM.from_pretrained(path, trust_remote_code=False, **options)
    model = model.to(device).eval()
    model.generation_config.max_length = None  # avoids a warning per batch that max_new_tokens overrides it
    positions = common.usable_positions(model.config)
    longest = min(max_length, positions)
    options = dict(num_beams=1, do_sample=False, max_new_tokens=min(2 * max_length, positions))

    @torch.no_grad()
    def translate(sentences: Sequence[str]) -> list[str]:
        if not len(sentences):
            return []
        translations = [""] * len(sentences)
        coded = tokenizer(list(sentences), truncation=True, max_length=longest, verbose=False)["input_ids"]
        for rows in common.padded_batches([len(tokens) for tokens in coded]):
            some = {"input_ids": [coded[row] for row in rows]}
            batch = tokenizer.pad(some, return_tensors="pt", verbose=False).to(device)
            output = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **options)
            for row, translation in zip(rows, tokenizer.batch_decode(output, skip_special_tokens=True)):
                translations[row] = translation.strip()
        return translations

    return translate


def _load_tokenizer(config: EncoderConfig) -> PreTrainedTokenizerBase:
    """Load a translation model's configuration and tokenizer; raise UserError if it cannot be used."""
    name, tokenizer = config.path, None
    with common.view_errors(_SETTING, name):
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
        # Online, the hub may convert weights to safetensors on request, so only look for them in local files.
        is_final = Path(path).is_dir() or is_offline_mode()
        if is_final and not any(Path(cached_file(path, CONFIG_NAME)).parent.glob("*.safetensors")):
            raise common.no_safetensors(_SETTING, name)
    return tokenizer
