"""`raysed teachers`: tables on the terminal, the same numbers as JSON, and one sentence for each mistake."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed.commands.teachers import job, parser
from raysed.data.graded import StsTask
from raysed.errors import UserError
from raysed.score.kinds.pairs import Pairs
from raysed.score.tasks import Evaluation, main_score

WORDS = "cat dog sun rain tree house road river bread cheese milk stone".split()
SENTENCES = [f"the {a} and the {b}" for a in WORDS for b in WORDS]


def teach(path: str, seed: int, sentences=SENTENCES) -> None:
    """Writes embeddings that follow the words, by vectors of its own and noise."""
    rng = np.random.default_rng(seed)
    of = {word: rng.normal(size=6) for word in WORDS}
    x_ND = np.array([of[text.split()[1]] + of[text.split()[4]] for text in sentences])
    x_ND += 0.8 * rng.normal(size=x_ND.shape)
    pq.write_table(pa.table({"sentence": sentences, "embedding": x_ND.astype(np.float32).tolist()}), path)


def pairs_of(seed: int) -> list[tuple[float, str, str]]:
    rng = np.random.default_rng(seed)
    pairs = [(SENTENCES[a], SENTENCES[b]) for a, b in rng.integers(len(SENTENCES), size=(60, 2))]
    return [(len(set(a.split()) & set(b.split())) - 2.0, a, b) for a, b in pairs]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("dev", "pairs"), 1):
        lines = ["score\tsentence1\tsentence2", *(f"{score}\t{a}\t{b}" for score, a, b in pairs_of(seed))]
        Path(f"{name}.tsv").write_text("\n".join(lines))
    Path("topics.tsv").write_text("\n".join(["text\tlabel", *(f"{text}\t{text.split()[1]}" for text in SENTENCES)]))
    Path("text.txt").write_text("\n".join(SENTENCES))
    for seed, name in enumerate("ab"):
        teach(f"{name}.parquet", seed)


@pytest.fixture
def compare(capsys):
    """Runs the command; returns what it shows, and the JSON."""

    def call(words: str) -> tuple[str, dict]:
        job(parser().parse_args(["--teachers", *words.split(), "--output", "o.json"]))
        return capsys.readouterr().out, json.loads(Path("o.json").read_text())

    return call


def test_the_task_that_chooses_is_not_one_that_does_not(compare):
    _, found = compare("a.parquet b.parquet --task dev.tsv --task pairs.tsv --dev dev.tsv")
    assert (found["worth"]["dev"], found["worth"]["tasks"]) == (["dev"], ["pairs"])


def test_teachers_alone_and_together_by_kind_of_task(compare):
    shown, found = compare("a.parquet b.parquet --task pairs.tsv --task topics.tsv --dev dev.tsv")
    worth = found["worth"]
    assert worth["kinds"] == {"pairs": ["pairs"], "neighbours": ["topics"]}
    assert worth["dev"] == ["dev"] and [row["teachers"] for row in worth["rows"]] == [["a"], ["b"], ["a", "b"]]
    chosen_by = {frozenset(pair) for _, *pair in pairs_of(1)}
    of_its_own = [(a, b, score) for score, a, b in pairs_of(2) if frozenset((a, b)) not in chosen_by]
    assert 3 < len(of_its_own) < 60
    first, second, gold = zip(*of_its_own)
    evaluation = Evaluation([Pairs(StsTask("pairs", {"": (list(first), list(second), np.array(gold))}))])
    vectors = {row["sentence"]: row["embedding"] for row in pq.read_table("a.parquet").to_pylist()}
    alone = main_score(evaluation.score(np.array([vectors[text] for text in evaluation.sentences])).metrics["pairs"])
    assert worth["rows"][0]["tasks"]["pairs"] == pytest.approx(alone, abs=1e-4)
    assert f"{worth['rows'][2]['scores']['mean']:.2f}" in shown and "(best on dev)" in shown
    assert "gain over the best teacher" in shown and "neighbours that both find" in shown
    assert found["agreement"]["sentences"] == len(SENTENCES)  # those of all tasks


def test_without_labels_only_the_agreement_is_shown(compare):
    shown, found = compare("a.parquet b.parquet --corpus text.txt")
    assert list(found) == ["agreement"]
    assert "a and b" in shown and "name a --dev task: " in shown and "best single teacher" not in shown


def test_choices_on_the_only_task_say_so(compare):
    assert "chosen by these same scores" in compare("a.parquet b.parquet --task pairs.tsv")[0]


def test_a_task_that_a_file_does_not_know_is_left_out(compare):
    teach("c.parquet", 5, sorted({text for _, *pair in pairs_of(2) for text in pair}))
    shown, found = compare("a.parquet c.parquet --task pairs.tsv --dev dev.tsv")
    assert "left out: dev: c has no embeddings for some of its sentences" in shown
    assert found["worth"]["tasks"] == ["pairs"]
    with pytest.raises(UserError, match=r"^\d+ sentences without labels are too few to show .* name at least 100 in"):
        compare("a.parquet c.parquet --task topics.tsv")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("a.parquet --task pairs.tsv", r"compares combinations of models; name two or more, or score one .*"),
        ("a.parquet b.parquet", r"teachers cannot be compared .*; name a --task with labels, or .* --corpus"),
        ("a.parquet same.parquet --task pairs.tsv", r"teachers: 'a.parquet' and 'same.parquet' are the same; name it"),
        ("a.parquet members --task pairs.tsv", r"teachers: 'members' exists only within a run; name models or .*"),
        ("a.parquet b.parquet --task pairs.tsv --set combination.weights=[1]", r".* has 1 weights for 2 teachers; .*"),
    ],
)
def test_mistakes_end_in_one_sentence(compare, words, sentence):
    shutil.copy("a.parquet", "same.parquet")
    with pytest.raises(UserError, match=sentence):
        compare(words)
