"""Two views of the same meaning: what is read and what is refused, tokens, files and batches."""

import gzip
import json
import time

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.config import NliSource, ViewsConfig
from raysed.data.labelled import NliRows, identity
from raysed.data.rows import Schema, read_source
from raysed.data.tokens import LengthReport, tokenize
from raysed.data.views import (
    VIEW_SCHEMA,
    ViewBatches,
    ViewRows,
    ViewTable,
    entailment,
    load_files,
    read_views,
    same_twice,
    usable,
    write_views,
)
from raysed.errors import UserError

PAIRS = [("A man runs.", "A man is running."), ("It rains.", "Rain falls."), ("She sings.", "Singing, she is.")]
TRANSLATIONS = [
    ("It rains in Istanbul.", "İstanbul'da yağmur yağıyor, ılık bir gün."),
    ("The book is new.", "الكتابُ جديدٌ"),
    ("Caf\u0065\u0301 is open.", "Le cafe\u0301 est ouvert\u2028ici."),
    ("Two\x85lines", "İI iı \U0001f600 e\u0308\u0323"),
]
NAMES = [
    ("view1", "view2"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("Text1", "TEXT2"),
    ("sentence_A", "sentence_B"),
    ("english", "non_english"),
    ("Anchor", "positive"),
    ("source", "target"),
]
ENDINGS = [".tsv", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet"]
NEEDED = "view1 and view2 (or sentence1 and sentence2, or two that the source's `columns` name)"


def views(*files, **settings) -> ViewRows:
    return load_files(ViewsConfig(files=[f if isinstance(f, dict) else str(f) for f in files], **settings))


def found(rows: ViewRows) -> list[tuple[str, str]]:
    return list(zip(rows.first, rows.second))


def write(path, pairs=PAIRS, names=None):
    """Writes the pairs in the format of the path's ending, with a column between the two that is neither."""
    header = None if names is None else (names[0], "note", names[1])
    rows = pairs if names is None else [(one, "x", other) for one, other in pairs]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(zip(header, map(list, zip(*rows))))), path)
        return path
    if ".jsonl" in path.name:
        text = "".join(json.dumps(dict(zip(header, row))) + "\n" for row in rows)
    else:
        text = "".join("\t".join(row) + "\n" for row in ([header] if header else []) + list(rows))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


# -- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("names", NAMES)
def test_all_formats_and_known_names_give_the_same_pairs(tmp_path, ending, names):
    """Also by URI, and whatever stands between the two columns."""
    path = write(tmp_path / f"views{ending}", names=names)
    rows = views(path, path.as_uri())
    assert found(rows) == PAIRS + PAIRS and (rows.empty, rows.identical) == (0, 0)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("columns", [("de", "EN fr"), ("DE", "en FR")])
def test_columns_can_be_named(tmp_path, ending, columns):
    """In any case; a known name beside them does not count, and the order is that of the setting."""
    path = write(tmp_path / f"views{ending}", names=("EN fr", "de"))
    assert found(views({"source": str(path), "columns": columns})) == [(other, one) for one, other in PAIRS]


def test_the_very_name_comes_before_another_case(tmp_path):
    path = tmp_path / "views.jsonl"
    path.write_text('{"en": "a", "EN": "b", "de": "c", "DE": "d"}\n')
    assert found(views({"source": str(path), "columns": ("EN", "de")})) == [("b", "c")]


@pytest.mark.parametrize("ending", [".txt", ".tsv", ".tsv.gz"])
def test_two_columns_need_no_header(tmp_path, ending):
    """The first line is a pair like the others, as in the released back-translations."""
    assert found(views(write(tmp_path / f"back_translated_nli{ending}"))) == PAIRS


def test_lines_end_at_newlines_only_and_quotes_are_text(tmp_path):
    path = tmp_path / "views.tsv"
    path.write_bytes('\ufeff"A man\u2028said\t5" wide\r\n\n a \tb\x0cc\r\n'.encode())
    assert found(views(path)) == [('"A man\u2028said', '5" wide'), ("a", "b\x0cc")]
    path.write_bytes("\ufeffView1\tVIEW2\r\na\tb\r\n".encode())
    assert found(views(path)) == [("a", "b")]


