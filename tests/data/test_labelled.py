"""Labelled pairs: what is read and what is refused, tokens, files and batches."""

import gzip
import json
from collections import Counter

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.config import NliConfig, StsConfig
from raysed.data.labelled import (
    CLASSES,
    GradedRows,
    NliRows,
    PairBatches,
    PairTable,
    identity,
    load_graded,
    load_nli,
    read_pairs,
    tokenize_pairs,
    write_pairs,
)
from raysed.data.tokens import LengthReport, tokenize
from raysed.errors import UserError

HEADER = "split\tlabel\tpremise\thypothesis"
ROWS = [
    ("train", "entailment", "A man runs.", "He moves."),
    ("dev", "neutral", "A dog is here.", "It is brown."),
    ("train", "contradiction", "It rains.", "It is dry."),
]
STABLE = "eead02368de65554"
PAIRS = {(row[2], row[3]): CLASSES.index(row[1]) for row in ROWS}


def write(path, *lines, header=HEADER):
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


def nli(*sources) -> NliRows:
    return load_nli(NliConfig(train=[source if isinstance(source, dict) else str(source) for source in sources]))


def found(rows: NliRows) -> dict[tuple[str, str], int]:
    return dict(zip(zip(rows.premises, rows.hypotheses), rows.labels.tolist()))


# -- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".tsv", ".txt", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize(
    "names", [("premise", "hypothesis", "label"), ("sentence1", "Sentence2", "gold_label"), ("text1", "text2", "LABEL")]
)
def test_all_formats_and_names_give_the_same_rows(tmp_path, ending, names):
    """Also by URI, and whatever else stands in the file."""
    columns = {"note": ["x"] * 3, "split": [row[0] for row in ROWS], names[2]: [row[1] for row in ROWS]}
    columns |= {names[0]: [row[2] for row in ROWS], names[1]: [row[3] for row in ROWS]}
    path = tmp_path / f"pairs{ending}"
    records = [dict(zip(columns, values)) for values in zip(*columns.values())]
    if ending == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        as_text = "\t".join if "jsonl" not in ending else json.dumps
        lines = [as_text(record.values() if "jsonl" not in ending else record) for record in records]
        text = "\n".join([*(["\t".join(columns)] if "jsonl" not in ending else []), *lines, ""]).encode()
        path.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
    for source in (path, path.as_uri()):
        rows = nli(source)
        assert found(rows) == PAIRS and rows.labels.dtype == np.int64 and (rows.unlabelled, rows.empty) == (0, 0)
        assert len(nli({"source": str(source), "split": "dev"})) == 1
    assert rows.counts == {"contradiction": 1, "entailment": 1, "neutral": 1}
    assert rows.summary().startswith("3 pairs: 1 contradiction, 1 entailment, 1 neutral")


def test_lines_end_at_newlines_only_and_quotes_are_text(tmp_path):
    path = tmp_path / "pairs.tsv"
    text = f'\ufeff{HEADER}\r\n\ntrain\tneutral\t"A man\u2028said\t5" wide\r\n'
    path.write_bytes(text.encode())
    assert found(nli(path)) == {('"A man\u2028said', '5" wide'): 2}


def test_the_released_files_of_sick_and_snli_are_read(tmp_path):
    """SICK's names, and SNLI's last columns that a row may lack."""
    sick = write(
        tmp_path / "SICK.txt", "1\tA b\tC d\tENTAILMENT\t4.5", header="ID\tsentence_A\tsentence_B\tentailment_label\tr"
    )
    snli = write(
        tmp_path / "s.txt", "-\tx\ty", "neutral\tx\tz\tn\tn", header="gold_label\tsentence1\tsentence2\tl1\tl2"
    )
    assert found(nli(sick, snli)) == {("A b", "C d"): 1, ("x", "z"): 2}


def test_real_files(data_dir):
    """Sizes as counted in the files themselves."""
    snli, sick = (data_dir / "nli" / name for name in ("snli-sample.tsv", "sick-train.tsv"))
    both = nli(snli, sick)
    assert len(both) == 2527 + 5000
    assert Counter(both.labels[:2527].tolist()) == {0: 839, 1: 838, 2: 850}
    assert Counter(both.labels[2527:].tolist()) == {0: 739, 1: 1443, 2: 2818}
    assert nli({"source": str(snli), "split": "dev"}).counts == {
        "contradiction": 419,
        "entailment": 433,
        "neutral": 421,
    }
    graded = load_graded(StsConfig(train=[str(data_dir / "sts" / name) for name in ("stsb-train.tsv", "sts15.tsv")]))
    assert len(graded) == len(graded.first) == len(graded.second) == 5749 + 3000 and graded.dropped == 5500
    first = (data_dir / "sts" / "stsb-train.tsv").read_text().split("\n")[1].split("\t")
    assert (graded.scores[0], graded.first[0], graded.second[0]) == (float(first[1]) / 5, first[2], first[3])


