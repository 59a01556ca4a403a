"""Scores any models side by side, on your own files or on the tasks of a config, beside words alone.

    python jobs/evaluate.py --model MODEL --task pairs.csv --task my-retrieval/ --task labelled.tsv
    python jobs/evaluate.py --model runs/quickstart/model --model bundled:encoder
    python jobs/evaluate.py --model MODEL --config minilm3-cpu --set evaluation.transfer.source=SentEval/data/downstream
    python jobs/evaluate.py --model MODEL --mteb STSBenchmark

A model is a directory or a hub id: one that this project exported, any other of sentence-transformers, or a plain
transformer, whose tokens and --layers are averaged. Of a config, `evaluation`, `encoder.max_length`, `encoder.layers`
and `resources` count.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from raysed.config import Config, Layers
    from raysed.score.tasks import Evaluation
    from raysed.score.transfer import ProbeJob, TransferTask


AFTER_STOP = "the same command starts over"


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "--model", dest="models", action="append", required=True, help="directory or hub id; may be repeated"
    )
    result.add_argument(
        "--task",
        dest="tasks",
        action="append",
        default=[],
        metavar="FILE-OR-DIRECTORY",
        help="score on this instead of the tasks of a config: graded pairs, labelled texts, a directory in BEIR's "
        "layout, or a .txt of sentences for what can be told without labels; may be repeated",
    )
    result.add_argument(
        "--mteb", action="append", default=[], metavar="NAME", help="a task of the MTEB leaderboard, by its own library"
    )
    result.add_argument("--config", help="a name from raysed/configs/ or a YAML file; quickstart without --task")
    result.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a setting"
    )
    result.add_argument("--layers", help="pooled layers of plain transformers: a number or first_last")
    result.add_argument("--output", type=Path, help="JSON file for all scores")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Loads the tasks, scores one model after the other, and prints tables."""
    config, texts = _settings(arguments)
    _check_output(arguments.output)

    from raysed.cluster.process import prepare_process

    prepare_process()
    from raysed.model.load import check_layers
    from raysed.score.leaderboard import load_mteb
    from raysed.score.tasks import Evaluation
    from raysed.score.transfer import load_transfer

    evaluation = Evaluation.load(config.evaluation, config.seed)
    transfer = load_transfer(config.evaluation.transfer)
    sentences = _distinct_sentences(texts)
    mteb = load_mteb(arguments.mteb)
    for name in arguments.models:
        check_layers(name, _poolings(config, transfer), asked_for="layers" in config.encoder.model_fields_set)
    models = []
    for name in dict.fromkeys(arguments.models):
        models.append(score_model(name, config, evaluation, transfer, sentences, mteb))
    words = _baselines(evaluation, transfer, config)
    _show(words, models, evaluation, config)
    if arguments.output:
        document = json.dumps(_document([*words, *models], config), indent=1)
        arguments.output.write_text(document + "\n", encoding="utf-8")


def _settings(arguments: argparse.Namespace) -> tuple["Config", list[str]]:
    """The settings, and files of sentences without labels; tasks that are named replace those of a config."""
    from raysed.config import find_config, load_config

    overrides = [*arguments.overrides, *([f"encoder.layers={arguments.layers}"] if arguments.layers else [])]
    asked = arguments.tasks or arguments.mteb
    path = find_config(arguments.config or "quickstart") if arguments.config or not asked else None
    config = load_config(path, overrides)
    if not asked:
        return config, []
    from raysed.score.tasks import tasks_of

    texts = [source for source in arguments.tasks if _has_sentences_only(source)]
    tasks = tasks_of([source for source in arguments.tasks if source not in texts])
    evaluation = config.evaluation.model_copy(update={"tasks": tasks, "dev": None, "report": None})
    return config.model_copy(update={"evaluation": evaluation}), texts


def _has_sentences_only(source: str) -> bool:
    """Whether a file is a .txt of one sentence per line, for what can be told without labels."""
    from raysed.data.rows import column_names
    from raysed.data.sources import ending, local_file

    path = Path(source).expanduser()
    return path.is_file() and ending(source) == ".txt" and len(column_names(local_file(path))) < 2


def _distinct_sentences(texts: list[str]) -> list[str]:
    from raysed.config import CorpusConfig
    from raysed.data.corpus import CorpusReport, sentence_chunks

    if not texts:
        return []
    return [s for _, chunk in sentence_chunks(CorpusConfig(source=texts), 0, CorpusReport()) for s in chunk]


def _check_output(path: Path | None) -> None:
    from raysed.errors import UserError

    if path and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise UserError(f"--output {path}: no file can be written there; name one in a directory that exists")


