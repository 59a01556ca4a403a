"""The Python API: `raysed.run`, `raysed.distill` and `raysed.evaluate`, on one machine or a cluster."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from inspect import signature
from operator import index, itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, SupportsIndex
from urllib.parse import quote

from raysed.config import (
    PYTHON,
    Config,
    TeacherConfig,
    check_task_name,
    find_config,
    load_config,
    make_config,
    with_text_paths,
)
from raysed.config_text import merge
from raysed.errors import UserError
from raysed.recipe import TEACHERS
from raysed.run_name import run_name
from raysed.store.metrics import notes_shown, quiet_libraries
from raysed.store.progress import print_text, shown
from raysed.store.text import Table, number

if TYPE_CHECKING:
    import pandas
    from sentence_transformers import SentenceTransformer

    from raysed.store.storage import Storage

log = logging.getLogger(__name__)

PASSAGE = 2000
"""Longest passage of a corpus, in characters."""
_running = threading.Lock()


class Scores(dict[str, dict[str, Any]]):
    """Scores x100 by name and column; prints as a table."""

    def __repr__(self) -> str:
        columns = list(dict.fromkeys(column for row in self.values() for column in row))
        cells = {column: lambda name, column=column: _cell(self[name].get(column)) for column in columns}
        return Table.of(self, {"": str, **cells}).plain()

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per name; needs pandas."""
        import pandas

        return pandas.DataFrame.from_dict(self, orient="index")


def _cell(value: Any) -> str:
    return number(value) if value is None or isinstance(value, float) else str(value)


class _Content(dict[str, Any]):
    """Plain types; prints as a text."""

    def __init__(self, content: Mapping[str, Any], text: str):
        super().__init__(content)
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Comparison(_Content):
    """Models side by side: content of the file of `raysed evaluate --output`; prints as the command's tables."""

    @property
    def scores(self) -> Scores:
        """Scores of baselines and models: `mean`, the headline, and each task's main score."""
        from raysed.score.tasks import main_score, mean_score

        scores = Scores()
        for row in [*self["baselines"], *self["models"]]:
            of_tasks = {task: main_score(metrics) for task, metrics in row["metrics"].items()}
            scores[row["model"]] = {"mean": mean_score(row["metrics"], self["tasks"]), **of_tasks}
        return scores


class Report(_Content):
    """Content of `report.json`; prints as `report.md`."""

    def _repr_markdown_(self) -> str:
        return self._text

    def to_pandas(self) -> pandas.DataFrame:
        """Return `summary` as a data frame: one row per group of models and task; needs pandas."""
        import pandas

        return pandas.DataFrame(self["summary"])


