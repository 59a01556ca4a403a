"""Reading of graded pairs: every layout, and scores that nothing can be made of."""

import re

import datasets
import pytest

from raysed import bundled
from raysed.config import TaskConfig
from raysed.data.graded import load_task, read_graded
from raysed.data.pairs import load_graded
from raysed.errors import UserError
from raysed.train.stages.sts import StsConfig

HEADER = "subset\tscore\tsentence1\tsentence2\n"
TRICKY = [
    (4.5, 'She said: "Guns, ; kill".', "So do\u2028cars."),
    (0.0, "Where?", "It's 3,5 metres; or more."),
    (2.0, "Ein Kätzchen.", "A kitten."),
]
"""Score and sentences with quotation marks, commas and semicolons."""


def load(path, **settings_):
    """Reads pairs that need not be enough for a correlation."""
    return read_graded("toy", TaskConfig(source=str(path), **settings_), "evaluation.tasks.toy")


def task_of(path, **settings_):
    return load_task("toy", TaskConfig(source=str(path), **settings_))


def table(tmp_path, body, header=HEADER, name="pairs.tsv"):
    path = tmp_path / name
    path.write_bytes((header + body).encode())
    return path


def senteval(tmp_path, **subsets):
    for name, (pairs, golds) in subsets.items():
        (tmp_path / f"STS.input.{name}.txt").write_bytes(pairs.encode())
        (tmp_path / f"STS.gs.{name}.txt").write_bytes(golds.encode())
    return tmp_path


def test_table_drops_blank_scores_and_pairs_of_one_sentence(tmp_path, caplog):
    """Subsets keep the order of their first row, whatever lies between."""
    body = "x\t1.5\ta\tb\ny\t\tlost1\tlost2\nx\t4\tlost\t \ny\t0\tc\td\nx\t 5 \te\tf\nz\t\tg\th\n\n"
    with caplog.at_level("INFO"):
        task = load(table(tmp_path, body))
    assert {k: (a, b, gold.tolist()) for k, (a, b, gold) in task.subsets.items()} == {
        "x": (["a", "e"], ["b", "f"], [1.5, 5.0]),
        "y": (["c"], ["d"], [0.0]),
    }
    assert (task.pairs, task.dropped) == (3, 2)
    assert caplog.messages[0].endswith(": 1 pairs have an empty sentence and are left out")


def test_senteval_directory_drops_blank_scores_in_step(tmp_path):
    """Separators of lines that only Unicode knows stay in their sentence."""
    one = "a\u2028b\u2029c\x85d\x0be\x1cf"
    senteval(tmp_path, b=("p\tq\n", "3\n"), a=(f"{one}\ttwo\nlost\tlost\nthree\tfour\n", "4.5\n\n0.25\n"))
    task = load(tmp_path)
    assert list(task.subsets) == ["a", "b"]
    first, second, gold = task.subsets["a"]
    assert (first, second, gold.tolist()) == ([one, "three"], ["two", "four"], [4.5, 0.25])
    assert (task.pairs, task.dropped) == (3, 1)


def test_a_pair_of_languages_is_read_from_three_columns(tmp_path):
    """STS 2017 extended: no header, any script; marks, quotes and joiners stay as they are."""
    pairs = [
        ("طفلٌ يلعب بالكرة.", "A child plays with a ball.", "4.8"),
        ("¿Qué dijo «él»?", 'He said "nothing', " 1 "),
        ("Işık İstanbul'da yanıyor.", "می\u200cخواهم\u2028بروم", "0"),
    ]
    path = tmp_path / "STS.ar-en.txt"
    path.write_bytes(("\ufeff" + "\r\n".join("\t".join(pair) for pair in pairs) + "\n\n").encode())
    first, second, gold = load(path).subsets["all"]
    assert list(zip(first, second)) == [pair[:2] for pair in pairs]
    assert gold.tolist() == [4.8, 1.0, 0.0]


