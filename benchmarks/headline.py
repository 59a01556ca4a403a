"""What learners keep of an ensemble of published models: a run of headline.yaml for each of ARMS, one after the other.

    ../shared/data/teachers ../teachers
    python benchmarks/headline.py --output FILE [--storage runs] [--only "six, mpnet" ...] [--set sed.learners=1]

All read the same number of sentences, and have three seeds. They share a run directory, so each teacher is asked once
about each sentence. In the end all learners and teachers, alone and together, are scored on the same resamples;
differences come with 95 % intervals over the items of the tasks and the seeds. What is in FILE is not trained again.
"""

import argparse
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import TfidfVectorizer

from raysed.config import Config, TeacherConfig, load_config, make_config
from raysed.model.combination import side_by_side
from raysed.model.load import load_model
from raysed.model.teacher import load_teacher
from raysed.process import prepare_process
from raysed.score.intervals import interval, resample
from raysed.score.lexical import TF_IDF
from raysed.score.tasks import Evaluation, Outcomes, mean_score
from raysed.store.storage import Storage
from raysed.store.text import Table, number

from harness import DATA, ROOT
from runs import report_of

CONFIG = ROOT / "benchmarks/headline.yaml"
PUBLISHED = ROOT.parent / "teachers"
SAMPLED = 5000
"""Of the 20,000 titles of stackoverflow so many are a task: to embed them all would take longer than to train."""
MPNET, PARAPHRASE, MINILM = "all-mpnet-base-v2", "paraphrase-MiniLM-L3-v2", "all-MiniLM-L6-v2"
PAIR, ALL = "mpnet + paraphrase", "all three"
TEACHERS = {
    PAIR: (MPNET, PARAPHRASE),
    "mpnet": (MPNET,),
    "paraphrase": (PARAPHRASE,),
    "MiniLM": (MINILM,),
    "MiniLM + paraphrase": (MINILM, PARAPHRASE),
    ALL: (MPNET, PARAPHRASE, MINILM),
}
LEARNERS = {
    "six": ["sed.learning_rate=3e-4"],
    "three": ["encoder.keep_layers=[0, 2, 5]", "sed.learning_rate=5e-4"],
    "table": ["encoder.static={}", "sed.learning_rate=0.01", "sed.batch_size=256"],
}
"""Layers of MiniLM, or a table of one vector per token, and their settings."""
GENERAL, DOMAIN = "general text", "text of the domain"
TEXTS = {
    "": [],
    GENERAL: ["corpus.source=[../shared/data/corpus/*.txt]"],
    DOMAIN: ["corpus.source=[../shared/data/classes/*.tsv]"],
}
"""Beside all text, and as much of it."""


class Label(NamedTuple):
    """A model's name in the picture, the side on which its text is anchored, and the offset from its mark in points."""

    text: str
    align: str
    offset: tuple[float, float]


BEST, BEST_ALONE = f"six, {ALL}", "six, mpnet"
SHOWN = {
    f"{MPNET}, as published": Label("mpnet", "left", (-14, 9)),
    f"{MINILM}, as published": Label("MiniLM", "right", (-8, -5)),
    f"{PARAPHRASE}, as published": Label("paraphrase", "right", (-8, -9)),
    BEST: Label("six layers, three teachers", "left", (-4, 9)),
    BEST_ALONE: Label("six layers, one teacher", "left", (8, -8)),
    f"three, {ALL}": Label("three layers", "left", (8, -4)),
    f"table, {ALL}": Label("token table", "right", (24, -19)),
    TF_IDF: Label("TF-IDF", "right", (-9, -5)),
}
"""The models in the picture. README shows it on phones, so the text is large and short."""
SPEED_SENTENCES = 2000
KINDS = {"pairs": ("stsb-test", "sts12", "sts13"), "classes": ("stackoverflow", "clinc-test"), "retrieval": ("trecqa",)}


@dataclass(frozen=True)
class Arm:
    """Learners of three seeds."""

    learner: str
    teachers: str
    text: str = ""

    @property
    def name(self) -> str:
        """Names it in FILE and in the tables."""
        return ", ".join(filter(None, (self.learner, self.teachers, self.text)))

    def overrides(self, config: Config) -> list[str]:
        """Returns what differs from the config."""
        paths = [config.teachers[0].path.replace(MPNET, name) for name in TEACHERS[self.teachers]]
        sentences = 40_000 if self.text else config.corpus.sentences
        epochs = config.sed.epochs * config.corpus.sentences / sentences
        draw = [f"corpus.sentences={sentences}", f"sed.epochs={epochs}"]
        return [f"teachers={json.dumps(paths)}", *LEARNERS[self.learner], *TEXTS[self.text], *draw]


# Six layers that MiniLM teaches would learn what they are.
ARMS = [Arm("six", teachers) for teachers in TEACHERS if teachers != "MiniLM"]
ARMS += [Arm("three", teachers) for teachers in TEACHERS]
ARMS += [
    Arm("table", PAIR),
    Arm("table", ALL),
    *(Arm(size, PAIR, text) for size in LEARNERS for text in (GENERAL, DOMAIN)),
]


