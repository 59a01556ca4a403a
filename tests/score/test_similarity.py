"""Reading of sentence pairs, and correlations against slow references written here."""

import gzip
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from raysed.config import TaskConfig, make_config
from raysed.data.graded import StsTask, load_task, read_graded
from raysed.data.pairs import load_graded
from raysed.errors import UserError
from raysed.score.analysis import effective_rank, random_pair_cosine, singular_values
from raysed.score.metrics import ranks, spearman
from raysed.score.tasks import Evaluation, comparable
from raysed.train.stages.sts import StsConfig

HEADER = "subset\tscore\tsentence1\tsentence2\n"
REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "sts"


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


def slow_pearson(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    top = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b))
    low = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return top / low if low else 0.0


def slow_ranks(values):
    """The rank of a value: how many are smaller, plus half of the others that are equal."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]


def slow_cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def random_task(rng, sizes, name="toy"):
    subsets = {}
    for number, size in enumerate(sizes):
        words = [[f"sentence {i}" for i in rng.integers(40, size=size)] for _ in range(2)]
        subsets[f"part{number}"] = (*words, rng.integers(0, 11, size=size) / 2)
    return StsTask(name, subsets)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_spearman_equals_the_slow_reference_with_ties(pairs):
    """Integers from a small range tie often; a constant side gives 0."""
    a, b = zip(*pairs)
    expected = slow_pearson(slow_ranks(a), slow_ranks(b))
    assert spearman(np.array(a), np.array(b)) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 1e-300, 2.0, np.inf, np.nan]), max_size=20))
@settings(max_examples=60, deadline=None)
def test_ranks_equal_those_of_scipy(values):
    for dtype in (np.float32, np.float64):
        x_P = np.array(values, dtype)
        np.testing.assert_array_equal(ranks(x_P), rankdata(x_P))


@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
def test_scores_equal_the_slow_reference_under_every_aggregation(aggregation):
    """Cosines, both correlations and the three aggregations, from loops over the pairs."""
    rng = np.random.default_rng(3)
    tasks = [random_task(rng, [7, 20, 12], "years"), random_task(rng, [15], "single")]
    evaluation = Evaluation(tasks, aggregation)
    vectors = rng.normal(size=(len(evaluation.sentences), 5))
    of = dict(zip(evaluation.sentences, vectors))
    metrics = evaluation.score(vectors.astype(np.float32))
    for task in tasks:
        parts = []
        for first, second, gold in task.subsets.values():
            parts.append(([slow_cosine(of[a], of[b]) for a, b in zip(first, second)], list(gold)))
        for key, change in (("pearson", list), ("spearman", slow_ranks)):
            values = [100 * slow_pearson(change(cosine), change(gold)) for cosine, gold in parts]
            sizes = [len(gold) for _, gold in parts]
            whole = [[value for part in parts for value in part[side]] for side in (0, 1)]
            expected = {
                "all": 100 * slow_pearson(change(whole[0]), change(whole[1])),
                "mean": sum(values) / len(values),
                "wmean": sum(v * n for v, n in zip(values, sizes)) / sum(sizes),
            }
            found = metrics[task.name]
            assert found[key] == pytest.approx(expected[aggregation], abs=1e-3)
            assert (found["pairs"], found["aggregation"]) == (sum(sizes), aggregation)
            if len(parts) > 1:
                assert {way: found[way][key] for way in expected} == pytest.approx(expected, abs=1e-3)
                assert [found["subsets"][s][key] for s in task.subsets] == pytest.approx(values, abs=1e-3)
            else:
                assert set(found) == {"spearman", "pearson", "pairs", "aggregation"}


@pytest.mark.parametrize("aggregation", ["all", "mean"])
def test_a_score_between_two_models_is_the_slow_reference(aggregation):
    rng = np.random.default_rng(0)
    task = random_task(rng, [9, 14])
    evaluation = Evaluation([task], aggregation)
    row = {sentence: i for i, sentence in enumerate(evaluation.sentences)}
    x_UD, y_UD = rng.normal(size=(2, len(row), 5))
    ways = []
    for a_UD, b_UD in ((x_UD, y_UD), (y_UD, x_UD)):
        found = [
            ([slow_cosine(a_UD[row[a]], b_UD[row[b]]) for a, b in zip(first, second)], gold)
            for first, second, gold in task.subsets.values()
        ]
        found = [tuple(np.concatenate(side) for side in zip(*found))] if aggregation == "all" else found
        ways.append(np.mean([100 * slow_pearson(slow_ranks(s), slow_ranks(gold)) for s, gold in found]))
    assert evaluation.score_between(x_UD, y_UD, ["toy"]) == pytest.approx(np.mean(ways))
    own = evaluation.score(x_UD)["toy"]["spearman"]
    assert evaluation.score_between(x_UD, x_UD, ["toy"]) == pytest.approx(own)
    assert evaluation.score_between(x_UD, np.zeros_like(y_UD), ["toy"]) is None


def test_the_three_aggregations_of_a_hand_computed_case():
    """Subsets of 3 and 4 pairs with correlations +1 and -1: mean 0, weighted mean (3 - 4) / 7."""
    up = (["a", "b", "c"], ["d", "e", "f"], np.array([1.0, 2.0, 5.0]))
    down = (["g", "h", "i", "j"], ["k", "l", "m", "n"], np.array([4.0, 3.0, 2.0, 1.0]))
    evaluation = Evaluation([StsTask("toy", {"up": up, "down": down})], "wmean")
    metrics = evaluation.tasks["toy"].metrics(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]))
    assert metrics["mean"]["spearman"] == pytest.approx(0)
    assert metrics["wmean"]["spearman"] == metrics["spearman"] == pytest.approx(-100 / 7)
    # The scores 1 2 5 4 3 2 1 have ranks 1.5 3.5 7 6 5 3.5 1.5; against ranks 1 to 7 the products of the
    # deviations sum to -2, and the squared ones to 27 and 28.
    assert metrics["all"]["spearman"] == pytest.approx(-200 / (27 * 28) ** 0.5)


def test_a_task_may_have_an_aggregation_of_its_own():
    task = random_task(np.random.default_rng(0), [6, 9])
    own = StsTask("own", task.subsets, aggregation="all")
    similarity_P = np.random.default_rng(1).normal(size=15)
    metrics = Evaluation([task, own], "mean").score_outcomes({"toy": similarity_P, "own": similarity_P})
    assert metrics["toy"]["aggregation"] == "mean"
    assert metrics["own"]["spearman"] == metrics["own"]["all"]["spearman"]


def test_each_sentence_is_encoded_once_and_pairs_point_back():
    """Tasks share sentences; the rows of the pairs lead back to every text in order."""
    rng = np.random.default_rng(5)
    tasks = [random_task(rng, [30, 5], "one"), random_task(rng, [25], "two")]
    evaluation = Evaluation(tasks)
    assert len(set(evaluation.sentences)) == len(evaluation.sentences)
    expected = [(a, b) for t in tasks for first, second, _ in t.subsets.values() for a, b in zip(first, second)]
    assert [tuple(evaluation.sentences[i] for i in row) for row in evaluation.pair_rows()] == expected
    assert evaluation.sentences == list(dict.fromkeys(s for pair in expected for s in pair))


def test_scale_rotation_and_block_size_do_not_matter():
    """Scaled and rotated embeddings have the same cosines, and those of one task are the ones that count."""
    rng = np.random.default_rng(6)
    evaluation = Evaluation([random_task(rng, [5000], "large"), random_task(rng, [20], "small")])
    x = rng.normal(size=(len(evaluation.sentences), 6))
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    scaled = x * rng.uniform(0.1, 10, size=(len(x), 1))
    for other in (scaled, x @ rotation):
        assert evaluation.score(other)["large"]["spearman"] == pytest.approx(
            evaluation.score(x)["large"]["spearman"], abs=1e-9
        )
    cosine, gold = evaluation.cosines(x, "small")
    assert 100 * spearman(cosine, gold) == pytest.approx(evaluation.score(x)["small"]["spearman"])


def test_constant_and_zero_embeddings_have_no_score():
    """A correlation with a constant does not exist; in a choice it counts as chance."""
    evaluation = Evaluation([random_task(np.random.default_rng(0), [12])])
    for value in (0.0, 0.1):
        metrics = evaluation.score(np.full((len(evaluation.sentences), 3), value))["toy"]
        assert (metrics["spearman"], metrics["pearson"]) == (None, None)
        assert comparable(metrics["spearman"]) == 0.0


def test_pairs_of_equal_sentences_tie():
    """The cosine of a sentence with itself is 1 whatever the vector, so rounding must not rank such pairs."""
    words = [f"w{i}" for i in range(50)]
    evaluation = Evaluation([StsTask("toy", {"all": (words, words, np.arange(50.0))})])
    x = np.random.default_rng(0).normal(size=(50, 7))
    assert evaluation.score(x)["toy"]["spearman"] is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_embeddings_that_are_not_finite_are_refused_by_sentence(value):
    evaluation = Evaluation([StsTask("toy", {"all": (["a", "b"], ["c", "d"], np.array([1.0, 2.0]))})])
    x = np.ones((4, 2))
    x[3, 1] = value
    with pytest.raises(UserError, match=r"1 of 4 embeddings.*'d'"):
        evaluation.score(x)


def test_a_wrong_number_of_embeddings_or_similarities_is_refused():
    evaluation = Evaluation([random_task(np.random.default_rng(0), [12])])
    with pytest.raises(ValueError, match="rows"):
        evaluation.score(np.ones((3, 2)))
    with pytest.raises(ValueError, match="12 finite"):
        evaluation.score_outcomes({"toy": np.full(12, np.nan)})


def test_table_drops_blank_scores_with_their_sentences(tmp_path):
    """Subsets keep the order of their first row, whatever lies between."""
    body = "x\t1.5\ta\tb\ny\t\tlost1\tlost2\ny\t0\tc\td\nx\t 5 \te\tf\nz\t\tg\th\n\n"
    task = load(table(tmp_path, body))
    assert {k: (a, b, gold.tolist()) for k, (a, b, gold) in task.subsets.items()} == {
        "x": (["a", "e"], ["b", "f"], [1.5, 5.0]),
        "y": (["c"], ["d"], [0.0]),
    }
    assert (task.pairs, task.dropped) == (3, 2)


def test_table_columns_may_come_in_another_order(tmp_path):
    path = table(tmp_path, 'a "quoted\tb\tx\t2\r\n', "sentence1\tsentence2\tsubset\tscore\r\n", "pairs.csv")
    first, second, gold = load(path).subsets["x"]
    assert (first, second, gold.tolist()) == (['a "quoted'], ["b"], [2.0])


def test_senteval_directory_drops_blank_scores_in_step(tmp_path):
    senteval(tmp_path, b=("p\tq\n", "3\n"), a=("one\ttwo\nlost\tlost\nthree\tfour\n", "4.5\n\n0.25\n"))
    task = load(tmp_path)
    assert list(task.subsets) == ["a", "b"]
    first, second, gold = task.subsets["a"]
    assert (first, second, gold.tolist()) == (["one", "three"], ["two", "four"], [4.5, 0.25])
    assert (task.pairs, task.dropped) == (3, 1)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_unicode_line_separators_stay_in_their_sentence(tmp_path, separator):
    sentence = f"before{separator}after"
    assert load(table(tmp_path, f"x\t1\t{sentence}\tb\n")).subsets["x"][0] == [sentence]
    folder = tmp_path / "senteval"
    folder.mkdir()
    senteval(folder, s=(f"{sentence}\tb\nc\td\n", "1\n2\n"))
    assert load(folder).subsets["s"][0] == [sentence, "c"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x\t1\ta\tb\nx\thigh\ta\tb\n", "line 3: score 'high' is not a number"),
        ("x\tnan\ta\tb\n", "line 2: score 'nan' is not finite; "),
        ("x\t5.5\ta\tb\n", "line 2: score 5.5 is outside .* 0 to 5"),
        ("x\t1\ta\n", "line 2: 3 tab-separated columns, but the header has 4"),
        ("x\t1\ta\tb\tc\n", "line 2: 5 tab-separated columns, but the header has 4"),
        ("x\t\ta\tb\n", "no pair with a gold score .1 blank"),
        ("", "no pair with a gold score"),
    ],
)
def test_a_bad_table_is_refused_by_file_and_line(tmp_path, body, message):
    with pytest.raises(UserError, match=rf"pairs\.tsv.*{message}"):
        load(table(tmp_path, body))


def test_wrong_columns_are_named(tmp_path):
    path = table(tmp_path, "1\ta\tb\n", "points\ttext1\ttext2\n")
    with pytest.raises(UserError, match=r"pairs\.tsv, line 1: .*score.*found points, text1, text2; name yours in .*"):
        load(path)
    empty = table(tmp_path, "", "", "empty.tsv")
    with pytest.raises(UserError, match=r"empty\.tsv, line 1"):
        load(empty)


def test_text_that_is_not_utf8_is_refused_by_line(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(HEADER.encode() + b"x\t1\ta\tb\nx\t1\tcaf\xe9\tb\n")
    with pytest.raises(UserError, match=r"pairs\.tsv, line 3: not valid UTF-8"):
        load(path)


@pytest.mark.parametrize("name", ["missing.tsv", "missing/folder/deep", "notes.txt"])
def test_a_missing_or_unknown_file_is_refused(tmp_path, name):
    (tmp_path / "notes.txt").write_text("no table")
    with pytest.raises(UserError, match=Path(name).name):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("pairs", "golds", "message"),
    [
        ("a\tb\nc\td\n", "1\n", r"STS\.input\.s\.txt has 2 lines, but STS\.gs\.s\.txt .* has 1"),
        ("a\tb\n", "x\n", r"STS\.gs\.s\.txt, line 1: score 'x'"),
        ("a b\n", "1\n", r"STS\.input\.s\.txt, line 1: 1 tab-separated columns instead of 2"),
    ],
)
def test_a_bad_senteval_directory_is_refused(tmp_path, pairs, golds, message):
    with pytest.raises(UserError, match=message):
        load(senteval(tmp_path, s=(pairs, golds)))


def test_a_senteval_directory_without_files_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no STS\.input"):
        load(tmp_path)
    (tmp_path / "STS.input.s.txt").write_text("a\tb\n")
    with pytest.raises(UserError, match=r"STS\.gs\.s\.txt cannot be read"):
        load(tmp_path)


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
    (tmp_path / "STS.gs.track4a.es-en.txt").unlink()
    with pytest.raises(UserError, match=r"STS\.gs\.track4a\.es-en\.txt cannot be read"):
        load(tmp_path / "STS.input.track4a.es-en.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\t1\nc\td\n", r"line 2: 2 tab-separated columns instead of 3"),
        ("a\tb\t1\nc\td\t2\te\n", r"line 2: 4 tab-separated columns instead of 3"),
        ("sentence1\tsentence2\tscore\n", r"line 1: score 'score' is not a number"),
        ("a\tb\t\n", r"no pair with a gold score"),
        ("", r"no pair with a gold score"),
    ],
)
def test_bad_lines_of_three_columns_are_refused(tmp_path, text, message):
    (tmp_path / "STS.en-de.txt").write_text(text)
    with pytest.raises(UserError, match=rf"STS\.en-de\.txt.*{message}"):
        load(tmp_path / "STS.en-de.txt")


def arguments(tmp_path, **topics):
    """A directory of argument facet similarity; contents as bytes."""
    for topic, content in topics.items():
        (tmp_path / f"ArgPairs_{topic}.csv").write_bytes(content)
    return tmp_path


def test_arguments_are_read_by_topic(tmp_path):
    """Other columns in between, commas and line ends in quotes, and text that is Latin-1."""
    gun = 'regression_label,csid,sentence_1,sentence_2\n4.2,7,"Guns, he says, ""kill"".","So do\ncars."\n,8,x,y\n'
    death = "\ufeffsentence_2,sentence_1,regression_label\r\nNo.,Döner costs £2.,0\r\n"
    task = load(
        arguments(tmp_path, GC=gun.encode(), DP=death.encode(), GM=gun.replace("cars", "caf\xe9s").encode("latin-1"))
    )
    assert list(task.subsets) == ["DP", "GC", "GM"] and task.dropped == 2
    assert {topic: (a, b, gold.tolist()) for topic, (a, b, gold) in task.subsets.items()} == {
        "DP": (["Döner costs £2."], ["No."], [0.0]),
        "GC": (['Guns, he says, "kill".'], ["So do cars."], [4.2]),
        "GM": (['Guns, he says, "kill".'], ["So do cafés."], [4.2]),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"label,sentence_1,sentence_2\n1,a,b\n", r"line 1: .* regression_label, .* needed, found label, sentence_1"),
        (b"", r"line 1: .* needed, found none"),
        (b"regression_label,sentence_1,sentence_2\n1,a,b\n2,c\n", r"line 3: 2 fields, but the header has 3"),
        (b"regression_label,sentence_1,sentence_2\nhigh,a,b\n", r"line 2: score 'high' is not a number"),
        (b"regression_label,sentence_1,sentence_2\n6,a,b\n", r"line 2: score 6 is outside"),
        (
            b'regression_label,sentence_1,sentence_2\n1,"' + b"a" * 200_000,
            r"line 2: field larger than .*; check for quotation marks that are not closed",
        ),
    ],
)
def test_bad_arguments_are_refused_by_file_and_line(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"ArgPairs_GC\.csv.*{message}"):
        load(arguments(tmp_path, GC=content))


def test_the_mean_over_topics_is_that_of_their_correlations(tmp_path):
    """BSL table 10: Pearson and Spearman of each topic, averaged, whatever the topics' sizes."""
    rng = np.random.default_rng(5)
    rows = {
        topic: [(i % 6, f"{topic} {i}", f"{topic} not {i}") for i in range(n)] for topic, n in (("DP", 9), ("GC", 30))
    }
    for topic, lines in rows.items():
        text = "".join(f"{score},{first},{second}\n" for score, first, second in lines)
        arguments(tmp_path, **{topic: f"regression_label,sentence_1,sentence_2\n{text}".encode()})
    evaluation = Evaluation([load(tmp_path, aggregation="mean")], aggregation="all")
    embeddings = rng.normal(size=(len(evaluation.sentences), 4))
    vector = dict(zip(evaluation.sentences, embeddings.tolist()))
    pearsons, spearmans = [], []
    for lines in rows.values():
        cosines, gold = [slow_cosine(vector[a], vector[b]) for _, a, b in lines], [score for score, *_ in lines]
        pearsons.append(slow_pearson(cosines, gold))
        spearmans.append(slow_pearson(slow_ranks(cosines), slow_ranks(gold)))
    metrics = evaluation.score(embeddings)["toy"]
    assert metrics["aggregation"] == "mean"
    assert metrics["pearson"] == pytest.approx(100 * sum(pearsons) / 2)
    assert metrics["spearman"] == pytest.approx(100 * sum(spearmans) / 2)
    assert metrics["all"]["pearson"] != pytest.approx(metrics["pearson"])


