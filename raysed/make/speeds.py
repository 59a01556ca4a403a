"""Compare the speed of models, in turns within one process."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from raysed.config import Role
from raysed.context import Context
from raysed.make.inputs import Named
from raysed.model.load import NativeModel
from raysed.model.pretrained import load_start
from raysed.model.prompts import embed_by_role
from raysed.model.teacher import load_teacher
from raysed.score.tasks import Evaluation

_SECONDS, _ROUNDS, _TEXTS, _TRIED = 30.0, 5, 200, 8
_MOST_SPREAD = 1.5
"""The largest ratio of a round over the smallest; above it, something else had a say."""

Embed = Callable[[list[str], Role], np.ndarray]
Speed = dict[str, float]
"""`ratio`: how many times as fast a model is as another, the median of rounds from `low` to `high`."""


def speeds(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Compare each teacher's speed with that of the run's own models, which all have the shape of one `model`."""
    sentences, encoder = inputs["sentences"], inputs["encoder"]
    own = NativeModel(*load_start(encoder, inputs["model"]), encoder.pool_layers, encoder.max_length)
    own.encoder.to(context.device)
    own.prompts.update(sentences.prompts)
    teachers = {name: value for name, value in inputs.items() if name.startswith("teacher ")}
    found = {}
    for name, config in teachers.items():
        precision = settings.get("precision", "fp32")  # as its own library runs it
        other = load_teacher(config, context.device, precision).embed
        found[name] = relative_speed(own.embed, other, sentences.evaluation, context.device, len(teachers))
    return found


def relative_speed(own: Embed, other: Embed, evaluation: Evaluation, device: str, comparisons: int = 1) -> Speed | None:
    """Return how many times as fast as `own` another model is.

    Both embed the same texts in each round, so that what else the machine does slows both down. CPU seconds count, on a
    GPU seconds that pass. None if the rounds differ too much.

    Args:
        comparisons: that share half a minute; slow models embed fewer texts.
    """
    clock = time.process_time if device == "cpu" else time.perf_counter
    step = max(len(evaluation.sentences) // _TEXTS, 1)  # evenly spread, so lengths are typical
    texts, roles = evaluation.sentences[::step][:_TEXTS], evaluation.roles[::step][:_TEXTS]

    def spent(embed: Embed, count: int) -> float:
        began = clock()
        embed_by_role(embed, texts[:count], roles[:count])
        return max(clock() - began, 1e-9)

    for embed in (own, other):
        spent(embed, _TRIED)  # loads it
    each = (spent(own, _TRIED) + spent(other, _TRIED)) / _TRIED
    count = max(1, min(len(texts), int(_SECONDS / comparisons / _ROUNDS / each)))
    ratios = [spent(own, count) / spent(other, count) for _ in range(_ROUNDS)]
    low, high = min(ratios), max(ratios)
    return {"ratio": statistics.median(ratios), "low": low, "high": high} if high <= _MOST_SPREAD * low else None
