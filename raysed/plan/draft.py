"""A first configuration for a user's own files: which recipes, and what every number should be for this text.

Of the encoder only the configuration and the tokenizer are looked at, not the weights.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from transformers import AutoTokenizer

from raysed.config import Config, EncoderConfig, make_config
from raysed.data.survey import PairsSurvey, Survey
from raysed.errors import UserError, first_line
from raysed.model.pretrained import LOAD_ERRORS, configuration_of
from raysed.model.shape import shape_of
from raysed.plan.consistency import check_settings
from raysed.score.tasks import task_name
from raysed.store.hub import encoder_path
from raysed.store.text import render

MOST_SENTENCES = 100_000
"""Draw this many from a larger corpus: a first run should take hours, not days."""
_UPDATES = 800
"""Of a learner: three layers of MiniLM needed so many for 97 % of their teacher's score (docs/which-recipe.md)."""
_MOST_EPOCHS = 20
_CT_STEPS = (200, 1000)
_FLOW_UPDATES = 300
_COVERED = 0.99
"""The share of the sentences that is not cut."""
_BYTES_PER_TOKEN = 4.0
"""About as many in English, and in scripts whose characters take more bytes."""
_UNLIMITED = 10**6
"""Tokenizers that know no limit have a number beyond this."""


@dataclass(frozen=True)
class EncoderFacts:
    """What a look at an encoder's files shows."""

    layers: int
    parameters: int
    limit: int | None
    """Tokens that it takes, special ones included; None: any number."""
    tokens_N: np.ndarray
    """Tokens of sentences of the corpus, special ones included."""


@dataclass(frozen=True)
class Draft:
    """A configuration, which `text` has as YAML with comments."""

    text: str
    config: Config
    lengths: tuple[int, int, int, int]
    """Tokens of the sentences, special ones included: what half, 95 %, 99 % of them and all have at most."""
    cut: float
    """The share of the sentences that is longer than `encoder.max_length`."""


def look_at(encoder: str, keep: str | None, sentences: Sequence[str]) -> EncoderFacts:
    """Look at an encoder's configuration and tokenizer, and count the tokens of sentences."""
    config = EncoderConfig(path=encoder, keep_layers=keep, layers=1)
    found = configuration_of(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(encoder_path(config))
    except LOAD_ERRORS as error:
        raise UserError(f"encoder.path: {encoder!r} has no tokenizer that can be loaded: {first_line(error)}") from None
    limits = [getattr(found, "max_position_embeddings", None), tokenizer.model_max_length]
    ids = tokenizer(list(sentences), verbose=False)["input_ids"]
    shape, limit = shape_of(config), min((limit for limit in limits if limit and limit < _UNLIMITED), default=None)
    return EncoderFacts(shape.layers, shape.parameters, limit, np.array([len(row) for row in ids]))


def draft(
    survey: Survey,
    pairs: Sequence[PairsSurvey],
    teachers: Sequence[str],
    encoder: str,
    keep: str | None,
    facts: EncoderFacts | None,
    output: str,
) -> Draft:
    """Write a configuration for what the survey has found.

    Args:
        pairs: graded ones; the first are what choices are made on, and all others are reported.
        teachers: without any, members are trained.
        facts: None if the encoder could not be looked at: tokens are then guessed from characters.
        output: what the file will be called, for its comments.
    """
    sample = "".join(survey.sample)
    guessed_N = np.ceil(survey.lengths_N * len(sample.encode()) / len(sample) / _BYTES_PER_TOKEN).astype(int) + 2
    tokens_N = facts.tokens_N if facts else guessed_N
    lengths = tuple(int(np.quantile(tokens_N, q, method="higher")) for q in (0.5, 0.95, _COVERED, 1))
    limit = (facts and facts.limit) or 512
    max_length = min(limit, max(16, 8 * math.ceil(lengths[2] / 8)))
    cut = float(np.mean(tokens_N > max_length))
    # So many have been seen, so the draw cannot fail, whatever the rest is like.
    usable = survey.report.usable
    drawn = min(MOST_SENTENCES, usable) if usable > MOST_SENTENCES or not survey.complete else None
    count = drawn or usable
    first = Path(re.split(r"[*?[]", survey.source[0])[0].rstrip("/"))  # a file, directory or dataset
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", first.name.split(".")[0])
    tasks: dict[str, PairsSurvey] = {}
    for task in pairs:
        tasks[task_name(task.source, tasks)] = task
    fitted = min(count, 10_000)
    epochs, updates = _epochs(fitted // 64, _FLOW_UPDATES)  # of 32 pairs of sentences
    text = render(
        "config.yaml",
        run=name.strip("._-")[:100] or "my-text",
        output=output,
        survey=survey,
        drawn=drawn,
        teachers=teachers,
        encoder=encoder,
        keep=keep,
        is_bundled=encoder == "bundled:encoder",
        layers=min(2, facts.layers) if facts else 2,
        measured=facts is not None,
        covered=lengths[2],
        limit=limit,
        max_length=max_length,
        cut=cut,
        tasks=tasks,
        sed=_learner(count, bool(teachers), 2 * pairs[0].pairs if pairs else 0),
        # One pass over the corpus, within bounds: an update reads two sentences and 14 others to tell them from.
        ct_steps=min(_CT_STEPS[1], max(_CT_STEPS[0], 50 * round(count / 16 / 50))),
        flow={"fitted": fitted, "epochs": epochs, "updates": updates},
        yaml=_on_one_line,
    )
    config = make_config(yaml.safe_load(text))
    check_settings(config)
    return Draft(text, config, lengths, cut)


def _learner(count: int, has_teachers: bool, scored: int) -> dict[str, int]:
    """Batches that are large if there is enough text, and epochs for some hundred updates.

    Between two evaluations at least as many sentences are learnt from as are scored, which costs a third as much.
    """
    batch = 16 if count < 2000 else 32 if count < 8000 or not has_teachers else 64
    epochs, updates = _epochs(count // batch, _UPDATES)
    every = max(10, 10 * round(updates / 160), min(10 * math.ceil(scored / batch / 10), updates // 4))
    return {"batch": batch, "epochs": epochs, "updates": updates, "every": min(200, every)}


def _epochs(per_epoch: int, wanted: int) -> tuple[int, int]:
    """Return the epochs for about so many updates, and their updates."""
    per_epoch = max(1, per_epoch)
    epochs = min(_MOST_EPOCHS, max(1, round(wanted / per_epoch)))
    return epochs, epochs * per_epoch


def _on_one_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()
