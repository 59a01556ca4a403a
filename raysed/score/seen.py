"""What tasks share with data that was learnt from with labels, and with the task that choices are made on.

STS-B was cut from the STS years, and SICK has scores and classes of the same pairs: a model that has learnt from one
has learnt part of the other.
"""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from raysed.config import EvaluationConfig
from raysed.score.kinds import Task
from raysed.score.kinds.pairs import Pairs
from raysed.score.tasks import Evaluation

log = logging.getLogger(__name__)
Items = Iterable[Sequence[str]]
"""Pairs of sentences, or texts alone."""


def key_of(item: Sequence[str]) -> tuple[str, ...]:
    """Return what equal items share: their texts in any order, whatever their case, blanks and forms of characters.

    >>> key_of(["A man  runs.", "He moves."]) == key_of(["he moves.", "A man runs. "])
    True
    """
    return tuple(sorted(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in item))


def without_seen(evaluation: Evaluation, config: EvaluationConfig, learnt: Mapping[str, Items]) -> Evaluation:
    """Count what tasks share with what was learnt from and with the dev task, and leave it out of their scores.

    Args:
        evaluation: all tasks of `config`.
        config: `drop_seen` off: everything stays, and is only counted.
        learnt: what models of the run learn from with labels, by setting. One source after the other is gone through;
            of the tasks alone there is a table in memory.
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
    return Evaluation([_told(task, seen.get(name, {}), config.drop_seen) for name, task in evaluation.tasks.items()])


def _told(task: Task, seen: Mapping[str, set[int]], drops: bool) -> Task:
    """Say what of a task has been seen; leave it out if `drops`, unless what is left cannot be scored."""
    if not seen:
        return task
    rows = sorted(set().union(*seen.values()))
    found = ", ".join(f"{len(some):,} of {source}" for source, some in seen.items())
    what = "pairs" if task.kind == Pairs.kind else "texts"
    known = f"task {task.name}: {len(rows):,} of its {len(task.items()):,} {what} have been seen ({found})"
    left = task.without(rows) if drops else None
    if left:
        log.info("%s and are left out", known)
        left.size += f"; left out: {found}"
        return left
    if drops:
        log.warning("%s, and the rest cannot be scored, so all count; name data of its own for it", known)
    else:
        log.info("%s and count all the same", known)
    task.size += f"; seen: {found}"
    return task
