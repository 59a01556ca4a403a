"""Objects as sources: what is written is what the readers of files read."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed.api import _sources
from raysed.data.given import source_of
from raysed.errors import UserError

ROWS = [("It rains.", "Rain falls.", 4.5), (0, "A cat sleeps.", "A dog runs.")]


def read(given, path):
    (source,) = source_of(given, str(path), "sentences")
    return pq.read_table(source).to_pydict()


def test_rows_of_each_kind_get_the_names_that_readers_know(tmp_path):
    path = tmp_path / "given/x.parquet"
    assert read(["It rains.", "A cat."], path) == {"sentence": ["It rains.", "A cat."]}
    pairs = {
        "score": [4.5, 0.0],
        "sentence1": ["It rains.", "A cat sleeps."],
        "sentence2": ["Rain falls.", "A dog runs."],
    }
    assert read(iter(ROWS), path) == pairs
    assert read([("It rains.", 3)], path) == {"text": ["It rains."], "label": ["3"]}
    assert read([{"body": "It rains.", "id": 7}], path) == {"body": ["It rains."], "id": [7]}
    datasets = pytest.importorskip("datasets")
    assert read(datasets.Dataset.from_dict({"text": ["It rains."]}), path) == {"text": ["It rains."]}
    assert read({"It rains.", "A cat."}, path) == {"sentence": ["A cat.", "It rains."]}, "the same in each process"
    assert read(np.array(["and/or", "It rains.", "A cat."]), path) == {"sentence": ["and/or", "It rains.", "A cat."]}
    assert {file.name for file in path.parent.rglob("*.*")} == {"x.parquet"}, "nothing half-written"


@pytest.mark.parametrize(
    "rows", [[("It rains.", "Rain falls.")], [("It rains.", 3)], ROWS, [["a", "b", "c"]], ["It rains.", ("a", "b")]]
)
def test_a_corpus_of_tuples_is_refused(tmp_path, rows):
    """All but the first text would be dropped."""
    with pytest.raises(UserError, match=r"^corpus: item . is .*; each must be a sentence, or a mapping by column$"):
        source_of(rows, str(tmp_path / "x.parquet"), "corpus", column="sentence")


FRAME = {"text": ["It rains.", "A cat."], "label": ["a", "b"]}


class Stream:
    """What has the method of Arrow's protocol and nothing else, like a relation of DuckDB."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lambda: pa.table(FRAME), id="arrow"),
        pytest.param(lambda: Stream(pa.table(FRAME)), id="protocol"),
        pytest.param(lambda: pa.table(FRAME).to_reader(1), id="batches"),
        pytest.param(lambda: pytest.importorskip("pandas").DataFrame(FRAME, dtype="category"), id="pandas"),
        pytest.param(lambda: pytest.importorskip("polars").DataFrame(FRAME), id="polars"),
        pytest.param(
            lambda: (pl := pytest.importorskip("polars")).DataFrame(FRAME).cast({"label": pl.Categorical}),
            id="polars categories",
        ),
    ],
)
def test_whatever_streams_arrow_is_a_table(tmp_path, frame):
    assert read(frame(), tmp_path / "x.parquet") == FRAME
    sources = _sources(None, frame(), str(tmp_path / "tasks"))
    assert {name: pq.read_table(source).to_pydict() for name, source in sources.items()} == {"task-1": FRAME}


@pytest.mark.parametrize(
    "series",
    [
        lambda texts: pa.chunked_array([texts]),
        lambda texts: pytest.importorskip("pandas").Series(texts, name="body"),
        lambda texts: pytest.importorskip("polars").Series("body", texts),
        lambda texts: (pl := pytest.importorskip("polars")).Series("body", texts, pl.Categorical),
    ],
    ids=["arrow", "pandas", "polars", "polars categories"],
)
def test_a_series_counts_as_the_list_of_its_values(tmp_path, series):
    path = tmp_path / "x.parquet"
    assert read(series(["It rains.", "A cat."]), path) == {"sentence": ["It rains.", "A cat."]}
    assert source_of(series(["a.txt", "b.txt"]), str(path), "s") == ["a.txt", "b.txt"]
    for bad, message in (([], "s: it is empty"), (["It rains.", None], "s: item 1 is 'None'; each must be a sentence")):
        with pytest.raises(UserError, match=f"^{message}"):
            source_of(series(bad), str(path), "s")


def test_an_arrow_table_of_the_hub_keeps_the_names_of_its_classes(tmp_path):
    names = {b"huggingface": b'{"info": {"features": {"label": {"names": ["no", "yes"]}}}}'}
    table = pa.table({"text": ["It rains.", "A cat."], "label": [1, 0]}).replace_schema_metadata(names)
    (source,) = source_of(table, str(tmp_path / "x.parquet"), "s")
    assert pq.read_schema(source).metadata == names


def test_a_frame_that_is_not_computed_yet_is_refused(tmp_path):
    frame = pytest.importorskip("polars").LazyFrame(FRAME)
    with pytest.raises(UserError, match=r"^s: a LazyFrame has no rows yet; pass the result of its \.collect\(\)$"):
        source_of(frame, str(tmp_path / "x.parquet"), "s")


def test_an_iterator_is_written_in_blocks(tmp_path):
    (source,) = source_of((f"Sentence {i}." for i in range(25_000)), str(tmp_path / "x.parquet"), "sentences")
    file = pq.ParquetFile(source)
    assert (file.metadata.num_rows, file.metadata.num_row_groups) == (25_000, 3)
    assert file.read().column("sentence")[24_999].as_py() == "Sentence 24999."


