"""What published models make of texts. Each model embeds each text once; runs and scores read the files.

The directory of a model holds a `.parquet` file for each block of texts, with the columns that a teacher's file has.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysed.config import TeacherConfig
from raysed.data.corpus import clean
from raysed.model.teacher import Teacher, load_teacher

MAX_LENGTH = 64
"""Tokens of a text."""
BLOCK = 2048
"""Texts of a file: what a stopped program has to do again at most."""


def embed_once(model: Path, texts: Sequence[str], vectors: Path) -> np.ndarray:
    """Embeds the texts that the files lack, a block at a time; returns the embeddings of all, float32 [N, D].

    Args:
        model: a sentence-transformers directory.
        texts: N texts.
        vectors: has a directory for each model.
    """
    directory = vectors / model.name
    directory.mkdir(parents=True, exist_ok=True)
    files = sorted(directory.glob("*.parquet"))
    known = {text for file in files for text in pq.read_table(file, columns=["sentence"])["sentence"].to_pylist()}
    missing = [text for text in dict.fromkeys(map(clean, texts)) if text not in known]
    for start in range(0, len(missing), BLOCK):
        print(f"embed with {model.name}: {start:,} of {len(missing):,} texts", flush=True)
        block = missing[start : start + BLOCK]
        write(block, embed(model, block), directory / f"{len(files) + start // BLOCK:05d}.parquet")
    return load_teacher(TeacherConfig(path=str(directory))).embed(list(texts))


def embed(model: Path, texts: Sequence[str]) -> np.ndarray:
    """Embeds texts, float32 [N, D]."""
    return _loaded(model).embed(texts)


@cache
def _loaded(model: Path) -> Teacher:
    return load_teacher(TeacherConfig(path=str(model), max_length=MAX_LENGTH), precision="auto")


def write(texts: Sequence[str], x_ND: np.ndarray, to: Path) -> None:
    """Writes N texts and their embeddings as a teacher's file."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x_ND.astype(np.float32).ravel()), x_ND.shape[1])
    part = to.with_suffix(".part")
    pq.write_table(pa.table({"sentence": list(texts), "embedding": vectors}), part, row_group_size=BLOCK)
    part.rename(to)
