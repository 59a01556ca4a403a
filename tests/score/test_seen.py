"""What is learnt from, or chosen by, is in no score."""

import random

import numpy as np
import pytest

from raysed.config import EvaluationConfig, load_config
from raysed.data.graded import StsTask
from raysed.plan.check import check, load_evaluation
from raysed.score.kinds.neighbours import Neighbours
from raysed.score.kinds.pairs import Pairs
from raysed.score.lexical import key_of
from raysed.score.seen import without_seen
from raysed.score.tasks import Evaluation

DROPS = EvaluationConfig(tasks={"dev": "d.tsv", "test": "t.tsv"}, dev="dev")
KEEPS = DROPS.model_copy(update={"drop_seen": False})


def pairs(name, items, draw):
    """A task of two subsets with random scores."""
    half = len(items) // 2
    parts = {"a": items[:half], "b": items[half:]}
    scored = {k: ([p[0] for p in v], [p[1] for p in v], np.array([draw.random() for _ in v])) for k, v in parts.items()}
    return Pairs(StsTask(name, scored), "mean")


def disguised(pair, draw):
    """The same pair for a reader."""
    return tuple(text.upper().replace(" ", "  ") for text in draw.sample(pair, 2))


@pytest.mark.parametrize("seed", range(5))
def test_pairs_that_were_learnt_from_or_chosen_by_are_left_out_and_no_others(seed):
    draw = random.Random(seed)
    universe = [(f"one {i} a", f"two {draw.randrange(9)} b") for i in range(200)]
    learnt, chosen, asked = (draw.sample(universe, 90) for _ in range(3))
    evaluation = Evaluation([pairs("dev", chosen, draw), pairs("test", asked, draw)])
    found = without_seen(evaluation, DROPS, {"sts.train": [disguised(pair, draw) for pair in learnt]})
    gold = dict(zip(asked, evaluation.tasks["test"].gold))
    test = found.tasks["test"]
    assert test.items() == [pair for pair in asked if pair not in learnt and pair not in chosen]
    assert test.gold.tolist() == [gold[pair] for pair in test.items()]
    assert found.tasks["dev"].items() == [pair for pair in chosen if pair not in learnt]
    assert set(found.sentences) == {text for task in found.tasks.values() for pair in task.items() for text in pair}
    of_train, of_dev = (len({*asked} & {*other}) for other in (learnt, chosen))
    assert test.size.endswith(f"; left out: {of_train} of sts.train, {of_dev} of dev")


def test_what_is_left_of_every_part_may_be_too_little():
    draw = random.Random(0)
    task = pairs("test", [(f"one {i}", f"two {i}") for i in range(8)], draw)
    assert len(task.without([0]).items()) == 7 and task.without([0, 1, 4, 5]) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (KEEPS, "task test: 6 of 6 pairs are also in training or dev data (6 of dev), but are scored anyway"),
        (DROPS, "(6 of dev); the rest cannot be scored, so all are kept; use other data for this task"),
    ],
)
def test_pairs_that_are_kept_or_are_all_there_is_count_whole_and_say_so(caplog, config, said):
    """As clusters of the very texts whose labels are the dev task."""
    caplog.set_level("INFO")
    draw = random.Random(0)
    asked = [(f"one {i}", f"two {i}") for i in range(8)]
    evaluation = Evaluation([pairs("dev", asked, draw), pairs("test", asked[:6], draw)])
    found = without_seen(evaluation, config, {}).tasks["test"]
    assert found.items() == asked[:6] and found.size.endswith("; seen: 6 of dev") and said in caplog.text


def test_labelled_texts_are_left_out_with_their_labels():
    texts, labels = [f"text {i}" for i in range(40)], np.arange(40) % 3
    dev = Neighbours(
        "dev", [f"Text {i}" for i in range(15, 25)] + [f"other {i}" for i in range(20)], labels[:30], [*"abc"]
    )
    test = Neighbours("test", texts, labels, [*"abc"])
    found = without_seen(Evaluation([dev, test]), DROPS, {}).tasks["test"]
    assert found.texts == [text for i, text in enumerate(texts) if i not in range(15, 25)]
    assert found.labels.tolist() == [label for i, label in enumerate(labels.tolist()) if i not in range(15, 25)]
    assert found.classes == [*"abc"]


def test_texts_alone_are_no_pairs():
    assert key_of(["a b"]) != key_of(["a", "b"]) and key_of(["ﬁne", "B "]) == key_of(["b", "Fine"])


def test_a_run_and_raysed_evaluate_leave_out_the_same(tmp_path, tiny_encoder_dir):
    rows = [f"{i % 6}\tone word {i}\ttwo words {i}" for i in range(40)]
    for name, some in {"train": rows[:20], "dev": rows[18:30], "test": rows[10:]}.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *some]) + "\n")
    path = tmp_path / "config.yaml"
    path.write_text(
        f"recipes: [sts]\nencoder: {{path: {tiny_encoder_dir}, max_length: 16}}\n"
        f"sts: {{train: [{tmp_path}/train.tsv]}}\n"
        f"evaluation: {{tasks: {{dev: {tmp_path}/dev.tsv, test: {tmp_path}/test.tsv}}, dev: dev}}\n"
    )
    config = load_config(path)
    job, other = check(config), load_evaluation(config)
    assert [task.task.pairs for task in job.evaluation.tasks.values()] == [10, 10]
    kept = {name: task.content() for name, task in job.evaluation.tasks.items()}
    assert kept == {name: task.content() for name, task in other.tasks.items()}
    all_of_them = check(load_config(path, ["evaluation.drop_seen=false"]))
    assert all_of_them.evaluation.tasks["test"].task.pairs == 30
    assert all_of_them.inputs["tasks"]["test"] != job.inputs["tasks"]["test"]
