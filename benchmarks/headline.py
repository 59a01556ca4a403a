"""The README's table of results: published models, what they teach one small model, and what text that takes.

    make headline                                  # public: models and data from the hub and from GitHub
    make headline HEADLINE="--local ../shared/data"    # models in ../teachers, data in a directory laid out alike

Everything that is read, its revision, split and cut stands in headline.yaml, with the settings; headline_data.py reads
it. Each row of ARMS has several seeds. Each seed is a run of that config, which draws its own text and trains one
learner. Rows of one text and seed share a run directory. vectors.py asks each teacher once about each text. In the end
all models are scored on the same resamples of the tasks, and timed. The same command continues what was stopped: runs
resume, and RESULTS/scores.json keeps what is done. Several programs may train at the same time, each other seeds: one
core each is faster than one after the other on all.

RESULTS is `headline-results` in --storage (`runs`):

    table.md       the README's table, its differences with 95 % intervals over items and seeds, all scores, settings
    outcomes.npz   what each model makes of each item, from which intervals follow without data and models
    scores.json    settings of each row and seed, speeds
    data/, text/   data as it was fetched; the texts to draw from, and a directory for each draw, with its embeddings
    vectors/       embeddings of the published models
    models/        the learners, a directory for each row, one below it for each seed

Texts, all without labels. All rows have the same number of updates.

    inductive      45,000 sentences of a pool of general text, CLINC's requests for training and validation, and the
                   titles of Stack Overflow that are not scored: a learner has read the domain, and no scored text
    transductive   45,000 sentences of a pool that holds the scored texts of Stack Overflow and CLINC, of TREC-QA, and
                   of some pairs, too: what distilling on the very texts gives
    general        30,000 sentences of general text: nothing of Stack Overflow and CLINC, and no scored text

A text counts as scored if its letters and digits are those of a scored text. Inductive and general text leave out
near copies, too (headline_data.near_copies).
"""

import argparse
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import TfidfVectorizer

from raysed.config import Config, CorpusConfig, load_config, make_config
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.model.combination import side_by_side
from raysed.model.load import load_model
from raysed.process import prepare_process
from raysed.score.intervals import interval, resample
from raysed.score.lexical import TF_IDF
from raysed.score.tasks import Evaluation, Outcomes, mean_score
from raysed.store.storage import Storage
from raysed.store.text import Table, number

from harness import ROOT, where
from headline_data import differing, download, gather, key, load, near_copies, texts
from runs import JOB, report_of, write_lines
from vectors import embed, embed_once, write

CONFIG = ROOT / "benchmarks/headline.yaml"
RESULTS = "headline-results"
SAMPLED = 5000
"""Titles of Stack Overflow that are scored. To embed all 20,000 would take longer than to train."""
MPNET, PARAPHRASE, MINILM = "all-mpnet-base-v2", "paraphrase-MiniLM-L3-v2", "all-MiniLM-L6-v2"
ALONE, ALL = "mpnet alone", "three teachers"
TEACHERS = {
    ALONE: (MPNET,),
    ALL: (MPNET, PARAPHRASE, MINILM),
    "mpnet and MiniLM": (MPNET, MINILM),
    "paraphrase and MiniLM": (PARAPHRASE, MINILM),
    "mpnet and paraphrase": (MPNET, PARAPHRASE),
}
LEARNERS = {
    "six MiniLM layers": [],
    "three MiniLM layers": ["encoder.keep_layers=[0, 2, 5]", "sed.learning_rate=5e-4"],
    "one vector per token": ["encoder.static={}", "sed.learning_rate=0.01", "sed.batch_size=256"],
}
"""Layers of MiniLM, or a table of token vectors, and their settings."""
SIX, THREE, TABLE = LEARNERS
INDUCTIVE, TRANSDUCTIVE, GENERAL = "inductive", "transductive", "general"
SHARE = {INDUCTIVE: 1.0, TRANSDUCTIVE: 1.0, GENERAL: 2 / 3}
"""Of `corpus.sentences`, so that draws of general text differ: it has 42,000 sentences."""
GENERAL_FILES = ("corpus/english-38k.txt", "corpus/wikipedia-12k.txt")
KINDS = {"pairs": ("stsb-test", "sts12", "sts13"), "classes": ("stackoverflow", "clinc-test"), "retrieval": ("trecqa",)}
SCORED = {
    **{name: f"sts/{name}.tsv" for name in KINDS["pairs"]},
    **{name: f"classes/{name}.tsv" for name in KINDS["classes"]},
    "trecqa": "retrieval/trecqa-dev",
    "sts13 all": "sts/sts13.tsv",
    "sts15 all": "sts/sts15.tsv",
}
COMPARABLE = ("stsb-test", "sts13 all", "sts15 all")
"""Pairs scored as MTEB scores them, over all subsets at once. Not STS12, which lacks MSRvid here."""
WITHOUT = "no Stack Overflow"
"""The mean of pairs, CLINC and retrieval: half of a gain on the mean can be one data set's."""
BY_KIND = ("mean", "tasks", *KINDS)
BY_TASK = (WITHOUT, *KINDS["classes"], *COMPARABLE)
INTERVALS = f"""95 % intervals over the items of the tasks, and over seeds where a row has several. `{WITHOUT}` is the
mean of pairs, CLINC and retrieval."""
SPEED_SENTENCES = 2000
NOTES = """Pairs: Spearman on STS-B test, STS12 and STS13 (means over subsets). Classes: accuracy of the five nearest
neighbours among the scored texts, 5,000 titles of Stack Overflow and 4,500 requests of CLINC. Retrieval: nDCG@10 on
TREC-QA. All x100. `mean` is that of pairs, classes and retrieval, `tasks` that of the six tasks. These tasks also chose
the learner's steps, rate and teachers. Columns with `all` are scored as MTEB scores them."""