@pytest.mark.parametrize("ending", [".txt", *ENDINGS])
def test_text_of_all_scripts_survives(tmp_path, ending):
    """Nothing is normalised: dotted and dotless i, Arabic with vowel signs, combining marks, odd line separators."""
    path = write(tmp_path / f"en-xx{ending}", TRANSLATIONS, None if ending == ".txt" else ("english", "non_english"))
    assert found(views(path)) == TRANSLATIONS


def test_sources_are_put_together_in_their_order(tmp_path):
    """A translation in two columns, paraphrases in JSON lines, and their counts."""
    one = write(tmp_path / "en-tr.tsv", TRANSLATIONS)
    two = write(tmp_path / "b.jsonl", [*PAIRS, ("same", " same"), ("", "x")], ("sentence1", "sentence2"))
    rows = views(one, two)
    assert found(rows) == TRANSLATIONS + PAIRS and (rows.empty, rows.identical) == (1, 1)
    assert rows.summary() == (
        "7 pairs of views; left out: 1 (11.1 %) with an empty view, 1 (11.1 %) with two identical views"
    )


@pytest.mark.parametrize("ending", [".tsv", ".jsonl", ".parquet"])
def test_rows_of_a_split(tmp_path, ending):
    path = tmp_path / f"views{ending}"
    records = [{"split": split, "view1": split, "view2": "x"} for split in ("train", "dev", "train")]
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif ending == ".jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        path.write_text("\n".join(["split\tview1\tview2", *("\t".join(record.values()) for record in records)]))
    assert views({"source": str(path), "split": "train"}).first == ["train", "train"] and len(views(path)) == 3


def test_null_views_are_empty(tmp_path):
    pq.write_table(pa.table({"view1": ["a", None, "c"], "view2": ["x", "b", None]}), tmp_path / "v.parquet")
    (tmp_path / "v.jsonl").write_text('{"view1": null, "view2": "b"}\n{"view1": "c", "view2": "d"}')
    rows = views(tmp_path / "v.parquet", tmp_path / "v.jsonl", max_unusable=0.6)
    assert found(rows) == [("a", "x"), ("c", "d")] and rows.empty == 3


def test_a_hub_dataset_of_parallel_sentences(hub):
    english, other = map(list, zip(*TRANSLATIONS))
    table = datasets.Dataset.from_dict({"id": [1, 2, 3, 4], "english": english, "non_english": other})
    calls = hub(table)
    assert found(views("talks/parallel")) == TRANSLATIONS
    views({"source": "talks/parallel", "name": "en-tr", "split": "dev", "columns": ("non_english", "english")})
    assert calls == [
        (("talks/parallel", None), {"split": "train"}),
        (("talks/parallel", "en-tr"), {"split": "dev"}),
    ]


def test_many_rows_load_in_a_few_seconds(tmp_path):
    pairs = [(f"Sentence number {i} is here.", f"Here is sentence number {i}.") for i in range(200_000)]
    path = write(tmp_path / "views.txt", pairs)
    start = time.process_time()
    rows = views(path)
    assert time.process_time() - start < 5
    assert len(rows) == 200_000 and (rows.first[-1], rows.second[-1]) == pairs[-1]


# -- what is refused -------------------------------------------------------------------------------------------------


