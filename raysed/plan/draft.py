"""A first configuration for a user's own files: which recipes, and what every number should be for this text.

Of the encoder only the configuration and the tokenizer are looked at, not the weights.
"""

import math
import os
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
from raysed.plan.size import described, plan_run, rate_of, tokens_of_sentence
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
_ASCII_PER_TOKEN, _OTHER_PER_TOKEN = 4.0, 1.5
"""Characters; of English and the like, and of scripts that take more bytes."""
_UNLIMITED = 10**6
"""Tokenizers that know no limit have a number beyond this."""


@dataclass(frozen=True)
class EncoderFacts:
    """What a look at an encoder's files shows.

    Attributes:
        limit: tokens that it takes, special ones included; None: any number.
        tokens_N: of sentences of the corpus, special ones included.
    """

    layers: int
    parameters: int
    limit: int | None
    tokens_N: np.ndarray


@dataclass(frozen=True)
class Draft:
    """A configuration, which `text` has as YAML with comments.

    Attributes:
        lengths: tokens of the sentences, special ones included: what half, 95 %, 99 % of them and all have at most.
        cut: the share of the sentences that is longer than `encoder.max_length`.
    """

    text: str
    config: Config
    lengths: tuple[int, int, int, int]
    cut: float


def look_at(encoder: str, keep: str | None, sentences: Sequence[str]) -> EncoderFacts:
    """Look at an encoder's configuration and tokenizer, and count the tokens of sentences.

    Raises:
        UserError: it is no model, or cannot be reached.
    """
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


def training_seconds(config: Config, sentences: int, tokens: float) -> tuple[float, int]:
    """Guess how long the trainings of a run take on this machine's CPUs, and count these.

    Args:
        tokens: of a sentence on average.

    Raises:
        UserError: a training does not fit, or the encoder cannot be looked at.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cluster = described(f"1x{cpus}xCPU")
    rows = {"corpus": config.corpus.sentences or sentences}
    plan = plan_run(config, check_settings(config), shape_of(config.encoder), rows, cluster, rate_of(cluster, config))
    return sum(step.seconds for step in plan.steps) * max(1.0, tokens / tokens_of_sentence(config)), cpus


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
        facts: None if the encoder could not be looked at.
        output: what the file will be called, for its comments.

    Raises:
        UserError: the settings do not go together, or a name is not allowed in a configuration.
    """
    if facts:
        tokens_N = facts.tokens_N
    else:  # by the characters alone, with two special tokens
        is_ascii = 2 * sum(len(text) for text in survey.sample if text.isascii()) > sum(map(len, survey.sample))
        tokens_N = np.ceil(survey.lengths_N / (_ASCII_PER_TOKEN if is_ascii else _OTHER_PER_TOKEN)).astype(int) + 2
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
        tasks=_by_name(pairs),
        sed=_learner(count, bool(teachers), 2 * pairs[0].pairs if pairs else 0),
        # One pass over the corpus, within bounds: an update reads two sentences and 14 others to tell them from.
        ct_steps=min(_CT_STEPS[1], max(_CT_STEPS[0], 50 * round(count / 16 / 50))),
        flow=_flow(count),
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
    per_epoch = max(1, count // batch)
    epochs = min(_MOST_EPOCHS, max(1, round(_UPDATES / per_epoch)))
    updates = epochs * per_epoch
    every = max(10, 10 * round(updates / 160), min(10 * math.ceil(scored / batch / 10), updates // 4))
    return {"batch": batch, "epochs": epochs, "updates": updates, "every": min(200, every)}


def _flow(count: int) -> dict[str, int]:
    """Epochs over pairs of sentences, 32 pairs an update."""
    fitted = min(count, 10_000)
    per_epoch = max(1, fitted // 64)
    epochs = min(_MOST_EPOCHS, max(1, round(_FLOW_UPDATES / per_epoch)))
    return {"fitted": fitted, "epochs": epochs, "updates": epochs * per_epoch}


def _by_name(pairs: Sequence[PairsSurvey]) -> dict[str, PairsSurvey]:
    """Each by the name of its file, or by its whole path if another has that name."""
    tasks: dict[str, PairsSurvey] = {}
    for task in pairs:
        name = Path(task.source.rstrip("/")).name.split(".")[0].removeprefix("bundled:")
        tasks[task.source if not name or name in tasks else name] = task
    return tasks


def _on_one_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()