# -- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        *(("entailment", 1), ("neutral", 2), ("contradiction", 0), ("ENTAILMENT", 1), (" Neutral ", 2)),
        *((0, 1), (1, 2), (2, 0), ("0", 1), ("1", 2), ("2", 0)),
        *(("-", None), (-1, None), ("-1", None), ("", None), ("  ", None), (None, None)),
    ],
)
def test_labels_by_name_and_by_the_ids_of_the_hub(tmp_path, label, expected):
    path = tmp_path / "pairs.jsonl"
    records = [{"label": label, "premise": "a", "hypothesis": "b"}, {"label": 0, "premise": "c", "hypothesis": "d"}]
    path.write_text("\n".join(map(json.dumps, records)))
    rows = nli(path)
    assert found(rows) == {("c", "d"): 1} | ({} if expected is None else {("a", "b"): expected})
    assert rows.unlabelled == (expected is None) and len(rows.premises) == len(rows)


def test_rows_with_an_empty_sentence_are_left_out(tmp_path):
    """A row that has no label either counts once."""
    lines = ["train\tneutral\t \tb", "train\tneutral\ta\t", "train\t-\t\tb", "train\tentailment\t a \tb"]
    rows = nli(write(tmp_path / "pairs.tsv", *lines))
    assert found(rows) == {("a", "b"): 1} and (rows.empty, rows.unlabelled) == (2, 1)
    assert rows.summary().endswith("left out: 1 without a label, 2 with an empty sentence")


def test_null_sentences_are_empty(tmp_path):
    columns = {"premise": ["a", None, "c"], "hypothesis": [None, "b", "d"], "label": [0, 1, 2]}
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    rows = nli(tmp_path / "pairs.parquet")
    assert found(rows) == {("c", "d"): 0} and rows.empty == 2


@pytest.mark.parametrize("ending", [".tsv", ".jsonl", ".parquet"])
def test_an_unknown_label_is_named_with_its_place(tmp_path, ending):
    """Also after blank lines and behind rows of other splits."""
    path = tmp_path / f"pairs{ending}"
    records = [{"split": "dev", "label": "odd", "premise": "a", "hypothesis": "b"}]
    records += [{"split": "train", "label": label, "premise": "a", "hypothesis": "b"} for label in ("neutral", "Maybe")]
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif ending == ".jsonl":
        path.write_text("\n\n".join(map(json.dumps, records)))
    else:
        path.write_text("\n\n".join([HEADER, *("\t".join(record.values()) for record in records)]))
    place = {".tsv": "line 7", ".jsonl": "line 5", ".parquet": "row 3"}[ending]
    with pytest.raises(UserError) as error:
        nli({"source": str(path), "split": "train"})
    assert str(error.value) == (
        f"{path}, {place}: label 'Maybe' is unknown; use one of contradiction, entailment, neutral, "
        "0 (entailment), 1 (neutral), 2 (contradiction), or '-' or -1 for none"
    )
    with pytest.raises(UserError, match="'odd'"):
        nli(path)


def test_names_in_a_parquet_file_of_the_hub_count(tmp_path):
    """Its own order of the classes, which it keeps beside the data."""
    features = datasets.Features(
        premise=datasets.Value("string"),
        hypothesis=datasets.Value("string"),
        label=datasets.ClassLabel(names=["contradiction", "neutral", "entailment"]),
    )
    columns = {"premise": ["a", "b", "c", "d"], "hypothesis": ["x"] * 4, "label": [0, 1, 2, -1]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "pairs.parquet")
    rows = nli(tmp_path / "pairs.parquet")
    assert rows.labels.tolist() == [0, 2, 1] and rows.unlabelled == 1


# -- the hub ---------------------------------------------------------------------------------------------------------


def test_a_hub_dataset_is_read_with_its_class_names(hub):
    names = ["neutral", "entailment", "contradiction"]
    features = datasets.Features(
        hypothesis=datasets.Value("string"), premise=datasets.Value("string"), label=datasets.ClassLabel(names=names)
    )
    columns = {"premise": ["a", "b", "c", "d"], "hypothesis": ["x", "y", "z", "w"], "label": [1, 0, 2, -1]}
    calls = hub(datasets.Dataset.from_dict(columns, features=features))
    rows = nli("nyu/sets")
    assert found(rows) == {("a", "x"): 1, ("b", "y"): 2, ("c", "z"): 0} and rows.unlabelled == 1
    nli({"source": "nyu/sets", "name": "mnli", "split": "validation"})
    assert calls == [(("nyu/sets", None), {"split": "train"}), (("nyu/sets", "mnli"), {"split": "validation"})]