HINT = f"separate them by tabs, or name the columns in the first line: {NEEDED}"
ONE, THREE = (f"{count} tab-separated columns instead of 2; {HINT}" for count in (1, 3))
BROKEN = [
    ("v.txt", "A man runs.\nIt rains.\n", f"PATH, line 1: {ONE}"),
    ("v.txt", "\na\tb\nIt rains.\n", f"PATH, line 3: {ONE}"),
    ("v.tsv", "a\tb\tc\n", f"PATH, line 1: {THREE}"),
    ("v.tsv", "a\tb\na\tb\tc\n", f"PATH, line 2: {THREE}"),
    ("v.tsv", "view1\tview2\na\n", "PATH, line 2: 1 tab-separated columns, but the header has 2"),
    ("v.tsv", "view1\tview2\na\tb\tc\n", "PATH, line 2: 3 tab-separated columns, but the header has 2"),
    ("v.tsv", b"a\tb\nCaf\xe9\tb\n", "PATH, line 2: not valid UTF-8 (byte 0xe9); save the file as UTF-8"),
    ("v.tsv", "", "views.files: PATH has no pairs of views"),
    ("v.txt", "view1\tview2\n", "views.files: PATH has no pairs of views"),
    ("v.jsonl", "\n", "views.files: PATH has no pairs of views"),
    ("v.jsonl", '{"view1": "a"\n', "PATH, line 1: not valid JSON: Expecting ',' delimiter: line 1 column 14 (char 13)"),
    ("v.jsonl", '["a", "b"]', "PATH, line 1: expected an object {...}, found a list"),
    ("v.jsonl", '{"en": "a", "fr": "b"}', f"PATH, line 1: columns {NEEDED} are needed, found en, fr"),
    ("v.jsonl", "{}", f"PATH, line 1: columns {NEEDED} are needed, found none"),
    (
        "v.jsonl",
        '{"view1": "a", "view2": "b"}\n{"view1": "a", "views2": "b"}\n',
        "PATH, line 2: no field 'view2'; found view1, views2",
    ),
    ("v.jsonl", '{"view1": "a", "view2": 3}', "PATH, line 1: a sentence must be text, not of type int"),
    (
        "v.jsonl",
        '\n{"view1": "a", "view2": "\\udc00"}',
        "PATH, line 2: half a surrogate pair (\\ud800 to \\udfff) is not valid text",
    ),
    (
        "v.xlsx",
        "a,b\n",
        "views.files: PATH is not a file of pairs of views; supported endings are .txt, .jsonl, .csv, .tsv, .parquet, "
        "and the text formats also with .gz",
    ),
    (
        "v.csv",
        "a,b\n",
        "PATH, line 1: columns view1 and view2 (or sentence1 and sentence2, or two that the source's `columns` name) "
        "are needed, found a, b",
    ),
    ("v.txt", "a\ta\n \tb\n", None),
]
UNUSABLE = (
    "views.files (PATH): 2 of 2 pairs are unusable, 1 with an empty view and 1 with two identical views, which is more "
    "than views.max_unusable (0.5) allows; fix the views, or raise it"
)


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_broken_files_are_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        views(path)
    assert str(error.value) == (message or UNUSABLE).replace("PATH", str(path))


@pytest.mark.parametrize("name", ["v.parquet", "v.tsv.gz"])
def test_files_of_another_kind_are_told(tmp_path, name):
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(UserError, match=rf"{name} cannot be read: [^\n]+$"):
        views(tmp_path / name)


def test_a_parquet_file_of_numbers_is_refused(tmp_path):
    pq.write_table(pa.table({"view1": ["a", "b"], "view2": [1, 2]}), tmp_path / "v.parquet")
    with pytest.raises(UserError, match=r"v.parquet, row 1: a sentence must be text, not of type int$"):
        views(tmp_path / "v.parquet")


@pytest.mark.parametrize("ending", [".tsv", ".jsonl", ".parquet"])
def test_named_columns_that_are_not_there(tmp_path, ending):
    """A file without names has none either; what stands in its first line is shown in short."""
    path = write(tmp_path / f"v{ending}", names=("view1", "view2"))
    line = "" if ending == ".parquet" else ", line 1"
    with pytest.raises(UserError) as error:
        views({"source": str(path), "columns": ("en", "view2")})
    needed = "columns 'en' and 'view2' (`columns` of views.files) are needed"
    assert str(error.value) == f"{path}{line}: {needed}, found view1, note, view2"
    bare = write(tmp_path / "bare.tsv", [("a" * 50, "b")])
    with pytest.raises(UserError) as error:
        views({"source": str(bare), "columns": ("en", "view2")})
    assert str(error.value) == f"{bare}, line 1: {needed}, found {'a' * 40}..., b"


def test_splits_that_are_not_there(tmp_path):
    bare, named = write(tmp_path / "a.tsv"), tmp_path / "b.tsv"
    named.write_text("split\tview1\tview2\ntrain\ta\tb\n")
    with pytest.raises(UserError, match=r"^views.files: .*a.tsv has no column split; remove split: dev$"):
        views({"source": str(bare), "split": "dev"})
    with pytest.raises(UserError, match=r"^views.files: .*b.tsv has no rows of the split 'dev'; .* are 'train'$"):
        views({"source": str(named), "split": "dev"})


