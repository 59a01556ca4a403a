"""What an ensemble gains if its members differ by how they were trained, instead of by their seed.

    ../shared/data/teachers ../teachers
    python benchmarks/mixed_ensemble.py [--storage runs]

Two parts (PARTS), without labels and with them, each of three stages that start from the same encoder. A stage trains
a member for each of three seeds (mixed_ensemble.yaml). An ensemble is one member of each stage with the same seed. Its
embeddings are combined as raysed combines `teachers`: unit vectors side by side, or the plain mean. Rivals are its best
member, the average of its members' weights, the three seeds of the best stage together, and members that went through
one stage after the other.

With labels, STS-B dev chooses the best member, and the ensemble among those of two or three stages. Without labels
nothing may be chosen by scores: the ensemble is that of all stages, and its rival the best member on the tests. The
verdict is on the mean of STS-B test and STS12, 13 and 15, with a 95 % interval over their items and over seeds. Pairs
that were learnt from or chosen by are left out.

The same command continues what was stopped. `--times 4` trains all members four times as long. `--distil` distils each
ensemble that wins, for each seed into a learner that starts from its best member.

RESULTS is `mixed-ensemble-results` in --storage (`runs`): page.md, and what models make of the tasks.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import yaml
from ensemble_size import DEV, LEARN
from headline import Scores, difference, embedded, score
from torch import nn
from transformers import AutoTokenizer

from raysed.config import Config, load_config, stable_hash
from raysed.model.combination import side_by_side
from raysed.model.pretrained import load_checkpoint, load_encoder, save_encoder
from raysed.plan.check import load_evaluation
from raysed.process import prepare_process
from raysed.score.intervals import interval, resample
from raysed.score.tasks import Evaluation, Outcomes
from raysed.store.storage import Storage
from raysed.store.text import Table

from harness import ROOT, where
from runs import report_of

CONFIG = ROOT / "benchmarks/mixed_ensemble.yaml"
MEAN, DEV_TASK = "mean", "stsb-dev"
TASKS = {
    MEAN: ("stsb-test", "sts12", "sts13", "sts15"),
    **{name: (name,) for name in ("stsb-test", "sts12", "sts13", "sts15", "trecqa", DEV_TASK)},
}
"""Tasks by column; the verdict is on the first."""
COMPARED = (MEAN, "stsb-test", "trecqa")
"""Columns with intervals."""
ORIGINAL, WEIGHTS, SEEDS, ALL = "original encoder", "average of all weights", "three seeds of", "all nine, side by side"
BESIDE, PLAIN = "side by side", "mean"
LEARNT_FROM = 12_000
"""Sentences of the corpus that a learner reads twice: some 400 updates."""
Model = Sequence[Sequence[Path]]
"""Models in groups: each group is averaged, and groups stand side by side."""


@dataclass(frozen=True)
class Part:
    """Stages whose members are combined.

    Attributes:
        settings: of its run, beside the config.
        chosen_on: column by which the best member is chosen.
        in_turn: recipes whose members go through several of these stages.
    """

    name: str
    stages: tuple[str, ...]
    chosen_on: str
    settings: Sequence[str] = field(default=())
    in_turn: tuple[str, ...] = ()

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Stages that are combined: all, and each part of them from two up."""
        return [group for size in range(2, len(self.stages) + 1) for group in combinations(self.stages, size)]

    def ensemble(self, how: str = BESIDE, stages: Sequence[str] = ()) -> str:
        """Returns the name of the ensemble of some stages, by default of all."""
        return f"{' + '.join(stages or self.stages)}, {how}"


PARTS = {
    "unlabelled": Part(
        "Without labels", ("ct", "contrastive", "bsl"), MEAN, ["evaluation.dev=null", "bsl.views=[mlm]"]
    ),
    "labelled": Part("With labels", ("bsl", "nli", "sts"), DEV_TASK, ["bsl.views=[entailment]"], ("bsl-sts",)),
}


