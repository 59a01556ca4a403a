"""One screen that follows a run: its stages, and every training with its curve; from the run directory alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raysed.store.status import AT_WORK, CODES, exit_code, parsed, stage_in_words, state_in_words
from raysed.store.status import FILE as STATUS
from raysed.store.storage import Storage
from raysed.store.text import duration

_LOCAL_EVERY, _REMOTE_EVERY = 1.0, 15.0
"""Seconds between two looks: on an object store each is several requests."""
_BARS = "▁▂▃▄▅▆▇█"
_POINTS = 24
"""Columns of a curve."""
_LOG = "/metrics.jsonl"


@dataclass(frozen=True)
class Curve:
    """What a training has logged.

    Attributes:
        name: of the training, e.g. `ct/members/00`.
        is_done: whether its model is published.
        step: its last update in the log.
        losses: one per entry that has a loss.
        dev: its last dev score x100, if there was one.
        saved: its newest checkpoint's update, where there is one.
    """

    name: str
    is_done: bool
    step: int
    losses: Sequence[float]
    dev: float | None
    saved: int | None


@dataclass(frozen=True)
class Picture:
    """A run at one moment.

    Attributes:
        run: its name.
        status: what `status.json` says.
        stages: seconds of the stages that have ended, in their order.
        curves: trainings, in the order of their names.
    """

    run: str
    status: Mapping[str, Any]
    stages: Mapping[str, float]
    curves: Sequence[Curve]


class Watcher:
    """Looks at a run again and again, and reads again only what may have changed."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self._ended: dict[str, Curve] = {}

    def look(self) -> Picture:
        """Returns the run as it is now."""
        status = parsed(self._storage.read_text(STATUS))
        timings = json.loads(self._storage.read_text("timings.json") or "{}")
        stages = {name: usage["seconds"] for name, usage in timings.items() if name != status.get("stage")}
        made = {entry.removesuffix(".json") for entry in self._below("manifest")}
        saved = _newest(name.removeprefix("checkpoints/") for name in made if name.startswith("checkpoints/"))
        names = sorted(log.removesuffix(_LOG) for log in self._below("logs") if log.endswith(_LOG))
        curves = [self._curve(name, name in made, saved.get(name)) for name in names]
        return Picture(self._storage.run, status, stages, curves)

    def _below(self, directory: str) -> list[str]:
        return [file.removeprefix(f"{directory}/") for file in self._storage.files(directory)]

    def _curve(self, name: str, is_done: bool, saved: int | None) -> Curve:
        if is_done and name in self._ended:
            return self._ended[name]
        entries = list(_entries(self._storage.read_text(f"logs/{name}{_LOG}") or ""))
        scores = [max(entry["dev"].values()) for entry in entries if "dev" in entry]
        losses = [entry["loss"] for entry in entries if "loss" in entry]
        step = entries[-1]["step"] if entries else 0
        curve = Curve(name, is_done, step, losses, scores[-1] if scores else None, saved)
        if is_done:
            self._ended[name] = curve
        return curve


def _entries(text: str) -> Iterator[dict[str, Any]]:
    """The last line may be half written."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _newest(names: Iterator[str]) -> dict[str, int]:
    """The newest checkpoint of each training, from names such as `ct/members/00/step-00000040`."""
    found: dict[str, int] = {}
    for name in names:
        training, _, step = name.rpartition("/step-")
        if training and step.isdigit():
            found[training] = max(found.get(training, 0), int(step))
    return found


def sparkline(values: Sequence[float], points: int = _POINTS) -> str:
    """Returns a curve of a few characters, each the mean of as many values.

    Positive values are drawn by their logarithms: a loss falls by factors, most of it at the start.

    >>> sparkline([8, 4, 2, 1]), sparkline([5.0]), sparkline([])
    ('█▆▃▁', '▁', '')
    """
    count = min(points, len(values))
    edges = [len(values) * i // max(count, 1) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    means = [math.log(mean) for mean in means] if min(means, default=0.0) > 0 else means
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def screen(picture: Picture, now: float, height: int) -> RenderableType:
    """Returns what is shown of a run.

    Args:
        now: seconds since 1970.
        height: lines of the screen; trainings that do not fit are counted.
    """
    head = Text(f"{picture.run}: {state_in_words(picture.status, now)}", style="bold")
    stages = _stages(picture, now)
    room = max(3, height - stages.row_count - 6)
    return Group(head, Text(), stages, Text(), *_trainings(picture, room))


def _stages(picture: Picture, now: float) -> Table:
    table = Table.grid(padding=(0, 2))
    for stage, seconds in picture.stages.items():
        table.add_row(Text(stage_in_words(stage)), Text("done", style="green"), Text(duration(seconds), style="dim"))
    status = picture.status
    if status["state"] in AT_WORK and status.get("stage"):
        share = status.get("share")
        bar = ProgressBar(100, 100 * share, width=_POINTS) if share is not None else Text("…")
        words = [duration(now - status["stage_since"])]
        if status.get("left"):
            words.append(f"about {duration(status['left'])} left")
        if status.get("trainings"):
            words.append(f"{status.get('trained', 0)} of {status['trainings']} trained")
        table.add_row(Text(stage_in_words(status["stage"]), style="bold"), bar, Text(", ".join(words)))
    return table


def _trainings(picture: Picture, room: int) -> Iterator[RenderableType]:
    """Those that are under way first: they are what somebody watches for."""
    order = sorted(picture.curves, key=lambda curve: curve.is_done)
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for title in ("training", "updates", "loss", "", "dev", "checkpoint"):
        table.add_column(title, justify="right" if title in ("updates", "loss", "dev") else "left", no_wrap=True)
    for curve in order[:room]:
        loss = f"{curve.losses[-1]:.4f}" if curve.losses else ""
        dev = "" if curve.dev is None else f"{curve.dev:.1f}"
        saved = "" if curve.saved is None else f"after {curve.saved:,}"
        saved = "finished" if curve.is_done else saved
        style = "dim" if curve.is_done else ""
        table.add_row(curve.name, f"{curve.step:,}", loss, sparkline(curve.losses), dev, saved, style=style)
    if order:
        yield table
    if len(order) > room:
        yield Text(f"and {len(order) - room} more", style="dim")


def watch(storage: Storage, console: Console | None = None) -> int:
    """Follows a run on one screen until it ends or Ctrl-C; returns the exit code of its state.

    Args:
        console: to show it on; None: this process' terminal.
    """
    console, watcher = console or Console(), Watcher(storage)
    every = _LOCAL_EVERY if storage.is_local else _REMOTE_EVERY
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            picture = watcher.look()
            live.update(screen(picture, time.time(), console.height), refresh=True)
            code = exit_code(picture.status, time.time())
            if code != CODES["running"]:
                break
            time.sleep(every)
    if console.is_terminal:  # what was on the screen is gone with it
        console.print(screen(picture, time.time(), console.height))
    return code
