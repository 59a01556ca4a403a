"""Read sentence pairs with gold scores from files, directories, the package or the hub, and check them."""

import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from raysed.config import TaskConfig
from raysed.data.rows import Rows, Schema, read, read_lines, read_source
from raysed.data.sources import local_file, parquet_parts
from raysed.errors import UserError, public
from raysed.store.files import check_content, visible

log = logging.getLogger(__name__)

PAIR = ("first", "second")
"""Fields of the two sentences in a schema."""
SENTENCE_COLUMNS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
)
GRADED_COLUMNS = (*SENTENCE_COLUMNS, ("sentence_1", "sentence_2"), ("text_1", "text_2"), ("text_a", "text_b"))
GOLD_COLUMNS = ("score", "similarity_score", "relatedness_score", "similarity", "relatedness", "label")
"""Names of score columns, in order of preference."""
FEWEST = 3
"""Fewest pairs to score: the correlation of two is always 1 or -1."""

_ALL = "all"
"""Subset of pairs without a subset."""
_MIN_SCORES, _MIN_SHARE = 20, 1 / 3
"""This many scores should fill this share of their range; fewer may be close together by chance."""


@dataclass(frozen=True)
class StsTask:
    """Sentence pairs with gold scores."""

    name: str
    subsets: dict[str, tuple[list[str], list[str], np.ndarray]]
    """First sentences, second sentences and gold scores, float64 [P], by subset."""
    dropped: int = 0
    """Pairs without a gold score."""
    aggregation: str | None = None
    """`all`, `mean` or `wmean`; None: the evaluation's."""
    is_generated: bool = False
    """Whether a program wrote and graded the pairs."""

    @property
    def pairs(self) -> int:
        """Number of scored pairs in all subsets."""
        return sum(len(gold) for _, _, gold in self.subsets.values())


def load_task(name: str, config: TaskConfig, setting: str | None = None, split: str = "test") -> StsTask:
    """Read the pairs to score a model on, see `read_graded`."""
    return read_graded(name, config, setting or f"evaluation.tasks.{name}", split, is_scored=True)


def read_graded(name: str, config: TaskConfig, setting: str, split: str = "test", is_scored: bool = False) -> StsTask:
    """Read the pairs of `config.source`; `TaskConfig` lists its forms, `graded_schema` the columns.

    Pairs with a blank score (STS 2015 and 2016 have many) or an empty sentence are dropped. Subsets are in order of
    first appearance (directories: by name). `split` is for `read_source`. UserError if no pair has a score, or if
    scores are outside their range or fill too little of it. `is_scored` also requires that a correlation is defined.
    """
    subsets: dict[str, tuple[list[str], list[str], list[float]]] = {}
    dropped = empty = 0
    low, high = config.score_range or (-math.inf, math.inf)
    remedy = f"write it as 3.5, leave it blank, or name the score's column in {setting}.columns"
    for rows in _read(config, setting, split):
        sides = zip(rows.columns["subset"], rows.texts("first"), rows.texts("second"))
        for place, (gold, (subset, first, second)) in enumerate(zip(rows.numbers_of("score", remedy), sides)):
            if gold is None or not (first.strip() and second.strip()):
                dropped, empty = dropped + (gold is None), empty + (gold is not None)
                continue
            if not low <= gold <= high:
                raise UserError(
                    f"{rows.where(place)}: score {gold:g} is outside {setting}.score_range, {low:g} to {high:g}"
                )
            columns = subsets.setdefault(_ALL if subset in (None, "") else str(subset), ([], [], []))
            for column, value in zip(columns, (first, second, gold)):
                column.append(value)
    if empty:
        log.info("%s: %d pairs have an empty sentence and are left out", setting, empty)
    if not subsets:
        raise UserError(f"{public(config.source)} has no pair with a gold score ({dropped} blank)", setting=setting)
    arrays = {key: (first, second, np.array(gold)) for key, (first, second, gold) in subsets.items()}
    task = StsTask(name, arrays, dropped, config.aggregation, config.is_generated)
    if is_scored:
        _check_correlation(gold_of(task), public(config.source), setting)
    if config.score_range is not None:
        _check_range(gold_of(task), config.score_range, public(config.source), setting)
    return task


def _check_correlation(gold_P: np.ndarray, source: str, setting: str) -> None:
    if len(gold_P) < FEWEST:
        pairs = "1 pair" if len(gold_P) == 1 else f"{len(gold_P):,} pairs"
        problem = f"{source} has {pairs} with a score, but a correlation needs at least {FEWEST}"
        raise UserError(f"{problem}; add some, or leave the task out", setting=setting)
    if np.ptp(gold_P) == 0:
        problem = f"all {len(gold_P):,} pairs of {source} have the score {gold_P[0]:g}, so no correlation is defined"
        raise UserError(f"{problem}; check which column holds the score ({setting}.columns)", setting=setting)


