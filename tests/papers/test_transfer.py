"""Transfer tasks: every layout from small files, mistakes in them, and how probes become scores."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

import papers.transfer
from papers import regression
from papers.senteval import TASKS, Split, TransferTask, load_tasks
from papers.transfer import average, pair_features, score_task, score_transfer, sentences_of
from raysed.cli import main_of
from raysed.errors import UserError
from raysed.score import probes
from raysed.score.probes import Labelled

ROWS = 36
SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
NLI = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")


def lines(make: Callable[[int], str], header: str | None = None, rows: int = ROWS) -> str:
    return "".join(f"{line}\n" for line in [*([header] if header else []), *map(make, range(rows))])


def senteval_files() -> dict[str, str]:
    """All eleven tasks, as SentEval's `data/downstream` has them."""
    opposites = {"MR/rt-polarity": ("pos", "neg"), "CR/custrev": ("pos", "neg"), "MPQA/mpqa": ("pos", "neg")}
    opposites["SUBJ/subj"] = ("objective", "subjective")
    files = {
        f"{stem}.{end}": lines(lambda i, end=end, stem=stem: f"{stem} {end} film {i}", rows=ROWS // 2)
        for stem, ends in opposites.items()
        for end in ends
    }
    types = ("DESC:manner", "HUM:ind", "NUM:count")
    for name in ("train_5500", "TREC_10"):
        files[f"TREC/{name}.label"] = lines(lambda i, name=name: f"{types[i % 3]} what {name} is {i} ?")
    for split in ("train", "dev", "test"):
        files[f"SST/binary/sentiment-{split}"] = lines(lambda i, split=split: f"a {split} film {i}\t{i % 2}")
        files[f"SST/fine/sentiment-{split}"] = lines(lambda i, split=split: f"{i % 5} a {split} film {i}")
        files[f"STS/STSBenchmark/sts-{split}.csv"] = lines(
            lambda i, split=split: f"main\tMSRvid\t2012\t{i}\t{i % 6}.0\ta {split} {i}\ta {split} b {i}\textra column"
        )
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        files[f"SICK/{name}.txt"] = lines(
            lambda i, name=name: f"{i}\tA {name} {i}\tB {name} {i}\t{1 + i % 5}.0\t{NLI[i % 3]}", SICK_HEADER
        )
    for split in ("train", "test"):
        files[f"MRPC/msr_paraphrase_{split}.txt"] = lines(
            lambda i, split=split: f'{i % 2}\t1\t2\tThe {split} "A {i}\tThe {split} B {i}',
            "Quality\t#1 ID\t#2 ID\tA\tB",
        )
    return files


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.fixture
def senteval(tmp_path) -> Path:
    return write(tmp_path, senteval_files())


def load(source: Path, *tasks: str, seed: int = 1111) -> list[TransferTask]:
    return load_tasks(source, tasks, seed)


def refusal(source: Path, tasks: list[str] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_tasks(source, tasks)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- layouts ---------------------------------------------------------------------------------------------------------


def test_all_tasks_of_a_senteval_directory_are_found(senteval):
    assert [task.name for task in load_tasks(senteval)] == list(TASKS)


@pytest.mark.parametrize(
    ("name", "kind", "splits", "classes", "sides"),
    [
        ("MR", "nested", {"all"}, {0, 1}, 1),
        ("SUBJ", "nested", {"all"}, {0, 1}, 1),
        ("TREC", "folds", {"train", "test"}, {1, 3, 5}, 1),
        ("MRPC", "folds", {"train", "test"}, {0, 1}, 2),
        ("SST2", "split", {"train", "dev", "test"}, {0, 1}, 1),
        ("SST5", "split", {"train", "dev", "test"}, {0, 1, 2, 3, 4}, 1),
        ("SICKEntailment", "split", {"train", "dev", "test"}, {0, 1, 2}, 2),
        ("SICKRelatedness", "regression", {"train", "dev", "test"}, {1.0, 2.0, 3.0, 4.0, 5.0}, 2),
        ("STSBenchmark", "regression", {"train", "dev", "test"}, {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}, 2),
    ],
)
def test_a_layout_is_read(senteval, name, kind, splits, classes, sides):
    (task,) = load(senteval, name)
    assert (task.kind, set(task.splits), task.note) == (kind, splits, "")
    for split in task.splits.values():
        assert set(split.labels) == classes and len(split.labels) == ROWS
        assert [len(side) for side in split.sides] == [ROWS] * sides


def test_sentences_keep_their_labels(senteval):
    tasks = {task.name: task.splits for task in load(senteval)}
    for sentence, label in zip(*tasks["MR"]["all"].sides, tasks["MR"]["all"].labels):
        assert label == (" pos " in sentence)
    for sentence, label in zip(*tasks["SST5"]["dev"].sides, tasks["SST5"]["dev"].labels):
        assert re.fullmatch(r"a dev film \d+", sentence) and int(sentence.split()[-1]) % 5 == label
    for sentence, label in zip(*tasks["SST2"]["test"].sides, tasks["SST2"]["test"].labels):
        assert re.fullmatch(r"a test film \d+", sentence) and int(sentence.split()[-1]) % 2 == label
    for question, label in zip(*tasks["TREC"]["train"].sides, tasks["TREC"]["train"].labels):
        assert question.startswith("what train_5500") and (1, 3, 5)[int(question.split()[-2]) % 3] == label
    for first, second, label in zip(*tasks["MRPC"]["train"].sides, tasks["MRPC"]["train"].labels):
        number = int(first.split()[-1])
        assert (first, second) == (f'The train "A {number}', f"The train B {number}") and label == number % 2
    split = tasks["SICKEntailment"]["dev"]
    for first, second, label in zip(*split.sides, split.labels):
        number = int(first.split()[-1])
        assert (first, second) == (f"A SICK_trial {number}", f"B SICK_trial {number}")
        assert label == (1, 2, 0)[number % 3]
    split = tasks["STSBenchmark"]["train"]
    assert all(int(first.split()[-1]) % 6 == label for first, label in zip(split.sides[0], split.labels))


def test_the_first_file_is_class_1(senteval):
    (task,) = load(senteval, "SUBJ")
    split = task.splits["all"]
    assert all((" objective " in s) == bool(label) for s, label in zip(*split.sides, split.labels))


def test_latin_1_and_utf_8_are_read_and_empty_sentences_are_a_full_stop(tmp_path):
    texts = ["ein gr\u00f6\u00dferes St\u00fcck", "", "  two\tspaces ", "next\u0085line"] + [
        f"x {i}" for i in range(16)
    ]
    files = {
        "CR/custrev.pos": "\n".join(texts).encode("latin-1"),
        "CR/custrev.neg": "\r\n".join(texts).encode(),
    }
    split = load(write(tmp_path, files))[0].splits["all"]
    for label in (0, 1):
        found = [s for s, y in zip(*split.sides, split.labels) if y == label]
        assert found[0] == "." and "ein gr\u00f6\u00dferes St\u00fcck" in found
        assert "two spaces" in found and "next line" in found and len(found) == 20


def test_examples_are_in_order_of_words_and_label(tmp_path):
    """SentEval's order, on which its folds depend; files' order decides among equals."""
    pos = ["c c", "a a a", "b b", "one"] + [f"p {i} x y" for i in range(12)]
    neg = ["d d", "two"] + [f"n {i} x y" for i in range(12)]
    split = load(write(tmp_path, {"MR/rt-polarity.pos": "\n".join(pos), "MR/rt-polarity.neg": "\n".join(neg)}))[
        0
    ].splits
    reference = sorted(zip(pos + neg, [1] * len(pos) + [0] * len(neg)), key=lambda x: (len(x[0].split()), x[1]))
    assert list(zip(*split["all"].sides, split["all"].labels)) == reference


# -- tables ----------------------------------------------------------------------------------------------------------


def sick_table(splits: Iterable[str]) -> str:
    header = "split\trelatedness\tlabel\tpremise\thypothesis\n"
    return header + "".join(
        f"{split}\t{1 + i % 5}\t{NLI[i % 3].lower()}\tpremise {i}\thypothesis {i}\n" for i, split in enumerate(splits)
    )


def stsb_tables() -> dict[str, str]:
    return {
        f"sts/stsb-{split}.tsv": lines(
            lambda i, split=split: f"g{i % 2}\t{i % 6}\t{split} a {i}\tb {i}", "subset\tscore\tsentence1\tsentence2"
        )
        for split in ("train", "dev", "test")
    }


def test_tables_will_do(tmp_path):
    source = write(tmp_path, {"nli/sick-train.tsv": sick_table(["train"] * 60 + ["trial"] * 9), **stsb_tables()})
    tasks = load(source)
    assert [task.name for task in tasks] == ["SICKEntailment", "SICKRelatedness", "STSBenchmark"]
    for task in tasks[:2]:
        sizes = {split: len(found.labels) for split, found in task.splits.items()}
        assert sizes == {"train": 40, "dev": 9, "test": 20}
        assert task.note == "test is 20 of the 60 training rows, drawn with seed 1111"
        assert task.protocol.endswith(task.note)
    sts = tasks[2]
    assert sts.note == "" and [len(sts.splits[split].labels) for split in ("train", "dev", "test")] == [ROWS] * 3
    assert all(int(s.split()[-1]) % 6 == y for s, y in zip(sts.splits["dev"].sides[0], sts.splits["dev"].labels))


def test_drawn_splits_are_disjoint_complete_and_of_the_seed(tmp_path):
    source = write(tmp_path, {"sick-all.tsv": sick_table(["train"] * 60)})

    def drawn(seed: int) -> dict[str, set[str]]:
        (task,) = load(source, "SICKEntailment", seed=seed)
        for split in task.splits.values():
            for first, second, label in zip(*split.sides, split.labels):
                number = int(first.split()[-1])
                assert second == f"hypothesis {number}" and label == (1, 2, 0)[number % 3]
        return {key: set(split.sides[0]) for key, split in task.splits.items()}

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert first == again and first["test"] != other["test"]
    assert [len(first[key]) for key in ("train", "dev", "test")] == [34, 6, 20]
    assert len(set().union(*first.values())) == 60


def test_given_splits_are_taken_as_they_are(tmp_path):
    files = {"sick-train.tsv": sick_table(["train"] * 30 + ["trial"] * 6), "sick-test.tsv": sick_table(["test"] * 12)}
    (task,) = load(write(tmp_path, files), "SICKEntailment")
    assert task.note == "" and [len(task.splits[key].labels) for key in ("train", "dev", "test")] == [30, 6, 12]


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_a_directory_without_tasks_is_refused(tmp_path):
    assert "has no transfer task" in refusal(tmp_path)
    assert "is not a directory" in refusal(tmp_path / "nowhere")


def test_unknown_names_are_refused_with_the_known_ones(senteval):
    message = refusal(senteval, ["MR", "SICK"])
    assert "'SICK'" in message and all(name in message for name in TASKS)


@pytest.mark.parametrize("name", sorted(senteval_files()))
def test_a_missing_file_is_named(senteval, name):
    """Also where the tasks are not listed: a folder that is there is meant to be complete."""
    (senteval / name).unlink()
    assert str(senteval / name) in refusal(senteval)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("SST/binary/sentiment-dev", "good\t1\nbad 0\n", "line 2: write it as a sentence, a tab, and 0 or 1"),
        ("SST/binary/sentiment-dev", "good\t2\n", "line 1: label '2' is not one of 0, 1"),
        ("SST/fine/sentiment-dev", "4 good\n7 bad\n", "line 2: label '7' is not one of 0, 1, 2, 3, 4"),
        ("TREC/TREC_10.label", "HUM:ind Who ?\nWHO:x Who ?\n", "line 2: label 'WHO' is not one of abbr, desc"),
        ("MRPC/msr_paraphrase_test.txt", "a\tb\tc\td\te\n1\t2\t3\t4\n", "line 2: write it as 5 tab-separated columns"),
        (
            "SICK/SICK_trial.txt",
            f"{SICK_HEADER}\n1\ta\tb\t0.5\tNEUTRAL\n",
            "score 0.5 is outside the range 1 to 5",
        ),
        ("SICK/SICK_trial.txt", f"{SICK_HEADER}\n1\ta\tb\t3\tMAYBE\n", "line 2: label 'MAYBE'"),
        ("SICK/SICK_trial.txt", f"{SICK_HEADER}\n", "has no example for dev"),
        ("STS/STSBenchmark/sts-dev.csv", "m\tg\t2012\t1\tx\ta\tb\n", "line 1: score 'x' is not a number"),
        ("MR/rt-polarity.neg", "one\ntwo\n", "2 examples of class 0, but 10 folds need at least 12"),
        ("MR/rt-polarity.neg", "", "has only one class, 1;"),
        ("TREC/train_5500.label", "HUM:ind Who ?\n" * 20 + "NUM:date When ?\n" * 9, "9 examples of class 5"),
    ],
)
def test_mistakes_in_files_are_named(senteval, name, text, expected):
    write(senteval, {name: text})
    message = refusal(senteval)
    assert expected in message and str((senteval / name).parent) in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "split\tlabel\tpremise\thypothesis\n",
            "columns split, premise, hypothesis and relatedness are needed, found split, label, premise, hypo",
        ),
        (sick_table(["train"] * 30 + ["extra"]), "line 32: split 'extra' is unknown"),
    ],
)
def test_mistakes_in_tables_are_named(tmp_path, text, expected):
    write(tmp_path, {"sick.tsv": text})
    assert expected in refusal(tmp_path, ["SICKRelatedness"])