def test_paths_stay_paths(tmp_path):
    (tmp_path / "a.txt").write_text("It rains.\n")
    assert source_of(tmp_path / "a.txt", str(tmp_path / "x.parquet"), "s") == [str(tmp_path / "a.txt")]
    assert source_of("s3://bucket/*.txt", str(tmp_path / "x.parquet"), "s") == ["s3://bucket/*.txt"]
    both = [str(tmp_path / "a.txt"), Path("b.txt")]
    assert source_of(both, str(tmp_path / "x.parquet"), "s") == [str(tmp_path / "a.txt"), "b.txt"]
    assert not list(tmp_path.rglob("x.parquet"))


@pytest.mark.parametrize(
    "paths",
    [
        ["{}/a.txt", "{}/misspelt"],
        ["a.txt", "b.txt.gz"],
        ["*.txt"],
        ["s3://bucket/a", "https://host/b"],
        ["me/tickets"],
        ["bundled:generated", "{}"],
        ["{}/a.txt", "It rains."],
    ],
)
@pytest.mark.parametrize("kind", [list, tuple, iter, np.array])
def test_what_looks_like_paths_are_no_sentences(tmp_path, paths, kind):
    """They are read as paths; one that does not exist is then refused by name, instead of learnt."""
    (tmp_path / "a.txt").write_text("It rains.\n")
    paths = [path.format(tmp_path) for path in paths]
    assert source_of(kind(paths), str(tmp_path / "x.parquet"), "s") == paths


def test_files_are_named_by_their_content(tmp_path):
    """The same rows find their file as it was; others leave it to a run that reads it."""
    (first,) = source_of(["It rains."], str(tmp_path / "x.parquet"), "s")
    before = Path(first).stat()
    (again,) = source_of(["It rains."], str(tmp_path / "x.parquet"), "s")
    (other,) = source_of(["It snows."], str(tmp_path / "x.parquet"), "s")
    after = Path(first).stat()
    assert (first, after.st_mtime_ns, after.st_ino) == (again, before.st_mtime_ns, before.st_ino)
    assert other != first and pq.read_table(first)["sentence"].to_pylist() == ["It rains."]
    assert Path(first).name == Path(other).name == "x.parquet", "a name that is part of what identifies a corpus"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b""),
        lambda path: pq.write_table(pa.table({"sentence": ["It hails."]}), path),
        lambda path: (path.unlink(), path.symlink_to(path.parent.parent / "other.parquet")),
    ],
    ids=["cut", "empty", "replaced", "a link to other rows"],
)
def test_a_file_that_is_not_what_its_name_says_is_written_again(tmp_path, damage):
    pq.write_table(pa.table({"sentence": ["It hails."]}), tmp_path / "other.parquet")
    (first,) = source_of(["It rains."], str(tmp_path / "x.parquet"), "s")
    damage(Path(first))
    assert read(["It rains."], tmp_path / "x.parquet") == {"sentence": ["It rains."]}
    assert pq.read_table(tmp_path / "other.parquet")["sentence"].to_pylist() == ["It hails."]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (7, "sentences: 7 is neither a path nor rows"),
        (b"a.txt", "sentences: b'a.txt' is neither a path nor rows"),
        (
            {"train": ["It rains."], "test": []},
            r"sentences: it is a mapping; pass a part, such as d\['train'\], ",
        ),
        ({}, "sentences: it is a mapping"),
        ([np.array(["It rains."])], "sentences: item 0 is .*; each must be a sentence, "),
        ([], "sentences: it is empty; pass at least one row"),
        (pa.table({"text": []}), "sentences: it is empty; pass at least one row"),
        (["It rains.", 7], "sentences: item 1 is '7'; each must be a sentence, .*"),
        ([("a", "b", "c")], "sentences: item 0 is .*"),
        (["It rains.", "b\ud800"], r"sentences: 'b\\ud800': it contains half a surrogate pair"),
        ([{"a": 1}, {"a": "It rains."}], "sentences: rows are not alike: .*"),
        (["It rains.", {"text": 3}], "sentences: rows have sentence, but one has text"),
    ],
)
def test_anything_else_is_refused(tmp_path, given, sentence):
    with pytest.raises(UserError, match=f"^{sentence}"):
        source_of(given, str(tmp_path / "x.parquet"), "sentences")


@pytest.mark.parametrize("cells", [["a", 3], ["a", "b\ud800"]], ids=["types", "half a character"])
def test_a_frame_whose_cells_are_not_alike_or_no_text_is_refused(tmp_path, cells):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(UserError, match=r"^sentences: (rows are not alike|.*contains half a surrogate pair)"):
        source_of(pandas.DataFrame({"sentence": cells}, dtype=object), str(tmp_path / "x.parquet"), "sentences")


def test_a_dataset_of_several_splits_is_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["It rains."]})
    for given in (
        datasets.DatasetDict(train=rows, test=rows),
        datasets.IterableDatasetDict(train=rows.to_iterable_dataset()),
    ):
        with pytest.raises(UserError, match=r"^sentences: it is a mapping; pass a part, such as d\['train'\]"):
            source_of(given, str(tmp_path / "x.parquet"), "sentences")
    assert read(rows.to_iterable_dataset(), tmp_path / "x.parquet") == {"text": ["It rains."]}
