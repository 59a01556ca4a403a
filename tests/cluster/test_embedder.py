"""The page's example of a model in anyone's own Ray Data."""

import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed.model.load import load_model
from raysed.ray import Embedder

PAGE = Path(__file__).resolve().parents[2] / "docs/ray.md"
SENTENCES = ["A red car stops.", "The dog runs home.", "It rains."]


def embed_as_on_the_page(tmp_path: Path, resources: str = "num_cpus=1") -> None:
    pq.write_table(pa.table({"sentence": SENTENCES}), tmp_path / "sentences.parquet")
    (example,) = re.findall(r"```python\n(import .*?)```", PAGE.read_text(), flags=re.DOTALL)
    for name in ("sentences.parquet", "embedded"):
        example = example.replace(f'"{name}"', f'"{tmp_path / name}"')
    exec(example.replace("num_cpus=1,", f"{resources},"), {})
    table = pq.read_table(tmp_path / "embedded").to_pydict()
    assert table["sentence"] == SENTENCES
    assert np.abs(np.array(table["embedding"]) - load_model("bundled:encoder", 1).embed(SENTENCES)).max() < 1e-5


@pytest.mark.cluster
def test_the_example_embeds_a_file_of_sentences(ray_cluster, tmp_path):
    embed_as_on_the_page(tmp_path)


def test_a_batch_keeps_its_columns_and_gets_another():
    embed = Embedder("bundled:encoder", column="text", output="vector", device="cpu")
    batch = embed({"text": np.array(SENTENCES, dtype=object), "id": np.arange(3)})
    assert list(batch) == ["text", "id", "vector"] and batch["vector"].shape[0] == 3
    assert batch["vector"].dtype == np.float32


def test_sentences_have_the_prompt_of_their_role(exports, tmp_path):
    path = shutil.copytree(exports["1"], tmp_path / "model")
    (path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "the big "}}')
    asked, plain = (Embedder(path, device="cpu", role=role) for role in ("query", ""))
    texts = np.array(["cat sat"], dtype=object)
    expected_ND = plain({"sentence": "the big " + texts})["embedding"]
    np.testing.assert_array_equal(asked({"sentence": texts})["embedding"], expected_ND)
