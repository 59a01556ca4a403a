"""Compare models as teachers, alone and together, on your own files, before you distil them.

    raysed teachers --teachers A B C --task pairs.tsv --task my-retrieval/ --task labelled.tsv --dev pairs-dev.tsv
    raysed teachers --teachers A vectors.parquet --corpus tickets.txt
    raysed teachers --config tickets-small.yaml

It scores every teacher alone, all together, all except one, and the best subset on the dev task. Without labels, it
shows how much the teachers differ. It trains nothing.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysed.cli import check_output, write_output
from raysed.commands import add_names, add_tasks, parser_of, refuse_renamed
from raysed.errors import UserError

if TYPE_CHECKING:
    from raysed.config import Config, Role
    from raysed.model.teacher import Teacher
    from raysed.score.tasks import Evaluation

AFTER_STOP = "Run the same command again to start over."
MOST_SENTENCES = 2_000
_LABELS_ADVICE = (
    "Without labels, this does not show whether the teachers are better together. To see that, name a --dev task: a "
    "few hundred graded pairs of your own sentences, a few texts per label, or a few dozen queries with the documents "
    "that answer them."
)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__, "--set")
    add_names(result, "--teachers", "MODEL", "models, or .parquet files of embeddings")
    refuse_renamed(result, {"MODEL": "--teachers"})
    add_tasks(result, "graded pairs, labelled texts or a directory in BEIR's layout")
    result.add_argument("--dev", metavar="TASK", help="choose the best subset on this task; default: all tasks")
    add_names(result, "--corpus", "SOURCE", "sentences without labels")
    result.add_argument("--config", help="config for the teachers, tasks and combination that are not given here")
    result.add_argument("--output", type=Path, help="write all numbers to this JSON file")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Embed all sentences with one teacher after another, compare, and print tables."""
    config, texts = _settings(arguments), arguments.corpus
    if arguments.output:
        check_output(arguments.output)

    from raysed.process import prepare_process

    prepare_process()
    from raysed.config import CorpusConfig
    from raysed.make.scores import embed_by
    from raysed.plan.check import check_teachers
    from raysed.plan.draft import survey_corpus
    from raysed.report.sections.teachers import agreement_blocks, gain_blocks
    from raysed.resources import device_here
    from raysed.score.ensemble import FEWEST_SENTENCES, Ensemble, agreement, by_title
    from raysed.score.seen import without_seen
    from raysed.score.tasks import Evaluation

    teachers, _ = check_teachers(config)
    titles = [teacher.title for teacher in teachers]
    evaluation = without_seen(Evaluation.load(config.evaluation, config.seed), config.evaluation, {})
    evaluation = _known_to_all(evaluation, teachers)
    labelled: list[tuple[Role, str]] = list(zip(evaluation.roles, evaluation.sentences))
    sample: list[tuple[Role, str]] = labelled
    if texts:
        sample = [("", text) for text in survey_corpus(CorpusConfig(source=texts)).sample]
    sample = [each for each in sample if all(teacher.knows([each[1]]) for teacher in teachers)]
    sample = sample[:: 1 + len(sample) // MOST_SENTENCES]
    if not evaluation.tasks and len(sample) < FEWEST_SENTENCES:
        raise UserError(
            f"{len(sample):,} sentences without labels are too few to show how much teachers differ; name at least "
            f"{FEWEST_SENTENCES:,} in --corpus that all teachers know, or a --task with labels"
        )
    row = {each: place for place, each in enumerate(dict.fromkeys([*labelled, *sample]))}
    embeddings = []
    for teacher in teachers:
        teacher.precision = config.resources.encode_precision  # as in a run that learns from them
        teacher.device = device_here(config.resources.gpu)
        embeddings.append(embed_by(teacher, [text for _, text in row], [role for role, _ in row])[0])
        teacher.unload()
    comparison: dict[str, Any] = {}
    if evaluation.tasks:
        tasks = [name for name in config.evaluation.report_tasks() if name in evaluation.tasks]
        tasks = tasks or list(evaluation.tasks)
        dev = [config.evaluation.dev] if config.evaluation.dev in evaluation.tasks else tasks
        ensemble = Ensemble(evaluation, config.combination, [x_ND[: len(labelled)] for x_ND in embeddings])
        comparison["worth"] = by_title(ensemble.gain(tasks, ensemble.choose(dev)), titles)
        _print(gain_blocks(comparison["worth"]))
    if len(sample) >= FEWEST_SENTENCES:
        rows = [row[each] for each in sample]
        comparison["agreement"] = agreement([x_ND[rows] for x_ND in embeddings], titles)
        _print(agreement_blocks(comparison["agreement"]))
    if not evaluation.tasks:
        print(f"\n{_LABELS_ADVICE}")
    if arguments.output:
        write_output(arguments.output, json.dumps(comparison, indent=1) + "\n")


def _settings(arguments: argparse.Namespace) -> "Config":
    """Return the settings; options replace a config's settings."""
    from raysed.config import TeacherConfig, find_config, load_config, with_unique_titles
    from raysed.plan.consistency import combination_problems

    config = load_config(find_config(arguments.config) if arguments.config else None, arguments.overrides)
    teachers = with_unique_titles([TeacherConfig(path=path) for path in arguments.teachers]) or config.teachers
    if len(teachers) < 2:
        raise UserError(
            "raysed teachers compares combinations of models; name two or more, or score one with raysed evaluate"
        )
    if members := [teacher.path for teacher in teachers if teacher.is_members]:
        raise UserError(f"teachers: {members[0]!r} exists only within a run; name models or files of embeddings")
    config = config.model_copy(update={"teachers": teachers})
    for problem in combination_problems(config):
        raise UserError(problem)
    if not (arguments.tasks or arguments.corpus or arguments.dev):
        if arguments.config:
            return config
        raise UserError(
            "teachers cannot be compared without sentences; name a --task with labels, or your own text with --corpus"
        )
    from raysed.score.tasks import with_tasks

    evaluation = with_tasks(config.evaluation, arguments.tasks, arguments.dev)
    return config.model_copy(update={"evaluation": evaluation})


def _known_to_all(evaluation: "Evaluation", teachers: Sequence["Teacher"]) -> "Evaluation":
    """Return the tasks whose sentences all teachers can embed."""
    kept = []
    for name, task in evaluation.tasks.items():
        lacking = [teacher.title for teacher in teachers if not teacher.knows(task.sentences)]
        if lacking:
            print(f"left out: {name}: {lacking[0]} has no embeddings for some of its sentences")
        else:
            kept.append(task)
    return type(evaluation)(kept)


def _print(blocks: Iterable[Any]) -> None:
    for block in blocks:
        print(f"\n{block if isinstance(block, str) else block.plain()}")
