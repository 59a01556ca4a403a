"""Does the teacher mean need more memory for a larger corpus? Streams two sizes and prints the peaks.

    python benchmarks/teacher_memory.py [--rows 6000] [--factor 10] [--width 512]

The teachers are random: what is measured is the stream, not the embeddings. Peaks are of this process (the driver,
which writes the table) above its size before, and of Ray's object store.
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from transformers import BertConfig, BertModel

from raysed.encoder import Encoder
from raysed.resources import Share
from raysed.storage import Storage
from raysed.targets import TeacherPlan, write_targets
from raysed.tokens import SENTENCE_SCHEMA
from raysed.tracking import quiet_libraries


def main() -> None:
    """Runs both sizes in one process, the small one first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--factor", type=int, default=10)
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()
    quiet_libraries()
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    measure(500, arguments.width)  # imports and pools are paid before anything is measured
    for rows in (arguments.rows, arguments.rows * arguments.factor):
        seconds, driver, store, table = measure(rows, arguments.width)
        print(
            f"{rows:>9,} sentences  table {table / 1e6:7.1f} MB  {seconds:6.1f} s  "
            f"driver +{driver / 1e6:6.1f} MB  object store {store / 1e6:6.1f} MB",
            flush=True,
        )
    ray.shutdown()


def measure(rows: int, width: int) -> tuple[float, float, float, int]:
    """Returns seconds, peak growth of this process, peak of the object store, and the size of the target table."""
    with tempfile.TemporaryDirectory() as directory:
        storage = Storage(directory, "run")
        storage.commit("corpus", lambda path: write_corpus(path, rows), {})
        names = [f"ct/members/{index:02d}" for index in range(2)]
        for seed, name in enumerate(names):
            storage.commit(name, lambda path, seed=seed: write_teacher(path, width, seed), {"seed": seed})
        out = Path(directory) / "out"
        out.mkdir()
        plan = TeacherPlan(Share(1, 1, 0.0, threads=2), groups=1, token_budget=8192, gpu=False)
        with Peaks() as peaks:
            started = time.monotonic()
            write_targets(names, storage, plan, out)
            seconds = time.monotonic() - started
        return seconds, peaks.driver, peaks.store, (out / "part-00000.parquet").stat().st_size


def write_corpus(path: Path, rows: int) -> None:
    """Writes random short sentences."""
    rng = np.random.default_rng(rows)
    lengths = rng.integers(3, 8, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(1, 100, offsets[-1]).astype(np.int32)))
    columns = [pa.array(np.arange(rows)), pa.array(["-"] * rows), tokens]
    pq.write_table(
        pa.Table.from_arrays(columns, schema=SENTENCE_SCHEMA), path / "part-00000.parquet", row_group_size=4096
    )


def write_teacher(path: Path, width: int, seed: int) -> None:
    """Writes one layer of random weights."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=100, hidden_size=width, num_hidden_layers=1, num_attention_heads=8, intermediate_size=width
    )
    Encoder(BertModel(config)).transformer.save_pretrained(path)


class Peaks:
    """Samples memory ten times a second."""

    def __enter__(self) -> "Peaks":
        self.driver, self.store = 0.0, 0.0
        self._stop = threading.Event()
        self._before = psutil.Process().memory_info().rss
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        total = ray.cluster_resources()["object_store_memory"]
        while not self._stop.wait(0.1):
            self.driver = max(self.driver, psutil.Process().memory_info().rss - self._before)
            self.store = max(self.store, total - ray.available_resources().get("object_store_memory", total))


if __name__ == "__main__":
    main()
