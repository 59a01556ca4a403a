"""Transfer tasks: every layout from small files, mistakes in them, and how probes become scores."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

import papers.transfer
from papers import probes, regression
from papers.probes import Labelled
from papers.senteval import TASKS, Split, TransferTask, load_tasks
from papers.transfer import average, pair_features, score_task, score_transfer, sentences_of
from raysed.cli import main_of
from raysed.errors import UserError

ROWS = 36
SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
SUBJ = {"SUBJ/subj": ("objective", "subjective")}
NLI = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")


def text_of(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def senteval_files() -> dict[str, str]:
    """All eleven tasks, as SentEval's `data/downstream` has them."""
    rows, types = range(ROWS), ("DESC:manner", "HUM:ind", "NUM:count")
    files: dict[str, list[str]] = {}
    for stem, ends in {**dict.fromkeys(("MR/rt-polarity", "CR/custrev", "MPQA/mpqa"), ("pos", "neg")), **SUBJ}.items():
        files |= {f"{stem}.{end}": [f"{stem} {end} film {i}" for i in rows[::2]] for end in ends}
    for name in ("train_5500", "TREC_10"):
        files[f"TREC/{name}.label"] = [f"{types[i % 3]} what {name} is {i} ?" for i in rows]
    for split in ("train", "dev", "test"):
        files[f"SST/binary/sentiment-{split}"] = [f"a {split} film {i}\t{i % 2}" for i in rows]
        files[f"SST/fine/sentiment-{split}"] = [f"{i % 5} a {split} film {i}" for i in rows]
        sides = [f"a {split} {i}\ta {split} B {i}" for i in rows]
        files[f"STS/STSBenchmark/sts-{split}.csv"] = [f"m\tx\t2012\t{i}\t{i % 6}.0\t{sides[i]}\tmore" for i in rows]
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        pairs = [f"{i}\tA {name} {i}\tB {name} {i}\t{1 + i % 5}.0\t{NLI[i % 3]}" for i in rows]
        files[f"SICK/{name}.txt"] = [SICK_HEADER, *pairs]
    for split in ("train", "test"):
        pairs = [f'{i % 2}\t1\t2\tThe {split} "A {i}\tThe {split} B {i}' for i in rows]
        files[f"MRPC/msr_paraphrase_{split}.txt"] = ["Quality\t#1 ID\t#2 ID\tA\tB", *pairs]
    return {name: text_of(lines) for name, lines in files.items()}


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.fixture
def senteval(tmp_path) -> Path:
    return write(tmp_path, senteval_files())


def refusal(source: Path, tasks: Sequence[str] = ()) -> str:
    with pytest.raises(UserError) as caught:
        load_tasks(source, tasks)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- layouts ---------------------------------------------------------------------------------------------------------

SPLITS = {"train": "train", "dev": "dev|trial", "test": "test|TREC_10"}
"""What is in the sentences of a split."""
LAYOUTS = {
    **dict.fromkeys(("MR", "CR", "MPQA"), ("nested", ["all"], lambda text, i: " pos " in text)),
    "SUBJ": ("nested", ["all"], lambda text, i: " objective " in text),
    "SST2": ("split", [*SPLITS], lambda text, i: i % 2),
    "SST5": ("split", [*SPLITS], lambda text, i: i % 5),
    "TREC": ("folds", ["train", "test"], lambda text, i: (1, 3, 5)[i % 3]),
    "MRPC": ("folds", ["train", "test"], lambda text, i: i % 2),
    "SICKEntailment": ("split", [*SPLITS], lambda text, i: (1, 2, 0)[i % 3]),
    "SICKRelatedness": ("regression", [*SPLITS], lambda text, i: 1 + i % 5),
    "STSBenchmark": ("regression", [*SPLITS], lambda text, i: i % 6),
}
"""Kind, splits, and the label of the sentence with a number."""


def number_of(sentence: str) -> int:
    return int(re.findall(r"\d+", sentence)[-1])


def test_every_task_of_a_senteval_directory_is_read_with_its_labels(senteval):
    tasks = load_tasks(senteval)
    assert [task.name for task in tasks] == list(TASKS)
    for task in tasks:
        kind, splits, label_of = LAYOUTS[task.name]
        assert (task.kind, list(task.splits), task.note) == (kind, splits, "")
        for name, (sides, labels) in task.splits.items():
            numbers = [number_of(sentence) for sentence in sides[0]]
            assert labels.tolist() == [label_of(*row) for row in zip(sides[0], numbers)] and len(labels) == ROWS
            assert all(re.search(SPLITS.get(name, ""), sentence) for side in sides for sentence in side)
            if len(sides) == 2:
                assert [number_of(sentence) for sentence in sides[1]] == numbers
                assert all(re.search(r"\bB\b", sentence) for sentence in sides[1])
    assert 'The train "A 7' in tasks[list(TASKS).index("MRPC")].splits["train"].sides[0], "a quote is a letter"
    sentences = sentences_of(tasks)
    everything = [s for task in tasks for split in task.splits.values() for side in split.sides for s in side]
    assert len(sentences) == len(set(sentences)) < len(everything) and set(sentences) == set(everything)