def test_a_hub_dataset_without_class_names_has_the_usual_order(hub):
    columns = {"sentence1": ["a", "b", "c"], "sentence2": ["x", "y", "z"], "label": [0, 1, 2]}
    hub(datasets.Dataset.from_dict(columns))
    assert nli("some/set").labels.tolist() == [1, 2, 0]


def test_another_task_of_the_hub_is_refused(hub):
    """QNLI has the same columns and other classes."""
    features = datasets.Features(
        sentence1=datasets.Value("string"),
        sentence2=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "not_entailment"]),
    )
    columns = {"sentence1": ["a", "b"], "sentence2": ["x", "y"], "label": [0, 1]}
    hub(datasets.Dataset.from_dict(columns, features=features))
    with pytest.raises(UserError, match=r"^dataset glue/qnli, row 2: label 1 is unknown; .* 0 \(entailment\), or"):
        nli("glue/qnli")


def test_a_hub_that_fails_says_why(hub):
    hub(ValueError('Unknown split "trian". Should be one of ["train", "test"].\nmore'))
    with pytest.raises(
        UserError, match=r"nli.train: .* 'some/set', .* cannot be read .*'trian'\): Unknown split .*test\"\]\.$"
    ):
        nli({"source": "some/set", "split": "trian"})


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_split_that_is_not_there_is_refused(tmp_path):
    path = write(tmp_path / "pairs.tsv", *map("\t".join, ROWS))
    with pytest.raises(UserError, match=r"pairs.tsv has no rows of the split 'test'; its splits are 'dev', 'train'$"):
        nli({"source": str(path), "split": "test"})
    other = write(tmp_path / "other.tsv", "neutral\ta\tb", header="label\tpremise\thypothesis")
    with pytest.raises(UserError, match=r"other.tsv has no column split; remove split: train"):
        nli({"source": str(other), "split": "train"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "premise\thypothesis\nx\ty\n", r"a.tsv, line 1: .*label .* needed, found premise, hypothesis$"),
        ("a.tsv", "premise\tlabel\nx\ty\n", r"a.tsv, line 1: columns premise and hypothesis .* found premise, label$"),
        ("a.tsv", "", r"a.tsv, line 1: .* found none$"),
        ("a.tsv", f"{HEADER}\ntrain\tneutral\ta\n", r"a.tsv, line 2: 3 tab-separated columns, but .* has 4$"),
        ("a.tsv", f"{HEADER}\ntrain\tneutral\ta\tb\tc\n", r"a.tsv, line 2: 5 tab-separated columns, but .* has 4$"),
        ("a.tsv", f"{HEADER}\n", r"has no usable pair \(0 pairs"),
        ("a.tsv", f"{HEADER}\ntrain\t-\ta\tb\n", r"nli.train: .*a.tsv has no usable pair .*1 without a label"),
        ("a.tsv", HEADER.encode() + b"\ntrain\tneutral\tCaf\xe9\tb\n", r"a.tsv, line 2: not valid UTF-8"),
        ("a.tsv.gz", b"no gzip", r"a.tsv.gz cannot be read"),
        ("a.jsonl", '{"premise": "a"\n', r"a.jsonl, line 1: not valid JSON"),
        ("a.jsonl", "[1]\n", r"a.jsonl, line 1: expected an object \{\.\.\.\}, found a list"),
        (
            "a.jsonl",
            '{"premise": "a", "hypothesis": "b", "label": 0}\n{"premise": "a", "label": 0}\n',
            r"a.jsonl, line 2: no field 'hypothesis'; found premise, label",
        ),
        (
            "a.jsonl",
            '{"premise": 3, "hypothesis": "b", "label": 0}',
            r"line 1: a sentence must be text, not of type int",
        ),
        ("a.jsonl", '{"premise": "\\ud800", "hypothesis": "b", "label": 0}', r"line 1: half a surrogate pair"),
        ("a.parquet", "no parquet", r"a.parquet cannot be read"),
        ("a.xlsx", "x", r"a.xlsx is not a file of labelled pairs; supported endings are .txt, .jsonl, .csv, .tsv, "),
    ],
)
def test_broken_files_are_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as error:
        nli(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["missing.tsv", "./missing", "/no/such/file.jsonl", "file:///no/file.parquet", ""])
