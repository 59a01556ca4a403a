"""The README's table of results: published models, what they teach one small model, and what text that takes.

    make headline                                  # public: models and data from the hub and from GitHub
    make headline HEADLINE="--local ../shared/data"    # models in ../teachers, data in a directory laid out alike

Everything that is read, its revision, split and cut stands in headline.yaml, with the settings; headline_data.py reads
it. For each of ARMS a run of that config trains learners. All rows of one text share a run directory, so each teacher
is asked once about each sentence. In the end all models are scored on the same resamples of the tasks, and timed.
The same command continues what was stopped: runs resume, and RESULTS/scores.json keeps what is done.

RESULTS is `headline-results` in --storage (`runs`):

    table.md       the README's table, its differences with 95 % intervals over items and seeds, all scores, settings
    scores.json    settings and seeds of each row, speeds
    data/, text/   data as it was fetched; the training texts, a sentence a line
    models/        the learners, a directory for each row, one below it for each seed

Texts. `domain`: 45,000 sentences of a pool that holds the scored texts of Stack Overflow and CLINC, of TREC-QA, and of
some pairs, without labels: what distilling on one's own text gives. `zero-shot`: 40,000 sentences of general text, none
of which is scored; nothing of Stack Overflow and CLINC is read. Both have the same number of updates.
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
import yaml
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

from harness import ROOT, where
from headline_data import differing, download, gather, key, load, texts
from runs import report_of

CONFIG = ROOT / "benchmarks/headline.yaml"
SAMPLED = 5000
"""Of the 20,000 titles of stackoverflow so many are a task: to embed them all would take longer than to train."""
MPNET, PARAPHRASE, MINILM = "all-mpnet-base-v2", "paraphrase-MiniLM-L3-v2", "all-MiniLM-L6-v2"
ALONE, ALL = "mpnet alone", "three teachers"
TEACHERS = {ALONE: (MPNET,), ALL: (MPNET, PARAPHRASE, MINILM)}
LEARNERS = {
    "six MiniLM layers": [],
    "three MiniLM layers": ["encoder.keep_layers=[0, 2, 5]", "sed.learning_rate=5e-4"],
    "one vector per token": ["encoder.static={}", "sed.learning_rate=0.01", "sed.batch_size=256"],
}
"""Layers of MiniLM, or a table of token vectors, and their settings."""
SIX, THREE, TABLE = LEARNERS
DOMAIN, ZERO_SHOT = "domain", "zero-shot"
SHARE = {DOMAIN: 1.0, ZERO_SHOT: 8 / 9}
"""Of `corpus.sentences`: zero-shot text has 42,000."""
GENERAL = ("corpus/english-38k.txt", "corpus/wikipedia-12k.txt")
KINDS = {"pairs": ("stsb-test", "sts12", "sts13"), "classes": ("stackoverflow", "clinc-test"), "retrieval": ("trecqa",)}
SCORED = {
    **{name: f"sts/{name}.tsv" for name in KINDS["pairs"]},
    **{name: f"classes/{name}.tsv" for name in KINDS["classes"]},
    "trecqa": "retrieval/trecqa-dev",
}
SPEED_SENTENCES = 2000
NOTES = """Pairs: Spearman on STS-B test, STS12 and STS13. Classes: accuracy of the five nearest neighbours on 5,000
titles of Stack Overflow and on CLINC. Retrieval: nDCG@10 on TREC-QA. All x100. Learners of zero-shot text have read no
scored text; the others may have read those of classes and retrieval and some pairs, without labels and scores."""


@dataclass(frozen=True)
class Arm:
    """Learners of some seeds: a row of the table."""

    learner: str
    teachers: str
    text: str = DOMAIN
    seeds: int = 3

    @property
    def name(self) -> str:
        """Names it in the results and in the tables."""
        return ", ".join([self.learner, self.teachers, *[f"{self.text} text"] * (self.text != DOMAIN)])

    def overrides(self, config: Config, teachers: Mapping[str, Path], pool: Path) -> list[str]:
        """Returns what differs from the config."""
        sentences = round(config.corpus.sentences * SHARE[self.text])
        return [
            f"teachers={json.dumps([str(teachers[name]) for name in TEACHERS[self.teachers]])}",
            *LEARNERS[self.learner],
            f"corpus.source={json.dumps(str(pool))}",
            f"corpus.sentences={sentences}",
            f"sed.epochs={config.sed.epochs * config.corpus.sentences / sentences}",
            f"sed.learners={min(self.seeds, config.sed.learners)}",
        ]


# The two differences that the README states need seeds; a token table costs little.
ARMS = [
    Arm(SIX, ALL),
    Arm(SIX, ALONE),
    Arm(THREE, ALL, seeds=1),
    Arm(TABLE, ALL),
    Arm(SIX, ALL, ZERO_SHOT, seeds=1),
    Arm(TABLE, ALL, ZERO_SHOT, seeds=1),
]
BEST, BEST_ALONE, _, _, BEST_ZERO_SHOT, _ = (arm.name for arm in ARMS)


class Label(NamedTuple):
    """A model's name in the picture, the side on which its text is anchored, and the offset from its mark in points."""

    text: str
    align: str
    offset: tuple[float, float]


