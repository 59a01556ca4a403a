"""Weights for the text at hand: whether a learner gains if stronger teachers have more say on one kind of text.

    python benchmarks/weights.py --local ../shared/data

For each of DOMAINS, learners read up to 15,000 of its unscored sentences (headline.py's inductive pool) and take 703
steps, with the headline's learner, teachers and tasks. RULES give the weights; none reads a scored text:

    equal       what raysed does
    dev         of MIXTURES, the one whose combined vectors score best on the domain's dev task: labelled texts of the
                same source that are not scored (Stack Overflow, CLINC), or STS-B dev (general)
    agreement   each teacher's correlation of cosine matrices with the mean of the others', on 2,000 sentences

The page is `weights.md` beside the headline's: what the teachers combined by each rule score, and its gain over equal
weights; and three learners of each of LEARNED, the rules by which the teachers gain on their domain. The same command
continues what was stopped.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raysed.config import load_config, make_config
from raysed.model.combination import combined, prepared
from raysed.process import prepare_process
from raysed.score.tasks import Evaluation
from raysed.store.text import Table

from controls import shorter, trained_options
from headline import (
    ALL,
    GENERAL,
    INDUCTIVE,
    SIX,
    TEACHERS,
    Arm,
    Bench,
    Scores,
    draw,
    loaded,
    outcomes_file,
    score,
    write_comparison,
    write_teachers,
)
from headline_data import texts
from runs import write_lines
from vectors import embed_once

SENTENCES, AGREEING, DEV_TEXTS = 15_000, 2_000, 2_000
STACK, CLINC = "Stack Overflow", "CLINC"
DOMAINS = {STACK: "stackoverflow", CLINC: "clinc-test", GENERAL: None}
"""Each with its scored task; general text is read on the mean of the kinds."""
MIXTURES = [
    (1, 1, 1),
    (1, 0, 0),
    (0, 1, 0),
    (0, 0, 1),
    (1, 1, 0),
    (1, 0, 1),
    (0, 1, 1),
    (3, 1, 1),
    (1, 3, 1),
    (1, 1, 3),
]
"""Weights of the teachers, in the order of TEACHERS[ALL]."""
EQUAL, DEV, AGREEMENT = RULES = ("equal", "dev", "agreement")
LEARNED = [(domain, rule) for domain in (STACK, CLINC) for rule in (EQUAL, DEV)]


def main() -> None:
    """Trains what is missing, scores all, and writes the page."""
    parser = trained_options(__doc__)
    parser.add_argument("--domains", nargs="+", choices=list(DOMAINS), default=list(DOMAINS), help="train these alone")
    arguments = parser.parse_args()
    prepare_process()
    bench = Bench.of(arguments)
    drawn = {domain: write_domain(bench, domain) for domain in DOMAINS}
    weights = {(domain, rule): weights_by(rule, bench, domain, drawn[domain]) for domain in DOMAINS for rule in RULES}
    for domain, rule in LEARNED:
        for seed in arguments.seeds if domain in arguments.domains else []:
            learn(bench, named(domain, rule), weights[domain, rule], seed, drawn[domain])
    if arguments.unscored:
        return
    evaluation = loaded(bench.data, bench.sample)
    targets = {
        f"{named(*key)}, teachers": [write_target(bench, named(*key), of, evaluation)] for key, of in weights.items()
    }
    scores = Scores.of(bench.learners(named(*key) for key in LEARNED) | targets, evaluation, bench.results)
    pairs = [
        (f"{named(domain, rule)}{of}", f"{named(domain, EQUAL)}{of}")
        for of in ("", ", teachers")
        for domain in DOMAINS
        for rule in RULES[1:]
    ]
    chosen = [[named(*key), *(f"{each:.2f}" for each in of)] for key, of in weights.items()]
    table = Table(["weights", *TEACHERS[ALL]], chosen).markdown()
    write_comparison("Weights for the text at hand", scores, pairs, bench.results / "weights.md", table)


def named(domain: str, rule: str) -> str:
    """Names what was made by a rule for a domain."""
    return f"{domain}, {rule} weights"


def write_domain(bench: Bench, domain: str) -> Path:
    """Draws a domain's text from the inductive pool, and has the teachers embed it; returns the directory."""
    sources = {STACK: ["stackoverflow"], CLINC: ["clinc-train", "clinc-val"], GENERAL: []}[domain]
    own = {text for name in sources for text in texts(bench.data / f"classes/{name}.tsv")}
    own -= {text for text, _ in labelled(bench, domain)}
    pool = texts(bench.pools[GENERAL if domain == GENERAL else INDUCTIVE])
    to = bench.results / "text" / f"weights-{domain}"
    to.mkdir(parents=True, exist_ok=True)
    kept = [text for text in pool if domain == GENERAL or text in own]
    draw(write_lines(to / "pool.txt", kept), min(SENTENCES, len(kept)), 0, to)
    write_teachers({name: bench.teachers[name] for name in TEACHERS[ALL]}, to, bench.results / "vectors")
    return to