def test_what_is_not_there_is_named(source):
    with pytest.raises(UserError, match=r"nli.train: .* does not exist"):
        nli(source)


def test_a_directory_and_no_source_are_refused(tmp_path):
    with pytest.raises(UserError, match="is not a file of labelled pairs"):
        nli(tmp_path)
    for load, config, name in ((load_nli, NliConfig(), "nli"), (load_graded, StsConfig(), "sts")):
        with pytest.raises(UserError, match=f"{name}.train is empty"):
            load(config)


def test_keys_in_a_uri_are_not_shown():
    """Keys in a URI are refused before; what else stands behind its path is left out of messages all the same."""
    with pytest.raises(UserError) as error:
        nli("nowhere://bucket/a.tsv?option=hidden")
    assert "bucket/a.tsv" in str(error.value) and "hidden" not in str(error.value)


# -- graded pairs ----------------------------------------------------------------------------------------------------


def graded_file(path, *scores):
    return write(
        path,
        *(f"s\t{score}\ta{i}\tb{i}" for i, score in enumerate(scores)),
        header="subset\tscore\tsentence1\tsentence2",
    )


def test_scores_run_from_0_to_1_whatever_the_range(tmp_path):
    """0 to 5 as SBERT has it, SICK's 1 to 5, and one around zero; several sources are put together."""
    sources = [
        {"source": str(graded_file(tmp_path / "a.tsv", 0, 2.5, 5))},
        {"source": str(graded_file(tmp_path / "b.tsv", 1, "", 2, 5)), "score_range": (1, 5)},
        {"source": str(graded_file(tmp_path / "c.tsv", -1, 0.5)), "score_range": (-1, 1)},
    ]
    rows = load_graded(StsConfig(train=sources))
    np.testing.assert_allclose(rows.scores, [0, 0.5, 1, 0, 0.25, 1, 0, 0.75], rtol=0, atol=1e-15)
    assert rows.scores.dtype == np.float64 and rows.dropped == 1 and len(rows) == 8
    assert rows.first == ["a0", "a1", "a2", "a0", "a2", "a3", "a0", "a1"]
    assert rows.second == [text.replace("a", "b") for text in rows.first]
    assert rows.summary() == "8 pairs, mean score 0.44 of 1; left out: 1 without a score"


def test_bad_graded_sources_are_named_by_their_place(tmp_path):
    good = str(graded_file(tmp_path / "a.tsv", 3))
    with pytest.raises(UserError, match=r"^sts\.train\[1\]: "):
        load_graded(StsConfig(train=[good, str(tmp_path / "missing.xml")]))
    with pytest.raises(UserError, match=r"b.tsv, line 2: score 7 is outside"):
        load_graded(StsConfig(train=[str(graded_file(tmp_path / "b.tsv", 7))]))


def test_bundled_pairs_can_be_graded_pairs():
    rows = load_graded(StsConfig(train=["bundled:train"]))
    assert len(rows) > 100 and 0 <= rows.scores.min() < 0.2 and 0.8 < rows.scores.max() <= 1


# -- identity --------------------------------------------------------------------------------------------------------


def test_the_identity_is_stable_and_of_the_content():
    """The value is written down: results of earlier runs are found by it."""
    rows = NliRows(["a", "bé"], ["c", "d"], np.array([0, 2]), unlabelled=4)
    assert identity(rows) == identity(NliRows(["a", "bé"], ["c", "d"], np.array([0, 2]))) == STABLE
    others = [
        NliRows(["bé", "a"], ["c", "d"], np.array([0, 2])),
        NliRows(["a", "bé"], ["c", "d"], np.array([2, 0])),
        NliRows(["c", "d"], ["a", "bé"], np.array([0, 2])),
        NliRows(["ab", "é"], ["c", "d"], np.array([0, 2])),
        NliRows(["a", "béc"], ["", "d"], np.array([0, 2])),
        NliRows(["a"], ["c"], np.array([0])),
        GradedRows(["a", "bé"], ["c", "d"], np.array([0.0, 1.0])),
    ]
    assert len({STABLE, *map(identity, others)}) == len(others) + 1


# -- tokens, files, batches ------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(make_table) -> PairTable:
    first, second = make_table(53, seed=1), make_table(53, seed=2)
    return PairTable(first, second, np.arange(53) % 3)


def tokens_of(table, row) -> list[int]:
    return table.input_ids[table.offsets[row] : table.offsets[row + 1]].tolist()