def test_a_track_of_sts_2017_is_read_with_the_scores_beside_it(tmp_path):
    senteval(tmp_path, **{"track4a.es-en": ("Un niño.\tA boy.\nUna niña.\tA girl.\n", "4.5\n\n")})
    task = load(tmp_path / "STS.input.track4a.es-en.txt")
    first, second, gold = task.subsets["track4a.es-en"]
    assert (first, second, gold.tolist(), task.dropped) == (["Un niño."], ["A boy."], [4.5], 1)


def test_bundled_pairs_are_one_subset():
    first, second, gold = load("bundled:generated-dev").subsets["all"]
    assert list(zip(gold, first, second)) == bundled.pairs("dev")


def test_hub_dataset_is_read_by_column(hub):
    """A missing score is dropped; name and split reach the library, which is asked for `test` by default."""
    for column in ("score", "label", "similarity_score"):
        calls = hub(datasets.Dataset.from_dict({"sentence1": ["a", "b"], "sentence2": ["c", "d"], column: [2.5, None]}))
        task = load("someone/pairs", config_name="en", split="validation")
        assert (task.subsets["all"][:2], task.dropped) == ((["a"], ["c"]), 1)
    load("someone/pairs")
    assert calls == [
        (("someone/pairs", "en"), {"split": "validation"}),
        (("someone/pairs", None), {"split": "test"}),
    ]


def test_columns_with_other_names_are_named_by_the_setting(tmp_path):
    """Also where columns with well-known names hold something else."""
    genres = ("x", "x", "y")
    body = "".join(f"{p}\t{a}\t{b}\t-1\t{genre}\n" for (p, a, b), genre in zip(TRICKY, genres))
    path = table(tmp_path, body, "points\tQuestion\tother question\tscore\tgenre\n")
    columns = {"score": "points", "sentence1": "Question", "sentence2": "other question", "subset": "genre"}
    task = load(path, columns=columns)
    assert list(task.subsets) == ["x", "y"] and task.subsets["y"][:2] == ([TRICKY[2][1]], [TRICKY[2][2]])
    with pytest.raises(UserError) as error:
        load(path, columns={**columns, "sentence1": "Frage"})
    assert re.fullmatch(
        r"\S+(, line 1)?: columns genre, points, Frage and other question are needed, found points, Question, "
        r"other question, score, genre; name yours in evaluation\.tasks\.toy\.columns",
        str(error.value),
    )
    with pytest.raises(UserError, match="columns kind, points, Question and other question are needed"):
        load(path, columns={**columns, "subset": "kind"})


def scores_file(tmp_path, scores, name="pairs.tsv"):
    return table(tmp_path, "".join(f"all\t{score}\ta {i}\tb {i}\n" for i, score in enumerate(scores)), name=name)


def test_scores_that_fill_a_small_part_of_their_range_are_refused(tmp_path):
    for scores, range_ in (([i / 30 for i in range(31)], (0, 5)), ([i % 6 for i in range(60)], (0, 100))):
        path = scores_file(tmp_path, scores)
        with pytest.raises(UserError, match=r"^evaluation\.tasks\.toy\.score_range is .*highest possible score$"):
            task_of(path, score_range=range_)
        with pytest.raises(UserError, match=r"^(sts\.train\[0\]\.score_range) is .*; set \1 .*possible score$"):
            load_graded(StsConfig(train=[{"source": str(path), "score_range": range_}]).train)
        assert task_of(scores_file(tmp_path, scores[:19], "fewer.tsv"), score_range=range_).pairs == 19


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([3], "pairs.tsv has 1 pair with a score, but a correlation needs at least 3"),
        ([3, 5, ""], "pairs.tsv has 2 pairs with a score, but a correlation needs at least 3"),
        ([2] * 4, r"all 4 pairs of .*pairs\.tsv have the score 2, so no correlation is defined"),
    ],
)
def test_a_task_that_has_no_correlation_is_refused_and_can_be_learnt_from(tmp_path, scores, message):
    path = scores_file(tmp_path, scores)
    with pytest.raises(UserError, match=rf"^evaluation\.tasks\.toy: .*{message}"):
        task_of(path)
    assert len(load_graded(StsConfig(train=[str(path)]).train)) == len([score for score in scores if score != ""])