def main() -> None:
    """Trains what FILE lacks and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all scores; what is in it stays")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the run and of the models")
    parser.add_argument("--only", nargs="+", choices=[arm.name for arm in ARMS], help="these learners")
    parser.add_argument("--picture", type=Path, help="PNG file of quality against speed, which is measured for it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of them all")
    arguments = parser.parse_args()
    prepare_process()
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    config = load_config(CONFIG, arguments.set)
    models = arguments.storage.resolve() / f"{config.run}-models"
    for arm in ARMS:
        if arm.name not in found and (not arguments.only or arm.name in arguments.only):
            found[arm.name] = trained(arm, config, arguments.set, models / arm.name)
            arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    published = {f"{name}, as published": [PUBLISHED / name] for name in (MPNET, PARAPHRASE, MINILM)}
    learners = {name: sorted((models / name).iterdir()) for name in found}
    print("\n\n".join(tables(published | learners, models)))
    if arguments.picture:
        draw_speed(published | learners, models, arguments.picture)


def trained(arm: Arm, config: Config, more: Sequence[str], to: Path) -> dict[str, Any]:
    """Runs one arm, and keeps its learners in a directory each below `to`; returns what the report says of them."""
    overrides = [*more, *arm.overrides(config)]
    storage = Storage(str(to.parent.parent), config.run)
    report = report_of(CONFIG, config.run, to.parent.parent, overrides)
    shutil.rmtree(to, ignore_errors=True)
    for old in to.parent.glob(f"{to.name}-*.npz"):  # what earlier learners made of the tasks
        old.unlink()
    for name in storage.names("teachers-sed/learners"):
        shutil.copytree(storage.fetch(name), to / name.rpartition("/")[2])
    return {"overrides": overrides, "rows": [row for row in report["rows"] if row["recipe"].startswith("teachers")]}


def tables(models: Mapping[str, Sequence[Path]], directory: Path) -> list[str]:
    """Returns the scores of all models by kind of task, and what learners of several teachers have before others.

    Args:
        models: directories of seeds or of teachers, by name.
        directory: for what models make of the tasks, which takes longer than to train them.
    """
    evaluation = loaded(directory)
    outcomes = {name: [outcomes_of([path], evaluation, directory) for path in paths] for name, paths in models.items()}
    for name, teachers in TEACHERS.items():
        if len(teachers) > 1:
            outcomes[f"{name} together"] = [outcomes_of([PUBLISHED / t for t in teachers], evaluation, directory)]
    columns = {**{task: (task,) for task in ("stsb-test", "stackoverflow", "clinc-test")}, **KINDS}
    draws = {kind: resample(evaluation, outcomes, tasks, seed=k) for k, (kind, tasks) in enumerate(columns.items())}
    draws["mean"] = {name: sum(draws[kind][name] for kind in KINDS) / len(KINDS) for name in outcomes}
    scores = {
        column: {name: [score(evaluation, model, tasks) for model in group] for name, group in outcomes.items()}
        for column, tasks in columns.items()
    }
    scores["mean"] = {
        name: [statistics.fmean(each) for each in zip(*(scores[kind][name] for kind in KINDS), strict=True)]
        for name in outcomes
    }
    lines = [[name, *(with_spread(scores[column][name]) for column in scores)] for name in outcomes]
    found = [Table(["model", *scores], lines).markdown()]
    for arm in (Arm(size, teachers, text) for size in LEARNERS for teachers in (ALL, PAIR) for text in ("", DOMAIN)):
        first, smaller = arm.name, tuple({*LEARNERS} - {arm.learner})
        others = [name for name in outcomes if name != first and not name.startswith(smaller)]
        if first in models:
            rows = [[name, *(difference(first, name, scores[c], draws[c]) for c in scores)] for name in others]
            found.append(f"{first}, less\n\n{Table(['model', *scores], rows).markdown()}")
    return found


def draw_speed(models: Mapping[str, Sequence[Path]], directory: Path, picture: Path) -> None:
    """Draw the mean score of the SHOWN models against the sentences per second that they embed in fp32.

    Args:
        models: directories of seeds or of teachers, by name. Scores are means over seeds; the first one is timed.
        directory: as for `tables`.
        picture: PNG file to write.
    """
    evaluation, points = loaded(directory), {}
    sentences = evaluation.sentences[:SPEED_SENTENCES]
    for name in [name for name in SHOWN if name in models]:
        seeds = [outcomes_of([path], evaluation, directory) for path in models[name]]
        mean = statistics.fmean(mean_of_kinds(evaluation, outcomes) for outcomes in seeds)
        if name == BEST_ALONE:  # has the layers of BEST, so its speed
            points[name] = (points[BEST][0], mean)
        else:
            points[name] = (rate(load_model(str(models[name][0]), 1, 64).embed, sentences), mean)
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(evaluation.sentences)
    words = evaluation.score_baselines()[TF_IDF].outcomes
    points[TF_IDF] = (rate(vectorizer.transform, sentences), mean_of_kinds(evaluation, words))
    rows = [[name, f"{speed:,.0f}", number(mean)] for name, (speed, mean) in points.items()]
    print(Table(["model", "sentences/s", "mean"], rows).markdown())
    draw_points(points, picture)


def draw_points(points: Mapping[str, tuple[float, float]], picture: Path) -> None:
    """Draw speed and score of models by name; those distilled here stand out, filled if all three taught them."""
    figure = Figure(figsize=(5.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, (speed, mean) in points.items():
        label, is_own = SHOWN[name], name.startswith(tuple(LEARNERS))
        edge = "#D55E00" if is_own else "#6E6E6E"
        axes.scatter(speed, mean, s=80, color="white" if name == BEST_ALONE else edge, edgecolor=edge, lw=2, zorder=3)
        axes.annotate(
            label.text,
            (speed, mean),
            label.offset,
            textcoords="offset points",
            ha=label.align,
            fontsize=13.5,
            color="#B34700" if is_own else "#444444",
            fontweight="bold" if is_own and name != BEST_ALONE else "normal",
        )
    axes.set(xscale="log", xlim=(50, 400_000), ylim=(62.5, 80.5), yticks=range(64, 81, 4))
    axes.set_xlabel("sentences per second, two CPU cores", fontsize=13.5)
    axes.set_ylabel("mean score", fontsize=13.5)
    axes.tick_params(labelsize=12.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E9E9E9")
    figure.savefig(picture, dpi=200)


def rate(embed: Callable[[list[str]], Any], sentences: list[str]) -> float:
    """Returns sentences per second, the best of three times."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        embed(sentences)
        seconds.append(time.perf_counter() - began)
    return len(sentences) / min(seconds)


