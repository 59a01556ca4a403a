"""What is said of a user's files, against what was put into them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed.data.survey import SAMPLE, survey_corpus, survey_pairs


@pytest.fixture
def write(tmp_path):
    def text_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return text_file


def sentences(count: int, first: int = 0) -> list[str]:
    return [f"Ticket {number} says that {'really ' * (number % 5)}nothing works." for number in range(first, count)]


def test_every_row_is_counted_and_measured(write):
    text = sentences(2000)
    path = write("a.txt", "\n".join([*text, text[0], "", "x", "y" * 2001]) + "\n")
    found = survey_corpus([path])
    report = found.report
    assert (report.lines, report.usable, report.duplicates) == (2004, 2000, 1)
    assert (report.empty, report.too_short, report.too_long) == (1, 1, 1)
    assert found.complete and found.files == [path] and not survey_corpus([path], first=10).complete
    assert found.size == sum(len(line) + 1 for line in [*text, text[0], "", "x", "y" * 2001])
    lengths = sorted(map(len, text))
    assert sorted(found.lengths_N) == lengths
    assert found.taken is None and found.column is None and not found.warnings()


def test_the_sample_is_spread_over_all_that_was_read(write):
    text = sentences(30_000)
    sample = survey_corpus([write("a.txt", "\n".join(text))]).sample
    places = np.array([text.index(sentence) for sentence in sample[::100]])
    assert SAMPLE <= len(sample) <= 2 * SAMPLE
    assert (np.diff(places) == places[1]).all() and places[0] == 0 and places[-1] > 27_000


@pytest.mark.parametrize(
    ("columns", "asked", "taken", "setting", "guessed"),
    [
        (["id", "title", "sentence"], None, "sentence", None, False),
        (["id", "text", "body"], None, "text", None, False),
        (["id", "Text", "body"], None, "Text", None, False),
        (["id", "title", "body"], None, "body", "body", True),
        (["id", "title", "sentence"], "title", "title", "title", False),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_the_column_is_a_known_one_or_that_with_the_longest_text(
    write, tmp_path, kind, columns, asked, taken, setting, guessed
):
    """The ids are longer than any sentence, and are none."""
    values = [[f"{'0' * 90}{n}", f"No. {n}", f"The ticket of customer {n} is open."] for n in range(5)]
    separator = {"csv": ",", "tsv": "\t"}.get(kind)
    path = str(tmp_path / f"a.{kind}")
    if separator:
        write(f"a.{kind}", "\n".join(separator.join(row) for row in [columns, *values]))
    elif kind == "jsonl":
        write("a.jsonl", "\n".join(json.dumps({**dict(zip(columns, row)), "n": 1}) for row in values))
    else:
        pq.write_table(pa.table({**dict(zip(columns, map(list, zip(*values)))), "n": [1] * 5}), path)
    found = survey_corpus([path], asked)
    assert (found.taken, found.column, found.guessed) == (taken, setting, guessed)
    assert found.sample[0] == values[0][columns.index(taken)]


@pytest.mark.parametrize(
    ("name", "text", "warning"),
    [
        ("few.txt", "\n".join(sentences(999)), "999 sentences are few; "),
        ("long.txt", "\n".join([*sentences(1050), *["y" * 2001] * 12]), "12 of 1,062 rows are too long for sentences "),
        ("same.txt", "\n".join([*sentences(1050), *["the same"] * 1100]), "1,099 of 2,150 rows are duplicates, "),
        ("ids.csv", "\n".join(["text", *(f"T-{n:05}" for n in range(1200))]), "column 'text' looks like ids or "),
        ("ids.txt", "\n".join(f"2026-11-{n:05}" for n in range(1200)), "this text looks like ids or numbers "),
        ("tabs.txt", "\n".join(f"{n}\t{text}" for n, text in enumerate(sentences(1200))), "most lines hold tabs; "),
    ],
    ids=lambda value: value if value.endswith(("txt", "csv")) else "",
)
def test_what_will_hurt_is_said(write, name, text, warning):
    (said,) = survey_corpus([write(name, text)]).warnings()
    assert said.startswith(warning)


# -- pairs -----------------------------------------------------------------------------------------------------------


def graded(scores, subset: bool = False) -> str:
    rows = [f"{score}\tA cat {n}.\tA dog {n}." + f"\t{n % 2}" * subset for n, score in enumerate(scores)]
    return "\n".join(["score\tsentence1\tsentence2" + "\tsubset" * subset, *rows])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0, 0.4, 1], (0, 1)),
        ([-0.2, 0.9], (-1, 1)),
        ([1, 3, 5], (0, 5)),
        ([1, 7], (0, 10)),
        ([0, 11], (0, 100)),
        ([-3.5, 120], (-4, 120)),
    ],
)
def test_the_range_of_scores_is_a_usual_one_that_holds_them(write, scores, expected):
    found = survey_pairs(write("a.tsv", graded(scores * 60)))
    assert (found.lowest, found.highest) == (min(scores), max(scores)) and found.score_range == expected
    assert found.pairs == 60 * len(scores) and found.usable and not found.warnings()


def test_pairs_are_counted_by_kind(write):
    lines = graded([1, 2, "", 4], subset=True) + "\n3\tA dog 0.\tA cat 0.\t0"
    found = survey_pairs(write("a.tsv", lines))
    assert (found.pairs, found.blank, found.duplicates, found.subsets) == (4, 1, 1, 2)
    assert [warning.split(" of ")[0] for warning in found.warnings()] == ["4 pairs", "1"]
