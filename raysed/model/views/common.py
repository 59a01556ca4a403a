"""What the makers of views share: what they return, and models in padded batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from raysed.errors import UserError, first_line
from raysed.model.precision import has_bf16
from raysed.model.pretrained import LOAD_ERRORS

_CELLS = 2048
"""Tokens and padding per forward pass; a large vocabulary's logits of them take half a gigabyte."""
UNUSED_POSITIONS = 2
"""RoBERTa never uses the first two; other models lose two tokens of their very longest sentences."""


class Made(NamedTuple):
    """Two views of each of B sentences, and how many of how many units (words, tokens, sentences) were rewritten."""

    pairs: list[tuple[str, str]]
    chosen: int
    total: int


Maker = Callable[[Sequence[str], np.ndarray], Made]
"""Takes B sentences and their ids, int64 [B]."""


def draw(count: int, expected: float, rng: np.random.Generator) -> np.ndarray:
    """Return ascending places out of `count`, `expected` of them on average, at least one."""
    wanted = max(1, int(expected + rng.random()))
    return np.sort(rng.permutation(count)[:wanted])


def capital_as(old: str, new: str) -> str:
    """Return the new word with a capital where the old one has one."""
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def replace_spans(text: str, replacements: Sequence[tuple[int, int, str]]) -> str:
    """Put the third of each triple in the place of text[first:second]; places ascend and do not overlap."""
    for start, stop, new in reversed(replacements):
        text = text[:start] + new + text[stop:]
    return text


@contextmanager
def loading(setting: str, name: str) -> Iterator[None]:
    """Say which setting named what could not be loaded."""
    try:
        yield
    except UserError as error:
        raise error.at(setting) from None
    except LOAD_ERRORS as error:
        # What transformers says of a model without safetensors speaks of an argument that is no setting here.
        if any(word in str(error) for word in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, "use_safetensors")):
            raise no_safetensors(setting, name) from None
        raise UserError(f"{name!r} cannot be loaded: {first_line(error)}", setting=setting) from None


def no_safetensors(setting: str, name: str) -> UserError:
    """Return the error for a model whose weights are kept in another format."""
    return UserError(
        f"{name!r} has no {SAFE_WEIGHTS_NAME}, and weights are read from safetensors only; load the model with "
        "transformers, save it with save_pretrained and name that directory, or name another model",
        setting=setting,
    )


def dtype_on(device: str) -> torch.dtype:
    """Return bf16 on GPUs that have it; views are the same on every kind of CPU."""
    return torch.bfloat16 if torch.device(device).type != "cpu" and has_bf16(device) else torch.float32


def padded_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield rows that are not empty by falling length, at most `_CELLS` cells at a time when padded to the longest."""
    order = np.argsort(-np.asarray(lengths), kind="stable")[: np.count_nonzero(lengths)].tolist()
    while order:
        count = max(1, _CELLS // lengths[order[0]])
        yield order[:count]
        order = order[count:]
