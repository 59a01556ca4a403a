"""One screen that follows a run: its stages, and every training with its curve; from the run directory alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raysed.store.status import (
    AT_WORK,
    CODES,
    exit_code,
    read_status,
    read_timings,
    seconds_in_stage,
    state_in_words,
    title_of,
)
from raysed.store.storage import Storage
from raysed.store.text import duration

_LOCAL_EVERY_S, _REMOTE_EVERY_S = 1.0, 15.0
"""Between two looks: on an object store each is several requests."""
_BARS = "▁▂▃▄▅▆▇█"
_POINTS = 24
"""Columns of a curve."""
_LOG = "/metrics.jsonl"


@dataclass(frozen=True)
class Curve:
    """What a training has logged: its last update, losses, last dev score x100, newest checkpoint."""

    name: str
    is_done: bool
    step: int
    losses: Sequence[float]
    dev: float | None
    saved: int | None


class Watcher:
    """A run at the moment of the last look; reads again only what may have changed."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self._ended: dict[str, Curve] = {}
        self.look()

    def look(self) -> None:
        """Read the run directory."""
        self.status, timings = read_status(self._storage), read_timings(self._storage)
        self.stages = {name: usage["seconds"] for name, usage in timings.items() if name != self.status.get("stage")}
        made = {file.removeprefix("manifest/").removesuffix(".json") for file in self._storage.files("manifest")}
        saved: dict[str, int] = {}
        for name in sorted(made):
            training, _, step = name.removeprefix("checkpoints/").rpartition("/step-")
            if name.startswith("checkpoints/") and step.isdigit():
                saved[training] = int(step)
        logs = sorted(file for file in self._storage.files("logs") if file.endswith(_LOG))
        names = [log.removeprefix("logs/").removesuffix(_LOG) for log in logs]
        self.curves = [self._curve(name, name in made, saved.get(name)) for name in names]

    def _curve(self, name: str, is_done: bool, saved: int | None) -> Curve:
        if is_done and name in self._ended:
            return self._ended[name]
        entries = _parse_lines(self._storage.read_text(f"logs/{name}{_LOG}") or "")
        scores = [max(entry["dev"].values()) for entry in entries if "dev" in entry]
        losses = [entry["loss"] for entry in entries if "loss" in entry]
        step = entries[-1]["step"] if entries else 0
        curve = Curve(name, is_done, step, losses, scores[-1] if scores else None, saved)
        if is_done:
            self._ended[name] = curve
        return curve

    def screen(self, height: int) -> RenderableType:
        """Return what is shown on so many lines; trainings that do not fit are counted."""
        head = Text(f"{self._storage.run}: {state_in_words(self.status)}", style="bold")
        stages = self._stages_table()
        room = max(3, height - stages.row_count - 6)
        more = len(self.curves) - room
        rest = [Text(f"and {more} more", style="dim")] if more > 0 else []
        return Group(head, Text(), stages, Text(), *([self._trainings_table(room)] if self.curves else []), *rest)

    def _stages_table(self) -> Table:
        table, status = Table.grid(padding=(0, 2)), self.status
        for stage, seconds in self.stages.items():
            title, took = Text(title_of(status, stage)), Text(duration(seconds), style="dim")
            table.add_row(title, Text("done", style="green"), took)
        if status["state"] in AT_WORK and status.get("stage"):
            share = status.get("share")
            bar = ProgressBar(100, 100 * share, width=_POINTS) if share is not None else Text("…")
            words = [duration(seconds_in_stage(status))]
            if status.get("left"):
                words.append(f"about {duration(status['left'])} left")
            if status.get("trainings"):
                words.append(f"{status.get('trained', 0)} of {status['trainings']} trained")
            table.add_row(Text(title_of(status, status["stage"]), style="bold"), bar, Text(", ".join(words)))
        return table

    def _trainings_table(self, room: int) -> Table:
        """Those that are under way first: they are what somebody watches for."""
        table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
        for title in ("training", "updates", "loss", "", "dev", "checkpoint"):
            table.add_column(title, justify="right" if title in ("updates", "loss", "dev") else "left", no_wrap=True)
        for curve in sorted(self.curves, key=lambda curve: curve.is_done)[:room]:
            loss = f"{curve.losses[-1]:.4f}" if curve.losses else ""
            dev = "" if curve.dev is None else f"{curve.dev:.1f}"
            saved = "finished" if curve.is_done else "" if curve.saved is None else f"after {curve.saved:,}"
            style = "dim" if curve.is_done else ""
            table.add_row(curve.name, f"{curve.step:,}", loss, sparkline(curve.losses), dev, saved, style=style)
        return table


def _parse_lines(text: str) -> list[dict[str, Any]]:
    """Parse a log, whose last line may be half written."""
    entries = []
    for line in text.splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries


def sparkline(values: Sequence[float], points: int = _POINTS) -> str:
    """Return a curve of a few characters, each the mean of as many values.

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


def watch(storage: Storage, console: Console | None = None) -> int:
    """Follow a run on one screen until it ends or Ctrl-C; return the exit code of its state."""
    console, watcher = console or Console(), Watcher(storage)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(watcher.screen(console.height), refresh=True)
            code = exit_code(watcher.status)
            if code != CODES["running"]:
                break
            time.sleep(_LOCAL_EVERY_S if storage.is_local else _REMOTE_EVERY_S)
            watcher.look()
    if console.is_terminal:  # what was on the screen is gone with it
        console.print(watcher.screen(console.height))
    return code
