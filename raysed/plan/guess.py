"""A guess at what a run takes on this machine: only the encoder's configuration and tokenizer are looked at."""

import os
from collections.abc import Sequence

import numpy as np
from transformers import AutoTokenizer

from raysed.config import Config, EncoderConfig
from raysed.errors import UserError, first_line
from raysed.model.encoder import LOAD_ERRORS, configuration_of, encoder_path
from raysed.model.shape import shape_of
from raysed.plan.consistency import check_settings
from raysed.plan.draft import EncoderFacts
from raysed.plan.size import described, plan_run, rate_of, tokens_of_sentence

_UNLIMITED = 10**6
"""Tokenizers that know no limit have a number beyond this."""


def look_at(encoder: str, keep: str | None, sentences: Sequence[str]) -> EncoderFacts:
    """Looks at an encoder's configuration and tokenizer, without its weights.

    Args:
        encoder: as `encoder.path`.
        keep: as `encoder.keep_layers`.
        sentences: that are counted in its tokens.

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
    shape = shape_of(config)
    return EncoderFacts(
        layers=shape.layers,
        parameters=shape.parameters,
        limit=min((limit for limit in limits if limit and limit < _UNLIMITED), default=None),
        tokens_N=np.array([len(row) for row in ids]),
    )


def training_seconds(config: Config, sentences: int, tokens: float, cpus: int | None = None) -> float:
    """Guesses how long the trainings of a run take on this machine's CPUs.

    Args:
        cpus: to plan for; None: those that this process may use.

    Raises:
        UserError: a training does not fit, or the encoder cannot be looked at.
    """
    cluster = described(f"1x{cpus or cpus_here()}xCPU")
    rows = {"corpus": config.corpus.sentences or sentences}
    plan = plan_run(config, check_settings(config), shape_of(config.encoder), rows, cluster, rate_of(cluster, config))
    return sum(step.seconds for step in plan.steps) * max(1.0, tokens / tokens_of_sentence(config))


def cpus_here() -> int:
    """Returns the CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