def labelled(bench: Bench, domain: str) -> list[tuple[str, str]]:
    """Returns text and label of a domain's dev texts, which are neither scored nor read."""
    if domain == GENERAL:
        return []
    name = "stackoverflow" if domain == STACK else "clinc-val"
    rows = (bench.data / f"classes/{name}.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]
    kept = set(texts(bench.pools[INDUCTIVE]))
    found = [(text, label) for label, text in (row.split("\t") for row in rows) if text in kept]
    return random.Random(1).sample(found, min(DEV_TEXTS, len(found)))


def weights_by(rule: str, bench: Bench, domain: str, drawn: Path) -> Sequence[float]:
    """Returns the teachers' weights by a rule, which sum to 1."""
    if rule == EQUAL:
        found = MIXTURES[0]
    elif rule == DEV:
        evaluation = dev_task(bench, domain)
        parts = vectors_of(bench, evaluation.sentences)
        found = max(MIXTURES, key=lambda mixture: score(evaluation, outcomes(mixture, parts, evaluation), ["dev"]))
    else:
        sample = texts(drawn / "text.txt")[:AGREEING]
        above = np.triu_indices(len(sample), 1)
        cosines_KP = np.stack([(x_ND @ x_ND.T)[above] for x_ND in vectors_of(bench, sample)])
        others = [np.delete(cosines_KP, k, 0).mean(0) for k in range(len(cosines_KP))]
        found = [np.corrcoef(own, mean)[0, 1] for own, mean in zip(cosines_KP, others, strict=True)]
    return [float(each) for each in np.asarray(found) / np.sum(found)]


def dev_task(bench: Bench, domain: str) -> Evaluation:
    """Returns the task by which `dev` chooses."""
    task = {"source": str(bench.data / "sts/stsb-dev.tsv"), "aggregation": "all"}
    if domain != GENERAL:
        rows = ["label\ttext", *(f"{label}\t{text}" for text, label in labelled(bench, domain))]
        task = {"source": str(write_lines(bench.results / f"dev-{domain}.tsv", rows)), "kind": "neighbours"}
    return Evaluation.load(make_config({"evaluation": {"tasks": {"dev": task}, "dev": None}}).evaluation)


def vectors_of(bench: Bench, sentences: Sequence[str]) -> list[np.ndarray]:
    """Returns what each teacher makes of texts, as unit vectors."""
    vectors = bench.results / "vectors"
    return [prepared("concatenated", embed_once(bench.teachers[name], sentences, vectors)) for name in TEACHERS[ALL]]


def outcomes(mixture: Sequence[float], parts: Sequence[np.ndarray], evaluation: Evaluation) -> Mapping[str, np.ndarray]:
    """Returns what teachers of these weights, combined, make of the tasks."""
    kept = [(weight, part) for weight, part in zip(mixture, parts, strict=True) if weight]
    x_UD = combined("concatenated", *map(list, zip(*kept, strict=True)))
    return evaluation.score(x_UD.astype(np.float32)).outcomes


def learn(bench: Bench, name: str, weights: Sequence[float], seed: int, drawn: Path) -> Path:
    """Trains one seed unless its learner exists; returns its directory."""
    arm, run = Arm(SIX, ALL), f"weights-{name.split(',')[0].replace(' ', '-').lower()}-{seed}"
    kept = {teacher: weight for teacher, weight in zip(TEACHERS[ALL], weights, strict=True) if weight}
    config = load_config(bench.config(run), bench.more)
    sentences = len(texts(drawn / "text.txt"))
    overrides = [
        *bench.more,
        *arm.overrides(config, drawn, seed),
        f"teachers={json.dumps([str(drawn / f'{teacher}.parquet') for teacher in kept])}",
        f"combination.weights={json.dumps(list(kept.values()))}",
        f"corpus.sentences={sentences}",
        shorter(config, sentences),
    ]
    return bench.train_once(name, seed, bench.config(run), overrides)


def write_target(bench: Bench, name: str, weights: Sequence[float], evaluation: Evaluation) -> Path:
    """Scores the combined teachers; returns a path that names them."""
    path = bench.results / "models" / f"{name}, teachers" / "0"
    file = bench.results / "outcomes" / outcomes_file([path])
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        np.savez(file, **outcomes(weights, vectors_of(bench, evaluation.sentences), evaluation))
    return path


if __name__ == "__main__":
    main()
