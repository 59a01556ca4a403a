"""Pairs of sentences, with a class, with a score and of two views: what is read and what is refused."""

import gzip
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.config import ViewsConfig
from raysed.data.pairs import CLASSES, PairRows, entailment, load_graded, load_nli, load_views, usable
from raysed.errors import UserError
from raysed.train.stages.nli import NliConfig
from raysed.train.stages.sts import StsConfig

HEADER = "split\tlabel\tpremise\thypothesis"
ROWS = [
    ("train", "entailment", "A man runs.", "He moves."),
    ("dev", "neutral", "A dog is here.", "It is brown."),
    ("train", "contradiction", "It rains.", "It is dry."),
]
LABELLED = {(row[2], row[3]): CLASSES.index(row[1]) for row in ROWS if row[0] == "train"}
VIEWS = [("A man runs.", "A man is running."), ("It rains.", "Rain falls."), ("She sings.", "Singing, she is.")]
TRANSLATIONS = [
    ("It rains in Istanbul.", "İstanbul'da yağmur yağıyor, ılık bir gün."),
    ("The book is new.", "الكتابُ جديدٌ"),
    ("Caf\u0065\u0301 is open.", "Le cafe\u0301 est ouvert\u2028ici."),
    ("Two\x85lines", "İI iı \U0001f600 e\u0308\u0323"),
]
STABLE = "eead02368de65554"


def as_sources(files) -> list:
    return [file if isinstance(file, dict) else str(file) for file in files]


def nli(*sources) -> PairRows:
    return load_nli(NliConfig(train=as_sources(sources)).train)


def views(*sources, **settings) -> PairRows:
    return load_views(ViewsConfig(files=as_sources(sources), **settings))


def labelled(rows: PairRows) -> dict[tuple[str, str], int]:
    return dict(zip(zip(rows.first, rows.second), rows.labels.tolist()))


def found(rows: PairRows) -> list[tuple[str, str]]:
    return list(zip(rows.first, rows.second))


