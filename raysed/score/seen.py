"""Overlap of tasks with labelled training data and with the dev task.

STS-B was cut from the STS years, and SICK has scores and classes for the same pairs: a model trained on one has seen
part of the other.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from raysed.config import EvaluationConfig
from raysed.score.kinds import EvaluationTask
from raysed.score.kinds.pairs import Pairs
from raysed.score.lexical import key_of
from raysed.score.tasks import Evaluation

log = logging.getLogger(__name__)
Items = Iterable[Sequence[str]]
"""Sentence pairs or single texts."""


def without_seen(evaluation: Evaluation, config: EvaluationConfig, learnt: Mapping[str, Items]) -> Evaluation:
    """Find task items that are also in labelled training data or the dev task, and leave them out of scores.

    Args:
        config: without `drop_seen`, items are only counted.
        learnt: labelled training items of the run's models, by setting. Sources are read one by one, and memory holds
            only the tasks' items.
    """
    places = defaultdict(list)
    for name, task in evaluation.tasks.items():
        for row, item in enumerate(task.items()):
            places[key_of(item)].append((name, row))
    sources = {**learnt, **({config.dev: evaluation.tasks[config.dev].items()} if config.dev else {})}
    seen: dict[str, dict[str, set[int]]] = defaultdict(dict)  # rows by task and source
    for source, items in sources.items():
        for item in items:
            for name, row in places.get(key_of(item), ()):
                if name != source:
                    seen[name].setdefault(source, set()).add(row)
    return Evaluation(
        [_log_seen(task, seen.get(name, {}), config.drop_seen) for name, task in evaluation.tasks.items()]
    )


def _log_seen(task: EvaluationTask, seen: Mapping[str, set[int]], drops: bool) -> EvaluationTask:
    """Log which items of a task have been seen; drop them if `drops`, unless the rest cannot be scored."""
    if not seen:
        return task
    rows = sorted(set().union(*seen.values()))
    found = ", ".join(f"{len(some):,} of {source}" for source, some in seen.items())
    what = "pairs" if task.kind == Pairs.kind else "texts"
    known = (
        f"task {task.name}: {len(rows):,} of {len(task.items()):,} {what} are also in training or dev data ({found})"
    )
    left = task.without(rows) if drops else None
    if left:
        log.info("%s and are left out", known)
        left.size += f"; left out: {found}"
        return left
    if drops:
        log.warning("%s; the rest cannot be scored, so all are kept; use other data for this task", known)
    else:
        log.info("%s, but are scored anyway", known)
    task.size += f"; seen: {found}"
    return task