def main() -> None:
    """Trains what is missing, scores everything, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the runs and of the results")
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--times", type=float, default=1.0, help="train all members so many times as long")
    parser.add_argument(
        "--distil", nargs="?", const="won", choices=["won", "all"], help="distil ensembles that win, or all"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of all runs")
    arguments = parser.parse_args()
    prepare_process()
    storage = arguments.storage.resolve()
    results = storage / "mixed-ensemble-results"
    sections = []
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            overrides = [f"recipes={json.dumps(part.stages)}", *part.settings, *arguments.set]
            overrides += longer(load_config(CONFIG, overrides), part.stages, arguments.times)
            config = load_config(CONFIG, overrides)
            directory = results / f"{name}-{stable_hash(config.model_dump(mode='json'))[:8]}"
            directory.mkdir(parents=True, exist_ok=True)
            models = train(part, config, overrides, storage, directory)
            # Whatever a run may choose by, the same pairs are scored in both parts but for those that it learns from.
            evaluation = load_evaluation(load_config(CONFIG, [*overrides, f"evaluation.dev={DEV_TASK}"]))
            scores = scored(part, models, evaluation, directory)
            if arguments.distil and (arguments.distil == "all" or wins(part, scores)):
                models |= distil(part, scores, models, overrides, storage, directory)
                scores = scored(part, models, evaluation, directory)
            sections += section(part, scores, overrides)
    settings = f"```yaml\n{yaml.safe_dump(yaml.safe_load(CONFIG.read_text()), sort_keys=False)}```"
    head = ["# Ensembles whose members differ by their stage", f"{where()}."]
    page = "\n\n".join([*head, *sections, "## Settings", settings]) + "\n"
    (results / "page.md").write_text(page, encoding="utf-8")
    print(f"{page}\n{results / 'page.md'}", flush=True)


def longer(config: Config, stages: Sequence[str], times: float) -> list[str]:
    """Returns the settings that train so many times as long."""
    blocks = {stage: getattr(config, stage) for stage in stages}
    return [
        f"{stage}.steps={round(block.steps * times)}"
        if getattr(block, "steps", None)
        else f"{stage}.epochs={block.epochs * times}"
        for stage, block in blocks.items()
    ]


def train(
    part: Part, config: Config, overrides: Sequence[str], storage: Path, directory: Path
) -> dict[str, list[Model]]:
    """Trains the members; returns all models of a part by name, one for each seed."""
    run = f"{config.run}-{directory.name}"
    report_of(CONFIG, run, storage, [*overrides, DEV, f"recipes={json.dumps(part.stages + part.in_turn)}"])
    stored, seeds = Storage(str(storage), run), range(config.members.count)
    places = {name: "grid/0" if name.endswith("sts") else "members" for name in part.stages + part.in_turn}
    trained = {name: [stored.fetch(f"{name}/{at}/{seed:02d}") for seed in seeds] for name, at in places.items()}
    members = {stage: trained[stage] for stage in part.stages}
    original = directory / "original"
    if not original.exists():
        save_encoder(*load_encoder(config.encoder), original)
    models: dict[str, list[Model]] = {ORIGINAL: [[[original]]]}
    models |= {name: [[[path]] for path in paths] for name, paths in trained.items()}
    for stages in part.groups:
        each = [[members[stage][seed] for stage in stages] for seed in seeds]
        models[part.ensemble(BESIDE, stages)] = [[[path] for path in paths] for paths in each]
        models[part.ensemble(PLAIN, stages)] = [[paths] for paths in each]
    together = zip(*members.values(), strict=True)
    models[WEIGHTS] = [[[averaged(paths, directory / f"weights-{seed}")]] for seed, paths in enumerate(together)]
    models |= {f"{SEEDS} {name}": [[paths]] for name, paths in trained.items()}
    return models | {ALL: [list(members.values())]}


def mean_weights(models: Iterable[nn.Module]) -> dict[str, torch.Tensor]:
    """Return the mean of the models' states, summed in float64 one by one; integers come from the last model."""
    sums: dict[str, torch.Tensor] = {}
    count = 0
    for model in models:
        count += 1
        for name, value in model.state_dict().items():
            is_float = value.is_floating_point()
            sums[name] = value.double() + sums.get(name, 0.0) if is_float else value
    return {name: value / count if value.is_floating_point() else value for name, value in sums.items()}


def averaged(paths: Sequence[Path], to: Path) -> Path:
    """Writes the average of several encoders' weights; returns its directory."""
    if not to.exists():
        encoder = load_checkpoint(paths[0])
        encoder.load_state_dict(mean_weights(load_checkpoint(path) for path in paths))
        save_encoder(encoder, AutoTokenizer.from_pretrained(paths[0], trust_remote_code=False), to)
    return to


def scored(part: Part, models: Mapping[str, Sequence[Model]], evaluation: Evaluation, directory: Path) -> Scores:
    """Scores all models on the same resamples."""
    print(f"score {part.name}: {sum(map(len, models.values()))} models", flush=True)
    outcomes = {
        name: [outcomes_of(model, evaluation, directory / f"{name}-{seed}.npz") for seed, model in enumerate(each)]
        for name, each in models.items()
    }
    found = {
        column: {name: [score(evaluation, one, of) for one in each] for name, each in outcomes.items()}
        for column, of in TASKS.items()
    }
    draws = {c: resample(evaluation, outcomes, TASKS[c], seed=k) for k, c in enumerate(COMPARED)}
    return Scores(evaluation, found, draws)


def outcomes_of(model: Model, evaluation: Evaluation, file: Path) -> Outcomes:
    """Returns what a model makes of every task; embeds for it once."""
    if not file.exists():
        texts = tuple(evaluation.sentences)
        parts = [np.mean([embedded(path, texts) for path in group], axis=0) for group in model]
        x_ND = side_by_side(parts, is_unit=len(parts) > 1).astype(np.float32)
        np.savez(file, **evaluation.score(x_ND).outcomes)
    with np.load(file) as found:
        return dict(found)