SHOWN = {
    MPNET: Label("mpnet", "left", (-8, 9)),
    MINILM: Label("MiniLM", "right", (-8, -5)),
    PARAPHRASE: Label("paraphrase", "right", (-8, -9)),
    BEST: Label("six layers, three teachers", "left", (-4, 9)),
    BEST_ALONE: Label("six layers, one teacher", "left", (8, -8)),
    f"{THREE}, {ALL}": Label("three layers", "left", (8, -4)),
    f"{TABLE}, {ALL}": Label("token table", "right", (24, -19)),
    TF_IDF: Label("TF-IDF", "right", (-9, -5)),
}
"""The models in the picture. README shows it on phones, so the text is large and short."""


def main() -> None:
    """Trains what is missing, scores and times all models, and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--local", type=Path, metavar="DIR", help="data laid out as in headline.yaml; nothing is fetched"
    )
    parser.add_argument(
        "--teachers", type=Path, default=ROOT.parent / "teachers", metavar="DIR", help="published models of --local"
    )
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the runs and of the results")
    parser.add_argument("--only", nargs="+", choices=[arm.name for arm in ARMS], help="these learners")
    parser.add_argument("--seeds", type=int, default=0, help="at least so many for each row, up to sed.learners")
    parser.add_argument("--picture", type=Path, help="PNG file of quality against speed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of all rows")
    arguments = parser.parse_args()
    prepare_process()
    began, content = time.monotonic(), load(CONFIG)
    results = (arguments.storage / "headline-results").resolve()
    (results / "models").mkdir(parents=True, exist_ok=True)
    if arguments.local:
        data, teachers = arguments.local.resolve(), {n: arguments.teachers.resolve() / n for n in content["teachers"]}
    else:
        data, teachers = gather(content["data"], results / "data"), download(content["teachers"])
    different = differing(content["data"], data)
    pools = write_pools(data, results / "text")
    file = results / "scores.json"
    found = json.loads(file.read_text()) if file.exists() else {"rows": {}, "speed": {}}
    arms = [Arm(arm.learner, arm.teachers, arm.text, max(arm.seeds, arguments.seeds)) for arm in ARMS]
    for count, arm in enumerate(arms, 1):
        if arguments.only and arm.name not in arguments.only:
            continue
        print(f"row {count} of {len(arms)}: {arm.name} ({(time.monotonic() - began) / 60:.0f} minutes)", flush=True)
        config = write_config(content["settings"], data, teachers[MINILM], results / f"{arm.text}.yaml", arm.text)
        overrides = [*arguments.set, *arm.overrides(load_config(config, arguments.set), teachers, pools[arm.text])]
        if found["rows"].get(arm.name) != overrides:
            train(arm, config, overrides, arguments.storage.resolve(), results / "models" / arm.name)
            found["rows"][arm.name] = overrides
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    learners = {
        arm.name: sorted((results / "models" / arm.name).iterdir()) for arm in arms if arm.name in found["rows"]
    }
    models = {name: [path] for name, path in teachers.items()} | learners
    scores = Scores.of(models, loaded(data, results), results / "models")
    time_all({name: paths[0] for name, paths in models.items()}, scores.evaluation, found["speed"])
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = page_of(scores, found, content["settings"], different, arguments.local)
    (results / "table.md").write_text(page, encoding="utf-8")
    print(f"{page}\n{results / 'table.md'}, after {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    if arguments.picture:
        words = mean_of_kinds(scores.evaluation, scores.evaluation.score_baselines()[TF_IDF].outcomes)
        means = {name: statistics.fmean(each) for name, each in scores.scores["mean"].items()} | {TF_IDF: words}
        draw_points({n: (found["speed"][n], means[n]) for n in SHOWN if n in means}, arguments.picture)


def write_pools(data: Path, directory: Path) -> dict[str, Path]:
    """Writes the texts that runs draw from, a sentence a line."""
    scored = {key(text) for name in SCORED.values() for text in texts(data / name)}
    general = [text for name in GENERAL for text in texts(data / name)]
    own = [text for path in sorted((data / "classes").glob("*.tsv")) for text in texts(path)]
    found = {DOMAIN: [*general, *own], ZERO_SHOT: [text for text in general if key(text) not in scored]}
    directory.mkdir(parents=True, exist_ok=True)
    for name, pool in found.items():
        seen = sum(key(text) in scored for text in pool)
        print(f"{name} text: {len(set(pool)):,} sentences to draw from, of which {seen:,} are scored", flush=True)
        (directory / f"{name}.txt").write_text("\n".join(pool) + "\n", encoding="utf-8")
    return {name: directory / f"{name}.txt" for name in found}


def write_config(settings: Mapping[str, Any], data: Path, learner: Path, to: Path, text: str) -> Path:
    """Writes the config of the runs of one text."""
    tasks = {"stsb-dev": {"source": str(data / "sts/stsb-dev.tsv"), "aggregation": "all"}}
    placed = {
        **settings,
        "run": f"{settings['run']}-{text}",
        "teachers": [str(learner)],  # others come with a row
        "encoder": {**settings["encoder"], "path": str(learner)},
        "evaluation": {**settings["evaluation"], "tasks": tasks},
    }
    to.write_text(yaml.safe_dump(placed, sort_keys=False), encoding="utf-8")
    return to


def train(arm: Arm, config: Path, overrides: Sequence[str], storage: Path, to: Path) -> None:
    """Runs one row, and keeps its learners in a directory each below `to`."""
    run = yaml.safe_load(config.read_text())["run"]
    report_of(config, run, storage, overrides)
    shutil.rmtree(to, ignore_errors=True)
    for old in to.parent.glob(f"{to.name}-*.npz"):  # what earlier learners made of the tasks
        old.unlink()
    stored = Storage(str(storage), run)
    for name in sorted(stored.names("teachers-sed/learners"))[: load_config(config, overrides).sed.learners]:
        shutil.copytree(stored.fetch(name), to / name.rpartition("/")[2])


class Scores(NamedTuple):
    """What models score by column, in each seed, and on resamples.

    Attributes:
        evaluation: the tasks.
        scores: x100 by column and model, one a seed.
        draws: of the mean over seeds, x100, by column and model, [R] each.
    """

    evaluation: Evaluation
    scores: dict[str, dict[str, list[float]]]
    draws: dict[str, dict[str, np.ndarray]]

    @classmethod
    def of(cls, models: Mapping[str, Sequence[Path]], evaluation: Evaluation, directory: Path) -> "Scores":
        """Scores models, of which each has a directory a seed; embeddings take longest, and are made once.

        Args:
            models: directories by name.
            evaluation: the tasks.
            directory: for what models make of the tasks.
        """
        outcomes = {
            name: [outcomes_of([path], evaluation, directory) for path in each] for name, each in models.items()
        }
        outcomes["the three teachers side by side"] = [
            outcomes_of([models[name][0] for name in TEACHERS[ALL]], evaluation, directory)
        ]
        columns = {**KINDS, **{task: (task,) for tasks in KINDS.values() for task in tasks if len(tasks) > 1}}
        draws = {column: resample(evaluation, outcomes, of, seed=k) for k, (column, of) in enumerate(columns.items())}
        scores = {
            column: {name: [score(evaluation, one, of) for one in group] for name, group in outcomes.items()}
            for column, of in columns.items()
        }
        means = {
            name: [statistics.fmean(each) for each in zip(*(scores[kind][name] for kind in KINDS), strict=True)]
            for name in outcomes
        }
        mean_draws = {name: sum(draws[kind][name] for kind in KINDS) / len(KINDS) for name in outcomes}
        return cls(evaluation, {"mean": means, **scores}, {"mean": mean_draws, **draws})

    def table(self, speed: Mapping[str, float]) -> Table:
        """Returns the README's table."""
        rows = [
            [_title(name), *(f"{np.mean(self.scores[c][name]):.1f}" for c in ("mean", *KINDS)), f"{speed[name]:,.0f}"]
            for name in self.scores["mean"]
            if name in speed
        ]
        return Table(["model", "mean", *KINDS, "sentences/s"], rows)

    def differences(self, pairs: Sequence[tuple[str, str]]) -> Table:
        """Returns differences, each with its interval."""
        known = [pair for pair in pairs if set(pair) <= set(self.scores["mean"])]
        columns = ("mean", *KINDS)
        rows = [
            [f"{a}, less {b}", *(difference(a, b, self.scores[c], self.draws[c]) for c in columns)] for a, b in known
        ]
        return Table(["difference", *columns], rows)

    def all(self) -> Table:
        """Returns every score, with the deviation over seeds."""
        rows = [
            [name, str(len(seeds)), *(with_spread(self.scores[c][name]) for c in self.scores)]
            for name, seeds in self.scores["mean"].items()
        ]
        return Table(["model", "seeds", *self.scores], rows)