@dataclass(frozen=True)
class Arm:
    """Learners of some seeds: a row of the table."""

    learner: str
    teachers: str
    text: str = INDUCTIVE
    seeds: int = 3

    @property
    def name(self) -> str:
        """Names it in the results and in the tables."""
        return f"{self.learner}, {self.teachers}, {self.text} text"

    def sentences(self, config: Config) -> int:
        """Returns how many sentences a run draws."""
        return round(config.corpus.sentences * SHARE[self.text])

    def overrides(self, config: Config, drawn: Path, seed: int) -> list[str]:
        """Returns what differs from the config.

        Args:
            config: of all rows.
            drawn: directory of the run's text and of its teachers' embeddings.
            seed: of the run.
        """
        sentences = self.sentences(config)
        return [
            f"teachers={json.dumps([str(drawn / f'{name}.parquet') for name in TEACHERS[self.teachers]])}",
            *LEARNERS[self.learner],
            f"corpus.source={json.dumps(str(drawn / 'text.txt'))}",
            f"corpus.sentences={sentences}",
            f"sed.epochs={config.sed.epochs * config.corpus.sentences / sentences}",
            f"seed={seed}",
        ]


ARMS = [
    Arm(SIX, ALL),
    Arm(SIX, ALL, TRANSDUCTIVE, seeds=1),
    Arm(SIX, ALL, GENERAL),
    Arm(THREE, ALL, seeds=1),
    Arm(TABLE, ALL),
    Arm(TABLE, ALL, TRANSDUCTIVE, seeds=1),
    Arm(TABLE, ALL, GENERAL),
]
"""Text that holds scored sentences only shows what reading them gives: one seed. For other teachers see controls.py."""
BEST, BEST_TRANSDUCTIVE, BEST_GENERAL, HALF, STATIC, STATIC_TRANSDUCTIVE, STATIC_GENERAL = (arm.name for arm in ARMS)


class Label(NamedTuple):
    """A model's name in the picture, the side on which its text is anchored, and the offset from its mark in points."""

    text: str
    align: str
    offset: tuple[float, float]


SHOWN = {
    MPNET: Label("mpnet", "left", (-8, 10)),
    MINILM: Label("MiniLM", "right", (-9, -5)),
    PARAPHRASE: Label("paraphrase", "right", (-9, -5)),
    BEST: Label("six layers", "left", (9, 2)),
    BEST_GENERAL: Label("six layers, general text", "left", (9, 0)),
    HALF: Label("three layers", "left", (9, -7)),
    STATIC: Label("static model", "right", (30, 12)),
}
"""The models in the picture. README shows it on phones, so the text is large and short."""