def _check_range(gold_P: np.ndarray, score_range: tuple[float, float], source: str, setting: str) -> None:
    """Refuse scores of 0 to 1 with a range of 0 to 5, which would silently give wrong targets."""
    (low, high), lowest, highest = score_range, gold_P.min(), gold_P.max()
    if len(gold_P) < _MIN_SCORES or highest - lowest >= _MIN_SHARE * (high - low):
        return
    found = f"are all {lowest:g}" if lowest == highest else f"fill only {lowest:g} to {highest:g} of it"
    raise UserError(
        f"{setting}.score_range is {low:g} to {high:g}, but the {len(gold_P):,} scores of {source} {found}; "
        f"set {setting}.score_range to the lowest and highest possible score"
    )


def _read(config: TaskConfig, setting: str, split: str) -> Iterator[Rows]:
    path = Path(os.path.expanduser(config.source))
    if config.source.startswith("bundled:"):
        from raysed import bundled

        split = config.source.removeprefix(bundled.PAIRS)
        if split not in bundled.SPLITS:
            known = f"{bundled.PAIRS}train, {bundled.PAIRS}dev or {bundled.PAIRS}test"
            raise UserError(f"{config.source} does not exist; use {known}", setting=setting)
        file = replace(local_file(bundled.pairs_file(split)), name=config.source)
        yield read(file, graded_schema(TaskConfig(source=config.source), setting))
    elif os.path.isdir(path) and not parquet_parts(str(path)):
        # Some copies of SentEval also have a file of all subsets.
        graded = [file for file in visible(path, "STS.input.*.txt") if file.name != "STS.input.ALL.txt"]
        if not graded:
            check_content(path, setting)
            problem = f"{path} is no task: it has no STS.input.<subset>.txt (SentEval), no corpus.jsonl (BEIR), and no"
            raise UserError(
                f"{problem} configurations corpus and queries in README.md; for de-corpus, set config_name to de"
            )
        yield from map(_read_graded_lines, graded)
    elif path.name.startswith("STS.input.") and path.suffix == ".txt":
        yield _read_graded_lines(path)
    else:
        yield read_source(config, graded_schema(config, setting), split)


def graded_schema(config: TaskConfig, setting: str) -> Schema:
    """Return the schema of a file of graded pairs."""
    named = config.columns
    sentences = dict.fromkeys((named.sentence1 or one, named.sentence2 or other) for one, other in GRADED_COLUMNS)
    wanted = {PAIR: list(sentences), ("score",): [(name,) for name in ([named.score] if named.score else GOLD_COLUMNS)]}
    if named.subset:
        wanted[("subset",)] = [(named.subset,)]
    needed = [named.score or "score (or label)", named.sentence1 or "sentence1", named.sentence2 or "sentence2"]
    if not (named.sentence1 or named.sentence2):
        needed[-1] += " (or text1 and text2)"
    return Schema(
        setting=setting,
        kind="graded pairs",
        wanted=wanted,
        needed=", ".join([*([named.subset] if named.subset else []), *needed[:2]]) + f" and {needed[2]}",
        optional={} if named.subset else {"subset": "subset"},
        text=PAIR,
        # A command-line option has no setting for columns.
        remedy="; rename yours" if setting.startswith("--") else f"; name yours in {setting}.columns",
        bare=(*PAIR, "score"),
    )


def _read_graded_lines(path: Path) -> Rows:
    """Read one `STS.input.<subset>.txt` and the file of scores beside it."""
    subset = path.name.removeprefix("STS.input.").removesuffix(".txt")
    gold_path = path.with_name(f"STS.gs.{subset}.txt")
    cells, golds = [line.split("\t") for line in read_lines(path)], read_lines(gold_path)
    if len(cells) != len(golds):
        raise UserError(f"{path} has {len(cells)} lines, but {gold_path.name} beside it has {len(golds)}")
    broken = next((number for number, row in enumerate(cells, start=1) if len(row) != 2), None)
    if broken:
        raise UserError(f"{path}, line {broken}: {len(cells[broken - 1])} tab-separated columns instead of 2")
    columns = {"subset": [subset] * len(golds), "score": golds}
    columns |= {side: [row[place] for row in cells] for place, side in enumerate(PAIR)}
    return Rows(str(gold_path), "line", range(1, len(golds) + 1), columns)


def gold_of(task: StsTask) -> np.ndarray:
    """Return the gold scores of all subsets in order, float64 [P]."""
    return np.concatenate([gold for _, _, gold in task.subsets.values()])
