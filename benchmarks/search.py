"""Training for search: passages with known answers, learners, and what judges let through.

    python benchmarks/search.py passages ../shared/data/corpus/wikipedia-12k.txt passages
    python benchmarks/search.py train passages ../teachers results.jsonl
    python benchmarks/search.py judge ../shared/data/retrieval/trecqa-dev ../teachers

`passages` cuts articles into passages of up to 1,200 characters, and takes one sentence out of each: the query that the
passage must be found for. `train` distils all teachers of a directory into learners, in several ways. `judge` counts
negatives that people have judged to be answers.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import raysed
from raysed.config import CorpusConfig, SearchConfig, TaskConfig, TeacherConfig
from raysed.data.corpus import CorpusReport, text_chunks
from raysed.model.negatives import NONE, mine
from raysed.model.teacher import load_teacher
from raysed.score.kinds.retrieval import Retrieval
from raysed.score.metrics import unit

KINDS = ["titles", "crops"]
DISTANCE, RANKING = ["unit_mse"], ["scores"]
BOTH = DISTANCE + RANKING
WAYS = {
    "no queries, distance": ([], DISTANCE, {}),
    "no queries, both": ([], BOTH, {}),
    "distance": (KINDS, DISTANCE, {}),
    "ranking": (KINDS, RANKING, {}),
    "both": (KINDS, BOTH, {}),
    "both, no negatives": (KINDS, BOTH, {"negatives": 0}),
    **{f"both, {kind} alone": ([kind], BOTH, {}) for kind in KINDS},
}
"""Kinds of queries, losses, and further settings of `search`."""
LEARNERS = {
    "six": ({"keep_layers": 6}, {"batch_size": 64, "learning_rate": 5e-4}),
    "three": ({"keep_layers": 3}, {"batch_size": 64, "learning_rate": 5e-4}),
    "static": ({"static": True}, {"batch_size": 256, "learning_rate": 1e-2}),
}
_CHARACTERS, _LEAST = 1200, 300


def passages(lines: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield title, text and the sentence that was taken out of it; a short line without an end is a title."""
    draws, articles = random.Random(0), [("", [])]
    for line in lines:
        if len(line.split()) <= 10 and line[:1].isupper() and not re.search(r'[.!?:;,)"”]$', line):
            articles.append((line, []))
        else:
            articles[-1][1].append(line)
    for title, sentences in articles[1:]:
        parts: list[list[str]] = [[]]
        for sentence in sentences:
            if parts[-1] and sum(map(len, parts[-1])) + len(sentence) > _CHARACTERS:
                parts.append([])
            parts[-1].append(sentence)
        for part in parts:
            places = [i for i in range(1, len(part)) if 6 <= len(part[i].split()) <= 30]
            if len(part) >= 3 and sum(map(len, part)) >= _LEAST and places:
                out = draws.choice(places)
                yield title, " ".join(part[:out] + part[out + 1 :]), part[out]


def write_passages(source: Path, directory: Path) -> None:
    """Write passages in BEIR's layout."""
    found = list(passages(source.read_text(encoding="utf-8").splitlines()))
    (directory / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{i}", "title": title, "text": text} for i, (title, text, _) in enumerate(found)]
    (directory / "corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows = [{"_id": f"q{i}", "text": query} for i, (_, _, query) in enumerate(found)]
    (directory / "queries.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(len(found)))
    (directory / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    print(f"{len(found):,} passages")


def train(task: Path, teachers: Sequence[str], out: Path, updates: int, only: Sequence[str]) -> None:
    """Distil in every way that `only` names, with as many updates, into a line of `out` each."""
    corpus, run = str(task / "corpus.jsonl"), task.resolve().name
    for name in only:
        learner, way = name.split(", ", 1)
        (how, sed), (kinds, loss, more) = LEARNERS[learner], WAYS[way]
        search = SearchConfig(queries=kinds, **more)
        epochs = updates / per_epoch(CorpusConfig(source=corpus), search, sed["batch_size"])
        settings = {
            "search": search.model_dump(mode="json"),
            "sed": {**sed, "loss": loss, "checkpoint": "last", "epochs": epochs},
        }
        began = time.time()
        found = raysed.distill(
            teachers, corpus, tasks={run: str(task)}, run=run, settings=settings, verbose=True, **how
        )
        line = {"name": name, "updates": updates, "seconds": round(time.time() - began), "scores": found.scores}
        summary = [each for each in found.report["summary"] if each["task"] == run]
        with out.open("a") as file:
            file.write(json.dumps({**line, "summary": summary, "fidelity": found.report["fidelity"]}) + "\n")


def per_epoch(corpus: CorpusConfig, search: SearchConfig, batch_size: int) -> float:
    """Return the updates of an epoch."""
    parts = [(ids, of) for ids, _, of in text_chunks(corpus, 0, CorpusReport(), search if search.enabled else None)]
    ids, of = (np.concatenate(column) for column in zip(*parts))
    if not search.enabled:
        return len(ids) // batch_size
    anchors = (ids != of).sum() + (~np.isin(ids[ids == of], of[ids != of])).sum()
    return anchors // (batch_size // (2 + search.negatives))


def judge(task: Path, teachers: Sequence[str], count: int = 4) -> None:
    """Print, for each judge and margin, how many negatives are judged to be answers, and how near they are."""
    found = Retrieval.load("judged", TaskConfig(source=str(task)), 0, "mean")
    texts = [*found.queries, *found.documents]
    judges = {Path(path).name: unit(load_teacher(TeacherConfig(path=path)).embed(texts)) for path in teachers}
    together = np.concatenate(list(judges.values()), axis=1) / np.sqrt(len(judges))
    first = len(found.queries)
    pairs = np.array([(query, first + text) for query, gains in enumerate(found.gains) for text in gains])
    for name, x_ND in {**judges, "together": together}.items():
        for margin in (0.0, 0.05, 0.1, 0.15, 0.2):
            mined = mine(x_ND, *pairs.T, np.arange(first, len(texts)), count, margin)
            rows = [(q, row) for q, near in zip(pairs[:, 0], mined.negatives_QN) for row in near if row != NONE]
            wrong = 100 * np.mean([row - first in found.gains[query] for query, row in rows])
            near = np.mean([together[query] @ together[row] for query, row in rows])
            print(
                f"{name:28} margin {margin:.2f}: {len(rows):,} negatives, {wrong:.1f} % are answers, cosine {near:.3f}"
            )


def main() -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["passages", "train", "judge"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--only", nargs="+", default=[f"{learner}, {way}" for learner in LEARNERS for way in WAYS])
    given = parser.parse_args()
    if given.command == "passages":
        write_passages(given.source, given.target)
        return
    teachers = sorted(str(path) for path in given.target.iterdir())
    if given.command == "judge":
        judge(given.source, teachers)
    else:
        train(given.source, teachers, given.out, given.updates, given.only)


if __name__ == "__main__":
    main()