def main() -> None:
    """Trains what is missing, scores and times all models, and writes the tables."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=[arm.name for arm in ARMS], help="train these learners alone")
    parser.add_argument("--seeds", type=int, nargs="+", help="by default 0 1 2, and 0 of three layers")
    parser.add_argument("--unscored", action="store_true", help="only train")
    parser.add_argument("--untimed", action="store_true", help="do not measure speeds, which need the machine alone")
    parser.add_argument("--picture", type=Path, help="PNG file of quality against speed")
    arguments = parser.parse_args()
    prepare_process()
    began, bench = time.monotonic(), Bench.of(arguments)
    runs = [(arm, seed) for arm in ARMS for seed in arguments.seeds or range(arm.seeds)]
    for count, (arm, seed) in enumerate(runs, 1):
        if not arguments.only or arm.name in arguments.only:
            print(f"run {count} of {len(runs)}: {arm.name}, seed {seed}, {minutes(began)}", flush=True)
            bench.learn(arm, seed, f"{arm.text}-{seed}", bench.drawn(arm, seed))
    if arguments.unscored:
        return
    models = {name: [path] for name, path in bench.teachers.items()} | bench.learners(arm.name for arm in ARMS)
    evaluation = loaded(bench.data, bench.sample)
    scores = Scores.of(models, evaluation, bench.results)
    if not arguments.untimed:
        time_all({name: paths[0] for name, paths in models.items()}, evaluation, bench.found["speed"])
        bench.save()
    write_page(page_of(scores, bench, arguments.local), bench.results / "table.md")
    write_outcomes(scores.outcomes, evaluation, bench.results / "outcomes.npz")
    print(f"{bench.results / 'table.md'}, {minutes(began)}", flush=True)
    if arguments.picture:
        speed, means = bench.found["speed"], {name: statistics.fmean(of) for name, of in scores.scores["mean"].items()}
        draws = scores.draws["mean"]
        ends = {name: interval(draws[name] - draws[MINILM] + means[MINILM]) for name in means if name != MINILM}
        points = {name: (speed[name], means[name]) for name in SHOWN if name in means and name in speed}
        draw_points(points, ends, arguments.picture)


def options(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that say what is read, and where results go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--local", type=Path, metavar="DIR", help="data laid out as in headline.yaml; nothing is fetched"
    )
    parser.add_argument(
        "--teachers", type=Path, default=ROOT.parent / "teachers", metavar="DIR", help="published models of --local"
    )
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the runs and of the results")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of all rows")
    return parser


@dataclass
class Bench:
    """What is read, and what exists.

    Attributes:
        data: laid out as in headline.yaml.
        sample: the titles of Stack Overflow that are scored.
        teachers: directories of the published models by name.
        storage: of the runs.
        content: of headline.yaml.
        more: settings beside these.
        pools: files to draw from, by text.
        found: settings of each row and seed, and speeds.
    """

    data: Path
    sample: Path
    teachers: Mapping[str, Path]
    storage: Path
    content: Mapping[str, Any]
    more: Sequence[str]
    pools: Mapping[str, Path]
    found: dict[str, Any]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Bench":
        """Fetches what is missing, and writes the texts to draw from."""
        storage, content = arguments.storage.resolve(), load(CONFIG)
        results = storage / RESULTS
        results.mkdir(parents=True, exist_ok=True)
        if arguments.local:
            where_from = arguments.teachers.resolve()
            data, teachers = arguments.local.resolve(), {name: where_from / name for name in content["teachers"]}
        else:
            data, teachers = gather(content["data"], results / "data"), download(content["teachers"])
        sample = write_sample(data, results)
        pools = write_pools(data, sample, results / "text")
        file = results / "scores.json"
        found = json.loads(file.read_text()) if file.exists() else {"rows": {}, "speed": {}}
        return cls(data, sample, teachers, storage, content, arguments.set, pools, found)

    @property
    def results(self) -> Path:
        """Directory of everything but the runs."""
        return self.storage / RESULTS

    def save(self) -> None:
        """Writes what exists, beside the rows that another program has written since."""
        file = self.results / "scores.json"
        since = json.loads(file.read_text())["rows"] if file.exists() else {}
        for name, seeds in since.items():
            self.found["rows"][name] = seeds | self.found["rows"].get(name, {})
        file.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")

    def config(self, name: str) -> Path:
        """Writes the config of the runs that have this name."""
        return write_config(self.content["settings"], self.data, self.teachers[MINILM], self.results, name)

    def drawn(self, arm: "Arm", seed: int) -> Path:
        """Draws the text of a run, and has its teachers embed it; returns the directory."""
        to = self.results / "text" / f"{arm.text}-{seed}"
        config = load_config(self.config(f"{arm.text}-{seed}"), self.more)
        draw(self.pools[arm.text], arm.sentences(config), seed, to)
        write_teachers({name: self.teachers[name] for name in TEACHERS[arm.teachers]}, to, self.results / "vectors")
        return to

    def learn(self, arm: "Arm", seed: int, run: str, drawn: Path, suffix: str = "") -> None:
        """Trains one seed of a row unless its learner exists.

        Args:
            arm: the row.
            seed: of the run.
            run: its name; runs of one name share what they make.
            drawn: its text and embeddings.
            suffix: of the row's name.
        """
        path = self.config(run)
        overrides = [*self.more, *arm.overrides(load_config(path, self.more), drawn, seed)]
        self.train_once(f"{arm.name}{suffix}", seed, path, overrides)

    def train_once(self, name: str, seed: int, config: Path, overrides: list[str], **how: Any) -> Path:
        """Trains one seed of a row, unless that was done with these settings; returns the learner's directory.

        Args:
            name: of the row.
            seed: of the run.
            config: of the run.
            overrides: what differs from it.
            how: see `train`.
        """
        done, to = self.found["rows"].setdefault(name, {}), self.results / "models" / name / str(seed)
        if done.get(str(seed)) != overrides or not to.exists():
            train(config, overrides, self.storage, to, **how)
            outcomes = self.results / "outcomes" / outcomes_file([to])
            outcomes.unlink(missing_ok=True)  # what an earlier learner made of the tasks
            done[str(seed)] = overrides
            self.save()
        return to

    def learners(self, names: Iterable[str]) -> dict[str, list[Path]]:
        """Returns the directories of the learners that exist, by row."""
        paths = {name: sorted((self.results / "models" / name).glob("*")) for name in names}
        return {name: found for name, found in paths.items() if found}


def minutes(began: float) -> str:
    """Returns the time since then, in words."""
    return f"after {(time.monotonic() - began) / 60:.0f} minutes"


def write_pools(data: Path, sample: Path, directory: Path) -> dict[str, Path]:
    """Writes the texts that runs draw from, a sentence a line, and prints what is left out of them.

    Args:
        data: laid out as in headline.yaml.
        sample: the titles of Stack Overflow that are scored.
        directory: for the texts.
    """
    sources = {name: data / path for name, path in SCORED.items()} | {"stackoverflow": sample}
    scored = list(dict.fromkeys(text for path in sources.values() for text in texts(path)))
    keys = {key(text) for text in scored}
    general = [text for name in GENERAL_FILES for text in texts(data / name)]
    own = [text for path in sorted((data / "classes").glob("*.tsv")) for text in texts(path)]
    unscored = [text for text in dict.fromkeys([*general, *own]) if key(text) not in keys]
    near = near_copies(unscored, scored)
    kept = [text for text in unscored if text not in near]
    everywhere, domain = set(general), set(own) - set(general)
    found = {
        INDUCTIVE: kept,
        TRANSDUCTIVE: list(dict.fromkeys([*general, *own])),
        GENERAL: [text for text in kept if text in everywhere],
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, pool in found.items():
        share, seen = sum(text in domain for text in pool) / len(pool), sum(key(text) in keys for text in pool)
        print(f"{name} text: {len(pool):,} sentences, {share:.0%} of the domains, {seen:,} scored", flush=True)
        write_lines(directory / f"{name}.txt", pool)
    for name, whole in (("general text", everywhere), ("the domains' text", domain)):
        equal = sum(key(text) in keys for text in whole)
        print(f"of {name}, {equal:,} of {len(whole):,} are scored, {len(near & whole):,} are near copies", flush=True)
    return {name: directory / f"{name}.txt" for name in found}


def draw(pool: Path, sentences: int, seed: int, to: Path) -> None:
    """Writes the text of a run, drawn from a pool, unless it is there."""
    if (to / "text.txt").exists():
        return
    to.mkdir(parents=True, exist_ok=True)
    corpus = CorpusConfig(source=str(pool), sentences=sentences)
    write_lines(to / "text.txt", [text for _, chunk in sentence_chunks(corpus, seed, CorpusReport()) for text in chunk])


def write_teachers(teachers: Mapping[str, Path], drawn: Path, vectors: Path) -> None:
    """Writes what each teacher makes of a run's text, as a file that is a teacher; what is there stays."""
    for name, path in teachers.items():
        to = drawn / f"{name}.parquet"
        if not to.exists():
            sentences = texts(drawn / "text.txt")
            write(sentences, embed_once(path, sentences, vectors), to)


