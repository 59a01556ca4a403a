"""What text, time and layers buy a learner: a run of distillation.yaml for each of LEARNERS, one after the other.

    python benchmarks/curves.py --output FILE [--storage runs] [--only 3-49000-800 ...]

Each has a schedule of its own, because the decay belongs to the number of updates. All share a run directory, so the
teacher is asked once about each sentence: the corpora are draws, and a larger one begins with a smaller one. Then the
best learner of each size on the dev task, and the teacher, are given transfer tasks, and their speed is taken in CPU
time, which other programs on the machine change less than wall time.

What is in FILE is not done again, and a run that was stopped goes on from its last checkpoint.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysed.cluster.process import prepare_process
from raysed.config import Config, load_config
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.model.load import NativeModel, load_model
from raysed.score.tasks import main_score
from raysed.store.text import Table, number

from harness import DATA, ROOT

sys.path.insert(0, str(ROOT))  # papers is not part of the package
from papers.senteval import load_tasks
from papers.transfer import average, score_transfer, sentences_of

from runs import report_of

CONFIG = ROOT / "benchmarks/distillation.yaml"
RUN = "curves"
RETRIEVAL = "trecqa"
TEACHER = "teacher"
BASE, LEARNER = "base/base", "teachers-sed/learner"
OTHERS = {
    "word-overlap/baseline": "word overlap",
    "tf-idf/baseline": "TF-IDF",
    "bm25/baseline": "BM25",
    "teachers/member": TEACHER,
}
"""Rows of a run's report that are the same for all learners."""
BUNDLED, TABLE = "bundled", "table"
PROBES = {"transfer": ["MR", "CR", "TREC", "MRPC"], "nli": ["SICKEntailment", "SICKRelatedness"]}
"""Transfer tasks by the directory that they lie in."""
TIMED = 2048
"""Sentences whose embedding is timed."""


@dataclass(frozen=True)
class Learner:
    """One run.

    Attributes:
        encoder: how many of the teacher's first layers learn, or which, such as `0,2,5`; or the bundled encoder; or a
            table of vectors, with the settings of distillation-static.yaml.
        sentences: of the corpus.
        updates: of the learner.
    """

    encoder: str
    sentences: int
    updates: int

    @property
    def name(self) -> str:
        """Names the run in FILE and on the command line."""
        return f"{self.encoder}-{self.sentences}-{self.updates}"

    def overrides(self) -> list[str]:
        """Returns what differs from the config."""
        encoder = {
            BUNDLED: ["encoder={layers: 1}"],
            TABLE: ["encoder.model_kwargs={}", "encoder.static={}", "sed.learning_rate=0.01"],
        }
        first = f"encoder.model_kwargs={{num_hidden_layers: {self.encoder}}}"
        chosen = f"encoder.keep_layers=[{self.encoder}]"
        layers = ["encoder.model_kwargs={}", chosen] if "," in self.encoder else [first]
        batch = 256 if self.encoder == TABLE else 64
        return [
            "recipes=[teachers-sed]",
            *encoder.get(self.encoder, layers),
            f"corpus.sentences={self.sentences}",
            # Half an update more, because a number of epochs is rounded down to whole updates.
            f"sed.epochs={(self.updates + 0.5) / (self.sentences // batch)}",
            f"sed.batch_size={batch}",
            "sed.evaluate_every=100000",
            f"evaluation.tasks.{RETRIEVAL}={DATA / 'retrieval/trecqa-dev'}",
            "export.recipe=teachers-sed",
        ]


TEXT_AND_TIME = [Learner("3", sentences, updates) for sentences in (5000, 12000, 49000) for updates in (200, 800)]
TIME = [Learner("3", 49000, updates) for updates in (1600, 3200)]
SIZES = [*(Learner(encoder, 49000, 800) for encoder in ("2", "1", BUNDLED)), Learner(TABLE, 49000, 573)]
SPREAD = [
    *(Learner("0,2,5", sentences, updates) for sentences in (5000, 49000) for updates in (200, 800)),
    *(Learner("0,2,5", 49000, updates) for updates in (1600, 3200, 6400)),
    *(Learner(encoder, 49000, 800) for encoder in ("1,3,5", "3,4,5", "0,5")),
]
LEARNERS = {learner.name: learner for learner in [*TEXT_AND_TIME, *TIME, *SIZES, *SPREAD]}


