"""Trainings that learn nothing: they score, or fail as their settings say."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raysed.cluster.jobs import TrainingJob
from raysed.errors import UserError
from raysed.made import Step
from raysed.make.models import Trainer
from raysed.train.selection import TrainingResult


class Scored(Trainer):
    """Makes `steps` updates, after each of which it scores `score` and the number of the update.

    `behaves`: `lost` fails at its first start, `lost always` at each; `wrong` raises an error that no restart would
    mend.
    """

    def __init__(self, inputs, settings, context):
        self.inputs, self.settings, self.context = inputs, settings, context
        self.setup = SimpleNamespace(plan=SimpleNamespace(steps=settings["steps"]))

    def run(self) -> TrainingResult:
        """Makes updates from the newest checkpoint on; notes each start."""
        step, behaves = self.context.step, self.settings["behaves"]
        marks = Path(self.settings["marks"], step.name.replace("/", "-"))
        with marks.open("a") as file:
            file.write(f"{self.settings['steps']} ")
        if behaves == "wrong":
            raise UserError("a planted mistake")
        if behaves == "lost always" or (behaves == "lost" and len(marks.read_text().split()) == 1):
            raise RuntimeError("lost")
        newest = self.context.checkpoints.newest()
        done, stop = newest[0] if newest else 0, self.settings["steps"]
        history = [{"step": step, "dev": {"": self.settings["score"] + step}} for step in range(1, max(done, stop) + 1)]
        if stop > done:
            score = self.settings["score"] + stop
            self.context.report({"step": stop, "total": self.settings["steps"], "loss": 0.5, "dev": score})
            self.context.checkpoints.save(stop, lambda out: (out / "state").touch())
        score = history[-1]["dev"][""]
        return TrainingResult(history, "", stop, score, resumed_at=done, steps=max(done, stop))

    def write(self, out: Path, result: TrainingResult) -> dict[str, Any]:
        """Writes a file, the history and facts."""
        (out / "model").write_text(self.context.step.name)
        (out / "history.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in result.history))
        return {"dev": result.score, "sentences": result.steps}


def job(
    marks: Path,
    node: str,
    seed: int,
    bound: float | None = None,
    score: float = 0.0,
    behaves: str = "",
    updates: int = 9,
    worker: type = Scored,
    **about: Any,
) -> TrainingJob:
    """Returns one training; it notes its starts below `marks`."""
    name = f"{node}/{'' if bound is None else f'{bound:g}/'}{seed:02d}"
    settings = {"steps": updates, "score": score, "behaves": behaves, "marks": str(marks)}
    step = Step(name, name, Scored, {"name": name}, settings, {"options": SimpleNamespace(max_retries=1)})
    return TrainingJob(step, worker, {"node": node, "lower_bound": bound, "seed": seed}, updates, **about)


def starts(marks: Path) -> dict[str, list[int]]:
    """Returns up to which update each training was started, by name."""
    return {path.name: list(map(int, path.read_text().split())) for path in sorted(marks.iterdir())}


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until something is so."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    assert condition()