def write_config(settings: Mapping[str, Any], data: Path, learner: Path, results: Path, name: str) -> Path:
    """Writes the config of the runs of one text and seed, which have this name."""
    tasks = {"stsb-dev": {"source": str(data / "sts/stsb-dev.tsv"), "aggregation": "all"}}
    placed = {
        **settings,
        "run": f"{settings['run']}-{name}",
        "teachers": [str(learner)],  # others come with a row
        "encoder": {**settings["encoder"], "path": str(learner)},
        "evaluation": {**settings["evaluation"], "tasks": tasks},
    }
    to = results / f"{name}.yaml"
    to.write_text(yaml.safe_dump(placed, sort_keys=False), encoding="utf-8")
    return to


def train(
    config: Path,
    overrides: Sequence[str],
    storage: Path,
    to: Path,
    made: str = "teachers-sed/learners",
    script: Sequence[str] = (JOB,),
) -> None:
    """Runs one seed of a row, and keeps the first model that it made."""
    run = yaml.safe_load(config.read_text())["run"]
    report_of(config, run, storage, overrides, script)
    shutil.rmtree(to, ignore_errors=True)
    stored = Storage(str(storage), run)
    shutil.copytree(stored.fetch(min(stored.names(made))), to)


class Scores(NamedTuple):
    """What models score by column, in each seed, and on resamples.

    Attributes:
        evaluation: the tasks.
        scores: x100 by column and model, one a seed.
        draws: of the mean over seeds, x100, by column and model, [R] each.
        outcomes: what each seed of a model makes of the tasks, by model.
    """

    evaluation: Evaluation
    scores: dict[str, dict[str, list[float]]]
    draws: dict[str, dict[str, np.ndarray]]
    outcomes: dict[str, list[Outcomes]]

    @classmethod
    def of(cls, models: Mapping[str, Sequence[Path]], evaluation: Evaluation, results: Path) -> "Scores":
        """Scores models, of which each has a directory a seed; embeddings take longest, and are made once.

        Args:
            models: directories by name.
            evaluation: the tasks.
            results: keeps what models make of the tasks.
        """
        outcomes = {name: [outcomes_of([path], evaluation, results) for path in each] for name, each in models.items()}
        if set(TEACHERS[ALL]) <= models.keys():
            side = [models[name][0] for name in TEACHERS[ALL]]
            outcomes["the three teachers side by side"] = [outcomes_of(side, evaluation, results)]
        alone = [task for tasks in KINDS.values() for task in tasks if len(tasks) > 1]
        columns = {**KINDS, **{task: (task,) for task in dict.fromkeys([*alone, *COMPARABLE])}}
        draws = {column: resample(evaluation, outcomes, of, seed=k) for k, (column, of) in enumerate(columns.items())}
        scores = {
            column: {name: [score(evaluation, one, of) for one in group] for name, group in outcomes.items()}
            for column, of in columns.items()
        }
        weights = {
            "mean": dict.fromkeys(KINDS, 1 / len(KINDS)),
            "tasks": {kind: len(tasks) / sum(map(len, KINDS.values())) for kind, tasks in KINDS.items()},
            WITHOUT: dict.fromkeys(("pairs", "clinc-test", "retrieval"), 1 / 3),
        }
        for column, of in weights.items():
            scores[column] = {
                name: [sum(share * scores[each][name][k] for each, share in of.items()) for k in range(len(group))]
                for name, group in outcomes.items()
            }
            draws[column] = {name: sum(share * draws[each][name] for each, share in of.items()) for name in outcomes}
        order = [*weights, *columns]
        return cls(evaluation, {each: scores[each] for each in order}, {each: draws[each] for each in order}, outcomes)

    def table(self, speed: Mapping[str, float]) -> Table:
        """Returns the README's table."""
        speeds = {name: f"{rate:,.0f}" for name, rate in speed.items()}
        rows = [
            [_title(name), *(number(np.mean(self.scores[c][name]), ".1f") for c in BY_KIND), speeds.get(name, "-")]
            for name in self.scores["mean"]
        ]
        return Table(["model", *BY_KIND, "sentences/s"], rows)

    def comparable(self) -> Table:
        """Returns the scores that compare with published ones, each with its interval."""
        rows = []
        for name in self.scores["mean"]:
            ends = [interval(self.draws[c][name]) for c in COMPARABLE]
            means = [np.mean(self.scores[c][name]) for c in COMPARABLE]
            cells = [f"{mean:.1f} ({low:.1f} to {high:.1f})" for mean, (low, high) in zip(means, ends, strict=True)]
            rows.append([name, *cells])
        return Table(["model", *COMPARABLE], rows)

    def differences(self, pairs: Sequence[tuple[str, str]]) -> str:
        """Returns differences, each with its interval: a table by kind, and one by task."""
        known, tables = [pair for pair in pairs if set(pair) <= set(self.scores["mean"])], []
        for columns in (BY_KIND, BY_TASK):
            rows = [
                [f"{a}, less {b}", *(difference(a, b, self.scores[c], self.draws[c]) for c in columns)]
                for a, b in known
            ]
            tables.append(Table(["difference", *columns], rows).markdown())
        return "\n\n".join([*tables, INTERVALS])

    def all(self) -> Table:
        """Returns every score, with the deviation over seeds."""
        rows = [
            [name, str(len(seeds)), *(with_spread(self.scores[c][name]) for c in self.scores)]
            for name, seeds in self.scores["mean"].items()
        ]
        return Table(["model", "seeds", *self.scores], rows)