def score_model(
    name: str,
    config: "Config",
    evaluation: "Evaluation",
    tasks: list["TransferTask"],
    sentences: Sequence[str] = (),
    mteb: Sequence[Any] = (),
) -> dict[str, Any]:
    """Embeds every sentence once and scores one model.

    Returns:
        `model`, `description`, `layers`, `metrics` by task and `outcomes` by task; where there are such tasks also
        `transfer` by task and `transfer_average`, `unlabelled`, and `mteb` by task.
    """
    import numpy as np

    from raysed.model.load import load_model
    from raysed.score.leaderboard import score_mteb
    from raysed.score.transfer import score_transfer, sentences_of, transfer_average
    from raysed.score.unlabelled import unlabelled_scores
    from raysed.store.progress import Progress, steps

    poolings = _poolings(config, tasks)
    main, of_transfer = poolings[0], poolings[-1]
    model = load_model(
        name,
        poolings,
        config.encoder.max_length,
        token_budget=config.resources.encode_token_budget,
        device=_device(config),
    )
    print(f"{name}: {model.description}")
    transfer_sentences = sentences_of(tasks)
    texts = list(dict.fromkeys([*evaluation.sentences, *transfer_sentences]))
    progress = Progress(f"embed with {name}", len(texts))
    found = model.embed(texts, lambda done: progress.update(done)) if texts else [np.zeros((0, 1))]
    progress.close()

    def at(layers: "Layers") -> "np.ndarray":
        """A sentence-transformers model has one pooling, whatever was asked for."""
        return dict(zip(model.poolings, found)).get(layers, found[0])

    result = {"model": name, "description": model.description, "layers": list(model.poolings)}
    x_UD = at(main)[: len(evaluation.sentences)]
    result["outcomes"] = {task: evaluation.outcome(x_UD, task) for task in _scored(f"score {name}", evaluation)}
    result["metrics"] = evaluation.score_outcomes(result["outcomes"])
    if tasks:
        row = {sentence: i for i, sentence in enumerate(texts)}
        rows = [row[sentence] for sentence in transfer_sentences]
        seed, run = config.evaluation.transfer.seed, _with_progress(f"probe {name}")
        result["transfer"] = score_transfer(tasks, at(of_transfer)[rows], seed, run)
        result["transfer_average"] = transfer_average(result["transfer"])
    if sentences:
        with steps(f"look at sentences with {name}", 1):
            result["unlabelled"] = unlabelled_scores(sentences, lambda some: model.embed(some)[0])
    if mteb:
        result["mteb"] = score_mteb(model, mteb, name)
    return result


def _poolings(config: "Config", tasks: list["TransferTask"]) -> tuple["Layers", ...]:
    """The pooled layers of the similarities and, where there are transfer tasks, of their features."""
    main, of_transfer = config.encoder.layers, config.evaluation.transfer.layers
    return (main, main if of_transfer is None else of_transfer) if tasks else (main,)


def _device(config: "Config") -> str:
    import torch

    return "cuda" if config.resources.gpu is not False and torch.cuda.is_available() else "cpu"


def _scored(title: str, evaluation: "Evaluation") -> Iterable[str]:
    """The names of the tasks, with the progress of what is done with them."""
    from raysed.store.progress import one_by_one

    names = list(evaluation.tasks)
    return one_by_one(title, names, names) if names else []


def _with_progress(title: str) -> Callable[..., Iterator[dict]]:
    """A map over probes that shows its progress."""
    from raysed.store.progress import one_by_one

    def run(probe: Callable[["ProbeJob"], dict], jobs: list["ProbeJob"]) -> Iterator[dict]:
        for one in one_by_one(title, jobs, [job.task for job in jobs]):
            yield probe(one)

    return run


def _baselines(evaluation: "Evaluation", tasks: list["TransferTask"], config: "Config") -> list[dict[str, Any]]:
    """The scores of words alone, which need no model; keys as `score_model` has them."""
    from raysed.report.results import display_name
    from raysed.score.baselines import baselines, transfer_baselines
    from raysed.score.transfer import transfer_average
    from raysed.store.progress import one_by_one

    found = baselines(evaluation, lambda steps: one_by_one("score words alone", steps, list(map(" by ".join, steps))))
    seed, run = config.evaluation.transfer.seed, _with_progress("probe words alone")
    transfer = transfer_baselines(tasks, seed, run) if tasks else {}
    rows = []
    for name in dict.fromkeys([*found, *transfer]):
        outcomes = found.get(name, {})
        row = {"model": display_name(name, "baseline"), "description": "the words alone", "layers": []}
        row |= {"outcomes": outcomes, "metrics": evaluation.score_outcomes(outcomes)}
        if name in transfer:
            row |= {"transfer": transfer[name], "transfer_average": transfer_average(transfer[name])}
        rows.append(row)
    return rows