DIFFERENCES = [
    (BEST, MINILM),
    (BEST, BEST_ALONE),
    (BEST, MPNET),
    (BEST_ZERO_SHOT, MINILM),
    (BEST, BEST_ZERO_SHOT),
]


def page_of(
    scores: Scores, found: Mapping[str, Any], settings: Mapping[str, Any], different: Sequence[str], local: Path | None
) -> str:
    """Returns the Markdown page of all tables."""
    origin = f"{local}" if local else "the hub and GitHub, as headline.yaml names them"
    same = f"differ from those of the printed table: {', '.join(different)}" if different else "are those of the table"
    own = {name: [each for each in found["rows"][name] if "/" not in each] for name in found["rows"]}  # without paths
    rows = [[name, " ".join(f"`{each}`" for each in values)] for name, values in own.items()]
    return (
        "\n\n".join(
            [
                "# The README's table",
                f"{where()}.\nData from {origin}. Texts {same}.",
                scores.table(found["speed"]).markdown(),
                NOTES,
                "## Differences",
                scores.differences(DIFFERENCES).markdown(),
                "95 % intervals over the items of the tasks, and over seeds where a row has several.",
                "## All scores",
                scores.all().markdown(),
                "## Settings",
                f"```yaml\n{yaml.safe_dump(dict(settings), sort_keys=False)}```",
                Table(["row", "beside these"], rows).markdown(),
            ]
        )
        + "\n"
    )


