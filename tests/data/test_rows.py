"""The reader of rows itself: endings mean the same for every schema, memory is bounded, and other data have a place."""

import gzip
import json
import shutil
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed.config import CorpusConfig, PairSource, TaskConfig, ViewsConfig, make_config
from raysed.data.corpus import CorpusReport, query_chunks, sentence_chunks
from raysed.data.pairs import load_graded, load_nli, load_views
from raysed.data.rows import Schema, column_names, read, rows
from raysed.data.sources import Hub, find, local_file
from raysed.errors import UserError
from raysed.score.tasks import Evaluation, load_any_task

DOCUMENTS = Schema(
    "retrieval.corpus",
    "documents",
    {("id",): [("_id",), ("id",)], ("text",): [("text",)]},
    "_id and text",
    optional={"title": "title"},
    text=("text", "title"),
)
JUDGEMENTS = Schema(
    "retrieval.qrels",
    "judgements",
    {("query", "document", "score"): [("query-id", "corpus-id", "score")]},
    "query-id, corpus-id and score",
)
LABELLED = Schema("tasks", "texts", {("text", "label"): [("text", "label")]}, "text and label", bare=("text", "label"))


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def corpus(path, **settings) -> list[str]:
    chunks = sentence_chunks(CorpusConfig(source=str(path), **settings), 0, CorpusReport())
    return [sentence for _, chunk in chunks for sentence in chunk]


def test_a_first_line_that_is_no_header_has_no_names_of_columns(tmp_path):
    """A survey asks for them."""
    for first in ("e" + "\u0301\u0323" * 100_000, "a carriage\rreturn"):
        assert column_names(local_file(write(tmp_path / "a.txt", f"{first}\nAnother one.\n"))) == [first]


def test_other_data_need_a_schema_only(tmp_path):
    """Objects that lack an optional field, a table of ids, and text with its label by place."""
    records = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two", "metadata": {}}]
    documents = write(tmp_path / "corpus.jsonl.gz", gzip.compress("\n\n".join(map(json.dumps, records)).encode()))
    found = read(local_file(documents), DOCUMENTS)
    assert found.columns == {"id": ["d1", "d2"], "text": ["one", "two"], "title": ["T", None]}
    falling = write(tmp_path / "falling.jsonl", "\n".join(map(json.dumps, reversed(records))))
    assert read(local_file(falling), DOCUMENTS).columns["title"] == [None, "T"]
    assert found.where(1) == f"{documents}, line 3" and found.texts("title") == ["T", ""]
    qrels = read(local_file(write(tmp_path / "test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")), JUDGEMENTS)
    assert qrels.columns == {"query": ["q1"], "document": ["d1"], "score": ["1"]}
    texts = read(local_file(write(tmp_path / "a.txt", "good film\t1\nbad film\t0\n")), LABELLED)
    assert texts.columns == {"text": ["good film", "bad film"], "label": ["1", "0"]}


def test_a_cell_may_be_long(tmp_path):
    text = "word " * 40_000
    assert corpus(write(tmp_path / "long.csv", f'id,text\n1,"{text}"\n'), passage_characters=10**6) == [text.strip()]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_the_header_of_a_corpus_shows_what_separates_columns(tmp_path, ending):
    """As for pairs; a single column is as the ending says."""
    tabs = write(tmp_path / f"tabs{ending}", 'id\ttext\n1\t"Go on, he said.\n')
    assert corpus(tabs) == ['"Go on, he said.']
    commas = write(tmp_path / f"commas{ending}", 'id,Text\n1,"One, two."\n')
    assert corpus(commas) == ["One, two."]
    one = write(tmp_path / f"one{ending}", 'text\n"Yes."\n')
    assert corpus(one) == ["Yes." if ending == ".csv" else '"Yes."']


@pytest.mark.parametrize("ending", [".txt", ".csv", ".jsonl", ".parquet"])
def test_blocks_are_bounded_whatever_the_format(tmp_path, ending):
    """Of a file of 7.5 MB no more than some blocks are in memory; Arrow's own are counted, too."""
    sentences = [f"This is sentence number {i} of a file that must not be held in memory." * 4 for i in range(25_000)]
    path = tmp_path / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table({"sentence": sentences}), path, row_group_size=2_500, use_dictionary=False)
    elif ending == ".jsonl":
        write(path, "".join(f'{{"sentence": "{sentence}"}}\n' for sentence in sentences))
    else:
        write(path, "\n".join([*([] if ending == ".txt" else ["sentence"]), *sentences]))
    schema = Schema("x", "sentences", {("s",): [("sentence",)]}, "sentence", bare=("s",))
    assert read(local_file(path), schema).columns["s"] == sentences
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        count, arrow = 0, 0
        for block in rows(local_file(path), schema):
            count, arrow = count + len(block), max(arrow, pa.total_allocated_bytes() - before)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 25_000 and peak < 5.5e6 and arrow < 5.5e6