def test_what_is_not_there_is_named(tmp_path, hub):
    with pytest.raises(UserError, match=r"^views.files is empty; name at least one file or hub dataset of pairs"):
        views()
    with pytest.raises(UserError, match=r"^views.files: no/such.tsv does not exist; name an existing file or a hub"):
        views("no/such.tsv")
    with pytest.raises(UserError, match=r"^views.files: .* is not a file of pairs of views"):
        views(tmp_path)
    hub(ValueError("Unknown split\nmore"))
    with pytest.raises(UserError) as error:
        views({"source": "some/set", "name": "en-fr"})
    assert str(error.value) == (
        "views.files: there is no file 'some/set', and it cannot be read as a hub dataset (name 'en-fr', split "
        "'train'): Unknown split"
    )


def test_a_hub_dataset_of_other_columns_is_refused(hub):
    table = datasets.Dataset.from_dict({"id": [1], "translation": [{"en": "a", "fr": "b"}]})
    hub(table)
    with pytest.raises(UserError, match=r"^dataset opus/books: columns view1 .* are needed, found id, translation$"):
        views("opus/books")
    with pytest.raises(UserError, match=r"^dataset opus/books, row 1: a sentence must be text, not of type int$"):
        views({"source": "opus/books", "columns": ("id", "translation")})


def test_keys_in_a_uri_are_not_shown():
    """Keys in a URI are refused before; what else stands behind its path is left out of messages all the same."""
    with pytest.raises(UserError) as error:
        views("nowhere://bucket/a.tsv?option=hidden")
    assert "bucket/a.tsv" in str(error.value) and "hidden" not in str(error.value)


def test_only_schemas_that_allow_it_go_without_a_header(tmp_path):
    schema = Schema("x.y", "things", {("a", "b"): [("view1", "view2")]}, "view1 and view2")
    with pytest.raises(UserError, match=r"v.tsv, line 1: columns view1 and view2 are needed, found A man runs., A man"):
        read_source(NliSource(source=str(write(tmp_path / "v.tsv"))), schema)


# -- usable pairs ----------------------------------------------------------------------------------------------------


TEXTS = st.lists(st.text(alphabet="aİ\u0301 \t\u00a0", max_size=3), min_size=1, max_size=20)


@given(TEXTS, TEXTS, st.integers(0, 20))
def test_usable_pairs_against_a_plain_loop(first, second, tenths):
    count = min(len(first), len(second))
    first, second, kept, empty, identical = first[:count], second[:count], [], 0, 0
    for one, other in zip(first, second):
        if not one.strip() or not other.strip():
            empty += 1
        elif one.strip() == other.strip():
            identical += 1
        else:
            kept.append((one.strip(), other.strip()))
    share, most = (empty + identical) / count, tenths / 20
    if share > most:
        with pytest.raises(UserError, match=f"^them: {empty + identical} of {count} pairs are unusable, {empty} with"):
            usable(first, second, "them", most)
        return
    rows = usable(first, second, "them", most)
    assert (found(rows), rows.empty, rows.identical) == (kept, empty, identical) and len(rows) == len(kept)


def test_the_largest_share_itself_is_allowed():
    """29 of 100, where 0.29 * 100 is a little less than 29 in floating point."""
    first, second = ["a"] * 100, ["a"] * 29 + ["b"] * 71
    assert usable(first, second, "x", 0.29).identical == 29
    with pytest.raises(UserError) as error:
        usable(first, second, "views of the kind mlm", 0.28)
    assert str(error.value) == (
        "views of the kind mlm: 29 of 100 pairs are unusable, 0 with an empty view and 29 with two identical views, "
        "which is more than views.max_unusable (0.28) allows; fix the views, or raise it"
    )


def test_no_pair_and_sides_that_differ_in_length():
    with pytest.raises(UserError, match=r"^views of x: there are no pairs of views to learn from$"):
        usable([], [], "views of x", 0.5)
    with pytest.raises(ValueError, match="shorter"):
        usable(["a"], [], "x", 0.5)