def same(a: PairTable, b: PairTable) -> bool:
    sides = [(getattr(a, side), getattr(b, side)) for side in ("first", "second")]
    arrays = [(vars(x)[name], vars(y)[name]) for x, y in sides for name in vars(x)] + [(a.labels, b.labels)]
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in arrays)


def test_pairs_are_tokenised_side_by_side(tiny_tokenizer, make_sentences, monkeypatch):
    """In parts or at once; both sides are counted, and cut."""
    first, second, labels = make_sentences(30, 1), make_sentences(30, 2), np.arange(30) % 3
    report = LengthReport(8)
    table = tokenize_pairs(tiny_tokenizer, first, second, labels, 8, report)
    for side, sentences in ((table.first, first), (table.second, second)):
        expected = tokenize(tiny_tokenizer, sentences, 8)
        assert side.ids.tolist() == list(range(30))
        assert [tokens_of(side, i) for i in range(30)] == [tokens_of(expected, i) for i in range(30)]
        assert side.lengths.max() == 8
    assert report.sentences == 60 and report.tokens == len(table.first.input_ids) + len(table.second.input_ids)
    assert report.truncated_sentences > 10 and table.labels is labels and len(table) == 30
    monkeypatch.setattr("raysed.data.tokens._AT_ONCE", 7)
    assert same(tokenize_pairs(tiny_tokenizer, first, second, labels, 8), table)


@pytest.mark.parametrize("labels", [np.arange(53) % 3, np.linspace(0, 1, 53)])
def test_a_table_comes_back_from_its_file(pairs, labels, tmp_path):
    """One Parquet file with the columns of the contract; labels keep their type."""
    table = PairTable(pairs.first, pairs.second, labels)
    write_pairs(table, tmp_path)
    (path,) = tmp_path.iterdir()
    assert pq.read_schema(path).names == ["id", "input_ids1", "input_ids2", "label"]
    assert same(read_pairs(tmp_path), table)


@given(st.lists(st.integers(0, 52), min_size=1, max_size=60))
def test_taking_rows_takes_both_sides_and_the_label(make_table, rows):
    table = PairTable(make_table(53, seed=1), make_table(53, seed=2), np.arange(53) * 10)
    taken = table.take(np.array(rows))
    assert len(taken) == len(rows) and taken.labels.tolist() == [10 * row for row in rows]
    for place, row in enumerate(rows):
        for side in ("first", "second"):
            assert tokens_of(getattr(taken, side), place) == tokens_of(getattr(table, side), row)


def test_a_batch_has_the_first_sentences_and_then_the_second(pairs):
    batch = PairBatches(pairs, 8, seed=3)(4)
    rows = [pairs.first.ids.tolist().index(id_) for id_ in batch.ids]
    assert len(batch.tokens) == 16 and batch.labels.tolist() == pairs.labels[rows].tolist()
    for place, (side, row) in enumerate([("first", row) for row in rows] + [("second", row) for row in rows]):
        here = batch.tokens.segments == place
        order = batch.tokens.position_ids[here].argsort()
        assert batch.tokens.input_ids[here][order].tolist() == tokens_of(getattr(pairs, side), row)


def test_an_epoch_is_a_permutation_of_its_own(pairs):
    """53 pairs in batches of 8: 5 are left out of each epoch, others each time."""
    batches = PairBatches(pairs, 8, seed=1)
    assert batches.per_epoch == 6
    epochs = [np.concatenate([batches(6 * epoch + step).ids for step in range(6)]).tolist() for epoch in range(4)]
    assert all(len(set(epoch)) == 48 <= 53 for epoch in epochs)
    assert len({frozenset(epoch) for epoch in epochs}) == len({tuple(epoch) for epoch in epochs}) == 4
    whole = PairBatches(pairs, 53, seed=1)
    assert sorted(whole(7).ids) == sorted(pairs.first.ids) and whole(7).ids.tolist() != whole(8).ids.tolist()


def test_any_step_is_reached_at_once(pairs):
    """What continuing in the middle of an epoch needs: a batch is a function of seed and step."""
    forward = PairBatches(pairs, 8, seed=1)
    ids = [forward(step).ids.tolist() for step in range(20)]
    for step in (19, 0, 7, 6):
        again = PairBatches(pairs, 8, seed=1)(step)
        assert again.ids.tolist() == forward(step).ids.tolist() == ids[step]
    assert PairBatches(pairs, 8, seed=2)(0).ids.tolist() != ids[0]
    few = PairBatches(pairs.take(np.arange(3)), 8, seed=1)
    assert few.per_epoch == 1 and len(few(0).labels) == 3