@pytest.mark.parametrize("ending", [".txt.gz", ".csv.gz", ".jsonl.gz", ".parquet"])
def test_blocks_of_long_lines_are_bounded_by_their_size(tmp_path, ending):
    """A small file may stand for many gigabytes."""
    texts, path = ["word " * 180_000] * 90, tmp_path / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table({"sentence": texts}), path)
    else:
        lines = [json.dumps({"sentence": text}) if "json" in ending else text for text in texts]
        write(path, gzip.compress("\n".join([*(["sentence"] if "csv" in ending else []), *lines]).encode(), 1))
    assert path.stat().st_size < 1e6
    schema = Schema("x", "sentences", {("s",): [("sentence",)]}, "sentence", bare=("s",))
    sizes = [sum(map(len, block.columns["s"])) for block in rows(local_file(path), schema)]
    assert sum(sizes) == 81_000_000 and max(sizes) < 18e6


PAIRS = Schema("tasks", "pairs", {("a", "b"): [("a", "b")], ("n",): [("n",)]}, "a, b and n", text=("a", "b"))
SENTENCES = Schema("corpus", "sentences", {("s",): [("sentence",)]}, "sentence", text=("s",), bare=("s",))


@pytest.mark.parametrize(
    ("text", "rows_"),
    [
        ('a\tb\tn\n"one\ntwo"\t"he said ""hi"""\t3\nu\tv\t4\n', [("one\ntwo", 'he said "hi"', "3"), ("u", "v", "4")]),
        ('"a"\t"b"\t"n"\n"1\t2"\t"x\n\ny"\t"3\n"\n', [("1\t2", "x\n\ny", "3\n")]),
        ('n\ta\tb\n1\tx\t"first\nsecond"\n2\tu\tv', [("x", "first\nsecond", "1"), ("u", "v", "2")]),
        ('n\ta\tb\n3\tx\t"I am.\n2\ty\tIt ended."\n', [("x", '"I am.', "3"), ("y", 'It ended."', "2")]),
        ('a\tb\tn\n"Go on\tx\t1\n"She\tsays "no"\t2\n', [('"Go on', "x", "1"), ('"She', 'says "no"', "2")]),
        ('a\tb\tn\n"Oh!\tYou!"\t1\n"a" b\t"So."\t2\n', [('"Oh!', 'You!"', "1"), ('"a" b', '"So."', "2")]),
        ('a\tb\tn\n"Rain, and wind."\t""\t1\n', [("Rain, and wind.", "", "1")]),
    ],
    ids=["pandas", "all quoted", "last column", "quotations over rows", "not closed", "as in STS", "a spreadsheet"],
)
def test_cells_in_quotation_marks_are_those_of_a_spreadsheet(tmp_path, text, rows_):
    columns = read(local_file(write(tmp_path / "a.tsv", text)), PAIRS).columns
    assert list(zip(*columns.values())) == rows_


def test_a_cell_that_goes_on_where_the_sample_ends_is_one_cell(tmp_path):
    quoted = "".join(f'"text {i}\nof\nthree lines"\tb\t1\n' for i in range(600))
    columns = read(local_file(write(tmp_path / "a.tsv", f"a\tb\tn\n{quoted}")), PAIRS).columns
    assert next(iter(columns.values())) == [f"text {i}\nof\nthree lines" for i in range(600)]


def test_pandas_reads_back_what_it_wrote(tmp_path):
    pandas = pytest.importorskip("pandas")
    texts = ["plain", "two\nlines", 'a "b" c', "a\ttab", '"quoted"', "end\n", '"\n"']
    for columns in ({"sentence": texts}, {"sentence": texts, "n": range(7)}, {"n": range(7), "sentence": texts}):
        for quoting in (0, 1):
            pandas.DataFrame(columns).to_csv(tmp_path / "a.tsv", sep="\t", index=False, quoting=quoting)
            assert read(local_file(tmp_path / "a.tsv"), SENTENCES).columns["s"] == texts


