"""One screen that follows a run: its stages, and every training with its curve; from the run directory alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
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
    newest_states,
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


class Watcher:
    """A run at the moment of the last look; logs of finished trainings are read once."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self._ended: dict[str, list[str]] = {}

    def look(self, height: int) -> tuple[RenderableType, int]:
        """Return what is shown on so many lines, and the exit code of the state; trainings beyond them are counted."""
        status, names = read_status(self._storage), self._storage.names()
        head = Text(f"{self._storage.run}: {state_in_words(status)}", style="bold")
        stages, trainings = self._stages(status), self._trainings(names)
        room = max(3, height - stages.row_count - 6)
        more = [Text(f"and {len(trainings) - room} more", style="dim")] if len(trainings) > room else []
        table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
        for title in ("training", "updates", "loss", "", "dev", "checkpoint"):
            table.add_column(title, justify="right" if title in ("updates", "loss", "dev") else "left", no_wrap=True)
        for cells in trainings[:room]:
            table.add_row(*cells, style="dim" if cells[0] in self._ended else "")
        return Group(head, Text(), stages, Text(), *([table] if trainings else []), *more), exit_code(status)

    def _stages(self, status: dict[str, Any]) -> Table:
        table, stage = Table.grid(padding=(0, 2)), status.get("stage")
        for done, usage in read_timings(self._storage).items():
            if done != stage:
                title, took = Text(title_of(status, done)), Text(duration(usage["seconds"]), style="dim")
                table.add_row(title, Text("done", style="green"), took)
        if status["state"] in AT_WORK and stage:
            share, words = status.get("share"), [duration(seconds_in_stage(status))]
            bar = ProgressBar(100, 100 * share, width=_POINTS) if share is not None else Text("…")
            if status.get("left"):
                words.append(f"about {duration(status['left'])} left")
            if status.get("trainings"):
                words.append(f"{status.get('trained', 0)} of {status['trainings']} trained")
            table.add_row(Text(title_of(status, stage), style="bold"), bar, Text(", ".join(words)))
        return table

    def _trainings(self, made: Sequence[str]) -> list[list[str]]:
        """Return the cells of each training; first those that are under way, which somebody watches for."""
        saved = newest_states(made)
        logs = sorted(file for file in self._storage.files("logs") if file.endswith(_LOG))
        names = [log.removeprefix("logs/").removesuffix(_LOG) for log in logs]
        under_way = []
        for name in names:
            if name not in made:
                under_way.append(self._cells(name, f"after {saved[name]:,}" if name in saved else ""))
            elif name not in self._ended:
                self._ended[name] = self._cells(name, "finished")
        return [*under_way, *(self._ended[name] for name in names if name in made)]

    def _cells(self, name: str, saved: str) -> list[str]:
        entries = []
        for line in (self._storage.read_text(f"logs/{name}{_LOG}") or "").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:  # the last line may be half written
                break
        losses = [entry["loss"] for entry in entries if "loss" in entry]
        scores = [max(entry["dev"].values()) for entry in entries if "dev" in entry]
        step = entries[-1]["step"] if entries else 0
        loss, dev = f"{losses[-1]:.4f}" if losses else "", f"{scores[-1]:.1f}" if scores else ""
        return [name, f"{step:,}", loss, sparkline(losses), dev, saved]


def sparkline(values: Sequence[float]) -> str:
    """Return a curve of a few characters, each the mean of as many values.

    Positive values are drawn by their logarithms: a loss falls by factors, most of it at the start.

    >>> sparkline([8, 4, 2, 1]), sparkline([5.0]), sparkline([])
    ('█▆▃▁', '▁', '')
    """
    count = min(_POINTS, len(values))
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
            screen, code = watcher.look(console.height)
            live.update(screen, refresh=True)
            if code != CODES["running"]:
                break
            time.sleep(_LOCAL_EVERY_S if storage.is_local else _REMOTE_EVERY_S)
    if console.is_terminal:  # what was on the screen is gone with it
        console.print(screen)
    return code
