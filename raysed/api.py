"""The same from Python: `raysed.run`, `raysed.distill` and `raysed.evaluate`, on one machine or on a cluster."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysed.config import PYTHON, Config, find_config, load_config, make_config
from raysed.config_text import merge
from raysed.errors import UserError
from raysed.store.metrics import notes_shown, quiet_libraries
from raysed.store.progress import shown
from raysed.store.text import Table, number

if TYPE_CHECKING:
    import pandas
    from sentence_transformers import SentenceTransformer

    from raysed.store.storage import Storage

log = logging.getLogger(__name__)


class Scores(dict[str, dict[str, Any]]):
    """Scores x100 by name and column, which look like a table wherever they are shown."""

    def __repr__(self) -> str:
        columns = list(dict.fromkeys(column for row in self.values() for column in row))
        cells = {column: lambda name, column=column: _cell(self[name].get(column)) for column in columns}
        return Table.of(self, {"": str, **cells}).plain()

    def _repr_html_(self) -> str:
        return f"<pre>{self}</pre>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a line for each name; needs pandas."""
        import pandas

        return pandas.DataFrame.from_dict(self, orient="index")


def _cell(value: Any) -> str:
    return number(value) if value is None or isinstance(value, float) else str(value)


class Report(dict[str, Any]):
    """The content of `report.json`, shown as the report for people."""

    def __init__(self, content: Mapping[str, Any], text: str):
        super().__init__(content)
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_markdown_(self) -> str:
        return self._text

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame of the score of each kind of model on each task; needs pandas."""
        import pandas

        return pandas.DataFrame(self["summary"])


class Result:
    """What a run has left behind."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self.directory: str = storage.uri("").rstrip("/")
        """The run's directory, a URI where the storage is one."""
        texts = [storage.read_text(f"report.{ending}") for ending in ("json", "md")]
        self.report = Report(json.loads(texts[0] or "{}"), texts[1] or "")
        """See docs/report.md."""

    @property
    def path(self) -> str | None:
        """Where the exported model is, for `SentenceTransformer` or `raysed.evaluate`.

        None where the export was refused (`export.allow_worse`); `report["refused"]["why"]` says why.
        """
        return None if "refused" in self.report else f"{self.directory}/model"

    @cached_property
    def model(self) -> SentenceTransformer | None:
        """The exported model, loaded; None where there is no `path`."""
        import torch

        from raysed.model.library import load

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return load(Path(self._storage.fetch("model")), device) if self.path else None

    @property
    def scores(self) -> Scores:
        """By recipe and kind, such as `teachers-sed/learner`: means over models, of the headline and on each task."""
        found = Scores()
        for entry in self.report["summary"]:
            if entry["kind"] != "grid":
                task = "mean" if entry["task"] == "sts-avg" else entry["task"]
                found.setdefault(f"{entry['recipe']}/{entry['kind']}", {"mean": None})[task] = entry["mean"]
        return found

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the exported model with its model card; return the address of the commit.

        Args:
            options: of `SentenceTransformer.push_to_hub`, such as `private` and `token`.

        Raises:
            UserError: there is no exported model.
        """
        if self.model is None:
            raise UserError(f"there is no model to upload: {self.report['refused']['why']}")
        return self.model.push_to_hub(repo_id, local_model_path=str(self._storage.fetch("model")), **options)

    def __repr__(self) -> str:
        return f"{self.directory}\n{self.scores}"

    def _repr_html_(self) -> str:
        return f"<pre>{self}</pre>"


def run(
    config: Config | Mapping[str, Any] | str | os.PathLike, *, take_over: bool = False, verbose: bool = False
) -> Result:
    """Run all stages of a configuration, or as many as are not done.

    Args:
        config: settings, a nested mapping of them, the path of a YAML file, or the name of a config.
        verbose: print how far it is, and its findings.
        take_over: end a job that is at work on this run, on remote storage, instead of refusing to start.

    Raises:
        UserError: a wrong setting or input.
        RunFailed: the run failed.

    Examples:
        >>> import raysed
        >>> result = raysed.run("quickstart")  # doctest: +SKIP
        >>> result.scores["ct-sed-flow/learner"]["mean"]  # doctest: +SKIP
    """
    if isinstance(config, str | os.PathLike):
        config = load_config(find_config(os.fspath(config)))
    elif not isinstance(config, Config):
        config = make_config(config)
    return _run(config, verbose, take_over)


def _run(config: Config, verbose: bool, take_over: bool = False) -> Result:
    from raysed.plan.consistency import check_settings

    check_settings(config)  # before the heavy libraries, which take seconds, and Ray

    from raysed import pipeline
    from raysed.store.storage import Storage

    with shown(verbose), notes_shown(verbose):
        pipeline.run(config, print if verbose else log.info, take_over)
    return Result(Storage(config.storage, config.run))


def check(config: Config) -> None:
    """Check all settings and inputs of a run, without training anything or starting Ray."""
    from raysed.cluster.process import prepare_process
    from raysed.plan.consistency import check_settings

    check_settings(config)  # before the heavy libraries, which take seconds
    prepare_process()

    from raysed.plan.check import check as check_inputs

    check_inputs(config)


def distill(
    teachers: Any,
    sentences: Any = None,
    learner: str | None = None,
    *,
    keep_layers: int | Sequence[int] | None = None,
    static: bool = False,
    dev: Any = None,
    tasks: Any = (),
    run: str = "distilled",
    storage: str = "runs",
    settings: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> Result:
    """Make one small model of one or several models, on text without labels.

    Objects, beside paths, are for runs whose `storage` is a directory: they become files in its `given/`.

    Args:
        teachers: models and `.parquet` files of embeddings by path; functions that return a vector for each of a list
            of sentences; objects with such a method `encode`, such as a loaded `SentenceTransformer`; or blocks of
            settings of `teachers`, whose `path` is one of these. With a function or an object among them, the run works
            in this process.
        sentences: a file, pattern, URI or hub dataset; a list of files; or the sentences themselves: a list, an
            iterator, a `datasets.Dataset` or data frame. None: as `settings` say under `corpus`.
        learner: the encoder that learns; None: half of the layers of the first teacher that is the path of a model.
        keep_layers: which of its layers it keeps, from 0 on; or how many: of a teacher evenly spread from the first to
            the last, of another encoder the first ones; None: all that it has.
        static: train a table of one vector per token instead, starting from what `learner` says about each token.
        dev: the task that choices are made on, as in `tasks`; None: that of the config `distill`.
        tasks: further ones, which are reported: files, directories, lists of two sentences and their score or of
            (text, label), datasets, or a mapping of these by name. None of both: those of the config `distill`.
        settings: any others, nested as in a config file.
        verbose: print how far it is, and its findings.

    Raises:
        UserError: a wrong setting or input.
        RunFailed: the run failed.

    Examples:
        >>> import raysed
        >>> result = raysed.distill(  # doctest: +SKIP
        ...     teachers=["sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5"],
        ...     sentences="tickets.txt",
        ... )
        >>> result.model.encode("The printer is out of paper.")  # doctest: +SKIP
    """
    from raysed.data.given import source_of
    from raysed.model.teacher import default_learner
    from raysed.model.teachers.python import given_objects, settings_of

    defaults, blocks = load_config(find_config("distill")), [settings_of(teacher) for teacher in _as_list(teachers)]
    paths = [block.get("path", "") for block in blocks]
    encoder: dict[str, Any] = {"path": learner} if learner else default_learner(paths)
    if static and keep_layers is not None:
        raise UserError("keep_layers is for transformers, but static makes a table of vectors; leave one of them out")
    if static:
        encoder = {"path": encoder["path"], "static": {}}
    elif isinstance(keep_layers, int) and encoder["path"] not in paths:
        encoder["model_kwargs"] = {"num_hidden_layers": keep_layers}
    elif keep_layers is not None:
        encoder["keep_layers"] = keep_layers if isinstance(keep_layers, int) else list(keep_layers)
    own: dict[str, Any] = {"run": run, "storage": storage, "teachers": blocks, "encoder": encoder}
    if any(path.startswith(PYTHON) for path in paths) and not os.environ.get("RAY_ADDRESS"):
        own["resources"] = {"engine": "local"}
    given = f"{storage}/{run}/given"
    if sentences is not None:
        own["corpus"] = {"source": source_of(sentences, f"{given}/sentences.parquet", "sentences")}
    if dev is not None or hasattr(tasks, "to_parquet") or tasks:
        from raysed.score.tasks import tasks_of

        found = tasks_of(_sources(dev, tasks, given))
        has_dev = dev is not None
        chosen, reported = (next(iter(found)), None) if has_dev else (defaults.evaluation.dev or "", list(found))
        if not has_dev:  # choices are made on the default dev task, which is not reported
            found = {chosen: defaults.evaluation.tasks[chosen], **found}
        named = {name: task.model_dump(mode="json") for name, task in found.items()}
        own["evaluation"] = {"tasks": named, "dev": chosen, "report": reported}
    if static:
        # Most rows of a table of vectors are in few batches, so an update may go far.
        own["sed"] = {"learning_rate": 1e-2, "batch_size": 256}
    known = defaults.model_dump(mode="json", exclude_unset=True)
    try:
        return _run(make_config(merge(merge(known, own, Config), settings or {}, Config)), verbose)
    finally:
        given_objects.clear()


def evaluate(model: Any, tasks: Any) -> Scores:
    """Score a model; return the metrics x100 of each task by its name.

    Args:
        model: a directory or hub id, or what `distill` takes as a teacher.
        tasks: as for `distill`: graded pairs, labelled texts, or directories in BEIR's layout; the kind is seen from
            their content.

    Examples:
        >>> import raysed
        >>> pairs = [("It rains.", "Rain falls.", 5), ("It rains.", "A cat sleeps.", 0), ("A cat.", "A pet.", 3.5)]
        >>> raysed.evaluate("bundled:encoder", {"mine": pairs})["mine"]["spearman"]
        100.0
    """
    from raysed.config import TeacherConfig
    from raysed.data.given import is_path
    from raysed.model.load import load_model
    from raysed.model.teacher import load_teacher
    from raysed.model.teachers.python import given_objects, settings_of
    from raysed.score.tasks import Evaluation, load_any_task, tasks_of

    quiet_libraries()
    with tempfile.TemporaryDirectory() as directory:
        found = tasks_of(_sources(None, tasks, directory))
        evaluation = Evaluation([load_any_task(name, task, 0, "all") for name, task in found.items()])
    if is_path(model):
        (x_UD, *_) = load_model(os.fspath(model)).embed(evaluation.sentences)
    else:
        teacher = TeacherConfig(**settings_of(model))
        x_UD = load_teacher(teacher).embed(evaluation.sentences)
        given_objects.pop(teacher.path, None)
    return Scores(evaluation.score(x_UD))


def _as_list(teachers: Any) -> list[Any]:
    is_one = isinstance(teachers, str | os.PathLike | Mapping) or callable(teachers) or hasattr(teachers, "encode")
    return [teachers] if is_one else list(teachers)


def _sources(dev: Any, tasks: Any, directory: str) -> dict[str, str]:
    """Return where the dev task, if there is one, and others are read from, by name."""
    from raysed.data.given import is_path, is_row, source_of
    from raysed.score.tasks import task_name

    if not isinstance(tasks, Mapping):
        items = [tasks] if is_path(tasks) or hasattr(tasks, "to_parquet") else list(tasks)
        items = [items] if items and is_row(items[0]) else items
        tasks, unnamed = {}, items
    else:
        unnamed = []
    given = [*([("dev", dev)] if dev is not None else []), *tasks.items()]
    given += [(f"task-{place}", task) for place, task in enumerate(unnamed, 1)]
    found: dict[str, str] = {}
    for name, task in given:
        (source,) = source_of(task, f"{directory}/{name}.parquet", f"task {name}")
        if is_path(task) and name not in tasks:
            name = task_name(source, found)
        if name in found:
            raise UserError(f"two tasks are called {name}; give them as a mapping by name")
        found[name] = source
    return found