DIFFERENCES = [
    (BEST, MINILM),
    (BEST_TRANSDUCTIVE, MINILM),
    (BEST_GENERAL, MINILM),
    (BEST, MPNET),
    (BEST_TRANSDUCTIVE, BEST),
    (BEST, BEST_GENERAL),
    (HALF, MINILM),
    (STATIC, MINILM),
    (STATIC_TRANSDUCTIVE, STATIC),
    (STATIC, STATIC_GENERAL),
]


def write_page(parts: Sequence[str], to: Path) -> None:
    """Writes a page, and prints it."""
    page = "\n\n".join(parts)
    to.write_text(f"{page}\n", encoding="utf-8")
    print(page, flush=True)


def write_comparison(title: str, scores: Scores, pairs: Sequence[tuple[str, str]], to: Path, *before: str) -> None:
    """Writes a page of differences and of all scores, and prints it; `before` comes first, below the notes."""
    parts = [f"# {title}", f"{where()}.", NOTES, *before, scores.differences(pairs)]
    write_page([*parts, "## All scores", scores.all().markdown()], to)


def page_of(scores: Scores, bench: Bench, local: Path | None) -> list[str]:
    """Returns the page of all tables, in parts."""
    origin = f"{local}" if local else "the hub and GitHub, as headline.yaml names them"
    different = differing(bench.content["data"], bench.data)
    same = f"differ from those of the printed table: {', '.join(different)}" if different else "are those of the table"
    known = bench.found["rows"]
    first = {name: min(known[name].items())[1] for name in known if name in scores.scores["mean"]}
    own = {name: [each for each in first[name] if "/" not in each] for name in first}  # without paths
    rows = [[name, " ".join(f"`{each}`" for each in values)] for name, values in own.items()]
    return [
        "# The README's table",
        f"{where()}.\nData from {origin}. Texts {same}.",
        scores.table(bench.found["speed"]).markdown(),
        NOTES,
        "## Differences",
        scores.differences(DIFFERENCES),
        "## Beside published models",
        "Over all pairs at once, as MTEB scores them, with 95 % intervals.",
        scores.comparable().markdown(),
        "## All scores",
        scores.all().markdown(),
        "## Settings",
        f"```yaml\n{yaml.safe_dump(bench.content['settings'], sort_keys=False)}```",
        Table(["row, first seed", "beside these"], rows).markdown(),
    ]


