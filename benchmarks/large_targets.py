"""What a target table of a large corpus asks of a learner's machine: seconds, bytes that are read, and memory.

    python benchmarks/large_targets.py [--sentences 10000000] [--width 768] [--precision fp16] [--updates 2000]

The table is written block by block, as a stream commits it, with random targets and 16 tokens per sentence, into a
directory that all machines of a cluster would share: nothing is copied, a learner reads blocks from where they are.
Then batches are drawn as a learner draws them, in a process of its own.
"""

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from raysed.cluster.blocks import BlockTables
from raysed.data.parquet import with_column
from raysed.data.targets import TARGET_TYPES, TargetBatches
from raysed.graph import Ref, resolve_input
from raysed.store.storage import Storage

from harness import where

NAME, SIZE, TOKENS, BATCH = "ct-sed/targets", 4096, 16, 64


def main() -> None:
    """Writes the table, reads from it, and prints both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--precision", choices=TARGET_TYPES, default="fp16")
    parser.add_argument("--updates", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        write(Storage(directory, "run"), options.sentences, options.width, options.precision)
        written, size = (
            time.monotonic() - began,
            sum(file.stat().st_size for file in Path(directory).rglob("*.parquet")),
        )
        print(f"{options.sentences:,} targets of width {options.width} in {options.precision}: {size / 1e9:.1f} GB")
        print(f"written and committed in {written:.0f} s")
        with multiprocessing.get_context("spawn").Pool(1) as learner:
            print(learner.apply(read, (directory, options.updates)))
    print(where())


def write(storage: Storage, rows: int, width: int, precision: str) -> None:
    """Commits all blocks, then the table."""
    kept = ("id", "input_ids", "target")
    tables = BlockTables("targets", "corpus", {NAME: {"corpus": "random"}}, kept, kept, rows, SIZE)
    random = np.random.default_rng(0)
    targets = random.standard_normal((SIZE, width), np.float32).astype(TARGET_TYPES[precision])
    tokens = pa.ListArray.from_arrays(
        pa.array(np.arange(SIZE + 1, dtype=np.int32) * TOKENS),
        pa.array(random.integers(0, 30_000, SIZE * TOKENS, np.int32)),
    )
    for place in tables.missing(storage):
        count = place["stop"] - place["start"]
        columns = {"id": np.arange(place["start"], place["stop"]), "input_ids": tokens[:count]}
        tables.commit(storage, with_column(pa.table(columns), "target", targets[:count]))
    meta = {"blocks": tables.count, "size": SIZE, "rows": rows}
    storage.commit(NAME, lambda path: (path / "mean").touch(), {"corpus": "random"}, meta)


def read(directory: str, updates: int) -> str:
    """Draws batches; returns what that took."""
    process, began = psutil.Process(), time.monotonic()
    memory, before = process.memory_info().rss, process.io_counters().read_chars
    batches = TargetBatches(resolve_input(Ref(NAME), Storage(directory, "run")), BATCH, seed=0)
    batches(0)
    first = time.monotonic() - began
    for step in range(1, updates):
        batches(step)
    seconds, found = time.monotonic() - began, process.io_counters().read_chars - before
    grown = process.memory_info().rss - memory
    return (
        f"first batch after {first:.1f} s; {updates:,} batches of {BATCH} in {seconds:.1f} s, which read "
        f"{found / 1e9:.2f} GB and took {grown / 1e6:.0f} MB of memory; nothing was copied"
    )


if __name__ == "__main__":
    main()