def _show(
    words: list[dict[str, Any]], models: list[dict[str, Any]], evaluation: "Evaluation", config: "Config"
) -> None:
    """Prints all tables, and what each model is worth against words alone."""
    if evaluation.tasks:
        print(f"\n{scores_table([*words, *models], config)}\n")
        for name, task in evaluation.tasks.items():
            print(f"{name}: {task.size}; {task.measure}, x100")
        print("\n" + "\n".join(_worth(words, models, evaluation, config)))
    if probed := [model for model in [*words, *models] if "transfer" in model]:
        print(f"\n{transfer_table(probed, list(probed[0]['transfer']))}")
    if any("unlabelled" in model for model in models):
        _show_unlabelled(models)
    if any("mteb" in model for model in models):
        from raysed.store.text import Table, number

        names = list(models[0]["mteb"])
        lines = [[model["model"], *(number(model["mteb"][name]) for name in names)] for model in models]
        print(f"\n{Table(['models', *names], lines).plain()}")


def _worth(
    words: list[dict[str, Any]], models: list[dict[str, Any]], evaluation: "Evaluation", config: "Config"
) -> list[str]:
    """A sentence per model: its mean against the best of words alone, and against the best other model."""
    from raysed.report.findings import Difference
    from raysed.score.intervals import resample
    from raysed.score.tasks import mean_score
    from raysed.store.progress import steps

    tasks = config.report_tasks()
    means = {m["model"]: mean_score(m["metrics"], tasks) for m in [*words, *models]}
    scored = {m["model"]: m for m in [*words, *models] if means[m["model"]] is not None}
    with steps("resample for intervals", 1):
        draws = resample(evaluation, {name: [model["outcomes"]] for name, model in scored.items()}, tasks)
    best, first = (
        max((m["model"] for m in some if m["model"] in scored), key=means.get, default=None) for some in (words, models)
    )
    lines = []
    for name in (model["model"] for model in models if model["model"] in scored):
        others = {best: "the best of words alone", first: "the best of these models"}
        for other, what in others.items():
            if other is not None and other != name:
                value = means[name] - means[other]
                lines.append(
                    f"{name} is {Difference.of(value, draws[name] - draws[other]).position()} {other}, {what}."
                )
    return [*lines, *(["In brackets: 95 % intervals over the draw of pairs, queries and texts."] if lines else [])]


def _show_unlabelled(models: list[dict[str, Any]]) -> None:
    from raysed.report.document import neighbours_table, unlabelled_table
    from raysed.score.unlabelled import CANNOT_BE_TOLD

    found = {model["model"]: model["unlabelled"] for model in models}
    print(f"\n{unlabelled_table(found).plain()}\n\n{neighbours_table(found).plain()}\n\n{CANNOT_BE_TOLD}")


def scores_table(scored: list[dict[str, Any]], config: "Config") -> str:
    """Returns the scores x100 per model: the mean over the headline tasks, and every task; `-` where there is none.

    Args:
        scored: what `score_model` returned.
    """
    from raysed.score.tasks import main_score, mean_score
    from raysed.store.text import Table, number

    headline, tasks = config.report_tasks(), list(config.evaluation.tasks)
    lines = []
    for model in scored:
        values = [main_score(model["metrics"].get(task, {})) for task in tasks]
        lines.append([model["model"], *map(number, (mean_score(model["metrics"], headline), *values))])
    return Table(["models", "mean", *tasks], lines).plain()


def transfer_table(scored: list[dict[str, Any]], tasks: list[str]) -> str:
    """Returns accuracy in %, or Pearson x100 of regressions, per model: the mean over all, and every task.

    Args:
        scored: what `score_model` returned.
    """
    from raysed.score.transfer import main_score
    from raysed.store.text import Table, number

    lines = []
    for model in scored:
        values = [model["transfer_average"], *(main_score(model["transfer"][task]) for task in tasks)]
        lines.append([model["model"], *map(number, values)])
    return Table(["models", "mean", *tasks], lines).plain()


def _document(scored: list[dict[str, Any]], config: "Config") -> dict[str, Any]:
    return {
        "tasks": config.report_tasks(),
        "aggregation": config.evaluation.aggregation,
        "max_length": config.encoder.max_length,
        "models": [{key: value for key, value in model.items() if key != "outcomes"} for model in scored],
    }