def write(path, records: list[dict]):
    """Writes the records in the format of the path's ending."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
        return path
    if ".jsonl" in path.name:
        lines = list(map(json.dumps, records))
    else:
        lines = ["\t".join(records[0]), *("\t".join(map(str, record.values())) for record in records)]
    text = "\n".join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_text(path, *lines):
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


# -- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "names"),
    [
        (".tsv", ("premise", "hypothesis", "label")),
        (".txt.gz", ("sentence1", "Sentence2", "gold_label")),
        (".jsonl", ("text1", "text2", "LABEL")),
        (".jsonl.gz", ("premise", "hypothesis", "entailment_label")),
        (".parquet", ("sentence_A", "sentence_B", "label")),
    ],
)
def test_all_formats_and_names_give_the_same_labelled_pairs(tmp_path, ending, names):
    """Also by URI, and whatever else stands in the file."""
    columns = ("note", "split", names[2], names[0], names[1])
    path = write(tmp_path / f"pairs{ending}", [dict(zip(columns, ("x", *row))) for row in ROWS])
    for source in (path, path.as_uri()):
        rows = nli(source)
        assert labelled(rows) == LABELLED and rows.labels.dtype == np.int64 and not any(rows.left_out.values())
        assert len(nli({"source": str(source), "split": "dev"})) == 1
    assert rows.summary().startswith("2 pairs: 1 contradiction, 1 entailment, 0 neutral; left out: 0 without a label")


@pytest.mark.parametrize(
    ("ending", "names"),
    [
        *((".tsv", names) for names in (("view1", "view2"), ("premise", "hypothesis"), ("Text1", "TEXT2"))),
        *((".txt.gz", names) for names in (("sentence_A", "sentence_B"), ("english", "non_english"))),
        *((".jsonl", ("Anchor", "positive")), (".parquet", ("source", "target"))),
        *((".txt", None), (".tsv", None)),  # no header, as in the released back-translations of BSL
    ],
)
def test_all_formats_and_known_names_give_the_same_views(tmp_path, ending, names):
    path = tmp_path / f"views{ending}"
    if names:
        write(path, [{names[0]: one, "note": "x", names[1]: other} for one, other in TRANSLATIONS])
    else:
        write_text(path, *map("\t".join, TRANSLATIONS))
    assert found(views(path)) == TRANSLATIONS


def test_lines_end_at_newlines_only_and_quotes_are_text(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(f'\ufeff{HEADER}\r\n\ntrain\tneutral\t"A man\u2028said\t5" wide\r\n'.encode())
    assert labelled(nli(path)) == {('"A man\u2028said', '5" wide'): 2}
    path.write_bytes('\ufeff"A man\u2028said\t5" wide\r\n\n a \tb\x0cc\r\n'.encode())
    assert found(views(path)) == [('"A man\u2028said', '5" wide'), ("a", "b\x0cc")]


def test_the_released_files_of_sick_and_snli_are_read(tmp_path):
    """SICK's names, and SNLI's last columns that a row may lack."""
    sick = write_text(
        tmp_path / "SICK.txt", "ID\tsentence_A\tsentence_B\tentailment_label\tr", "1\tA b\tC d\tENTAILMENT\t4.5"
    )
    snli = write_text(tmp_path / "s.txt", "gold_label\tsentence1\tsentence2\tl1\tl2", "-\tx\ty", "neutral\tx\tz\tn\tn")
    assert labelled(nli(sick, snli)) == {("A b", "C d"): 1, ("x", "z"): 2}


# -- labels ----------------------------------------------------------------------------------------------------------


def test_labels_by_name_and_by_the_ids_of_the_hub(tmp_path):
    meanings = {"entailment": 1, "neutral": 2, "contradiction": 0, "ENTAILMENT": 1, " Neutral ": 2}
    meanings |= {0: 1, 1: 2, 2: 0, "0": 1, "1": 2, "2": 0, "0.0": 1, "1.0": 2}
    nothing = ("-", -1, "-1", "", "  ", None)
    labels = [*meanings, *nothing]
    records = [{"label": label, "premise": f"a{i}", "hypothesis": "b"} for i, label in enumerate(labels)]
    rows = nli(write(tmp_path / "pairs.jsonl", records))
    assert rows.labels.tolist() == [*meanings.values()] and rows.first == [f"a{i}" for i in range(len(meanings))]
    assert rows.left_out["without a label"] == len(nothing)


def test_pairs_with_an_empty_or_null_sentence_are_left_out(tmp_path):
    """A row that has no label either counts once."""
    lines = ["train\tneutral\t \tb", "train\tneutral\ta\t", "train\t-\t\tb", "train\tentailment\t a \tb"]
    rows = nli(write_text(tmp_path / "pairs.tsv", HEADER, *lines))
    assert labelled(rows) == {("a", "b"): 1}
    assert rows.summary().endswith("left out: 1 without a label, 2 with an empty sentence")
    columns = {"premise": ["a", None, "c"], "hypothesis": [None, "b", "d"], "label": [0, 1, 2]}
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    assert labelled(nli(tmp_path / "pairs.parquet")) == {("c", "d"): 0}


def with_classes(names, labels, **columns) -> datasets.Dataset:
    features = {name: datasets.Value("string") for name in columns} | {"label": datasets.ClassLabel(names=names)}
    return datasets.Dataset.from_dict({**columns, "label": labels}, features=datasets.Features(features))


def test_names_in_a_parquet_file_of_the_hub_count(tmp_path):
    """Its own order of the classes, which it keeps beside the data."""
    names = ["contradiction", "neutral", "entailment"]
    table = with_classes(names, [0, 1, 2, -1], premise=[*"abcd"], hypothesis=[*"xxxx"])
    table.to_parquet(tmp_path / "pairs.parquet")
    rows = nli(tmp_path / "pairs.parquet")
    assert rows.labels.tolist() == [0, 2, 1] and rows.left_out["without a label"] == 1


# -- the hub ---------------------------------------------------------------------------------------------------------


def test_a_hub_dataset_is_read_with_its_class_names(hub):
    names = ["neutral", "entailment", "contradiction"]
    calls = hub(with_classes(names, [1, 0, 2, -1], premise=[*"abcd"], hypothesis=[*"xyzw"]))
    rows = nli("nyu/sets")
    assert labelled(rows) == {("a", "x"): 1, ("b", "y"): 2, ("c", "z"): 0}
    nli({"source": "nyu/sets", "config_name": "mnli", "split": "validation"})
    assert calls == [(("nyu/sets", None), {"split": "train"}), (("nyu/sets", "mnli"), {"split": "validation"})]
    hub(datasets.Dataset.from_dict({"sentence1": [*"abc"], "sentence2": [*"xyz"], "label": [0, 1, 2]}))
    assert nli("some/set").labels.tolist() == [1, 2, 0], "the usual order"


def test_a_hub_that_fails_or_has_another_task_is_refused(hub):
    """QNLI has the same columns and other classes."""
    hub(with_classes(["entailment", "not_entailment"], [0, 1], sentence1=["a", "b"], sentence2=["x", "y"]))
    with pytest.raises(UserError, match=r"^dataset glue/qnli, row 2: label 'not_entailment' is unknown; use one of"):
        nli("glue/qnli")
    hub(ValueError('Unknown split "trian". Should be one of ["train", "test"].\nmore'))
    place = r"^nli\.train: there is no file 'some/set', and it .* hub dataset \(name None, split 'trian'\)"
    with pytest.raises(UserError, match=rf'{place}: Unknown split "trian"\. Should be one of \["train", "test"\]\.$'):
        nli({"source": "some/set", "split": "trian"})


# -- graded pairs ----------------------------------------------------------------------------------------------------


def graded_file(path, *scores):
    lines = (f"s\t{score}\ta{i}\tb{i}" for i, score in enumerate(scores))
    return str(write_text(path, "subset\tscore\tsentence1\tsentence2", *lines))


def test_scores_run_from_0_to_1_whatever_the_range(tmp_path):
    """0 to 5 as SBERT has it, SICK's 1 to 5, and one around zero; several sources are put together."""
    sources = [
        {"source": graded_file(tmp_path / "a.tsv", 0, 2.5, 5)},
        {"source": graded_file(tmp_path / "b.tsv", 1, "", 2, 5), "score_range": (1, 5)},
        {"source": graded_file(tmp_path / "c.tsv", -1, 0.5), "score_range": (-1, 1)},
    ]
    rows = load_graded(StsConfig(train=sources).train)
    np.testing.assert_allclose(rows.labels, [0, 0.5, 1, 0, 0.25, 1, 0, 0.75], rtol=0, atol=1e-15)
    assert rows.first == ["a0", "a1", "a2", "a0", "a2", "a3", "a0", "a1"]
    assert rows.second == [text.replace("a", "b") for text in rows.first]
    assert rows.summary() == "8 pairs, mean score 0.44 of 1; left out: 1 without a score"


