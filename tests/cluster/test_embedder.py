"""The two pieces for anyone's own Ray Data: a model's vectors, and the mean of several models'."""

import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from raysed.config import TeacherConfig
from raysed.errors import UserError
from raysed.model.load import load_model
from raysed.model.teacher import load_teacher
from raysed.ray import Embedder, MeanOfTeachers
from raysed.score.metrics import unit

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/ray.md"
SENTENCES = ["A red car stops.", "The dog runs home.", "It rains."]


def embed_as_on_the_page(tmp_path: Path, resources: str) -> None:
    pq.write_table(pa.table({"sentence": SENTENCES}), tmp_path / "sentences.parquet")
    (example,) = re.findall(r"```python\n(import .*?)```", PAGE.read_text(), flags=re.DOTALL)
    for name in ("sentences.parquet", "embedded"):
        example = example.replace(f'"{name}"', f'"{tmp_path / name}"')
    exec(example.replace("num_cpus=1,", f"{resources},"), {})
    table = pq.read_table(tmp_path / "embedded").to_pydict()
    assert table["sentence"] == SENTENCES
    assert np.abs(np.array(table["embedding"]) - load_model("bundled:encoder", 1).embed(SENTENCES)).max() < 1e-5


def test_a_batch_keeps_its_columns_and_gets_another():
    embed = Embedder("bundled:encoder", column="text", output="vector", device="cpu")
    batch = embed({"text": np.array(SENTENCES, dtype=object), "id": np.arange(3)})
    assert list(batch) == ["text", "id", "vector"] and batch["vector"].shape[0] == 3
    assert batch["vector"].dtype == np.float32


def test_other_roles_and_precisions_are_refused():
    with pytest.raises(UserError, match=r"^role is 'passage'; use one of '', 'query', 'document'"):
        Embedder("bundled:encoder", role="passage")
    with pytest.raises(UserError, match=r"^precision is 'fp16'; use one of 'auto', 'fp32', 'bf16'"):
        Embedder("bundled:encoder", precision="fp16")


def test_sentences_have_the_prompt_of_their_role(exports, tmp_path):
    path = shutil.copytree(exports["1"], tmp_path / "model")
    (path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "the big "}}')
    asked, plain = (Embedder(path, device="cpu", role=role) for role in ("query", ""))
    texts = np.array(["cat sat"], dtype=object)
    expected_ND = plain({"sentence": "the big " + texts})["embedding"]
    np.testing.assert_array_equal(asked({"sentence": texts})["embedding"], expected_ND)


def test_a_mean_is_that_of_unit_vectors_each_of_a_model_with_its_own_prompts(exports, tmp_path):
    path = shutil.copytree(exports["1"], tmp_path / "model")
    (path / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "the big "}, "default_prompt_name": "query"}'
    )
    models, batch = [path, exports["1"]], {"text": np.array(SENTENCES, dtype=object)}
    found = MeanOfTeachers(models, column="text", output="mean", device="cpu")(batch)
    vectors = [Embedder(model, "text", device="cpu")(batch)["embedding"] for model in models]
    np.testing.assert_allclose(found["mean"], (unit(vectors[0]) + unit(vectors[1])) / 2, rtol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3 and found["text"] is batch["text"]


STAGES = pytest.mark.parametrize(
    "stage",
    [lambda: Embedder("bundled:encoder", device="cpu"), lambda: MeanOfTeachers(["bundled:encoder"] * 2, device="cpu")],
    ids=["Embedder", "MeanOfTeachers"],
)


def batches(values: list) -> list:
    """A batch in each format that Ray Data has."""
    pandas = pytest.importorskip("pandas")
    column = np.empty(len(values), object)
    column[:] = values
    return [{"sentence": column}, {"sentence": values}, pandas.DataFrame({"sentence": column})]


@STAGES
def test_batches_of_any_format_have_the_same_vectors_and_may_be_empty(stage):
    embed, table = stage(), pa.table({"sentence": pa.array(SENTENCES)})
    expected_BD = np.array(embed(table)["embedding"].to_pylist())
    for batch in batches(SENTENCES):
        assert np.abs(np.stack(list(embed(batch)["embedding"])) - expected_BD).max() < 1e-6
    for batch in (*batches([]), table.slice(0, 0)):
        assert len(embed(batch)["embedding"]) == 0


@STAGES
@pytest.mark.parametrize("value", [None, float("nan"), 7, b"It rains.", ["It rains."]], ids=repr)
def test_what_is_no_text_names_its_row(stage, value):
    """`None` would get the vector of the word "None"."""
    embed = stage()
    tables = [pa.table({"sentence": pa.array([SENTENCES[0], None])})] if value is None else []
    for batch in (*batches([SENTENCES[0], value]), *tables):
        with pytest.raises(UserError, match=r"^row 1 of the batch: sentence is .* a sentence must be text$"):
            embed(batch)
    with pytest.raises(UserError, match=r"^the batch has no column 'sentence'; it has text$"):
        embed({"text": SENTENCES})


def test_models_that_have_no_mean_are_refused(exports):
    widths = r"' embeds in \d+ numbers, but 'bundled:encoder' in 192; a mean needs equal widths$"
    with pytest.raises(UserError, match=widths):
        MeanOfTeachers([exports["1"], "bundled:encoder"], device="cpu")
    for models in ([], "bundled:encoder"):
        with pytest.raises(UserError, match=r"^models must be a list of at least one model$"):
            MeanOfTeachers(models)


@pytest.mark.cluster
def test_what_ray_has_written_is_a_teacher(ray_cluster, tmp_path):
    """Tensors, into which Ray turns NumPy arrays; in several files, which are read in their order."""
    words = ["bundled:encoder", "bundled:encoder"]
    rows = ray.data.from_items([{"sentence": sentence} for sentence in SENTENCES], override_num_blocks=2)
    rows.map_batches(
        MeanOfTeachers,
        fn_constructor_args=(words,),
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
        batch_size=1,
        batch_format="numpy",
    ).write_parquet(str(tmp_path / "vectors"), ray_remote_args={"num_cpus": 0})
    files = sorted((tmp_path / "vectors").glob("*.parquet"))
    teacher = load_teacher(TeacherConfig(path=str(tmp_path / "vectors")))
    teacher.check()
    assert len(files) > 1 and teacher.width == 192
    expected = unit(load_model("bundled:encoder", 1).embed(SENTENCES[::-1]))
    assert np.abs(teacher.embed(SENTENCES[::-1]) - expected).max() < 1e-5
    before = teacher.identity
    files[0].unlink()
    assert load_teacher(TeacherConfig(path=str(tmp_path / "vectors"))).identity != before