class Result:
    """Report and exported model of a complete run."""

    def __init__(self, storage: Storage, trust_remote_code: bool = False):
        self._storage, self._trusts = storage, trust_remote_code
        self.directory: str = storage.uri("").rstrip("/")
        """The run's directory; a URI on remote storage."""
        texts = [storage.read_text(f"report.{ending}") for ending in ("json", "md")]
        self.report = Report(json.loads(texts[0] or "{}"), texts[1] or "")
        """Content of `report.json`, see docs/files.md."""

    @property
    def path(self) -> str | None:
        """Directory or URI of the exported model; None if the export was refused.

        `SentenceTransformer` and `raysed.evaluate` load it from a local directory. `report["refused"]["why"]` has the
        reason for a refusal; `export.allow_worse` overrides it.
        """
        return None if "refused" in self.report else self._storage.uri("model")

    @cached_property
    def model(self) -> SentenceTransformer | None:
        """The exported model, loaded on a GPU if available; None if the export was refused."""
        from raysed.model.library import load
        from raysed.resources import device_here

        return load(Path(self._storage.fetch("model")), device_here(), self._trusts) if self.path else None

    @property
    def scores(self) -> Scores:
        """Scores by model: `mean`, the headline, and each task.

        A key is a recipe and what the model is: `base/start` (the untrained encoder; also `base-whiten/start` and the
        like), `teachers/teacher` (their mean score), `teachers-sed/learner`, and else a `kind` of `report.json`, such
        as `ct/member` and `teachers/ensemble`.
        """
        scores = Scores()
        for recipe, kind, task, mean in map(itemgetter("recipe", "kind", "task", "mean"), self.report["summary"]):
            if kind != "grid":
                word = "teacher" if (recipe, kind) == (TEACHERS, "member") else "start" if kind == "base" else kind
                scores.setdefault(f"{recipe}/{word}", {"mean": None})[task] = mean
        return scores

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the exported model with its model card; return the commit's URL.

        `options` go to `SentenceTransformer.push_to_hub`, such as `private` and `token`.

        Raises:
            UserError: the export was refused.
        """
        from raysed.store.hub import limit_waits

        if self.model is None:
            raise UserError(f"there is no model to upload: {self.report['refused']['why']}")
        limit_waits()
        return self.model.push_to_hub(repo_id, local_model_path=str(self._storage.fetch("model")), **options)

    def __repr__(self) -> str:
        return f"{self.directory}\n{self.scores}"


@contextmanager
def _single_run() -> Iterator[None]:
    """Refuse a concurrent run: a process has one random state, one progress output and one set of teachers."""
    if not _running.acquire(blocking=False):
        raise UserError("another run is active in this process; wait for it, or use a process for each run")
    try:
        yield
    finally:
        _running.release()


@_single_run()
def run(
    config: Config | Mapping[str, Any] | str | os.PathLike, *, take_over: bool = False, verbose: bool = False
) -> Result:
    """Run a configuration; reuse what already exists.

    Args:
        config: a `Config`, a nested mapping, the path of a YAML file, or the name of a config of the package.
        take_over: on remote storage, end another job on this run instead of waiting for it.
        verbose: print progress and findings.

    Raises:
        UserError: a setting or input is wrong.
        RunFailed: the run failed.

    Examples:
        >>> import raysed
        >>> result = raysed.run("quickstart")  # doctest: +SKIP
        >>> result.scores["ct-sed-flow/learner"]["mean"]  # doctest: +SKIP
    """
    return run_config(_config_of(config), verbose, take_over)


def _config_of(config: Any) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, str | os.PathLike):
        return load_config(find_config(os.fspath(config)))
    return make_config(config)


def run_config(config: Config, verbose: bool, take_over: bool = False, starts_ray: bool = False) -> Result:
    """Run a configuration; with `starts_ray`, `resources.engine: auto` means Ray if it is installed."""
    from raysed.plan.consistency import check_settings

    check_settings(config)  # before Ray and the heavy libraries, which take seconds

    from raysed import pipeline
    from raysed.store.storage import Storage

    with shown(verbose), notes_shown(verbose):
        pipeline.run(config, print_text if verbose else log.info, take_over, starts_ray)
    return Result(Storage(config.storage, config.run), config.encoder.trust_remote_code)


def check(config: Config | Mapping[str, Any] | str | os.PathLike) -> None:
    """Check all settings and inputs of a run, without training or starting Ray.

    Args:
        config: as for `run`.

    Raises:
        UserError: a setting or input is wrong.
    """
    from raysed.plan.consistency import check_settings
    from raysed.process import prepare_process

    config = _config_of(config)
    check_settings(config)  # before the heavy libraries, which take seconds
    prepare_process()

    from raysed.plan.check import check as check_inputs

    check_inputs(config)


@_single_run()
def distill(
    teachers: Any,
    corpus: Any = None,
    learner: str | os.PathLike | None = None,
    *,
    keep_layers: int | Sequence[int] | None = None,
    static: bool = False,
    queries: Any = None,
    dev: Any = None,
    tasks: Any = (),
    run: str | None = None,
    storage: str | os.PathLike = "runs",
    settings: Mapping[str, Any] | None = None,
    take_over: bool = False,
    verbose: bool = False,
) -> Result:
    """Distil one or several models into one small model, on text without labels.

    raysed writes sentences, queries and tasks that you pass as objects to `given/` in the run's directory. `storage`
    must then be local.

    Args:
        teachers: one or several of these: a model by path or hub id; a `.parquet` file of embeddings or a directory of
            these; a function from a list of sentences to vectors; an object with such a method `encode`, like a loaded
            `SentenceTransformer`; a block of settings of `teachers` whose `path` is one of these. Functions and objects
            make the run work in this process. On a cluster (RAY_ADDRESS) they are refused unless `resources.engine` is
            `local`.
        corpus: a file, pattern, URI or hub dataset; a list of these; or the sentences themselves: a list, an
            iterator, a `datasets.Dataset`, or a series or table of any library that streams Arrow's format, such as
            polars, pandas or DuckDB. None: `corpus` of `settings`, else `bundled:generated-text`.
        learner: encoder to train. None: half of the layers of the first transformer among `teachers`, or all of them if
            `static`. Without a transformer: `bundled:encoder`.
        keep_layers: layers of the learner to keep, counted from 0, or how many. A number spreads them evenly if the
            learner is a teacher (1: the last); otherwise it keeps the first ones. None: all of a named `learner`.
        static: train a static model, one vector per token, starting from the learner's output for each token alone.
            Defaults: learning rate 1e-2, batch size 256. Excludes `keep_layers`.
        queries: queries for the sentences, passed like one of `corpus`. Models embed queries and sentences with their
            own prompts for these roles, which the exported model keeps (docs/distill.md#search).
        dev: task that chooses the learner's checkpoint and refuses a worse model, passed like one of `tasks`. None:
            held-out sentences choose the checkpoint, and raysed only warns of a worse model.
        tasks: tasks to report: files, directories, lists of (sentence, sentence, score) or (text, label), datasets,
            tables, or a mapping of these by name. Empty: `dev`, else generated pairs of the package.
        run: name of the run; the same call continues a stopped run. None: the names of corpus, teachers and learner,
            such as `tickets-all-MiniLM-L6-v2-half`, whatever the files contain.
        storage: directory or URI that holds the run directories.
        settings: further settings, nested as in a config file. They override the arguments above.
        take_over: as for `run`.
        verbose: print progress and findings.

    Raises:
        UserError: a setting or input is wrong.
        RunFailed: the run failed.

    Examples:
        >>> import raysed
        >>> result = raysed.distill(  # doctest: +SKIP
        ...     teachers=["sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5"],
        ...     corpus="tickets.txt",
        ... )
        >>> result.model.encode("The printer is out of paper.")  # doctest: +SKIP
    """
    arguments = dict(locals())
    from raysed.model.teachers.python import given_objects

    given_objects.clear()  # an earlier `distillation` may have left some
    try:
        return run_config(distillation(**arguments), verbose, take_over)
    finally:
        given_objects.clear()


def distillation(*arguments: Any, **named: Any) -> Config:
    """Return the configuration that `distill` runs for the same arguments."""
    from raysed.data.given import source_of
    from raysed.model.teachers.python import given_objects, settings_of

    bound = signature(distill).bind(*arguments, **named)
    bound.apply_defaults()
    named_paths = {name: bound.arguments[name] for name in ("teachers", "learner", "storage", "settings")}
    options = SimpleNamespace(**bound.arguments | with_text_paths(named_paths))
    if not isinstance(options.settings, Mapping | None):
        raise UserError("it must be a mapping, such as {'sed': {'epochs': 2}}", setting="settings")
    defaults, has_dev, own = load_config(find_config("distill")), options.dev is not None, options.settings or {}
    blocks = [settings_of(teacher, given_objects) for teacher in _as_list(options.teachers)]
    paths = [block.get("path", "") for block in blocks]
    encoder = _learner(options.learner, options.keep_layers, options.static, paths)
    settings: dict[str, Any] = {"storage": options.storage, "teachers": blocks, "encoder": encoder}
    known = defaults.model_dump(mode="json", exclude_unset=True)
    without_tasks = {name: value for name, value in own.items() if name != "evaluation"}  # which may name those to come
    config = make_config(merge(merge(known, settings, Config), without_tasks, Config))
    corpus = config.corpus.source if options.corpus is None else options.corpus
    settings["run"] = own.get("run") or options.run or run_name(_paths(corpus), config.teachers, config.encoder)
    make_config({"run": settings["run"]})  # before writing into its directory
    if any(path.startswith(PYTHON) for path in paths) and not os.environ.get("RAY_ADDRESS"):
        settings["resources"] = {"engine": "local"}
    settings["sed"] = {"checkpoint": "best_on_dev"} if has_dev else {}
    directory = f"{os.path.expanduser(config.storage)}/{settings['run']}/given"
    if options.corpus is not None:
        settings["corpus"] = {
            "source": source_of(options.corpus, f"{directory}/sentences.parquet", "corpus", "sentence")
        }
    if options.queries is not None:
        sources = source_of(options.queries, f"{directory}/queries.parquet", "queries", "query")
        if len(sources) != 1:
            raise UserError("queries: pass one file of queries, or the queries themselves")
        settings.setdefault("corpus", {})["queries"] = sources[0]
    if tasks := _sources(options.dev, options.tasks, f"{directory}/tasks"):
        settings["evaluation"] = _on_tasks(tasks, has_dev)
    if options.static:
        # Few batches contain any one token, so updates may be large.
        settings["sed"] |= {"learning_rate": 1e-2, "batch_size": 256}
    return _with_lengths(make_config(merge(merge(known, settings, Config), own, Config)))


def _paths(given: Any) -> list[str]:
    """Return the paths of a corpus; none for text."""
    from raysed.data.given import are_sources, is_path

    if is_path(given):
        return [os.fspath(given)]
    return [os.fspath(path) for path in given] if isinstance(given, list | tuple) and are_sources(given) else []


def _learner(
    path: str | None, keep_layers: int | Sequence[int] | None, static: bool, teachers: Sequence[str]
) -> dict[str, Any]:
    """Return the settings `encoder` of the model to train."""
    from raysed.model.teacher import default_learner

    encoder: dict[str, Any] = default_learner(teachers) if path is None else {"path": path}
    if static and keep_layers is not None:
        raise UserError("keep_layers is for transformers, but static trains one vector per token; use only one of them")
    if static:
        return {"path": encoder["path"], "static": {}}
    if isinstance(keep_layers, str):
        raise UserError(f"keep_layers is {keep_layers!r}; pass a number of layers, or a list of them")
    if isinstance(keep_layers, SupportsIndex) and not isinstance(keep_layers, Iterable):  # NumPy's, too
        keep_layers = index(keep_layers)
    if isinstance(keep_layers, int) and encoder["path"] not in teachers:
        return {**encoder, "model_kwargs": {"num_hidden_layers": keep_layers}}
    if keep_layers is not None:
        encoder["keep_layers"] = list(keep_layers) if isinstance(keep_layers, Iterable) else keep_layers
    return encoder


def _on_tasks(sources: Mapping[str, str], has_dev: bool) -> dict[str, Any]:
    from raysed.score.tasks import tasks_of

    found = tasks_of(sources, list(sources.values())[:has_dev])
    dev = next(iter(found)) if has_dev else None
    return {"tasks": {name: task.model_dump(mode="json") for name, task in found.items()}, "dev": dev}


def _with_lengths(config: Config) -> Config:
    """Return the config with the longest texts that the learner and all its teachers can read; what is set stays."""
    from raysed.model.teacher import kind_of, limit_of

    known = config.model_dump(mode="json", exclude_unset=True)
    kinds = [kind_of(block.path) for block in (*config.teachers, config.old) if block]
    try:
        limit = limit_of([block["path"] for block in known["teachers"]], config.encoder)
    except UserError:  # the run's own checks find it again, and name the setting
        return config
    known["encoder"].setdefault("max_length", limit)
    for block in (block for block, kind in zip(known["teachers"], kinds) if kind.is_model):
        block.setdefault("max_length", limit)  # for plain transformers
    # Stored vectors and translations are of whole lines.
    if not (config.corpus.translations or any(kind.is_stored for kind in kinds)):
        known.setdefault("corpus", {}).setdefault("passage_characters", PASSAGE)
    return make_config(known)


def evaluate(models: Any, tasks: Any, dev: Any = None) -> Comparison:
    """Score one or several models side by side, alone and combined, as `raysed evaluate` does.

    Args:
        models: one or several teachers as for `distill`, such as `{"path": "bert-base-uncased", "pool_layers": 2}`.
        tasks: as for `distill`: graded pairs, labelled texts, translations, or directories in BEIR's layout, recognised
            by their content.
        dev: a further such task, which chooses the best subset of several models. None: all tasks choose.

    Raises:
        UserError: a model or task cannot be used.
        RunFailed: a model returns numbers that are not finite.

    Examples:
        >>> import raysed
        >>> pairs = [("It rains.", "It rains a lot.", 5), ("It rains.", "Cats sleep.", 0), ("A cat.", "A cat eats.", 2)]
        >>> print(raysed.evaluate("bundled:encoder", {"mine": pairs}).scores)
                        mean    mine
        ------------  ------  ------
        word overlap   50.00   50.00
        TF-IDF        100.00  100.00
        bundled       100.00  100.00
    """
    from raysed.model.teachers.python import settings_of
    from raysed.score.seen import without_seen
    from raysed.score.tasks import Evaluation
    from raysed.side_by_side import compare

    quiet_libraries()
    objects: dict[str, Any] = {}  # not `given_objects`: a run may be at work in another thread
    teachers = models_to_compare([settings_of(model, objects) for model in _as_list(models)])
    if not teachers:
        raise UserError("models: none given; pass at least one")
    with tempfile.TemporaryDirectory() as directory:
        sources = _sources(dev, tasks, directory)
        if len(sources) <= (dev is not None):
            raise UserError("tasks: none given; pass graded pairs, labelled texts, translations or a BEIR directory")
        config = make_config({"evaluation": _on_tasks(sources, dev is not None)})
        config = config.model_copy(update={"teachers": teachers})
        evaluation = without_seen(Evaluation.load(config.evaluation), config.evaluation, {})
    with shown(False):
        return Comparison(*compare(config, evaluation, objects))


def models_to_compare(blocks: Iterable[Mapping[str, Any]]) -> list[TeacherConfig]:
    """Return settings for `compare`: plain transformers read as many tokens as they can, unless a block says how many.

    Args:
        blocks: settings of teachers.
    """
    from raysed.model.teacher import kind_of, limit_of

    lengths = [
        {"max_length": limit_of([path])} if (path := block.get("path")) and kind_of(path).is_model else {}
        for block in blocks
    ]
    return make_config({"teachers": [{**length, **block} for length, block in zip(lengths, blocks)]}).teachers


def _as_list(teachers: Any) -> list[Any]:
    is_one = isinstance(teachers, str | os.PathLike | Mapping) or callable(teachers) or hasattr(teachers, "encode")
    return [teachers] if is_one or not isinstance(teachers, Iterable) else list(teachers)


def _sources(dev: Any, tasks: Any, directory: str) -> dict[str, str]:
    """Return the sources of the tasks, and of the dev task if any, by name."""
    from raysed.data.given import is_path, is_row, is_table, source_of
    from raysed.score.tasks import has_splits, task_name

    given: list[tuple[str, Any, bool]] = [] if dev is None else [("dev", dev, False)]
    if isinstance(tasks, Mapping):
        given += [(name, task, True) for name, task in tasks.items()]
    elif tasks is not None:
        is_one = is_path(tasks) or is_table(tasks) or not isinstance(tasks, Iterable)
        listed = [tasks] if is_one else list(tasks)
        listed = [listed] if listed and is_row(listed[0]) else listed
        for place, task in enumerate(listed, 1):
            # The dev task is not reported a second time as another task, unless that has other rows.
            if not (is_path(task) and is_path(dev) and Path(task) == Path(dev)) or has_splits(os.fspath(task)):
                given.append((f"task-{place}", task, False))
    found: dict[str, str] = {}
    for name, task, is_named in given:
        check_task_name(name)
        source, *more = source_of(task, f"{directory}/{quote(name, safe='')}.parquet", f"task {name}")
        if more:
            raise UserError(f"task {name}: a list of files is not one task; pass each file as a separate task")
        if is_path(task) and not is_named:
            name = task_name(source, found)
        if name in found:
            raise UserError(f"two tasks are called {name}; pass a mapping from names to tasks")
        found[name] = source
    return found
