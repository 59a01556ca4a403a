"""The same from Python: `raysed.run`, `raysed.distill` and `raysed.evaluate`, on one machine or on a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysed.config import PYTHON, Config, find_config, load_config, make_config
from raysed.config_text import merge


@dataclass(frozen=True)
class Result:
    """What a run has left behind: its directory, a URI where the storage is one, and the content of `report.json`."""

    directory: str
    report: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        """Where the exported model is; `SentenceTransformer` loads it where that is a local directory.

        None where the export was refused (`export.allow_worse`); `report["refused"]["why"]` says why.
        """
        return None if "refused" in self.report else f"{self.directory}/model"

    @property
    def scores(self) -> dict[str, float]:
        """The mean headline score x100 by recipe and kind, e.g. `teachers-sed/learner`."""
        means = [entry for entry in self.report["summary"] if entry["task"] == "sts-avg" and entry["kind"] != "grid"]
        return {f"{entry['recipe']}/{entry['kind']}": entry["mean"] for entry in means}


def run(config: Config | Mapping[str, Any] | str, *, take_over: bool = False) -> Result:
    """Run all stages of a configuration, or as many as are not done.

    Args:
        config: settings, a nested mapping of them, the path of a YAML file, or the name of a config.
        take_over: end a job that is at work on this run, on remote storage, instead of refusing to start.

    Raises:
        UserError: a wrong setting or input.
        RunFailed: the run failed.

    Examples:
        >>> import raysed
        >>> result = raysed.run("quickstart")  # doctest: +SKIP
        >>> result.scores["ct-sed-flow/learner"]  # doctest: +SKIP
    """
    if isinstance(config, str):
        config = load_config(find_config(config))
    elif not isinstance(config, Config):
        config = make_config(config)
    return _run(config, take_over)


def _run(config: Config, take_over: bool = False) -> Result:
    from raysed.plan.consistency import check_settings

    check_settings(config)  # before the heavy libraries, which take seconds, and Ray

    from raysed import pipeline
    from raysed.store.storage import Storage

    pipeline.run(config, take_over=take_over)
    storage = Storage(config.storage, config.run)
    return Result(storage.uri("").rstrip("/"), json.loads(storage.read_text("report.json") or "{}"))


def check(config: Config) -> None:
    """Check all settings and inputs of a run, without training anything or starting Ray."""
    from raysed.cluster.process import prepare_process
    from raysed.plan.consistency import check_settings

    check_settings(config)  # before the heavy libraries, which take seconds
    prepare_process()

    from raysed.plan.check import check as check_inputs

    check_inputs(config)


def distill(
    teachers: Sequence[Any],
    corpus: str | Sequence[str],
    learner: str | None = None,
    *,
    layers: int | Sequence[int] | None = None,
    static: bool = False,
    dev: str | None = None,
    tasks: Sequence[str] = (),
    run: str = "distilled",
    storage: str = "runs",
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Make one small model of one or several models, on text without labels.

    Args:
        teachers: models and `.parquet` files of embeddings by path; functions that return a vector for each of a list
            of sentences; objects with such a method `encode`, such as a loaded `SentenceTransformer`; or blocks of
            settings of `teachers`, whose `path` is one of these. With a function or an object among them, the run works
            in this process.
        corpus: files, patterns, URIs or hub datasets of sentences.
        learner: the encoder that learns; None: half of the layers of the first teacher that is the path of a model.
        layers: which of its layers it keeps, counted from 0; or how many: of a teacher evenly spread from the first to
            the last, of another encoder the first ones; None: all that it has.
        static: train a table of one vector per token instead, starting from what `learner` says about each token.
        dev: file or directory of the task that choices are made on; None: that of the config `distill`.
        tasks: further ones, which are reported; None of both: those of the config `distill`.
        settings: any others, nested as in a config file.

    Raises:
        UserError: a wrong setting or input.
        RunFailed: the run failed.

    Examples:
        >>> import raysed
        >>> result = raysed.distill(  # doctest: +SKIP
        ...     teachers=["sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5"],
        ...     corpus="tickets.txt",
        ... )
    """
    from raysed.model.teacher import default_learner
    from raysed.model.teachers.python import given_objects, settings_of

    defaults, blocks = load_config(find_config("distill")), [settings_of(teacher) for teacher in teachers]
    paths = [block.get("path", "") for block in blocks]
    encoder: dict[str, Any] = {"path": learner} if learner else default_learner(paths)
    if static:
        encoder = {"path": encoder["path"], "static": {}}
    elif isinstance(layers, int) and encoder["path"] not in paths:
        encoder["model_kwargs"] = {"num_hidden_layers": layers}
    elif layers is not None:
        encoder["keep_layers"] = layers if isinstance(layers, int) else list(layers)
    own: dict[str, Any] = {"run": run, "storage": storage, "teachers": blocks, "encoder": encoder}
    if any(path.startswith(PYTHON) for path in paths) and not os.environ.get("RAY_ADDRESS"):
        own["resources"] = {"engine": "local"}
    own["corpus"] = {"source": corpus if isinstance(corpus, str) else list(corpus)}
    if dev or tasks:
        from raysed.score.tasks import tasks_of

        found = tasks_of([*([dev] if dev else []), *tasks])
        chosen, reported = (next(iter(found)), None) if dev else (defaults.evaluation.dev, list(found))
        if not dev:  # choices are made on the default dev task, which is not reported
            found = {chosen: defaults.evaluation.tasks[chosen], **found}
        named = {name: task.model_dump(mode="json") for name, task in found.items()}
        own["evaluation"] = {"tasks": named, "dev": chosen, "report": reported}
    if static:
        # Most rows of a table of vectors are in few batches, so an update may go far.
        own["sed"] = {"learning_rate": 1e-2, "batch_size": 256}
    known = defaults.model_dump(mode="json", exclude_unset=True)
    try:
        return _run(make_config(merge(merge(known, own, Config), settings or {}, Config)))
    finally:
        given_objects.clear()


def evaluate(model: str, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Score a model on files or directories of tasks; return the metrics of each task by its name, x100.

    Args:
        tasks: graded pairs, labelled texts, or directories in BEIR's layout; the kind is seen from their content.

    Examples:
        >>> import raysed
        >>> scores = raysed.evaluate("bundled:encoder", ["bundled:dev"])
        >>> round(scores["dev"]["spearman"] / 10) * 10
        70
    """
    from raysed.model.load import load_model
    from raysed.score.tasks import Evaluation, load_any_task, tasks_of

    evaluation = Evaluation([load_any_task(name, task, 0, "all") for name, task in tasks_of(tasks).items()])
    (embeddings_UD, *_) = load_model(model).embed(evaluation.sentences)
    return evaluation.score(embeddings_UD)