def test_latin_1_and_utf_8_are_read_and_empty_sentences_are_a_full_stop(tmp_path):
    texts = ["ein größeres Stück", "", "  two\tspaces ", "next\u0085line", *(f"x {i}" for i in range(16))]
    encoded = {"pos": "\n".join(texts).encode("latin-1"), "neg": "\r\n".join(texts).encode()}
    (task,) = load_tasks(write(tmp_path, {f"CR/custrev.{end}": text for end, text in encoded.items()}))
    (sentences,), labels = task.splits["all"]
    for label in (0, 1):
        found = [sentence for sentence, of in zip(sentences, labels) if of == label]
        assert found[0] == "." and {"ein größeres Stück", "two spaces", "next line"} < set(found) and len(found) == 20


def test_examples_are_in_order_of_words_and_label(tmp_path):
    """SentEval's order, on which its folds depend; files' order decides among equals."""
    pos = ["c c", "a a a", "b b", "one"] + [f"p {i} x y" for i in range(12)]
    neg = ["d d", "two"] + [f"n {i} x y" for i in range(12)]
    (task,) = load_tasks(write(tmp_path, {"MR/rt-polarity.pos": "\n".join(pos), "MR/rt-polarity.neg": "\n".join(neg)}))
    reference = sorted(zip(pos + neg, [1] * len(pos) + [0] * len(neg)), key=lambda x: (len(x[0].split()), x[1]))
    assert list(zip(*task.splits["all"].sides, task.splits["all"].labels)) == reference


# -- tables ----------------------------------------------------------------------------------------------------------


def sick_table(splits: Iterable[str]) -> str:
    rows = [f"{s}\t{1 + i % 5}\t{NLI[i % 3].lower()}\tpremise {i}\thypothesis {i}" for i, s in enumerate(splits)]
    return text_of(["split\trelatedness\tlabel\tpremise\thypothesis", *rows])


def test_tables_will_do(tmp_path):
    header, stsb = "subset\tscore\tsentence1\tsentence2", {}
    for split in SPLITS:
        rows = [f"g{i % 2}\t{i % 6}\t{split} a {i}\tb {i}" for i in range(ROWS)]
        stsb[f"sts/stsb-{split}.tsv"] = text_of([header, *rows])
    source = write(tmp_path, {"nli/sick-train.tsv": sick_table(["train"] * 60 + ["trial"] * 9), **stsb})
    tasks = load_tasks(source)
    assert [task.name for task in tasks] == ["SICKEntailment", "SICKRelatedness", "STSBenchmark"]
    for task in tasks[:2]:
        assert [len(task.splits[split].labels) for split in SPLITS] == [40, 9, 20]
        assert task.protocol.endswith("test is 20 of the 60 training rows, drawn with seed 1111")
    sts = tasks[2]
    assert sts.note == "" and [len(sts.splits[split].labels) for split in SPLITS] == [ROWS] * 3
    assert all(number_of(s) % 6 == y for s, y in zip(sts.splits["dev"].sides[0], sts.splits["dev"].labels))


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_a_directory_without_tasks_and_unknown_names_are_refused(tmp_path):
    assert "has no transfer task" in refusal(tmp_path)
    assert "is not a directory" in refusal(tmp_path / "nowhere")
    message = refusal(tmp_path, ["MR", "SICK"])
    assert "'SICK'" in message and all(name in message for name in TASKS)


@pytest.mark.parametrize("name", ["CR/custrev.neg", "SST/fine/sentiment-dev"])
def test_a_missing_file_is_named(senteval, name):
    """Also where the tasks are not listed: a folder that is there is meant to be complete."""
    (senteval / name).unlink()
    assert str(senteval / name) in refusal(senteval)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("SST/binary/sentiment-dev", "good\t1\nbad 0\n", "line 2: write it as a sentence, a tab, and 0 or 1"),
        ("TREC/TREC_10.label", "HUM:ind Who ?\nWHO:x Who ?\n", "line 2: label 'WHO' is not one of abbr, desc"),
        ("SICK/SICK_trial.txt", f"{SICK_HEADER}\n1\ta\tb\t0.5\tNEUTRAL\n", "line 2: score 0.5 is outside the range 1"),
        ("SICK/SICK_trial.txt", f"{SICK_HEADER}\n", "has no example for dev"),
        ("STS/STSBenchmark/sts-dev.csv", "m\tg\t2012\t1\tx\ta\tb\n", "line 1: score 'x' is not a number"),
        ("MR/rt-polarity.neg", "one\ntwo\n", "2 examples of class 0, but 10 folds need at least 12"),
    ],
)
def test_mistakes_in_files_are_named(senteval, name, text, expected):
    message = refusal(write(senteval, {name: text}))
    assert expected in message and str((senteval / name).parent) in message


def test_an_unknown_split_of_a_table_is_named(tmp_path):
    write(tmp_path, {"sick.tsv": sick_table(["train"] * 30 + ["extra"])})
    assert "line 32: split 'extra' is unknown" in refusal(tmp_path, ["SICKRelatedness"])


# -- scoring ---------------------------------------------------------------------------------------------------------


