"""What a run records: a history per training, as JSON and for TensorBoard; and whose notices are shown."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysed.store import cache
from raysed.store.files import disk_errors
from raysed.store.progress import repeating
from raysed.store.storage import Storage
from raysed.store.trackers import Trackers, trackers_of

if TYPE_CHECKING:
    from raysed.config import TrackingConfig

log = logging.getLogger(__name__)

_LOGS = "logs"
_COPY_S = 20.0
"""Between copies to an object store, so that TensorBoard shows what is half a minute old at most."""


class MetricsLog:
    """`logs/<name>/metrics.jsonl` and TensorBoard events beside it, written while training goes on.

    A training that continues hands its whole history in again. Events are written at once and not by tensorboardX's
    thread, which dies on a full disk and lets its callers wait for ever.
    """

    def __init__(self, storage: Storage, name: str, trackers: Trackers | None = None):
        from tensorboardX.event_file_writer import EventsWriter

        self._storage, self._name = storage, f"{_LOGS}/{name}"
        self._trackers, self._sizes, self._ending = trackers or Trackers([]), {}, ExitStack()
        with self._disk_errors():
            if storage.is_local:
                self._directory = Path(storage.uri(self._name))
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory.mkdir(parents=True)
            else:
                self._directory = self._ending.enter_context(cache.half_written())
                self._ending.enter_context(repeating(self._copy_meanwhile, _COPY_S))
            self._lines = open(self._directory / "metrics.jsonl", "w", encoding="utf-8")
            self._events = EventsWriter(str(self._directory / "events"))

    def _disk_errors(self) -> AbstractContextManager[None]:
        return disk_errors(self._storage.uri(self._name))

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Add one entry; nested numbers become `dev/second` and the like on TensorBoard."""
        values: dict[str, float] = {}
        for key, value in metrics.items():
            values |= {f"{key}/{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
        with self._disk_errors():
            self._lines.write(json.dumps(metrics) + "\n")
            self._lines.flush()
            self._add_scalars(values, metrics["step"])
        self._trackers.write(metrics["step"], values)

    def _add_scalars(self, values: Mapping[str, float], step: int) -> None:
        from tensorboardX.summary import scalar

        for key, value in values.items():
            _add_summary(self._events, scalar(key, value), step)
        self._events.flush()

    def conclude(self, settings: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Add a row to TensorBoard's table of hyperparameters; settings that are None are left out."""
        from tensorboardX.summary import hparams

        with self._disk_errors():
            for summary in hparams({key: value for key, value in settings.items() if value is not None}, dict(scores)):
                _add_summary(self._events, summary)
            self._add_scalars(scores, 0)

    def close(self, failed: bool = False) -> None:
        """Flush, and copy the files to an object store."""
        self._trackers.close(failed)
        with self._ending, self._disk_errors():
            self._lines.close()
            self._events.close()
            if not self._storage.is_local:
                self._copy()

    def _copy_meanwhile(self) -> None:
        try:
            self._copy()
        except Exception as error:  # no reason to end a training: the next copy comes soon
            log.debug("%s could not be copied: %s", self._name, error)

    def _copy(self) -> None:
        for path in self._directory.iterdir():
            if self._sizes.get(path.name) != path.stat().st_size:
                data = path.read_bytes()
                self._storage.write_bytes(f"{self._name}/{path.name}", data)
                self._sizes[path.name] = len(data)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        self.close(failed=kind is not None)


def training_log(storage: Storage, tracking: TrackingConfig, run: str, name: str, identity: Any) -> MetricsLog:
    """Return the log of an artefact's training, with the trackers that the settings name; see `trackers_of`."""
    return MetricsLog(storage, name, trackers_of(tracking, run, name, identity))


def log_pictures(storage: Storage, pictures: Path) -> None:
    """Show the `.png` files in a directory on TensorBoard, as `logs/report`."""
    from PIL import Image
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.summary_pb2 import Summary

    with cache.half_written() as local:
        with closing(EventsWriter(str(local / "events"))) as events:
            for path in sorted(pictures.glob("*.png")):
                with Image.open(path) as picture:  # reads the header alone; the file goes into the log as it is
                    about = {"width": picture.width, "height": picture.height, "colorspace": len(picture.getbands())}
                image = Summary.Image(encoded_image_string=path.read_bytes(), **about)
                _add_summary(events, Summary(value=[Summary.Value(tag=path.stem, image=image)]))
        storage.remove(f"{_LOGS}/report")  # those of an earlier report
        for file in local.iterdir():
            storage.write_bytes(f"{_LOGS}/report/{file.name}", file.read_bytes())


def _add_summary(events: Any, summary: Any, step: int = 0) -> None:
    from tensorboardX.proto.event_pb2 import Event

    events.write_event(Event(wall_time=time.time(), step=step, summary=summary))


@contextmanager
def native_output_to(path: Path) -> Iterator[None]:
    """Send what C++ libraries write to file descriptor 2 to a file; Python's `sys.stderr` keeps the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, python_stderr, raises = os.dup(2), sys.stderr, logging.raiseExceptions
    with open(kept, "w", buffering=1) as terminal, open(path, "ab") as file:
        sys.stderr = terminal
        os.dup2(file.fileno(), 2)
        logging.raiseExceptions = False  # on a full disk, each record of a library would be a traceback
        try:
            yield
        finally:
            logging.raiseExceptions = raises
            os.dup2(kept, 2)
            sys.stderr = python_stderr


def show_notes() -> None:
    """Show what this package logs, as plain lines on the terminal."""
    logger = logging.getLogger("raysed")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("note: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def quiet_libraries() -> None:
    """Turn off third-party progress bars and notices that say nothing about this run; errors stay."""
    import warnings

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch|deepspeed|ray|transformers")
    for name in ("transformers", "deepspeed", "DeepSpeed", "datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # DeepSpeed sets its level back when it is imported, which accelerate does on its own; a filter stays.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