def test_pairs_labelled_entailment_are_views():
    premises, hypotheses = [f"p{i}" for i in range(9)] + ["same"], [f"h{i}" for i in range(9)] + ["same"]
    labelled = NliRows(premises, hypotheses, np.array([0, 1, 2, 1, 1, 0, 2, 2, 1, 1]))
    rows = entailment(labelled, 0.5)
    assert found(rows) == [(f"p{i}", f"h{i}") for i in (1, 3, 4, 8)] and (rows.empty, rows.identical) == (0, 1)
    with pytest.raises(UserError, match=r"^nli.train \(pairs labelled entailment\): 1 of 5 pairs are unusable"):
        entailment(labelled, 0.1)
    without = NliRows(["a"], ["b"], np.array([0]))
    with pytest.raises(UserError, match=r"^nli.train \(pairs labelled entailment\): there are no pairs of views to"):
        entailment(without, 0.5)


def test_the_identity_is_of_the_kept_pairs_and_their_order():
    rows = ViewRows(["a", "bé"], ["c", "d"], empty=3)
    assert identity(rows) == identity(ViewRows(["a", "bé"], ["c", "d"], identical=1))
    others = [
        ViewRows(["bé", "a"], ["d", "c"]),
        ViewRows(["c", "d"], ["a", "bé"]),
        ViewRows(["ab", "é"], ["c", "d"]),
        ViewRows(["a", "bé"], ["cd", ""]),
        ViewRows(["a", "be\u0301"], ["c", "d"]),
        ViewRows(["a"], ["c"]),
    ]
    assert len({identity(rows), *map(identity, others)}) == len(others) + 1


# -- tokens and files ------------------------------------------------------------------------------------------------


@pytest.fixture
def rows(make_sentences) -> ViewRows:
    return ViewRows(make_sentences(30, 1), make_sentences(30, 2))


def tokens_of(table, row) -> list[int]:
    return table.input_ids[table.offsets[row] : table.offsets[row + 1]].tolist()


def token_pairs(table: ViewTable) -> list[tuple[list[int], list[int]]]:
    return [(tokens_of(table.first, row), tokens_of(table.second, row)) for row in range(len(table))]


@pytest.mark.parametrize("at_once", [7, 30, 1000])
def test_views_come_back_from_their_file(tiny_tokenizer, rows, tmp_path, monkeypatch, at_once):
    """Row group by row group; both sides are counted, and cut."""
    monkeypatch.setattr("raysed.data.tokens._AT_ONCE", at_once)
    report = LengthReport(8)
    write_views(rows, tiny_tokenizer, 8, tmp_path, report)
    expected = [tokenize(tiny_tokenizer, side, 8) for side in rows.columns]
    table = read_views(tmp_path)
    assert token_pairs(table) == token_pairs(ViewTable(*expected)) and len(table) == 30
    assert table.first.ids.tolist() == table.second.ids.tolist() == list(range(30))
    assert table.first.input_ids.dtype == np.int32 and table.first.lengths.max() == 8
    assert report.sentences == 60 and report.tokens == sum(len(side.input_ids) for side in expected)
    assert report.truncated_sentences > 10
    (path,) = tmp_path.iterdir()
    file = pq.ParquetFile(path)
    assert file.schema_arrow.equals(VIEW_SCHEMA) and file.num_row_groups == -(-30 // at_once)
    written = file.read().to_pydict()
    assert (written["id"], written["sentence1"], written["sentence2"]) == (list(range(30)), *rows.columns)
    assert list(zip(written["input_ids1"], written["input_ids2"])) == token_pairs(table)


def test_few_sentences_are_tokenised_at_once(tiny_tokenizer, rows, tmp_path, monkeypatch):
    """Memory does not grow with the pairs: each part of both sides is written before the next one begins."""
    monkeypatch.setattr("raysed.data.tokens._AT_ONCE", 7)
    events = []

    class Spy:
        def __call__(self, sentences, **options):
            events.append(len(sentences))
            return tiny_tokenizer(sentences, **options)

    original = pq.ParquetWriter.write_table
    monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda *a: (events.append("write"), original(*a)))
    write_views(rows, Spy(), 100, tmp_path)
    assert events == [7, 7, "write"] * 4 + [2, 2, "write"]


