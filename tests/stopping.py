"""Trainings that are stopped in between."""

from contextlib import suppress
from dataclasses import replace

from raysed.train.loop import TrainingLoop


class _Stop(Exception):
    pass


def stop_after(training: TrainingLoop, updates: int) -> None:
    """Trains as far as a number of updates, saves the state, and ends there without a result."""

    def batch_at(step: int):
        if step == updates:
            raise _Stop
        return training.batch_at(step)

    with suppress(_Stop):
        replace(training, batch_at=batch_at, plan=replace(training.plan, checkpoint_every=updates)).train()