def main() -> None:
    """Runs them and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all scores; what is in it stays")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the run and of the models")
    parser.add_argument("--only", nargs="+", choices=list(LEARNERS), default=list(LEARNERS), help="these learners")
    arguments = parser.parse_args()
    prepare_process()
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"learners": {}, "models": {}}
    models = arguments.storage.resolve() / "models"

    def measure(kind: str, name: str, how: Callable[[], dict[str, Any]]) -> None:
        if name in found[kind]:
            print(f"{name}: nothing to do", flush=True)
            return
        found[kind][name] = how()
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    for name in arguments.only:
        measure("learners", name, lambda learner=LEARNERS[name]: distilled(learner, models))
    print(scores_table(found["learners"]).markdown(), flush=True)
    config = load_config(CONFIG)
    for name in best_of_each_size(found["learners"], config.evaluation.dev):
        measure("models", name, lambda path=models / name: looked_at(str(path), config))
    measure("models", TEACHER, lambda: looked_at(config.teachers[0].path, config))
    print(models_table(found["models"]).markdown())


def distilled(learner: Learner, models: Path) -> dict[str, dict[str, float | None]]:
    """Runs one learner, and keeps its model.

    Args:
        learner: what to run.
        models: directory that gets the model, beside the run directory.

    Returns:
        Scores by model of the run and task.
    """
    storage = models.parent
    report = report_of(CONFIG, RUN, storage, learner.overrides())
    shutil.rmtree(models / learner.name, ignore_errors=True)
    shutil.copytree(storage / RUN / "model", models / learner.name)
    return {
        f"{row['recipe']}/{row['kind']}": {task: main_score(metrics) for task, metrics in row["metrics"].items()}
        for row in report["rows"]
    }


def best_of_each_size(learners: Mapping[str, Mapping[str, Any]], dev: str) -> list[str]:
    """Returns the best learner of each encoder on the dev task, by name."""
    best: dict[str, str] = {}
    for name, scores in learners.items():
        encoder = LEARNERS[name].encoder
        if encoder not in best or scores[LEARNER][dev] > learners[best[encoder]][LEARNER][dev]:
            best[encoder] = name
    return list(best.values())


def looked_at(path: str, config: Config) -> dict[str, Any]:
    """Returns a model's parameters, sentences per second of CPU time on one thread, and scores of transfer tasks.

    Args:
        path: of the model.
        config: its corpus has the sentences whose embedding is timed.
    """
    model = load_model(path)
    corpus = config.corpus.model_copy(update={"sentences": TIMED})
    sentences = [sentence for _, chunk in sentence_chunks(corpus, 0, CorpusReport()) for sentence in chunk]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = []
    for _ in range(4):
        began = time.process_time()
        model.embed(sentences)
        seconds.append(time.process_time() - began)
    torch.set_num_threads(threads)
    return {
        "parameters": sum(parameter.numel() for parameter in model.encoder.parameters()),
        "sentences_per_cpu_second": TIMED / statistics.median(seconds[1:]),  # the first warms up
        "transfer": probed(model),
    }


def probed(model: NativeModel) -> dict[str, float]:
    """Returns a model's scores by transfer task."""
    tasks = [task for folder, names in PROBES.items() for task in load_tasks(DATA / folder, names)]
    (embeddings_UD,) = model.embed(sentences_of(tasks))
    return {name: average({name: scores}) for name, scores in score_transfer(tasks, embeddings_UD).items()}


def scores_table(learners: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Table:
    """Returns a line for each learner, and for all that it is to be compared with."""
    lines: dict[str, Mapping[str, float | None]] = {}
    for name, scores in learners.items():
        titles = {**OTHERS, BASE: f"start of {LEARNERS[name].encoder}"}
        lines |= {titles[row]: tasks for row, tasks in scores.items() if row in titles}
        lines[name] = scores[LEARNER]
    tasks = list(next(iter(lines.values())))
    return Table(["model", *tasks], [[name, *(number(row.get(task)) for task in tasks)] for name, row in lines.items()])


def models_table(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns a line for each model that was looked at more closely."""
    tasks = [name for names in PROBES.values() for name in names]
    lines = []
    for name, about in models.items():
        counts = [f"{about[key]:,.0f}" for key in ("parameters", "sentences_per_cpu_second")]
        lines.append([name, *counts, *(number(about["transfer"][task]) for task in tasks)])
    return Table(["model", "parameters", "sentences per CPU second", *tasks], lines)


if __name__ == "__main__":
    main()