def embeddings_of(tasks: list[TransferTask]) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(sentences_of(tasks)), 8)).astype(np.float32)


@pytest.fixture
def quick(monkeypatch):
    """Short regressions and searches: what they learn does not matter here."""
    monkeypatch.setattr(regression, "_MAX_EPOCHS", 50)
    monkeypatch.setattr(probes, "_MAX_ITERATIONS", 60)
    monkeypatch.setattr(papers.transfer, "FOLDS", 4)
    monkeypatch.setattr(papers.transfer, "SPLIT_GRID", probes.SPLIT_GRID[::5])
    monkeypatch.setattr(papers.transfer, "FOLD_GRID", papers.transfer.FOLD_GRID[::6])


def test_each_kind_of_task_is_scored_by_its_metrics(senteval, quick):
    names = ["TREC", "MRPC", "SST5", "SICKRelatedness"]
    tasks = load_tasks(senteval, names)
    scores = score_transfer(tasks, embeddings_of(tasks))
    assert list(scores) == names and all("accuracy" in scores[name] for name in names[:3])
    assert "f1" in scores["MRPC"] and {"pearson", "spearman"} < set(scores["SICKRelatedness"])


def test_a_nested_search_never_sees_its_test_fold(quick):
    """Labels are noise; one column gives them away, but on the rows of the first outer fold only.

    A probe that is fitted without those rows finds the column constant. One that saw them would be right on all.
    """
    labels_N = np.random.default_rng(3).permutation(np.arange(200) % 2)
    task = TransferTask("MR", "nested", {"all": Split(([f"{i}" for i in range(200)],), labels_N)})
    _, held_out = probes.stratified_folds(labels_N, 1111, 4)[0]
    embeddings_UD = embeddings_of([task])
    embeddings_UD[:, 0] = 0
    embeddings_UD[held_out, 0] = 10 * (2 * labels_N[held_out] - 1)
    scores = score_transfer([task], embeddings_UD)["MR"]
    assert max(scores["folds"][:2]) < 80
    assert scores["accuracy"] == pytest.approx(np.mean(scores["folds"])) and len(scores["folds"]) == 4
    assert scores["std"] == pytest.approx(np.std(scores["folds"], ddof=1)) and len(scores["C"]) == 4
    everything = probes.Labelled(embeddings_UD, labels_N)
    leaky = probes.classify(everything, embeddings_UD[held_out], probes.SPLIT_GRID, everything.folds(1111, 4))
    assert np.mean(leaky.predicted == labels_N[held_out]) == 1, "the leak would show"


@pytest.mark.parametrize("name", ["SST2", "SICKRelatedness", "TREC"])
def test_test_labels_have_no_influence(senteval, quick, name):
    """Other labels of the test split leave choice and dev score as they are."""
    (task,) = load_tasks(senteval, [name])
    test = task.splits["test"]
    turned = TransferTask(name, task.kind, {**task.splits, "test": Split(test.sides, test.labels[::-1].copy())})
    first, second = (score_transfer([t], embeddings_of([task]))[name] for t in (task, turned))
    assert (first["dev"], first.get("C")) == (second["dev"], second.get("C"))


def test_embeddings_that_are_not_finite_are_refused(senteval):
    tasks = load_tasks(senteval, ["SST2"])
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
    (task,) = load_tasks(senteval, ["SICKEntailment"])
    turned = {key: Split(split.sides[::-1], split.labels) for key, split in task.splits.items()}
    exchanged = TransferTask(task.name, task.kind, turned)
    x_UD = embeddings_of([task])
    row = {sentence: i for i, sentence in enumerate(sentences_of([task]))}
    found, data = score_transfer([task], x_UD), {}
    assert score_transfer([exchanged], x_UD[[row[sentence] for sentence in sentences_of([exchanged])]]) == found
    for key, split in task.splits.items():
        sides = [x_UD[[row[sentence] for sentence in side]] for side in split.sides]
        data[key] = Labelled(pair_features(*sides), split.labels)
    assert score_task(task, data, 1111) == found[task.name]


def test_the_command_scores_any_models(senteval, quick, undone, monkeypatch, tmp_path, capsys):
    output = tmp_path / "scores.json"
    words = [str(senteval), "--task", "SST2", "--task", "TREC", "--models", "bundled:encoder", "--output", str(output)]
    assert main_of(papers.transfer.job, papers.transfer.parser(), arguments=words) == 0
    (row,) = json.loads(output.read_text())["transfer"]
    assert row["model"] == "bundled:encoder" and list(row["scores"]) == ["SST2", "TREC"]
    assert row["average"] == pytest.approx(np.mean([scores["accuracy"] for scores in row["scores"].values()]))
    assert f"bundled:encoder: {row['average']:.2f}" in capsys.readouterr().out


def test_a_run_that_is_not_complete_is_refused(senteval, undone, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    words = [str(senteval), "--task", "TREC", "--run", "quickstart", "--output", "scores.json"]
    assert main_of(papers.transfer.job, papers.transfer.parser(), arguments=words) == 2
    assert "runs/quickstart is not complete with these settings" in capsys.readouterr().err