# -- scoring ---------------------------------------------------------------------------------------------------------


def embeddings_of(tasks: list[TransferTask], width: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(sentences_of(tasks)), width)).astype(np.float32)


def test_sentences_are_distinct_and_complete(senteval):
    tasks = load(senteval)
    sentences = sentences_of(tasks)
    everything = [s for task in tasks for split in task.splits.values() for side in split.sides for s in side]
    assert len(sentences) == len(set(sentences)) < len(everything) and set(sentences) == set(everything)


@pytest.fixture
def quick(monkeypatch):
    """Short regressions and searches: what they learn does not matter here."""
    monkeypatch.setattr(regression, "_MAX_EPOCHS", 50)
    monkeypatch.setattr(papers.transfer, "SPLIT_GRID", probes.SPLIT_GRID[::5])


def test_all_tasks_are_scored(senteval, quick):
    tasks = load(senteval, "MR", "TREC", "MRPC", "SST5", "SICKRelatedness")
    scores = score_transfer(tasks, embeddings_of(tasks))
    assert list(scores) == ["MR", "TREC", "MRPC", "SST5", "SICKRelatedness"]
    assert {"accuracy", "std", "folds", "dev", "C", "converged", "protocol", "classifier"} == set(scores["MR"])
    assert {"accuracy", "f1", "dev", "C", "converged", "protocol", "classifier"} == set(scores["MRPC"])
    assert {"pearson", "spearman", "dev", "protocol"} == set(scores["SICKRelatedness"])
    accuracies = scores["MR"]["folds"]
    assert scores["MR"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert scores["MR"]["std"] == pytest.approx(np.std(accuracies, ddof=1))
    assert (
        len(scores["MR"]["C"]) == len(accuracies) == 10
        and scores["MR"]["protocol"] == "10 outer folds, C by 10 inner folds"
    )


def planted(kind: str, rows: int = 80) -> TransferTask:
    """Two classes; sentence i is its number."""
    sides = ([f"{i}" for i in range(rows)],)
    labels = np.arange(rows) % 2
    if kind == "nested":
        return TransferTask("MR", "nested", {"all": Split(sides, labels)})
    parts = {key: range(start, rows, 3) for start, key in enumerate(("train", "dev", "test"))}
    splits = {key: Split(([sides[0][i] for i in part],), labels[list(part)]) for key, part in parts.items()}
    return TransferTask("SST2", "split", splits)


@pytest.mark.parametrize("kind", ["nested", "split"])
def test_what_is_in_the_embeddings_is_found(kind):
    task = planted(kind)
    label_U = np.array([int(sentence) % 2 for sentence in sentences_of([task])])
    embeddings_UD = embeddings_of([task])
    embeddings_UD[:, 3] = 4 * label_U + 0.1 * embeddings_UD[:, 3]
    (scores,) = score_transfer([task], embeddings_UD).values()
    assert scores["accuracy"] > 98


def test_a_nested_search_never_sees_its_test_fold():
    """Labels are noise; one column gives them away, but on the rows of the first outer fold only.

    A probe that is fitted without those rows finds the column constant. One that saw them would be right on all.
    """
    rng = np.random.default_rng(3)
    task = planted("nested", rows=200)
    labels_N = rng.permutation(task.splits["all"].labels)
    task = TransferTask("MR", "nested", {"all": Split(task.splits["all"].sides, labels_N)})
    _, held_out = probes.stratified_folds(labels_N, 1111, 10)[0]
    embeddings_UD = embeddings_of([task])
    embeddings_UD[:, 0] = 0
    embeddings_UD[held_out, 0] = 10 * (2 * labels_N[held_out] - 1)
    first, second = score_transfer([task], embeddings_UD)["MR"]["folds"][:2]
    assert first < 80
    everything = probes.Labelled(embeddings_UD, labels_N)
    leaky = probes.classify(everything, embeddings_UD[held_out], probes.SPLIT_GRID, everything.folds(1111, 10))
    assert np.mean(leaky.predicted == labels_N[held_out]) == 1, "the leak would show"
    assert second < 80


@pytest.mark.parametrize("name", ["SST2", "SICKRelatedness", "TREC"])
def test_test_labels_have_no_influence(senteval, quick, name):
    """Other labels of the test split leave choice and dev score as they are."""
    (task,) = load(senteval, name)
    test = task.splits["test"]
    turned = TransferTask(name, task.kind, {**task.splits, "test": Split(test.sides, test.labels[::-1].copy())})
    first, second = (score_transfer([t], embeddings_of([task]))[name] for t in (task, turned))
    assert (first["dev"], first.get("C")) == (second["dev"], second.get("C"))


def test_embeddings_that_are_not_finite_are_refused(senteval):
    tasks = load(senteval, "SST2")
    embeddings_UD = embeddings_of(tasks)
    embeddings_UD[5, 1] = np.nan
    with pytest.raises(UserError, match="SST2: some embeddings are not finite"):
        score_transfer(tasks, embeddings_UD)
    with pytest.raises(ValueError, match="rows of embeddings expected"):
        score_transfer(tasks, embeddings_UD[1:])


def test_the_average_is_that_of_the_paper():
    """BERT-Large in SED table 7."""
    cells = (88.74, 84.33, 86.64, 95.27, 79.29, 50.32, 91.40, 71.65, 75.28, 77.09, 66.22)
    scores = {str(i): {"accuracy": cell, "f1": 0.0} for i, cell in enumerate(cells[:-2])}
    scores |= {str(cell): {"pearson": cell, "spearman": 0.0} for cell in cells[-2:]}
    assert average(scores) == pytest.approx(78.75, abs=0.005)


def test_pairs_have_pair_features(senteval):
    """A symmetric function of both sentences: with the sides exchanged everything is the same."""
    (task,) = load(senteval, "SICKEntailment")
    exchanged = TransferTask(
        task.name, task.kind, {key: Split(split.sides[::-1], split.labels) for key, split in task.splits.items()}
    )
    x_UD = embeddings_of([task])
    row = {sentence: i for i, sentence in enumerate(sentences_of([task]))}
    assert sorted(row) == sorted(sentences_of([exchanged]))
    same_UD = x_UD[[row[sentence] for sentence in sentences_of([exchanged])]]
    assert score_transfer([exchanged], same_UD) == score_transfer([task], x_UD)
    data = {}
    for key, split in task.splits.items():
        sides = [x_UD[[row[sentence] for sentence in side]] for side in split.sides]
        data[key] = Labelled(pair_features(*sides), split.labels)
    assert score_task(task, data, 1111) == score_transfer([task], x_UD)[task.name]


def test_the_command_scores_any_models(senteval, quick, monkeypatch, tmp_path, capsys):
    output = tmp_path / "scores.json"
    words = [str(senteval), "--task", "SST2", "--task", "TREC", "--model", "bundled:encoder", "--output", str(output)]
    assert main_of(papers.transfer.job, papers.transfer.parser(), arguments=words) == 0
    (row,) = json.loads(output.read_text())["transfer"]
    assert row["model"] == "bundled:encoder" and list(row["scores"]) == ["SST2", "TREC"]
    assert row["average"] == pytest.approx(np.mean([scores["accuracy"] for scores in row["scores"].values()]))
    assert f"bundled:encoder: {row['average']:.2f}" in capsys.readouterr().out


def test_the_development_data_gives_three_tasks(data_dir):
    tasks = {task.name: task for task in load(data_dir)}
    sizes = {name: [len(task.splits[s].labels) for s in ("train", "dev", "test")] for name, task in tasks.items()}
    sick = [3000, 500, 1500]
    assert sizes == {"SICKEntailment": sick, "SICKRelatedness": sick, "STSBenchmark": [5749, 1500, 1379]}