def _title(name: str) -> str:
    return f"{name} (teacher)" if name in TEACHERS[ALL] else f"learner: {name}"


def time_all(models: Mapping[str, Path], evaluation: Evaluation, known: dict[str, float]) -> None:
    """Adds the sentences per second that models embed in fp32, and that TF-IDF takes, where they are not known.

    Args:
        models: directories by name. Learners of one size have one speed, so only the first of each is timed.
        evaluation: its sentences are taken.
        known: by name.
    """
    sentences = evaluation.sentences[:SPEED_SENTENCES]
    for name, path in models.items():
        alike = next((other for other in known if other.split(",")[0] == name.split(",")[0]), None)
        if alike is None:
            print(f"time {name}", flush=True)
        known[name] = known[alike] if alike else rate(load_model(str(path), 1, 64).embed, sentences)
    if TF_IDF not in known:
        known[TF_IDF] = rate(TfidfVectorizer(sublinear_tf=True).fit(evaluation.sentences).transform, sentences)


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
    if {MINILM, BEST} <= points.keys():  # the same size, distilled
        arrow = {"arrowstyle": "->", "color": "#D55E00", "lw": 1.8, "shrinkA": 7, "shrinkB": 7}
        axes.annotate("", points[BEST], points[MINILM], arrowprops=arrow)
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


def loaded(data: Path, directory: Path) -> Evaluation:
    """Returns the tasks, of which one is written into this directory."""
    head, *lines = (data / SCORED["stackoverflow"]).read_text(encoding="utf-8").rstrip("\n").split("\n")
    sample = directory / "stackoverflow.tsv"
    drawn = random.Random(0).sample(lines, min(SAMPLED, len(lines)))
    sample.write_text("\n".join([head, *drawn]) + "\n", encoding="utf-8")
    tasks: dict[str, Any] = {name: str(data / path) for name, path in SCORED.items()}
    tasks |= {
        "stsb-test": {"source": tasks["stsb-test"], "aggregation": "all"},
        "stackoverflow": {"source": str(sample), "kind": "neighbours"},
        "clinc-test": {"source": tasks["clinc-test"], "kind": "neighbours"},
    }
    return Evaluation.load(make_config({"evaluation": {"tasks": tasks, "dev": None}}).evaluation)


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