def test_bundled_pairs_are_one_subset(monkeypatch):
    fake = SimpleNamespace(pairs=lambda split: [(1.0, f"{split} a", "b"), (4.0, "c", "d")])
    monkeypatch.setitem(sys.modules, "raysed.bundled", fake)
    monkeypatch.setattr("raysed.bundled", fake, raising=False)
    first, _, gold = load("bundled:dev").subsets["all"]
    assert (first, gold.tolist()) == (["dev a", "c"], [1.0, 4.0])
    with pytest.raises(UserError, match="bundled:train"):
        load("bundled:validation")


@pytest.mark.parametrize("column", ["score", "label", "similarity_score"])
def test_hub_dataset_is_read_by_column(monkeypatch, column):
    """A missing score is dropped; name and split reach the library, which is asked for `test` by default."""
    asked = []
    columns = datasets.Dataset.from_dict({"sentence1": ["a", "b"], "sentence2": ["c", "d"], column: [2.5, None]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **keys: asked.append((args, keys)) or columns)
    task = load("someone/pairs", name="en", split="validation")
    assert (task.subsets["all"][:2], task.dropped) == ((["a"], ["c"]), 1)
    load("someone/pairs")
    assert asked == [
        (("someone/pairs", "en"), {"split": "validation"}),
        (("someone/pairs", None), {"split": "test"}),
    ]


def test_hub_failures_are_one_sentence(monkeypatch):
    def fail(*args, **keys):
        raise FileNotFoundError("no such dataset\nlong story")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        UserError, match=r"^evaluation\.tasks\.toy: there is no file 'someone/pairs', .*no such dataset$"
    ):
        load("someone/pairs")
    other = datasets.Dataset.from_dict({"premise": ["a"], "label": [1]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **keys: other)
    assert load("someone/pairs", columns={"sentence1": "premise", "sentence2": "premise"}).pairs == 1
    other = other.rename_column("premise", "sentence_x")
    with pytest.raises(UserError, match=r"^dataset someone/pairs: .*found sentence_x, label; name yours in"):
        load("someone/pairs")


# -- tables as people have them --------------------------------------------------------------------------------------

TRICKY = [
    (4.5, 'She said: "Guns, ; kill".', "So do\u2028cars."),
    (0.0, "Where?", "It's 3,5 metres; or more."),
    (2.0, "Ein Kätzchen.", "A kitten."),
]
"""Score and sentences with quotation marks, commas and semicolons."""


def frame(names, extra=False, subset=False):
    columns = dict(zip(names, zip(*TRICKY)))
    columns |= {"id": range(3), "note": ["a, b", "", None]} if extra else {}
    columns |= {"subset": ["x", "y", "x"]} if subset else {}
    return pd.DataFrame({name: list(values) for name, values in columns.items()})


def save(pairs, path):
    """As pandas writes them: text with tabs needs to be without quoting."""
    if path.name.startswith("pairs.jsonl"):
        pairs.to_json(path, orient="records", lines=True, force_ascii=False)
    elif path.suffix == ".parquet":
        pairs.to_parquet(path)
    elif path.name.startswith("pairs.csv"):
        pairs.to_csv(path, index=False)
    else:
        rows = [pairs.columns, *pairs.fillna("").astype(str).itertuples(index=False)]
        text = "".join("\t".join(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


ENDINGS = [".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("extra", [False, True])
def test_pairs_are_read_from_every_kind_of_file(tmp_path, ending, extra):
    """Without a subset they are one, and further columns do not matter."""
    path = save(frame(("score", "sentence1", "sentence2"), extra), tmp_path / f"pairs{ending}")
    ((name, (first, second, gold)),) = load(path).subsets.items()
    assert name == "all" and list(zip(gold.tolist(), first, second)) == TRICKY


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_column_subset_divides_pairs_in_every_kind_of_file(tmp_path, ending):
    path = save(frame(("score", "sentence1", "sentence2"), subset=True), tmp_path / f"pairs{ending}")
    assert {name: gold.tolist() for name, (_, _, gold) in load(path).subsets.items()} == {"x": [4.5, 2.0], "y": [0.0]}


@pytest.mark.parametrize(
    "names",
    [
        ("label", "text1", "text2"),
        ("similarity_score", "sentence_1", "sentence_2"),
        ("Score", "sentence_A", "sentence_B"),
        ("relatedness", "premise", "hypothesis"),
        ("relatedness_score", "text_a", "text_b"),
    ],
)
def test_columns_with_well_known_names_are_found(tmp_path, names):
    first, second, gold = load(save(frame(names), tmp_path / "pairs.csv")).subsets["all"]
    assert list(zip(gold.tolist(), first, second)) == TRICKY


@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_with_other_names_are_named_by_the_setting(tmp_path, ending):
    """Also where columns with well-known names hold something else."""
    pairs = frame(("points", "Question", "other question")).assign(score=-1.0, genre=["x", "x", "y"])
    path = save(pairs, tmp_path / f"pairs{ending}")
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


def test_a_mistyped_column_setting_is_named():
    with pytest.raises(UserError, match=r"unknown setting evaluation\.tasks\.mine\.columns\.scor: did you mean"):
        make_config({"evaluation": {"tasks": {"mine": {"source": "a.csv", "columns": {"scor": "x"}}}}})
    with pytest.raises(UserError, match=r"unknown setting sts\.train\.0\.column: did you mean sts\.train\.0\.columns"):
        make_config({"sts": {"train": [{"source": "a.csv", "column": {"score": "x"}}]}})


def test_the_header_says_how_columns_are_separated_whatever_the_ending(tmp_path):
    """STS-B goes about as tab-separated .csv without quoting, where a quotation mark is part of the sentence."""
    tabs = table(tmp_path, 'x\t2\tsay "a, b\tb, c\n', name="tabs.csv")
    assert load(tabs).subsets["x"][:2] == (['say "a, b'], ["b, c"])
    commas = table(tmp_path, '2,"say ""a""",b\n', "score,sentence1,sentence2\n", "commas.tsv")
    assert load(commas).subsets["all"][:2] == (['say "a"'], ["b"])


def test_quoted_cells_may_hold_line_ends_and_lines_are_counted_on(tmp_path):
    header, body = '\ufeff"score",sentence1,sentence2\r\n', '1,"two\r\nlines",b\r\n\r\n'
    assert load(table(tmp_path, body, header, "pairs.csv")).subsets["all"][0] == ["two\nlines"]
    with pytest.raises(UserError, match=r"pairs\.csv, line 5: score 'x' is not a number"):
        load(table(tmp_path, body + "x,a,b\r\n", header, "pairs.csv"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "pairs.csv",
            "score;sentence1;sentence2\n3,5;A man.;A boy.\n",
            "pairs.csv, line 1: columns are separated by semicolons; save the file with commas",
        ),
        (
            "pairs.csv",
            "punkte;satz1;satz2\n3,5;A man.;A boy.\n",
            "pairs.csv, line 1: columns are separated by semicolons; save the file with commas",
        ),
        (
            "pairs.csv",
            'score,sentence1,sentence2\n4.0,A,B\n"3,5",A man.,A boy.\n',
            "pairs.csv, line 3: score '3,5' has a decimal comma; write 3.5",
        ),
        ("pairs.tsv", "score\tsentence1\tsentence2\n,5\tA\tB\n", "line 2: score ',5' has a decimal comma; write .5"),
        ("pairs.csv", "score,sentence1,sentence2\n3,5,A,B\n", "pairs.csv, line 2: 4 fields, but the header has 3"),
        ("pairs.csv", "score,sentence1,sentence2\n3,A\n", "pairs.csv, line 2: 2 fields, but the header has 3"),
        (
            "pairs.csv",
            'score,sentence1,sentence2\n3,"A,B\n',
            "pairs.csv, line 2: .*quotation marks that are not closed",
        ),
        (
            "pairs.csv",
            "score,sentence1\n3,A\n",
            r"pairs.csv, line 1: columns score \(or label\), sentence1 and sentence2 \(or text1 and text2\) are "
            r"needed, found score, sentence1; name yours in evaluation\.tasks\.toy\.columns$",
        ),
        ("pairs.csv", "", "pairs.csv, line 1: columns .* are needed, found none"),
        (
            "pairs.jsonl",
            '{"score": 1, "sentence1": "a"}\n',
            "pairs.jsonl, line 1: columns .* are needed, found score, sentence1; name",
        ),
        (
            "pairs.jsonl",
            '{"score": 1, "sentence1": "a", "sentence2": "b"}\n{"score": 1, "sentence1": "a"}\n',
            "pairs.jsonl, line 2: no field 'sentence2'; found score, sentence1",
        ),
        (
            "pairs.jsonl",
            '{"label": "entails", "sentence1": "a", "sentence2": "b"}\n',
            r"pairs.jsonl, line 1: score 'entails' is not a number; .* in evaluation\.tasks\.toy\.columns",
        ),
        (
            "pairs.jsonl",
            '{"score": 7, "sentence1": "a", "sentence2": "b"}\n',
            r"line 1: score 7 is outside evaluation\.tasks\.toy\.score_range, 0 to 5",
        ),
        ("pairs.xlsx", "x", r"^evaluation\.tasks\.toy: .*pairs.xlsx is not a file of graded pairs; supported endings"),
    ],
)
def test_a_bad_file_of_pairs_is_refused_by_line_with_the_remedy(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load(tmp_path / name)


def test_a_file_with_a_column_split_is_one_task_per_split(tmp_path):
    pairs = frame(("score", "sentence1", "sentence2")).assign(split=["train", "test", "train"])
    path = save(pairs, tmp_path / "pairs.csv")
    assert (load(path, split="train").pairs, load(path, split="test").pairs, load(path).pairs) == (2, 1, 3)
    with pytest.raises(UserError, match="has no rows of the split 'dev'; its splits are 'test', 'train'"):
        load(path, split="dev")


# -- scores that say nothing -----------------------------------------------------------------------------------------


def scores_file(tmp_path, scores, name="pairs.tsv", subsets=None):
    subsets = subsets or ["all"] * len(scores)
    rows = (f"{subset}\t{score}\ta {i}\tb {i}\n" for i, (score, subset) in enumerate(zip(scores, subsets)))
    return table(tmp_path, "".join(rows), name=name)


@pytest.mark.parametrize(
    ("scores", "range_", "example"),
    [
        ([i / 30 for i in range(31)], (0, 5), r", such as \[0, 1\]"),
        ([i / 40 + 0.1 for i in range(30)], (0, 5), r", such as \[0, 1\]"),
        ([i % 6 for i in range(60)], (0, 100), r", such as \[0, 5\]"),
        ([3 + i / 100 for i in range(20)], (0, 5), r", such as \[3, 4\]"),
    ],
)
def test_scores_that_fill_a_small_part_of_their_range_are_refused(tmp_path, scores, range_, example):
    path = scores_file(tmp_path, scores)
    with pytest.raises(UserError, match=rf"^evaluation\.tasks\.toy\.score_range is .*highest score .*have{example}$"):
        task_of(path, score_range=range_)
    with pytest.raises(UserError, match=rf"^(sts\.train\[0\]\.score_range) is .*; set \1 .*{example}$"):
        load_graded(StsConfig(train=[{"source": str(path), "score_range": range_}]).train)
    fewer = scores_file(tmp_path, scores[:19], "fewer.tsv")
    assert task_of(fewer, score_range=range_).pairs == 19


@pytest.mark.parametrize(
    ("scores", "range_"), [([1 + i % 5 for i in range(40)], (0, 5)), ([i / 30 for i in range(31)], (0, 1))]
)
def test_scores_that_fill_their_range_well_enough_are_taken(tmp_path, scores, range_):
    assert task_of(scores_file(tmp_path, scores), score_range=range_).pairs == len(scores)


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


def test_many_equal_scores_are_no_matter_of_the_range_for_a_task_and_one_for_training(tmp_path):
    path = scores_file(tmp_path, [2] * 40)
    with pytest.raises(UserError, match=r"^evaluation\.tasks\.toy: all 40 pairs of .* have the score 2"):
        task_of(path)
    with pytest.raises(UserError, match=r"^sts\.train\[0\]\.score_range .* but the 40 scores of .* are all 2; set"):
        load_graded(StsConfig(train=[str(path)]).train)


def test_subsets_without_a_correlation_are_in_no_mean(tmp_path, caplog):
    """A pair alone, two pairs (always 1 or -1), and equal scores: left out, counted and said."""
    caplog.set_level("INFO", "raysed")
    scores = [1, 2, 3, 4, 5, 3, 1, 4, 2, 2, 2, 2]
    subsets = [*"aaaaa", "one", "two", "two", *["same"] * 4]
    task = task_of(scores_file(tmp_path, scores, subsets=subsets))
    similarity = np.array([0.2, 0.1, 0.3, 0.4, 0.5, 0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.4])
    metrics = Evaluation([task]).score_outcomes({"toy": similarity})["toy"]
    assert metrics["spearman"] == metrics["wmean"]["spearman"] == pytest.approx(90)
    assert metrics["subsets_left_out"] == ["one", "two", "same"]
    assert [metrics["subsets"][name]["spearman"] for name in ("one", "two", "same")] == [None] * 3
    assert metrics["all"]["spearman"] == pytest.approx(100 * slow_pearson(slow_ranks(similarity), slow_ranks(scores)))
    assert "task toy: left out of the mean over subsets" in caplog.text and "one, two, same" in caplog.text


def test_a_mean_over_subsets_of_which_none_has_a_correlation_is_refused(tmp_path):
    """A column of numbers, for example, that was taken for the subset."""
    task = task_of(scores_file(tmp_path, [1, 2, 3, 4], subsets="abcd"))
    with pytest.raises(UserError, match=r"task toy: each of its 4 subsets .*; set .*\.toy\.aggregation to all"):
        Evaluation([task])
    metrics = Evaluation([task], "all").score_outcomes({"toy": np.array([0.1, 0.2, 0.3, 0.4])})["toy"]
    assert metrics["spearman"] == pytest.approx(100) and metrics["mean"]["spearman"] is None


def test_a_model_that_fails_on_a_subset_has_no_mean():
    """Without that subset its mean could not be compared with that of another model."""
    task = random_task(np.random.default_rng(0), [6, 9])
    similarity = np.concatenate([np.full(6, 0.5), np.arange(9)])
    metrics = Evaluation([task]).score_outcomes({"toy": similarity})["toy"]
    assert (metrics["spearman"], metrics["mean"]["pearson"], metrics["wmean"]["spearman"]) == (None, None, None)
    assert metrics["all"]["spearman"] is not None and "subsets_left_out" not in metrics


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real sentence pairs at {REAL}")
def test_no_real_file_and_no_subset_of_one_is_refused(tmp_path):
    for path in sorted(REAL.glob("*.tsv")):
        for name, (_, _, gold) in task_of(path).subsets.items():
            assert task_of(scores_file(tmp_path, gold.tolist())).pairs == len(gold), (path, name)
    sick = REAL.parent / "nli" / "sick-train.tsv"
    for range_ in ((0, 5), (1, 5)):
        assert task_of(sick, score_range=range_).pairs == 5000


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real sentence pairs at {REAL}")
@pytest.mark.parametrize(
    ("name", "pairs", "dropped", "subsets"),
    [
        ("sts12", 2358, 0, 4),
        ("sts13", 1500, 0, 3),
        ("sts15", 3000, 5500, 5),
        ("stsb-dev", 1500, 0, 6),
        ("stsb-test", 1379, 0, 6),
    ],
)
def test_real_files_have_the_known_sizes(name, pairs, dropped, subsets):
    task = load(REAL / f"{name}.tsv")
    assert (task.pairs, task.dropped, len(task.subsets)) == (pairs, dropped, subsets)


def test_singular_values_and_effective_rank_of_known_spectra():
    """A rotated diagonal keeps its values; a rank-2 matrix with equal values has effective rank 2."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 3)))[0] for n in (20, 6))
    values = singular_values(left @ np.diag([6.0, 3.0, 1.5]) @ right.T)
    assert values[:3] == pytest.approx([1, 0.5, 0.25])
    assert effective_rank(singular_values(left[:, :2] @ right[:, :2].T)) == pytest.approx(2)


def test_random_pair_cosine_tells_a_cone_from_even_directions():
    rng = np.random.default_rng(0)
    even = rng.normal(size=(400, 50))
    assert abs(random_pair_cosine(even, seed=0)) < 0.02
    offset = even + 5 * np.eye(50)[0] * 50**0.5  # squared offset 25 * 50 against squared noise 50: cosine 25 / 26
    assert random_pair_cosine(offset, seed=0) == pytest.approx(25 / 26, abs=0.01)
    assert random_pair_cosine(even, seed=1) == random_pair_cosine(even, seed=1)


def test_random_pairs_never_pair_a_row_with_itself():
    assert random_pair_cosine(np.array([[1.0, 0.0], [-1.0, 0.0]]), seed=0, pairs=50) == pytest.approx(-1)
