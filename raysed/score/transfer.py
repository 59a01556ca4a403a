"""SentEval's transfer tasks: how well a linear probe on frozen sentence embeddings solves other problems.

A run embeds the tasks' distinct sentences once, and the probes are independent jobs on those embeddings:

    tasks = load_transfer(config)
    scores = score_transfer(tasks, encode(sentences_of(tasks)), config.seed)

Sources: Conneau and Kiela, "SentEval", LREC 2018; SED table 7 and BSL table 2 report these tasks.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import issparse

from raysed.config import TaskConfig, TransferConfig
from raysed.data.graded import load_task
from raysed.data.rows import Schema, read, read_lines
from raysed.data.sources import local_file
from raysed.errors import UserError
from raysed.score import probes
from raysed.score.metrics import pearson, spearman
from raysed.score.probes import FOLDS, Features, Labelled

Kind = Literal["nested", "folds", "split", "regression"]
PROTOCOLS: dict[Kind, str] = {
    "nested": f"{FOLDS} outer folds, C by {FOLDS} inner folds",
    "folds": f"C by {FOLDS} folds of train",
    "split": "C by dev",
    "regression": "expected grade, stopped by dev",
}
SED_TASKS = tuple("CR MR MPQA SUBJ SST2 SST5 TREC MRPC SICKEntailment SICKRelatedness STSBenchmark".split())
"""The columns of SED table 7."""
BSL_TASKS = tuple("MR CR SUBJ MPQA SST2 TREC MRPC".split())
"""The columns of BSL table 2."""

_QUESTION_TYPES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_ENTAILMENT = ("contradiction", "neutral", "entailment")
_DRAWN = {"test": 3, "dev": 10}
"""A split that a table lacks is one in so many of its training rows."""


_Row = tuple[str, ...]
"""File and line for messages, and then cells."""


class Split(NamedTuple):
    """N examples.

    Attributes:
        sides: the sentences, or the first and the second sentences of pairs; N each.
        labels: classes int64 [N], or scores float64 [N].
    """

    sides: tuple[list[str], ...]
    labels: np.ndarray


@dataclass(frozen=True)
class TransferTask:
    """One task.

    Attributes:
        name: as in SentEval, e.g. `MR`.
        kind: `nested` has the one split `all`; `folds` has train and test; `split` and `regression` have dev, too.
        splits: name to examples.
        note: what is not as in SentEval; empty where nothing is.
    """

    name: str
    kind: Kind
    splits: Mapping[str, Split]
    note: str = ""

    @property
    def protocol(self) -> str:
        """How the score comes about, in words."""
        return "; ".join(filter(None, [PROTOCOLS[self.kind], self.note]))


# -- reading ---------------------------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """Where a task lies: in a folder as SentEval has it, or in tables that one pattern finds."""

    kind: Kind
    folder: str
    read: Callable[[Path], dict[str, Split]]
    tables: str | None = None
    read_tables: Callable[[list[Path], int], tuple[dict[str, Split], str]] | None = None


def load_transfer(config: TransferConfig) -> list[TransferTask]:
    """Reads the tasks of `evaluation.transfer`.

    The source is laid out as SentEval's `data/downstream`. Two kinds of tables will do instead, in the directory
    itself or one below: `sick*.tsv` (columns split, relatedness, label, premise, hypothesis; a split that they lack is
    drawn from the training rows, and the task's note says so) and `stsb-train.tsv`, `stsb-dev.tsv`, `stsb-test.tsv`
    (columns subset, score, sentence1, sentence2).

    Words are joined by single spaces, an empty sentence becomes ".", and examples are in SentEval's order, by number
    of words and then label, so that folds are the same as there.

    Returns:
        The tasks in the order of `tasks`, or all that the source holds in SentEval's order; empty without a source.

    Raises:
        UserError: an unknown name, no such directory, a file that is missing or malformed, or too few examples.
    """
    _refuse_unknown(config)
    if config.source is None:
        return []
    source = Path(config.source).expanduser()
    if not source.is_dir():
        raise UserError(f"evaluation.transfer.source: {source} is not a directory; name SentEval's data/downstream")
    names = config.tasks
    if names is None:
        names = [name for name in _SOURCES if _folder(source, name).is_dir() or _tables(source, name)]
        if not names:
            raise UserError(
                f"evaluation.transfer.source: {source} has no task; it must have folders such as MR or SICK "
                "(SentEval's data/downstream), sick*.tsv or stsb-train.tsv"
            )
    return [_load(source, name, config.seed) for name in dict.fromkeys(names)]


def _refuse_unknown(config: TransferConfig) -> None:
    for name in config.tasks or []:
        if name not in _SOURCES:
            raise UserError(f"evaluation.transfer.tasks names {name!r}; the tasks are {', '.join(_SOURCES)}")
    if config.tasks and config.source is None:
        raise UserError(
            "evaluation.transfer.tasks needs evaluation.transfer.source; set it to SentEval's data/downstream"
        )


def _folder(source: Path, name: str) -> Path:
    return source / _SOURCES[name].folder


def _tables(source: Path, name: str) -> list[Path]:
    pattern = _SOURCES[name].tables
    if pattern is None:
        return []
    return sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}"))


def _load(source: Path, name: str, seed: int) -> TransferTask:
    spec, folder, tables = _SOURCES[name], _folder(source, name), _tables(source, name)
    if spec.read_tables and tables and not folder.is_dir():
        splits, note = spec.read_tables(tables, seed)
    else:
        splits, note = spec.read(folder), ""
    task = TransferTask(name, spec.kind, {key: _ordered(split) for key, split in splits.items()}, note)
    _check_size(task, folder if folder.is_dir() else tables[0])
    return task


def _ordered(split: Split) -> Split:
    words = [[len(sentence.split()) for sentence in side] for side in split.sides]
    order = np.lexsort([split.labels, *reversed(words)])
    return Split(tuple([side[i] or "." for i in order] for side in split.sides), split.labels[order])


def _check_size(task: TransferTask, where: Path) -> None:
    """Refuses what a probe cannot be made of."""
    for key, split in task.splits.items():
        if not len(split.labels):
            raise UserError(f"{task.name}: {where} has no example for {key}")
    first = next(iter(task.splits.values())).labels
    classes, counts = np.unique(first, return_counts=True)
    if task.kind != "regression" and len(classes) < 2:
        raise UserError(f"{task.name}: {where} has only one class, {classes[0]}; training needs at least two")
    # Nine tenths of a class are left for the inner folds of a nested search.
    needed = {"nested": FOLDS + 2, "folds": FOLDS}.get(task.kind, 1)
    if task.kind != "regression" and counts.min() < needed:
        few = classes[counts.argmin()]
        raise UserError(
            f"{task.name}: {where} has {counts.min()} examples of class {few}, but {FOLDS} folds need at least {needed}"
        )


def _read_opposites(folder: Path, first: str, second: str) -> dict[str, Split]:
    """Two files with a sentence per line; those of the first one are class 1."""
    sides = [[_clean(line) for line in _lines(folder / name)] for name in (first, second)]
    return {"all": Split((sides[0] + sides[1],), np.repeat([1, 0], [len(side) for side in sides]))}


def _read_trec(folder: Path) -> dict[str, Split]:
    def example(line: str, where: str) -> tuple[str, int]:
        label, _, rest = line.partition(":")
        if label not in _QUESTION_TYPES or " " not in rest:
            raise UserError(f"{where}: write it as TYPE:fine question, with one of {', '.join(_QUESTION_TYPES)}")
        return rest.partition(" ")[2], _QUESTION_TYPES.index(label)

    return {"train": _single(folder / "train_5500.label", example), "test": _single(folder / "TREC_10.label", example)}


def _read_sst(folder: Path, classes: int) -> dict[str, Split]:
    def example(line: str, where: str) -> tuple[str, int]:
        # The binary files have the label behind a tab, the fine ones before a space.
        sentence, _, label = line.strip().rpartition("\t")
        if classes > 2:
            label, _, sentence = line.strip().partition(" ")
        return sentence, _class(label, classes, where)

    return {split: _single(folder / f"sentiment-{split}", example) for split in ("train", "dev", "test")}


def _single(path: Path, example: Callable[[str, str], tuple[str, int]]) -> Split:
    found = [example(line, f"{path}, line {number}") for number, line in enumerate(_lines(path), start=1)]
    return Split(([_clean(sentence) for sentence, _ in found],), np.array([label for _, label in found], np.int64))


def _read_mrpc(folder: Path) -> dict[str, Split]:
    label = partial(_class, classes=2)
    return {
        split: _pairs(_cells(folder / f"msr_paraphrase_{split}.txt", (3, 4, 0), header=True), label)
        for split in ("train", "test")
    }


def _read_sick(folder: Path, column: int, label: Callable[..., float]) -> dict[str, Split]:
    files = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
    return {split: _pairs(_cells(folder / name, (1, 2, column), header=True), label) for split, name in files.items()}


def _read_sts_benchmark(folder: Path) -> dict[str, Split]:
    splits = ("train", "dev", "test")
    label = partial(_number, low=0.0)
    return {split: _pairs(_cells(folder / f"sts-{split}.csv", (5, 6, 4), header=False), label) for split in splits}


def _read_sick_tables(
    paths: list[Path], seed: int, column: str, label: Callable[..., float]
) -> tuple[dict[str, Split], str]:
    """All rows of all tables by their column `split`; what is missing is drawn from the training rows."""
    by_split: dict[str, list[_Row]] = {"train": [], "dev": [], "test": []}
    for path in paths:
        for where, split, *cells in _named_cells(path, ("split", "premise", "hypothesis", column)):
            if split not in (*by_split, "trial"):
                raise UserError(f"{where}: split {split!r} is unknown; write train, dev (or trial) or test")
            by_split["dev" if split == "trial" else split].append((where, *cells))
    note = _draw_missing(by_split, seed)
    return {split: _pairs(rows, label) for split, rows in by_split.items()}, note


def _draw_missing(by_split: dict[str, list[_Row]], seed: int) -> str:
    """Moves training rows to the splits that have none, and says so."""
    generator, notes = np.random.default_rng(seed), []
    rows, missing = by_split["train"], [split for split in _DRAWN if not by_split[split]]
    order, start = generator.permutation(len(rows)).tolist(), 0
    for split in missing:
        stop = start + len(rows) // _DRAWN[split]
        by_split[split] = [rows[i] for i in sorted(order[start:stop])]
        notes.append(f"{split} is {stop - start:,} of the {len(rows):,} training rows, drawn with seed {seed}")
        start = stop
    by_split["train"] = [rows[i] for i in sorted(order[start:])]
    return ", ".join(notes)


def _read_sts_benchmark_tables(paths: list[Path], seed: int) -> tuple[dict[str, Split], str]:
    splits = {}
    for split in ("train", "dev", "test"):
        path = paths[0].with_name(f"stsb-{split}.tsv")
        task = TaskConfig(source=str(_present(path)))
        subsets = load_task(f"STSBenchmark {split}", task, "evaluation.transfer").subsets.values()
        first, second = ([_clean(s) for subset in subsets for s in subset[side]] for side in (0, 1))
        splits[split] = Split((first, second), np.concatenate([gold for _, _, gold in subsets]))
    return splits, ""


def _pairs(rows: Iterable[_Row], label: Callable[..., float]) -> Split:
    """Rows of (file and line, first sentence, second sentence, label)."""
    found = [(_clean(first), _clean(second), label(text, where=where)) for where, first, second, text in rows]
    first, second, labels = zip(*found) if found else ((), (), ())
    return Split((list(first), list(second)), np.array(labels))


def _cells(path: Path, columns: Sequence[int], header: bool) -> Iterator[_Row]:
    for number, line in enumerate(_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) <= max(columns):
            raise UserError(f"{path}, line {number}: {len(cells)} tab-separated columns instead of {max(columns) + 1}")
        if number > 1 or not header:
            yield f"{path}, line {number}", *(cells[i] for i in columns)


def _named_cells(path: Path, names: Sequence[str]) -> Iterator[_Row]:
    needed = f"{', '.join(names[:-1])} and {names[-1]}"
    table = read(local_file(path), Schema("evaluation.transfer", "tasks", {names: [names]}, needed, latin=True))
    for place, cells in enumerate(zip(*(table.texts(name) for name in names))):
        yield table.where(place), *cells


def _class(text: str, classes: int, where: str) -> int:
    if text not in map(str, range(classes)):
        raise UserError(f"{where}: label {text!r} is not one of 0 to {classes - 1}")
    return int(text)


def _entailment(text: str, where: str) -> int:
    if text.strip().lower() not in _ENTAILMENT:
        raise UserError(f"{where}: label {text!r} is not one of {', '.join(_ENTAILMENT)}")
    return _ENTAILMENT.index(text.strip().lower())


def _number(text: str, low: float, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where}: score {text!r} is not a number") from None
    if not low <= value <= 5:
        raise UserError(f"{where}: score {text} is outside the range {low:g} to 5")
    return value


def _clean(sentence: str) -> str:
    return " ".join(sentence.split())


def _lines(path: Path) -> list[str]:
    return read_lines(_present(path), latin=True)


def _present(path: Path) -> Path:
    if not path.is_file():
        raise UserError(
            f"evaluation.transfer: {path} does not exist; add it, or remove its task from evaluation.transfer.tasks"
        )
    return path


def _opposites(folder: str, first: str, second: str) -> _Source:
    return _Source("nested", folder, partial(_read_opposites, first=first, second=second))


def _sick(kind: Kind, column: int, name: str, label: Callable[..., float]) -> _Source:
    return _Source(
        kind,
        "SICK",
        partial(_read_sick, column=column, label=label),
        "sick*.tsv",
        partial(_read_sick_tables, column=name, label=label),
    )


_SOURCES = {
    "MR": _opposites("MR", "rt-polarity.pos", "rt-polarity.neg"),
    "CR": _opposites("CR", "custrev.pos", "custrev.neg"),
    "SUBJ": _opposites("SUBJ", "subj.objective", "subj.subjective"),
    "MPQA": _opposites("MPQA", "mpqa.pos", "mpqa.neg"),
    "SST2": _Source("split", "SST/binary", partial(_read_sst, classes=2)),
    "SST5": _Source("split", "SST/fine", partial(_read_sst, classes=5)),
    "TREC": _Source("folds", "TREC", _read_trec),
    "MRPC": _Source("folds", "MRPC", _read_mrpc),
    "SICKEntailment": _sick("split", 4, "label", _entailment),
    "SICKRelatedness": _sick("regression", 3, "relatedness", partial(_number, low=1.0)),
    "STSBenchmark": _Source(
        "regression", "STS/STSBenchmark", _read_sts_benchmark, "stsb-train.tsv", _read_sts_benchmark_tables
    ),
}
TASKS = tuple(_SOURCES)
"""The names of all tasks."""


# -- scoring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeJob:
    """One probe, independent of all others: a whole task, or one outer fold of a nested one.

    Attributes:
        task: its name.
        kind: of the task.
        fold: number of the outer fold; None where there is none.
        seed: of folds and probe.
        rows: per split, where its sentences are in `sentences_of(tasks)`: int64 [N, sides].
        labels: per split, [N].
        protocol: in words.
    """

    task: str
    kind: Kind
    fold: int | None
    seed: int
    rows: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]
    protocol: str

    @property
    def outer_fold(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in the split `all` of a nested task its training and its test rows are."""
        return probes.stratified_folds(self.labels["all"], self.seed)[self.fold]

    @property
    def training_rows(self) -> np.ndarray:
        """Where in `sentences_of(tasks)` the sentences are that its probe is fitted on, of both sides."""
        rows_NS = self.rows["train"] if self.fold is None else self.rows["all"][self.outer_fold[0]]
        return np.unique(rows_NS)


def sentences_of(tasks: Iterable[TransferTask]) -> list[str]:
    """Returns the distinct sentences of all tasks in first-seen order: what a model has to encode."""
    return list(
        dict.fromkeys(s for task in tasks for split in task.splits.values() for side in split.sides for s in side)
    )


def jobs(tasks: Sequence[TransferTask], seed: int = 1111) -> list[ProbeJob]:
    """Returns what there is to do, task by task: ten jobs for a nested task, one for any other."""
    row = {sentence: i for i, sentence in enumerate(sentences_of(tasks))}
    found = []
    for task in tasks:
        rows = {
            key: np.array([[row[s] for s in side] for side in split.sides], np.int64).T
            for key, split in task.splits.items()
        }
        labels = {key: split.labels for key, split in task.splits.items()}
        folds = range(FOLDS) if task.kind == "nested" else [None]
        found += [ProbeJob(task.name, task.kind, fold, seed, rows, labels, task.protocol) for fold in folds]
    return found


def run_probe(job: ProbeJob, embeddings_UD: Features) -> dict[str, Any]:
    """Trains and tests one probe; the result is a function of the arguments alone.

    Args:
        job: one of `jobs(tasks)`.
        embeddings_UD: one row for each of `sentences_of(tasks)`, in their order; sparse rows will do.

    Returns:
        task, fold, protocol, dev (what the choice was made by, x100) and, x100: accuracy, for MRPC also f1, or pearson
        and spearman; for classifiers also C and whether the last fit converged.

    Raises:
        UserError: an embedding has a value that is not finite.
    """
    data = {key: Labelled(_features(job, rows, embeddings_UD), job.labels[key]) for key, rows in job.rows.items()}
    about = {"task": job.task, "fold": job.fold, "protocol": job.protocol}
    if job.kind == "regression":
        predicted_N, dev = probes.regress(data["train"], data["dev"], data["test"].features, job.seed)
        gold_N = data["test"].labels
        scores = {"pearson": 100 * pearson(predicted_N, gold_N), "spearman": 100 * spearman(predicted_N, gold_N)}
        return {**about, **scores, "dev": dev}
    found, gold_N = _classify(job, data)
    scores = {"accuracy": 100 * float(np.mean(found.predicted == gold_N))}
    if job.task == "MRPC":
        from sklearn.metrics import f1_score  # takes a second, and most processes need none of it

        scores["f1"] = 100 * float(f1_score(gold_N, found.predicted))
    return {**about, **scores, "dev": found.dev, "C": found.c, "converged": found.converged}


def _classify(job: ProbeJob, data: Mapping[str, Labelled]) -> tuple[probes.Classified, np.ndarray]:
    """The predictions, and the classes that would be right."""
    if job.kind == "nested":
        fit, held_out = job.outer_fold
        train, test = data["all"].at(fit), data["all"].at(held_out)
        return probes.classify_by_folds(train, test.features, probes.SPLIT_GRID, job.seed), test.labels
    train, test = data["train"], data["test"]
    if job.kind == "folds":
        return probes.classify_by_folds(train, test.features, probes.FOLD_GRID, job.seed), test.labels
    return probes.classify_by_dev(train, data["dev"], test.features, probes.SPLIT_GRID), test.labels


def _features(job: ProbeJob, rows_NS: np.ndarray, embeddings_UD: Features) -> Features:
    sides = [embeddings_UD[rows].astype(np.float32) for rows in rows_NS.T]
    if not all(np.isfinite(side.data if issparse(side) else side).all() for side in sides):
        raise UserError(f"{job.task}: some embeddings are not finite: the model has diverged; lower its learning rate")
    return probes.pair_features(*sides) if len(sides) == 2 else sides[0]


def combine(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Puts the results of all jobs together, per task; the folds of a nested task become mean and deviation.

    Args:
        results: what `run_probe` returned, in any order of folds.

    Returns:
        Per task what `run_probe` says, less task and fold; a nested task has the folds' mean accuracy and dev, `std`
        (of the folds' accuracies) and C as a list, by fold.

    >>> folds = [{"task": "MR", "fold": i, "accuracy": 80.0 + i, "dev": 80.0, "C": 1.0, "converged": True,
    ...           "protocol": "folds"} for i in (1, 0)]
    >>> combine(folds)["MR"]["accuracy"], combine(folds)["MR"]["C"]
    (80.5, [1.0, 1.0])
    """
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_task.setdefault(result["task"], []).append(result)
    return {task: _combined(sorted(group, key=lambda result: result["fold"] or 0)) for task, group in by_task.items()}


def _combined(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = {key: value for key, value in group[0].items() if key not in ("task", "fold")}
    if group[0]["fold"] is None:
        return first
    accuracies = [result["accuracy"] for result in group]
    return {
        **first,
        "accuracy": statistics.fmean(accuracies),
        "std": statistics.stdev(accuracies) if len(group) > 1 else 0.0,
        "dev": statistics.fmean(result["dev"] for result in group),
        "C": [result["C"] for result in group],
        "converged": all(result["converged"] for result in group),
    }


def score_transfer(
    tasks: Sequence[TransferTask],
    embeddings_UD: np.ndarray,
    seed: int = 1111,
    run: Callable[[Callable[[ProbeJob], dict], list[ProbeJob]], Iterable[dict]] = map,
) -> dict[str, dict[str, Any]]:
    """Scores one model on all tasks.

    Args:
        embeddings_UD: one row for each of `sentences_of(tasks)`, in their order.
        run: how the probes are carried out; anything that is called like `map`.

    Returns:
        What `combine` returns.

    Raises:
        UserError: an embedding has a value that is not finite.
    """
    count = len(sentences_of(tasks))
    if embeddings_UD.ndim != 2 or len(embeddings_UD) != count:
        raise ValueError(f"{count} rows of embeddings expected, got shape {embeddings_UD.shape}")
    return combine(run(partial(run_probe, embeddings_UD=embeddings_UD), jobs(tasks, seed)))


def main_score(metrics: Mapping[str, Any]) -> float:
    """Returns the number that tables show for a task: its accuracy, or the Pearson correlation of a regression."""
    return metrics["accuracy"] if "accuracy" in metrics else metrics["pearson"]


def transfer_average(scores: Mapping[str, Mapping[str, Any]], tasks: Sequence[str] | None = None) -> float | None:
    """Returns the plain mean of the tasks' main scores, as the papers' last column.

    Args:
        scores: what `score_transfer` returned.
        tasks: e.g. `SED_TASKS` (accuracies and both regressions) or `BSL_TASKS`; None: all that were scored.

    Returns:
        The mean; None where a task is missing.
    """
    names = list(scores) if tasks is None else tasks
    if not names or not set(names) <= set(scores):
        return None
    return statistics.fmean(main_score(scores[name]) for name in names)