@pytest.mark.parametrize("ends", ["\r", "\r\n"], ids=repr)
@pytest.mark.parametrize("last", ["", "\n"], ids=repr)
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.txt", ["one", "", "zwölf"]),
        ("a.tsv", ["id\tsentence", "1\tone", "", "2\tzwölf"]),
        ("a.csv", ["id,sentence", "1,one", "", '2,"zwölf"']),
        ("a.jsonl", ['{"sentence": "one"}', "", '{"sentence": "zwölf"}']),
    ],
)
def test_carriage_returns_end_lines_where_most_lines_end_so(tmp_path, name, lines, ends, last):
    data = (ends.join(lines) + last).encode()
    for path in (write(tmp_path / name, data), write(tmp_path / f"{name}.gz", gzip.compress(data))):
        table = read(local_file(path), SENTENCES)
        assert list(filter(None, table.columns["s"])) == ["one", "zwölf"]
        assert table.numbers[-1] == len(lines)


def parts(path, rows_=30):
    """What Spark writes, and Ray Data and Dask in other names."""
    names = [("part-00000-a.snappy.parquet", 10), ("part-00001-a.snappy.parquet", 0), ("part.2.parquet", rows_ - 10)]
    path.mkdir()
    first = 0
    for name, count in names:
        columns = {"sentence1": [f"a{i}" for i in range(first, first + count)]}
        columns |= {"sentence2": [f"b{i}" for i in range(first, first + count)]}
        columns |= {"score": [float(i % 6) for i in range(first, first + count)], "label": ["entailment"] * count}
        columns |= {"text": columns["sentence1"], "id": [str(i) for i in range(first, first + count)]}
        types = {"score": pa.float64()}
        schema = pa.schema([(key, types.get(key, pa.string())) for key in columns])
        pq.write_table(pa.table(columns, schema), path / name)
        first += count
    for other in ("_SUCCESS", "_metadata", ".part-00000.crc", "._part-00000-a.snappy.parquet"):
        write(path / other, b"\0")
    return path


def as_dev(path):
    block = {"tasks": {"d": {"source": str(path)}}, "dev": "d"}
    return len(Evaluation.load(make_config({"evaluation": block}).evaluation).tasks["d"].items())


@pytest.mark.parametrize(
    "read_rows",
    [
        lambda path: len(load_any_task("t", TaskConfig(source=str(path))).items()),
        as_dev,
        lambda path: len(load_graded([TaskConfig(source=str(path))])),
        lambda path: len(load_nli([PairSource(source=str(path))])),
        lambda path: len(load_views(ViewsConfig(files=[str(path)]))),
        lambda path: len(corpus(path)),
        lambda path: sum(map(len, query_chunks(CorpusConfig(queries=str(path)), CorpusReport()))),
        lambda path: len(read(find(path.as_uri(), "s", "texts", Hub("a", None, "test"))[0], DOCUMENTS)),
    ],
    ids=["task", "dev", "sts", "nli", "views", "corpus", "queries", "documents by URI"],
)
@pytest.mark.parametrize("name", ["pairs", "pairs.parquet"])
def test_a_directory_of_parts_is_a_parquet_file(tmp_path, read_rows, name):
    assert read_rows(parts(tmp_path / name)) == 30


def test_a_table_in_folders_by_a_column_is_refused(tmp_path):
    path = parts(tmp_path / "pairs")
    (path / "split=test").mkdir()
    shutil.copy(path / "part.2.parquet", path / "split=test")
    with pytest.raises(UserError, match=r"split=test/part\.2\.parquet is of a table in folders by a column"):
        load_any_task("t", TaskConfig(source=str(path)))


@pytest.mark.parametrize("name", ["a.txt", "b/a.jsonl", "parts", "corpus.jsonl", "x.parquet"])
def test_links_to_nothing_are_named(tmp_path, name):
    """DVC and git-annex leave them where the content has not been fetched."""
    write(tmp_path / "other.txt", "It rains.\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to("/nowhere/content")
    for source in (tmp_path, tmp_path / name, f"{tmp_path}/**"):
        with pytest.raises(UserError, match=f"{name} is a link to nothing; get the file that it stands for"):
            corpus(source)
    with pytest.raises(UserError, match=f"{name} is a link to nothing"):
        load_any_task("t", TaskConfig(source=str(tmp_path / name)))


def test_metadata_of_another_program_does_not_matter(tmp_path):
    features = b'{"info": {"features": {"text": {"names": 5}}}}'
    for metadata in (b"\xff", b"no json", b"[]", b'{"info": 5}', b'{"info": {"features": [1]}}', features):
        table = pa.table({"_id": ["d"], "text": ["a"]}).replace_schema_metadata({b"huggingface": metadata})
        pq.write_table(table, tmp_path / "a.parquet")
        assert read(local_file(tmp_path / "a.parquet"), DOCUMENTS).columns["text"] == ["a"]