def test_text_of_all_scripts_survives_in_the_table(tiny_tokenizer, tmp_path):
    first, second = map(list, zip(*TRANSLATIONS))
    write_views(ViewRows(first, second), tiny_tokenizer, 20, tmp_path)
    (path,) = tmp_path.iterdir()
    assert found(views(path)) == TRANSLATIONS


def test_several_tables_are_one(tiny_tokenizer, rows, make_sentences, tmp_path):
    """In the order given, with ids of their own."""
    others = ViewRows(make_sentences(5, 3), make_sentences(5, 4))
    for name, views_ in (("a", rows), ("b", others)):
        (tmp_path / name).mkdir()
        write_views(views_, tiny_tokenizer, 20, tmp_path / name)
    parts = [read_views(tmp_path / name) for name in ("b", "a", "b")]
    table = ViewTable.concatenate([read_views(tmp_path / name) for name in ("b", "a", "b")])
    assert token_pairs(table) == [pair for part in parts for pair in token_pairs(part)]
    assert table.first.ids.tolist() == table.second.ids.tolist() == list(range(40)) and len(table) == 40


def test_the_same_sentence_twice(make_table):
    sentences = make_table(9)
    table = same_twice(sentences)
    assert token_pairs(table) == [(tokens_of(sentences, row),) * 2 for row in range(9)]
    both = ViewTable.concatenate([table, ViewTable(make_table(3, seed=1), make_table(3, seed=2))])
    assert both.first.ids.tolist() == both.second.ids.tolist() == list(range(12))
    assert token_pairs(both)[:9] == token_pairs(table) and sentences.ids[0] == 1000


@given(st.lists(st.integers(0, 52), min_size=1, max_size=60))
def test_taking_rows_takes_both_views(make_table, places):
    table = ViewTable(make_table(53, seed=1), make_table(53, seed=2))
    taken = table.take(np.array(places))
    assert len(taken) == len(places)
    assert token_pairs(taken) == [token_pairs(table)[place] for place in places]
    assert taken.first.ids.tolist() == taken.second.ids.tolist() == [1000 + 7 * place for place in places]


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(make_table) -> ViewTable:
    return ViewTable(make_table(53, seed=1), make_table(53, seed=2))


def test_a_batch_has_the_first_views_and_then_the_second(table):
    """Against the order of a fresh generator and the tokens of the table itself."""
    for step in (0, 4, 5, 6, 13):
        batch = ViewBatches(table, 8, seed=3)(step)
        epoch, index = divmod(step, 6)
        rows = np.random.default_rng([3, epoch]).permutation(53)[8 * index : 8 * index + 8].tolist()
        expected = [tokens_of(side, row) for side in (table.first, table.second) for row in rows]
        assert len(batch) == 16 and batch.lengths.tolist() == list(map(len, expected))
        for place, tokens in enumerate(expected):
            here = batch.segments == place
            assert batch.input_ids[here][batch.position_ids[here].argsort()].tolist() == tokens
        assert batch.ids.tolist() == [1000 + 7 * row for row in rows] * 2


@given(st.integers(1, 60), st.integers(0, 3))
def test_an_epoch_has_each_pair_at_most_once_and_its_own_order(make_table, batch_size, seed):
    """The last, partial batch is left out; a table smaller than a batch is one batch."""
    table = ViewTable(make_table(41, seed=1), make_table(41, seed=2))
    batches = ViewBatches(table, batch_size, seed)
    size = min(batch_size, 41)
    assert batches.per_epoch == 41 // size
    epochs = []
    for epoch in range(3):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        ids = [batches(step).ids for step in steps]
        assert all(len(of_step) == 2 * size and (of_step[:size] == of_step[size:]).all() for of_step in ids)
        epochs.append(np.concatenate([of_step[:size] for of_step in ids]).tolist())
        assert len(set(epochs[-1])) == len(epochs[-1]) == size * batches.per_epoch
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_any_step_is_reached_at_once(table):
    """What continuing in the middle of an epoch needs: a batch is a function of seed and step."""
    forward = ViewBatches(table, 8, seed=1)
    ids = [forward(step).ids.tolist() for step in range(20)]
    for step in (19, 0, 7, 6):
        assert ViewBatches(table, 8, seed=1)(step).ids.tolist() == forward(step).ids.tolist() == ids[step]
    assert ViewBatches(table, 8, seed=2)(0).ids.tolist() != ids[0]