def best_member(part: Part, scores: Scores) -> str:
    """Returns the stage whose members are best where the part may choose."""
    return max(part.stages, key=lambda stage: statistics.fmean(scores.scores[part.chosen_on][stage]))


def chosen(part: Part, scores: Scores) -> tuple[str, ...]:
    """Returns the stages of the ensemble: all, or those that STS-B dev chooses."""
    if part.chosen_on != DEV_TASK:
        return part.stages
    return max(part.groups, key=lambda stages: statistics.fmean(scores.scores[DEV_TASK][part.ensemble(BESIDE, stages)]))


def gain(part: Part, scores: Scores) -> tuple[float, float, float]:
    """Returns what the ensemble has above its best member, and the interval's ends."""
    name, best = part.ensemble(BESIDE, chosen(part, scores)), best_member(part, scores)
    low, high = interval(scores.draws[MEAN][name] - scores.draws[MEAN][best])
    return statistics.fmean(scores.scores[MEAN][name]) - statistics.fmean(scores.scores[MEAN][best]), low, high


def wins(part: Part, scores: Scores) -> bool:
    """Whether the ensemble is above its best member beyond chance."""
    return gain(part, scores)[1] > 0


def section(part: Part, scores: Scores, overrides: Sequence[str]) -> list[str]:
    """Returns a part's blocks of Markdown."""
    best, stages = best_member(part, scores), chosen(part, scores)
    ensemble = part.ensemble(BESIDE, stages)
    value, low, high = gain(part, scores)
    verdict = "wins over" if low > 0 else "loses to" if high < 0 else "shows no clear effect against"
    where_chosen = "both chosen on STS-B dev" if part.chosen_on == DEV_TASK else "chosen on the tests themselves"
    rivals = [best, ORIGINAL, WEIGHTS, f"{SEEDS} {best}", part.ensemble(PLAIN, stages), *part.in_turn]
    pairs = [(ensemble, rival) for rival in rivals] + [(WEIGHTS, best), (ALL, f"{SEEDS} {best}")]
    others = [part.ensemble(BESIDE, each) for each in part.groups] + list(part.in_turn)
    learners = [name for name in scores.scores[MEAN] if name.startswith("learner")]
    pairs += [(name, best) for name in [*others, *learners] if name != ensemble]
    pairs += [(name, ensemble) for name in learners]
    rows = [
        [f"{a}, less {b}", *(difference(a, b, scores.scores[c], scores.draws[c]) for c in COMPARED)] for a, b in pairs
    ]
    return [
        f"## {part.name}",
        f"**{' + '.join(stages)} {verdict} the best member** ({best}; {where_chosen}): {value:+.1f} "
        f"({low:+.1f} to {high:+.1f}) on the mean of STS-B test and STS12, 13 and 15.",
        scores.all().markdown(),
        "Scores are means over seeds, with their deviation. `stsb-dev` is not a test.",
        Table(["difference", *COMPARED], rows).markdown(),
        "95 % intervals over the items of the tasks, and over seeds where a row has several.",
        f"Settings beside the config's: {' '.join(f'`{each}`' for each in overrides if '/' not in each)}.",
    ]


def distil(
    part: Part,
    scores: Scores,
    models: Mapping[str, Sequence[Model]],
    overrides: Sequence[str],
    storage: Path,
    directory: Path,
) -> dict[str, list[Model]]:
    """Distils the ensemble, for each seed into its best member; returns the learners by name."""
    ensemble, best = part.ensemble(BESIDE, chosen(part, scores)), best_member(part, scores)
    # The caller's settings come last: a try can be short.
    own = [word for word in overrides if word.startswith(("sed.", "corpus."))]
    run, learners = f"{directory.name}-learner", []
    for seed, (((start,),), model) in enumerate(zip(models[best], models[ensemble], strict=True)):
        to = directory / f"learner-{seed}"
        if not to.exists():
            settings = {**LEARN, "sed.sentences": LEARNT_FROM, "combination": "{turn: true}", "seed": seed}
            settings["sed.loss"] = "unit_mse"  # targets are unit vectors, the learner's outputs are not
            settings["encoder"] = json.dumps({"path": str(start), "pool_layers": 1, "max_length": 64})
            settings["teachers"] = json.dumps([{"path": str(path), "max_length": 64} for (path,) in model])
            report_of(CONFIG, run, storage, [*(f"{key}={value}" for key, value in settings.items()), *own, DEV])
            shutil.copytree(Storage(str(storage), run).fetch("teachers-sed/learners/00"), to)
        learners.append([[to]])
    return {f"learner of {ensemble}, from {best}": learners}


if __name__ == "__main__":
    main()
