"""What a run records: a history per training, as JSON and for TensorBoard; and whose notices are shown."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysed.store.progress import repeating
from raysed.store.storage import Storage
from raysed.store.trackers import Trackers, trackers_of

if TYPE_CHECKING:
    from raysed.config import Config

log = logging.getLogger(__name__)

_LOGS = "logs"
_FLUSH_SECONDS, _COPY_SECONDS = 5.0, 20.0
"""So that TensorBoard shows what is half a minute old at most, wherever the run is stored."""


class MetricsLog:
    """`logs/<name>/metrics.jsonl` and TensorBoard events beside it, written while training goes on.

    A training that continues hands its whole history in again, so that the log holds each step once. To an object
    store the files are copied every 20 seconds.
    """

    def __init__(self, storage: Storage, name: str, trackers: Trackers | None = None):
        from tensorboardX import SummaryWriter

        self._storage, self._name = storage, f"{_LOGS}/{name}"
        self._trackers = trackers or Trackers([])
        local = Path(storage.uri(self._name)) if storage.is_local else Path(tempfile.mkdtemp(prefix="raysed-logs-"))
        shutil.rmtree(local, ignore_errors=True)
        local.mkdir(parents=True)
        self._directory = local
        self._lines = open(local / "metrics.jsonl", "w", encoding="utf-8")
        self._board = SummaryWriter(str(local), write_to_disk=True, flush_secs=_FLUSH_SECONDS)
        self._sizes: dict[str, int] = {}
        self._copying = ExitStack()
        if not storage.is_local:
            self._copying.enter_context(repeating(self._copy_meanwhile, _COPY_SECONDS))

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Add one entry; nested numbers become `dev/second` and the like on TensorBoard."""
        self._lines.write(json.dumps(metrics) + "\n")
        self._lines.flush()
        values: dict[str, float] = {}
        for key, value in metrics.items():
            values |= {f"{key}/{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
        for key, number in values.items():
            self._board.add_scalar(key, number, metrics["step"])
        self._trackers.write(metrics["step"], values)

    def conclude(self, settings: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Add a row to TensorBoard's table of hyperparameters; settings that are None are left out."""
        from tensorboardX.summary import hparams

        for summary in hparams({key: value for key, value in settings.items() if value is not None}, dict(scores)):
            self._board.file_writer.add_summary(summary)
        for key, score in scores.items():
            self._board.add_scalar(key, score)

    def close(self, failed: bool = False) -> None:
        """Flush, and copy the files to an object store."""
        self._trackers.close(failed)
        self._lines.close()
        self._board.close()
        self._copying.close()
        if not self._storage.is_local:
            self._copy()
            shutil.rmtree(self._directory, ignore_errors=True)

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


def metrics_log(storage: Storage, config: Config, name: str, identity: Any) -> MetricsLog:
    """Return the log of an artefact's training, with the trackers that the settings name; see `trackers_of`."""
    return MetricsLog(storage, name, trackers_of(config.tracking, config.run, name, identity))


def log_pictures(storage: Storage, pictures: Path) -> None:
    """Show the `.png` files in a directory on TensorBoard, as `logs/report`."""
    from PIL import Image
    from tensorboardX import FileWriter
    from tensorboardX.proto.summary_pb2 import Summary

    with tempfile.TemporaryDirectory(prefix="raysed-logs-") as local:
        with closing(FileWriter(local)) as board:
            for path in sorted(pictures.glob("*.png")):
                with Image.open(path) as picture:  # reads the header alone; the file goes into the log as it is
                    about = {"width": picture.width, "height": picture.height, "colorspace": len(picture.getbands())}
                image = Summary.Image(encoded_image_string=path.read_bytes(), **about)
                board.add_summary(Summary(value=[Summary.Value(tag=path.stem, image=image)]))
        storage.remove(f"{_LOGS}/report")  # those of an earlier report
        for file in Path(local).iterdir():
            storage.write_bytes(f"{_LOGS}/report/{file.name}", file.read_bytes())


@contextmanager
def native_output_to(path: Path) -> Iterator[None]:
    """Send what C++ libraries write to file descriptor 2 to a file; Python's `sys.stderr` keeps the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, python_stderr = os.dup(2), sys.stderr
    with open(kept, "w", buffering=1) as terminal, open(path, "ab") as file:
        sys.stderr = terminal
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
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