def _title(name: str) -> str:
    return (
        f"{name} (teacher)" if name in TEACHERS[ALL] else f"learner: {name}" if name.split(",")[0] in LEARNERS else name
    )


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


def draw_points(
    points: Mapping[str, tuple[float, float]], ends: Mapping[str, tuple[float, float]], picture: Path
) -> None:
    """Draw speed and score of models by name; learners stand out, hollow if of general text.

    Args:
        ends: of intervals of learners, compared with MiniLM.
    """
    figure = Figure(figsize=(5.4, 4.2), layout="constrained", facecolor="white")  # readable on dark pages, too
    axes = figure.subplots()
    for name, (speed, mean) in points.items():
        label, is_own = SHOWN[name], name.startswith(tuple(LEARNERS))
        edge = "#D55E00" if is_own else "#6E6E6E"
        if is_own and name in ends:
            beside = speed * (0.93 if name == BEST_GENERAL else 1.0)  # of the other learner of this speed
            axes.plot([beside, beside], ends[name], color=edge, lw=1.6, alpha=0.55, zorder=2)
        face = "white" if name == BEST_GENERAL else edge
        axes.scatter(speed, mean, s=80, color=face, edgecolor=edge, lw=2, zorder=3)
        axes.annotate(
            label.text,
            (speed, mean),
            label.offset,
            textcoords="offset points",
            ha=label.align,
            fontsize=13.5,
            color="#B34700" if is_own else "#444444",
            fontweight="bold" if is_own and name != BEST_GENERAL else "normal",
        )
    axes.set(xscale="log", xlim=(45, 150_000))
    axes.set_xlabel("sentences per second, two CPU cores", fontsize=13.5)
    axes.set_ylabel("mean of pairs, classes and retrieval", fontsize=13.5)
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


