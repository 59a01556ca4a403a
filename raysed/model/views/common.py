"""Shared by all makers of views: their result, random draws, loading errors and padded batches."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from transformers import PretrainedConfig
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from raysed.errors import UserError, first_line
from raysed.model.precision import has_bf16
from raysed.model.pretrained import LOAD_ERRORS

_CELLS = 2048
"""Tokens and padding per forward pass; with a large vocabulary their logits take half a gigabyte."""


def usable_positions(config: PretrainedConfig) -> int:
    """Return how many tokens a model takes: two less than its positions, since RoBERTa does not use the first two."""
    positions = getattr(config, "max_position_embeddings", None) or 0
    return positions - 2 if positions > 0 else sys.maxsize


class GeneratedViews(NamedTuple):
    """Two views of each of B sentences; `chosen` of `total` units (words, tokens, sentences) were rewritten."""

    pairs: list[tuple[str, str]]
    chosen: int
    total: int


Maker = Callable[[Sequence[str], np.ndarray], GeneratedViews]
"""From B sentences and their ids, int64 [B], to views."""


def draw(count: int, expected: float, rng: np.random.Generator) -> np.ndarray:
    """Draw `expected` of `count` places on average, at least one if there is any; ascending."""
    wanted = max(1, int(expected + rng.random()))
    return np.sort(rng.permutation(count)[:wanted])


def capital_as(old: str, new: str) -> str:
    """Capitalise the new word if the old one is."""
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def replace_spans(text: str, replacements: Sequence[tuple[int, int, str]]) -> str:
    """Replace text[start:stop] by `new` for each (start, stop, new); spans ascend and do not overlap."""
    for start, stop, new in reversed(replacements):
        text = text[:start] + new + text[stop:]
    return text


@contextmanager
def view_errors(setting: str, name: str) -> Iterator[None]:
    """Turn loading errors into UserErrors that name the setting."""
    try:
        yield
    except UserError as error:
        raise error.at(setting) from None
    except LOAD_ERRORS as error:
        # transformers' message about missing safetensors advises an argument that is no setting here.
        if any(word in str(error) for word in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, "use_safetensors")):
            raise no_safetensors(setting, name) from None
        raise UserError(f"{name!r} cannot be loaded: {first_line(error)}", setting=setting) from None


def no_safetensors(setting: str, name: str) -> UserError:
    """Return the error for a model without safetensors weights."""
    return UserError(
        f"{name!r} has no {SAFE_WEIGHTS_NAME}, and weights are read from safetensors only; load the model with "
        "transformers, save it with save_pretrained and name that directory, or name another model",
        setting=setting,
    )


def dtype_on(device: str) -> torch.dtype:
    """Return bf16 on GPUs that have it, else float32, which keeps views equal on every kind of CPU."""
    return torch.bfloat16 if has_bf16(device) else torch.float32


def padded_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of non-empty rows, longest first, of at most `_CELLS` cells once padded (or one row)."""
    order = np.argsort(-np.asarray(lengths), kind="stable")[: np.count_nonzero(lengths)].tolist()
    while order:
        count = max(1, _CELLS // lengths[order[0]])
        yield order[:count]
        order = order[count:]