# -- usable views ----------------------------------------------------------------------------------------------------


TEXTS = st.lists(st.text(alphabet="aİ\u0301 \t\u00a0", max_size=3), min_size=1, max_size=20)


@given(TEXTS, TEXTS)
def test_usable_pairs_against_a_plain_loop(first, second):
    count = min(len(first), len(second))
    first, second, kept, empty, identical = first[:count], second[:count], [], 0, 0
    for one, other in zip(first, second):
        if not one.strip() or not other.strip():
            empty += 1
        elif one.strip() == other.strip():
            identical += 1
        else:
            kept.append((one.strip(), other.strip()))
    if (empty + identical) / count > 0.5:
        with pytest.raises(UserError, match=f"^them: {empty + identical} of {count} pairs are unusable, {empty} with"):
            usable(first, second, "them")
        return
    rows = usable(first, second, "them")
    assert found(rows) == kept and list(rows.left_out.values()) == [empty, identical]


def test_views_of_several_sources_are_put_together_in_their_order(tmp_path):
    one = write_text(tmp_path / "en-tr.tsv", *map("\t".join, TRANSLATIONS))
    pairs = [*VIEWS, ("same", " same"), ("", "x"), ("a", None)]
    two = write(tmp_path / "b.jsonl", [{"sentence1": first, "sentence2": second} for first, second in pairs])
    rows = views(one, two)
    assert found(rows) == TRANSLATIONS + VIEWS
    assert rows.summary() == "7 pairs; left out: 2 with an empty view, 1 with two identical views"


def test_pairs_labelled_entailment_are_views():
    first, second = [f"p{i}" for i in range(9)] + ["same"], [f"h{i}" for i in range(9)] + ["same"]
    pairs = PairRows(first, second, np.array([0, 1, 2, 1, 1, 0, 2, 2, 1, 1]))
    assert found(entailment(pairs)) == [(f"p{i}", f"h{i}") for i in (1, 3, 4, 8)]
    with pytest.raises(UserError, match=r"^nli.train \(pairs labelled entailment\): 1 of 1 pairs are unusable"):
        entailment(PairRows(["same"], ["same"], np.array([1])))


# -- identity --------------------------------------------------------------------------------------------------------


def test_the_identity_is_stable_and_of_the_content():
    """The value is written down: results of earlier runs are found by it."""
    labels = np.array([0, 2])
    assert PairRows(["a", "bé"], ["c", "d"], labels, {"left out": 3}).identity() == STABLE
    others = [
        PairRows(["bé", "a"], ["c", "d"], labels),
        PairRows(["c", "d"], ["a", "bé"], labels),
        PairRows(["ab", "é"], ["c", "d"], labels),
        PairRows(["a", "béc"], ["", "d"], labels),
        PairRows(["a", "be\u0301"], ["c", "d"], labels),
        *(PairRows(["a", "bé"], ["c", "d"], others) for others in (labels[::-1], labels / 2, None)),
    ]
    assert len({STABLE, *(rows.identity() for rows in others)}) == len(others) + 1