def mean_of_kinds(evaluation: Evaluation, outcomes: Outcomes) -> float:
    """Returns the mean over the kinds of tasks, x100."""
    return statistics.fmean(score(evaluation, outcomes, tasks) for tasks in KINDS.values())


def loaded(directory: Path) -> Evaluation:
    """Returns the tasks."""
    return Evaluation.load(make_config({"evaluation": {"tasks": tasks_in(directory), "dev": None}}).evaluation, 0)


def tasks_in(directory: Path) -> dict[str, Any]:
    """Returns the tasks, of which one is written into this directory."""
    sample = directory / "stackoverflow.tsv"
    if not sample.exists():
        head, *lines = (DATA / "classes/stackoverflow.tsv").read_text(encoding="utf-8").splitlines()
        sample.write_text("\n".join([head, *random.Random(0).sample(lines, SAMPLED)]) + "\n", encoding="utf-8")
    return {
        "stsb-test": {"source": str(DATA / "sts/stsb-test.tsv"), "aggregation": "all"},
        **{name: str(DATA / f"sts/{name}.tsv") for name in ("sts12", "sts13")},
        "stackoverflow": {"source": str(sample), "kind": "neighbours"},
        "clinc-test": {"source": str(DATA / "classes/clinc-test.tsv"), "kind": "neighbours"},
        "trecqa": str(DATA / "retrieval/trecqa-dev"),
    }


def outcomes_of(paths: Sequence[Path], evaluation: Evaluation, directory: Path) -> Outcomes:
    """Returns what a model, or several side by side, makes of every task; asks it once."""
    file = directory / f"{'+'.join('-'.join(path.parts[-2:]) for path in paths)}.npz"
    if not file.exists():
        embeddings = [embedded(path, tuple(evaluation.sentences)) for path in paths]
        x_UD = side_by_side(embeddings, is_unit=len(paths) > 1).astype(np.float32)
        np.savez(file, **evaluation.score(x_UD).outcomes)
    with np.load(file) as found:
        return dict(found)


@cache
def embedded(path: Path, sentences: tuple[str, ...]) -> np.ndarray:
    """Returns a model's embeddings, [N, D]."""
    print(f"embed with {path}", flush=True)
    return load_teacher(TeacherConfig(path=str(path), max_length=64), precision="auto").embed(sentences)


def score(evaluation: Evaluation, outcomes: Outcomes, tasks: Sequence[str]) -> float:
    """Returns the mean score over some tasks, x100."""
    return mean_score({name: evaluation.tasks[name].metrics(outcomes[name]) for name in tasks}, tasks)


def with_spread(scores: Sequence[float]) -> str:
    """Returns the mean, and the deviation of several seeds."""
    return number(np.mean(scores)) + (f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else "")


def difference(name: str, other: str, scores: Mapping[str, Sequence[float]], draws: Mapping[str, np.ndarray]) -> str:
    """Returns the difference of two groups, and its interval."""
    low, high = interval(draws[name] - draws[other])
    return f"{np.mean(scores[name]) - np.mean(scores[other]):+.1f} ({low:+.1f} to {high:+.1f})"


if __name__ == "__main__":
    main()
