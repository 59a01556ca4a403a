"""Estimate how long a run takes, from how fast this machine embeds a few sentences."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raysed.model.load import NativeModel
from raysed.model.pretrained import load_start
from raysed.plan.check import Job
from raysed.resources import Cluster, device_here

_FEW, _SENTENCES, _SECONDS = 8, 64, 30.0
_STEP = 3.0
"""Duration of a training step, relative to embedding its sentences; measured in docs/performance.md#bf16-on-cpus."""


def show_minutes(job: Job, steps: Sequence[Any], rows: int, texts: Sequence[str], cluster: Cluster) -> str:
    """Return a line on about how long teachers and trainings take, or that no model has a rate.

    It measures one model after another, for at most half a minute. Files, functions and static learners have no rate.
    Reading, scores and the report are not counted.

    Args:
        steps: trainings, as `raysed.plan.size` estimates them.
        rows: sentences of the corpus.
        texts: of which some are embedded.
    """
    encoder, device, end = job.config.encoder, device_here(job.config.resources.gpu), time.monotonic() + _SECONDS
    models: dict[str, Any] = {t.title: replace(t, device=device) for t in (*job.teachers, job.old) if t and t.is_model}
    if steps and not encoder.static:
        own, tokenizer = load_start(encoder, None)
        models["trainings"] = NativeModel(own.to(device), tokenizer, encoder.pool_layers, encoder.max_length)
    machines = max(cluster.gpus if device == "cuda" else len(cluster.nodes), 1)
    averaged = {recipe.ensemble for recipe in job.distilling}  # whose members embed the corpus
    minutes, passes = dict[str, float](), 0.0
    for step in steps:
        sentences = _STEP * step.sentences + rows * step.trainings * (step.node in averaged)
        passes += sentences / min(machines, step.at_once * step.workers)
    while models and time.monotonic() < end:
        name, model = models.popitem()  # which is freed when the next one is loaded
        model.embed(texts[:1])  # loads it
        rate = 0.0
        for some in (texts[:_FEW], texts[:_SENTENCES]):
            began = time.monotonic()
            if began + rate * len(some) < end:
                model.embed(some)
                rate = (time.monotonic() - began) / len(some)
        if rate:
            minutes[name] = rate * (passes if name == "trainings" else rows / machines) // 60 + 1
    parts = ", ".join(f"{name} {count:.0f}" for name, count in minutes.items()) or "no model has a rate"
    where = "this machine" if len(cluster.nodes) == 1 else "the head"
    return f"about {sum(minutes.values()):.0f} minutes at the rates of {where}'s {device.upper()}: {parts}"
