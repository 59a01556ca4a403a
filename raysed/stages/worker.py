"""One model on its worker: load the start, train with the one loop, report, publish.

Ray Tune does it for members, Ray Train for learners. What differs comes from them: a `Setup` says what is trained, and
a function takes what is reported.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from raysed.cluster.heartbeat import Watch, made_step, makes_no_steps
from raysed.cluster.resources import Share
from raysed.config import Config
from raysed.model.encoder import Encoder, load_start, write_checkpoint
from raysed.plan.artefacts import Learner, Member
from raysed.score.dev import dev_score
from raysed.store.metrics import MetricsLog
from raysed.store.storage import Storage
from raysed.train.loop import Run
from raysed.train.selection import Metrics, Result, before_training
from raysed.train.stage import Setup, Start
from raysed.train.state import broadcast_from_rank0


@dataclass(frozen=True)
class Workplace:
    """What all workers of a stage share.

    Attributes:
        config: the run's settings.
        storage: the run directory.
        share: what one worker has.
        watch: over the workers.
        job: tells starts of this job from those of earlier ones.
    """

    config: Config
    storage: Storage
    share: Share
    watch: Watch
    job: str = field(default_factory=lambda: uuid.uuid4().hex)


class Training:
    """One member or learner in the making.

    Args:
        metrics: its log; None on a worker that leaves all writing to another one.

    Attributes:
        start: what a `Setup` is made from.
    """

    def __init__(self, model: Member | Learner, tables: Sequence[str], place: Workplace, metrics: MetricsLog | None):
        self._began = time.monotonic()
        self._model, self._place, self._metrics = model, place, metrics
        encoder, tokenizer = load_start(place.config.encoder, place.storage, model.start)
        data = {name: place.storage.fetch(name) for name in tables}
        self.start = Start(encoder.to(place.share.device), tokenizer, data, model.seed)
        self._checkpoints = place.storage.checkpoints(model.name, model.depends)
        self._first: list[Metrics] = []

    def prepared(
        self,
        setup: Setup,
        report: Callable[[dict[str, Any]], None],
        criterion: str = "spearman",
        until: int | None = None,
        warned: Callable[[], bool] = lambda: False,
    ) -> Run:
        """Returns the training from the newest checkpoint on; it logs the history. See `steps_are_counted`.

        Args:
            setup: made from `start`.
            report: takes step, total, loss and dev (None where not evaluated) of each new entry of the history.
            until: see `Run`.
            warned: see `Run`.
        """
        evaluate = dev_score(self._place.config, self.start.tokenizer, criterion)
        if self._metrics:
            start, known = self.start.encoder, self._model.start_dev
            self._first = before_training(setup.objective, setup.plan, start, evaluate, known)
            for entry in self._first:
                self._metrics.write(entry)

        def on_metrics(entry: Metrics) -> None:
            if self._metrics:
                self._metrics.write(entry)
                dev = max(entry["dev"].values()) if "dev" in entry else None
                report({"step": entry["step"], "total": setup.plan.steps, "loss": entry["loss"], "dev": dev})

        def batch_at(step: int) -> Any:
            made_step()
            return setup.batch_at(step)

        return Run(
            setup.objective,
            batch_at,
            setup.plan,
            setup.engine,
            evaluate=_said_by_the_first(evaluate),
            checkpoints=self._checkpoints,
            is_writer=self._metrics is not None,
            on_metrics=on_metrics,
            until=until,
            warned=warned,
        )

    def publish(
        self, encoder: Encoder, result: Result, description: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> None:
        """Commits the trained model and removes its checkpoints.

        Args:
            description: for `raysed.json`, beside what the model depends on.
        """
        history, depends = [*self._first, *result.history], self._model.depends
        seconds = round(time.monotonic() - self._began, 1)
        self._place.storage.commit(
            self._model.name,
            lambda path: write_checkpoint(encoder, self.start.tokenizer, path, {**description, **depends}, history),
            depends,
            {**meta, "seconds": seconds, "resumed_at": result.resumed_at},
        )
        self._checkpoints.clear()


@contextmanager
def steps_are_counted() -> Iterator[None]:
    """In this `with`, a training that makes no steps for long is ended; afterwards the process may do what it likes."""
    try:
        yield
    finally:
        makes_no_steps()


def _said_by_the_first(evaluate: Callable[[nn.Module], float] | None) -> Callable[[nn.Module], float] | None:
    """The first worker's score for all."""
    if evaluate is None:
        return None
    return lambda module: broadcast_from_rank0(evaluate(module), next(module.parameters()).device)
