"""What tests of rewritten views share: odd sentences, those of the package, random models, and what holds for all."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from papers.masked import Maker
from raysed import bundled
from raysed.errors import UserError

ODD = [
    *("", "   ", "!", "[SEP] [MASK] <mask>"),
    "Two  blanks,\ta tab and a dash \u2014 “quoted”.",
    "Café naïve, ½ of it; 🎸🎸 and \u0101\u0304 or 日本語.",
    "THE CAT'S 3 DOGS",
    "a very long sentence " * 40,
]


def generated(count: int) -> list[str]:
    return bundled.corpus()[:count]


def write_model(kind: Callable, config: transformers.PreTrainedConfig, path: Path, seed: int = 0) -> None:
    """Random weights, also where a fresh model has zeros and ones."""
    torch.manual_seed(seed)
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_((2.0 if "encoder_attn" in name else 0.2) * torch.randn_like(parameter))
    model.save_pretrained(path)


def draws_by_seed_and_id(making: Callable[[int], Maker], sentences: Sequence[str]) -> None:
    """Alone, backwards and in two parts, sentences become the same; another seed makes others of them."""
    maker, ids = making(0), np.random.default_rng(0).permutation(1000)[: len(sentences)]
    whole = maker(sentences, ids).pairs
    backwards = maker(sentences[::-1], ids[::-1]).pairs[::-1]
    parts = maker(sentences[:7], ids[:7]).pairs + maker(sentences[7:], ids[7:]).pairs
    assert whole == backwards == parts and whole[:1] == maker(sentences[:1], ids[:1]).pairs
    assert making(1)(sentences, ids).pairs != whole
    assert maker([], np.empty(0, np.int64)) == ([], 0, 0)


def refused(message: str, make: Callable, *arguments: object) -> None:
    """In one sentence, which names no argument of a library."""
    with pytest.raises(UserError, match=message) as caught:
        make(*arguments)
    assert "\n" not in str(caught.value) and "use_safetensors" not in str(caught.value)
