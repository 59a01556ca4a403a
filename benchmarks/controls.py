"""What an ensemble of teachers is worth beyond an anchor: learners of other teachers, with equal text and steps.

    python benchmarks/controls.py --local ../shared/data

All arms start from MiniLM and read the first inductive draw of headline.py, with its tasks and settings. They take 703
steps, a third of the headline's, so compare them with each other only; a row says what more steps give. Three seeds are
three orders of the batches.

CONTRAST was fixed before the first run: what three teachers give beyond the best teacher and the learner's own model,
the anchor. It is read on the mean of the kinds of tasks.

Two controls have no teacher: MiniLM whitened on the same text, and MiniLM trained on by SimCSE, in which a sentence
finds itself under other dropout.

The same command continues what was stopped. The page is `controls.md` beside the headline's.
"""

import argparse
from pathlib import Path

import numpy as np

from raysed.config import Config, load_config
from raysed.process import prepare_process
from raysed.score.tasks import Evaluation
from raysed.train.calibrations.whiten import CALIBRATION

from headline import (
    ALL,
    ALONE,
    BEST,
    MINILM,
    SIX,
    Arm,
    Bench,
    Scores,
    loaded,
    options,
    outcomes_file,
    write_comparison,
)
from headline_data import texts
from vectors import embed_once

UPDATES = 703
SUFFIX, SEEDS = f", {UPDATES} steps", 3
ARMS = [
    Arm(SIX, ALL),
    Arm(SIX, "mpnet and MiniLM"),
    Arm(SIX, ALONE),
    Arm(SIX, "paraphrase and MiniLM"),
    Arm(SIX, "mpnet and paraphrase"),
]
THREE, ANCHORED, *_ = NAMES = [f"{arm.name}{SUFFIX}" for arm in ARMS]
SIMCSE, WHITENED = f"MiniLM trained by SimCSE{SUFFIX}", "MiniLM whitened on the text"
CONTRAST = (THREE, ANCHORED)


def main() -> None:
    """Trains what is missing, scores all, and writes the page."""
    parser = trained_options(__doc__)
    parser.add_argument("--only", nargs="+", choices=[*NAMES, SIMCSE], help="train these learners alone")
    arguments = parser.parse_args()
    prepare_process()
    bench = Bench.of(arguments)
    wanted = arguments.only or [*NAMES, SIMCSE]
    drawn = bench.drawn(ARMS[0], 0)
    bench.more = [*bench.more, shorter(load_config(bench.config("controls"), bench.more))]
    for seed in arguments.seeds:
        for arm in ARMS:
            if f"{arm.name}{SUFFIX}" in wanted:
                print(f"{arm.name}, seed {seed}", flush=True)
                bench.learn(arm, seed, f"controls-{seed}", drawn, SUFFIX)
        if SIMCSE in wanted:
            train_by_simcse(bench, seed, drawn)
    if arguments.unscored:
        return
    models = {MINILM: [bench.teachers[MINILM]], **bench.learners([*NAMES, SIMCSE, BEST])}
    evaluation = loaded(bench.data, bench.sample)
    models[WHITENED] = [whitened(bench, evaluation, drawn)]
    scores = Scores.of(models, evaluation, bench.results)
    against_three = [(THREE, name) for name in NAMES[2:]]
    gains = [(name, MINILM) for name in [*NAMES, SIMCSE, WHITENED]]
    pairs = [CONTRAST, *against_three, (BEST, THREE), *gains]
    first = "The contrast, fixed before the first run, is the first row."
    write_comparison("What the ensemble is worth beyond an anchor", scores, pairs, bench.results / "controls.md", first)


def trained_options(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of `options`, and those of learners that take UPDATES steps."""
    parser = options(description)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(SEEDS), help="orders of the batches: these alone")
    parser.add_argument("--unscored", action="store_true", help="only train")
    return parser


def shorter(config: Config, sentences: int | None = None) -> str:
    """Returns the setting of the number of steps, on `corpus.sentences` or as many as given."""
    return f"sed.epochs={UPDATES / ((sentences or config.corpus.sentences) // config.sed.batch_size)}"


def train_by_simcse(bench: Bench, seed: int, drawn: Path) -> None:
    """Trains MiniLM on by contrastive learning, unless that was done."""
    overrides = [
        *bench.more,
        "recipes=[contrastive]",
        "teachers=[]",
        f"corpus.source={drawn / 'text.txt'}",
        f"contrastive.steps={UPDATES}",
        "members.count=1",
        f"seed={seed}",
    ]
    bench.train_once(SIMCSE, seed, bench.config(f"simcse-{seed}"), overrides, made="contrastive/members")


def whitened(bench: Bench, evaluation: Evaluation, drawn: Path) -> Path:
    """Scores MiniLM whitened on the text; returns a path that names it."""
    name = bench.results / "models" / WHITENED / "0"
    file = bench.results / "outcomes" / outcomes_file([name])
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        vectors, model = bench.results / "vectors", bench.teachers[MINILM]
        whitening = CALIBRATION.fit(embed_once(model, texts(drawn / "text.txt"), vectors))
        x_UD = whitening.transform(embed_once(model, evaluation.sentences, vectors))
        np.savez(file, **evaluation.score(x_UD).outcomes)
    return name


if __name__ == "__main__":
    main()
