"""A live screen of a run's status and its trainings under way, from the run directory alone."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysed.store.status import CODES, describe
from raysed.store.storage import Storage
from raysed.store.text import printable

_LOCAL_EVERY_S, _REMOTE_EVERY_S = 1.0, 15.0
"""Refresh intervals; on an object store each refresh is several requests."""
_LOG = "/metrics.jsonl"


def watch(storage: Storage, console: Console | None = None) -> int:
    """Follow a run on one screen until it ends or Ctrl-C; return the exit code of its state."""
    console = console or Console()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            lines, code = describe(storage)
            screen = Group(*map(Text, lines), Text(), _trainings(storage))
            live.update(screen, refresh=True)
            if code != CODES["running"]:
                break
            time.sleep(_LOCAL_EVERY_S if storage.is_local else _REMOTE_EVERY_S)
    if console.is_terminal:  # the live screen disappears with its text
        console.print(screen)
    return code


def _trainings(storage: Storage) -> Table:
    table, made = Table(box=None, pad_edge=False, header_style="dim"), set(storage.names())
    for title in ("training", "updates", "loss", "dev"):
        table.add_column(title, justify="left" if title == "training" else "right", no_wrap=True)
    logs = (file.removesuffix(_LOG) for file in sorted(storage.files("logs")) if file.endswith(_LOG))
    for log in logs:
        if (name := log.removeprefix("logs/")) in made:
            continue
        step, loss, dev = "0", "", ""
        with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            for line in (storage.read_text(f"{log}{_LOG}") or "").splitlines():  # the last one may be half written
                entry = json.loads(line)
                step = f"{entry['step']:,}"
                loss = f"{entry['loss']:.4f}" if "loss" in entry else loss
                dev = f"{max(entry['dev'].values()):.1f}" if "dev" in entry else dev
        table.add_row(Text(printable(name)), step, loss, dev)
    return table
