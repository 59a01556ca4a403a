"""What Prometheus sees of a run, beside Ray's own metrics: how far stages and trainings are, and how well they do.

Names get `ray_` in front of them. docs/grafana.json draws them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.util.metrics import Counter, Gauge

from raysed.store.progress import told_to

_OF_TRAININGS = {
    "loss": "loss of the latest updates that were logged",
    "dev": "latest dev score x100",
    "updates": "updates so far",
    "updates_planned": "updates at the end",
}
_OF_STAGES = {
    "share": "part of the stage that is done, 0 to 1",
    "seconds_left": "seconds that the stage will still take",
    "trainings_done": "trainings of the stage that are done",
    "trainings": "trainings of the stage",
}
_WORDS = {"share": "share", "left": "seconds_left", "trained": "trainings_done", "trainings": "trainings"}
"""What `progress.tell` calls the figures of stages."""


class TrainingGauges:
    """Figures of one training, set by its worker.

    Args:
        training: name of the artefact, e.g. `ct/members/00`.
    """

    def __init__(self, run: str, training: str):
        self._gauges = _gauges("training", _OF_TRAININGS, run, training)

    def __call__(self, words: dict[str, Any]) -> None:
        """Sets them to an entry of the history: step, total, loss and dev, which is None where it was not evaluated."""
        found = {"loss": words["loss"], "dev": words["dev"], "updates": words["step"]}
        for name, value in {**found, "updates_planned": words["total"]}.items():
            if value is not None:
                self._gauges[name].set(value)


class _StageGauges:
    """Figures of the stage that the driver is at."""

    def __init__(self, run: str):
        self._run, self._stage = run, ""
        self._gauges: dict[str, Gauge] = {}
        self._sentences = Counter("raysed_sentences", "sentences that went through models", ("run", "stage"))

    def listen(self, words: dict[str, Any]) -> None:
        """Hears what `tell` is told."""
        if "stage" in words:
            self._stage = words["stage"]
            self._gauges = _gauges("stage", _OF_STAGES, self._run, self._stage)
        for word, name in _WORDS.items():
            if self._gauges and words.get(word) is not None:
                self._gauges[name].set(words[word])
        if words.get("sentences"):
            self._sentences.inc(words["sentences"], {"run": self._run, "stage": self._stage})


@contextmanager
def stage_gauges(run: str) -> Iterator[None]:
    """Keeps the figures of stages up to date with what `progress.tell` is told."""
    with told_to(_StageGauges(run).listen):
        yield


def _gauges(of: str, figures: dict[str, str], run: str, name: str) -> dict[str, Gauge]:
    made = {}
    for figure, meaning in figures.items():
        made[figure] = Gauge(f"raysed_{of}_{figure}", meaning, ("run", of))
        made[figure].set_default_tags({"run": run, of: name})
    return made