def write_sample(data: Path, results: Path) -> Path:
    """Writes the titles of Stack Overflow that are scored."""
    head, *lines = (data / SCORED["stackoverflow"]).read_text(encoding="utf-8").rstrip("\n").split("\n")
    drawn = random.Random(0).sample(lines, min(SAMPLED, len(lines)))
    return write_lines(results / "stackoverflow.tsv", [head, *drawn])


def loaded(data: Path, sample: Path) -> Evaluation:
    """Returns the tasks, of which one is that sample."""
    tasks: dict[str, Any] = {name: str(data / path) for name, path in SCORED.items()}
    tasks |= {
        **{name: {"source": tasks[name], "aggregation": "all"} for name in COMPARABLE},
        "stackoverflow": {"source": str(sample), "kind": "neighbours"},
        "clinc-test": {"source": tasks["clinc-test"], "kind": "neighbours"},
    }
    return Evaluation.load(make_config({"evaluation": {"tasks": tasks, "dev": None}}).evaluation)


def outcomes_file(paths: Sequence[Path]) -> Path:
    """Returns the name of the file of what a model, or several side by side, makes of every task."""
    return Path(f"{'+'.join('-'.join(path.parts[-2:]) for path in paths)}.npz")


def outcomes_of(paths: Sequence[Path], evaluation: Evaluation, results: Path) -> Outcomes:
    """Returns what a model, or several side by side, makes of every task; asks it once."""
    file = results / "outcomes" / outcomes_file(paths)
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        embeddings = [
            embed(path, evaluation.sentences)
            if path.is_relative_to(results)  # a learner
            else embed_once(path, evaluation.sentences, results / "vectors")
            for path in paths
        ]
        x_UD = side_by_side(embeddings, is_unit=len(paths) > 1).astype(np.float32)
        np.savez(file, **evaluation.score(x_UD).outcomes)
    with np.load(file) as found:
        return dict(found)


def write_outcomes(outcomes: Mapping[str, Sequence[Outcomes]], evaluation: Evaluation, to: Path) -> None:
    """Writes what models make of every item, in float32.

    Arrays are named TASK/MODEL/SEED: the cosines of pairs, 1 for texts with the right class and else 0, nDCG@10 of
    queries. TASK/strata numbers the subsets whose scores are averaged (-1: not counted), TASK/gold has the pairs'
    scores. A task over all subsets has the items of the task of its file, which alone is written.
    """
    arrays = {}
    for name in dict.fromkeys([*(task for tasks in KINDS.values() for task in tasks), "sts15 all"]):
        task = evaluation.tasks[name]
        of_items: Callable[[np.ndarray], np.ndarray] = {
            "pairs": lambda cosine_P: cosine_P,
            "neighbours": lambda predicted_N, task=task: predicted_N == task.labels,
            "retrieval": lambda outcome_QM: outcome_QM[:, 0],
        }[task.kind]
        values = {
            f"{name}/{model}/{seed}": of_items(one[name])
            for model, group in outcomes.items()
            for seed, one in enumerate(group)
        }
        strata = np.full(len(next(iter(values.values()))), -1)
        for stratum, (rows, _) in enumerate(task.strata()):
            strata[rows] = stratum
        arrays |= {**values, f"{name}/strata": strata}
        if task.kind == "pairs":
            arrays[f"{name}/gold"] = task.gold
    np.savez_compressed(to, **{name: np.asarray(array, np.float32) for name, array in arrays.items()})


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
