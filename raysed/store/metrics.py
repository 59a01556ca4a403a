"""Write a training's metrics as JSON lines and for TensorBoard; choose which log messages to show."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raysed.store import cache
from raysed.store.files import disk_errors
from raysed.store.progress import print_text, repeating
from raysed.store.storage import Storage
from raysed.store.text import printable

_COPY_S = 20.0
"""How often to copy to an object store: TensorBoard lags by half a minute at most."""


class MetricsLog:
    """`logs/<name>/metrics.jsonl` and TensorBoard events beside it, written during training.

    A resumed training must write its whole history again. Events are written directly, because tensorboardX's thread
    dies on a full disk and leaves its callers waiting forever.
    """

    def __init__(self, storage: Storage, name: str):
        from tensorboardX.event_file_writer import EventsWriter

        self._storage, self._name = storage, f"logs/{name}"
        self._sizes, self._ending = {}, ExitStack()
        self._place = storage.uri(self._name)
        with disk_errors(self._place):
            if storage.is_local:
                self._directory = Path(self._place)
                self._directory.mkdir(parents=True, exist_ok=True)
                for pattern in ("events.out.tfevents.*", "metrics.jsonl"):  # others are a user's
                    for path in self._directory.glob(pattern):
                        path.unlink(missing_ok=True)
            else:
                self._directory = self._ending.enter_context(cache.half_written())
                self._ending.enter_context(repeating(self._copy, _COPY_S))
            self._lines = open(self._directory / "metrics.jsonl", "w", encoding="utf-8")
            self._events = EventsWriter(str(self._directory / "events"))

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Add one entry, which has a `step`; nested numbers become `dev/second` and so on in TensorBoard."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        values: dict[str, float] = {}
        for key, value in metrics.items():
            values |= {f"{key}/{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
        step = metrics["step"]
        with disk_errors(self._place):
            self._lines.write(json.dumps(metrics) + "\n")
            self._lines.flush()
            for key, value in values.items():
                self._events.write_event(Event(wall_time=time.time(), step=step, summary=scalar(key, value)))
            self._events.flush()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files, and copy them to an object store."""
        with self._ending, disk_errors(self._place):
            self._lines.close()
            self._events.close()
            if not self._storage.is_local:
                self._copy()

    def _copy(self) -> None:
        for path in self._directory.iterdir():
            if self._sizes.get(path.name) != path.stat().st_size:
                data = path.read_bytes()
                self._storage.plain.write(f"{self._name}/{path.name}", data)
                self._sizes[path.name] = len(data)


@contextmanager
def native_output_to(path: Path) -> Iterator[None]:
    """Redirect file descriptor 2, which C++ libraries write to, to a file; Python's `sys.stderr` keeps the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, python_stderr, raises = os.dup(2), sys.stderr, logging.raiseExceptions
    with open(kept, "w", buffering=1) as terminal, open(path, "ab") as file:
        sys.stderr = terminal
        os.dup2(file.fileno(), 2)
        logging.raiseExceptions = False  # on a full disk, every library log record would print a traceback
        try:
            yield
        finally:
            logging.raiseExceptions = raises
            os.dup2(kept, 2)
            sys.stderr = python_stderr


class _Notes(logging.Handler):
    """Prints to the current `sys.stdout`, which notebooks replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print_text("\n".join(map(printable, self.format(record).splitlines())))


@contextmanager
def notes_shown(wanted: bool = True, level: int = logging.INFO) -> Iterator[None]:
    """Print what this package logs, as `note: ...` lines, while the block runs."""
    logger = logging.getLogger("raysed")
    if logger.handlers or not wanted:
        yield
        return
    handler, before = _Notes(), (logger.level, logger.propagate)
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


def quiet_libraries() -> None:
    """Turn off third-party progress bars and notices that are irrelevant to this run; errors still show."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch|deepspeed|ray|transformers")
    for name in ("transformers", "deepspeed", "DeepSpeed", "datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # DeepSpeed resets its level when imported, which accelerate does by itself; a filter survives that.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
