"""What tests of learners share: a target table of random rows, and a tiny encoder."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import BertConfig, BertModel

from raysed.data.targets import TARGET_FILE
from raysed.model.encoder import Encoder


def write_targets(directory: Path, rows: int, row_group: int, width: int = 16) -> None:
    rng = np.random.default_rng(rows)
    tokens = [rng.integers(1, 50, rng.integers(2, 9)).astype(np.int32) for _ in range(rows)]
    targets = rng.normal(size=(rows, width)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(targets.reshape(-1)), width)
    table = pa.table({"id": np.arange(rows), "input_ids": pa.array(tokens, pa.list_(pa.int32())), "target": lists})
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, directory / TARGET_FILE, row_group_size=row_group)
    np.save(directory / "mean.npy", targets.mean(0))


def tiny_learner(width: int | None = None) -> Encoder:
    """Weights larger than BERT's: with tiny gradients Adam's first steps are the sign of rounding errors.

    With a width it has a head that leads there.
    """
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.3,
    )
    learner = Encoder(BertModel(config))
    learner.set_head(None if width is None else np.random.default_rng(1).normal(size=(16, width)).astype(np.float32))
    return learner
