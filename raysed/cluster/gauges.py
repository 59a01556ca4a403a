"""What Prometheus sees of a run, beside Ray's own metrics: how far stages and trainings are, and how well they do.

Names get `ray_` in front of them. docs/grafana.json draws them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from ray.util.metrics import Counter, Gauge

from raysed.store.progress import listening

_FIGURES = {
    "training": {
        "loss": ("loss", "loss of the latest updates that were logged"),
        "dev": ("dev", "latest dev score x100"),
        "step": ("updates", "updates so far"),
        "total": ("updates_planned", "updates at the end"),
    },
    "stage": {
        "share": ("share", "part of the stage that is done, 0 to 1"),
        "left": ("seconds_left", "seconds that the stage will still take"),
        "trained": ("trainings_done", "trainings of the stage that are done"),
        "trainings": ("trainings", "trainings of the stage"),
    },
}
"""Names and meanings of gauges by what they are of and by the facts that set them."""


class Gauges:
    """Gauges of a stage or a training."""

    def __init__(self, kind: Literal["stage", "training"], run: str, name: str):
        self._gauges = {}
        for fact, (figure, meaning) in _FIGURES[kind].items():
            self._gauges[fact] = Gauge(f"raysed_{kind}_{figure}", meaning, ("run", kind))
            self._gauges[fact].set_default_tags({"run": run, kind: name})

    def __call__(self, facts: Mapping[str, Any]) -> None:
        """Set those whose facts are known, as in an entry of the history."""
        for fact, gauge in self._gauges.items():
            if facts.get(fact) is not None:
                gauge.set(facts[fact])


@contextmanager
def stage_gauges(run: str) -> Iterator[None]:
    """Keep the figures of stages up to date with `progress.emit`."""
    sentences = Counter("raysed_sentences", "sentences that went through models", ("run", "stage"))
    stage, gauges = "", None

    def listen(facts: dict[str, Any]) -> None:
        nonlocal stage, gauges
        if "stage" in facts:
            stage = facts["stage"]
            gauges = Gauges("stage", run, stage)
        if gauges:
            gauges(facts)
        if facts.get("sentences"):
            sentences.inc(facts["sentences"], {"run": run, "stage": stage})

    with listening(listen):
        yield
