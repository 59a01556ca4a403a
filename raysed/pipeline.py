"""START HERE: a run as a script.

    corpus -> tokens -> members -> targets -> learners -> calibrations -> scores -> model, report

`ensemble_then_distill` describes what a run makes, in order, and asks `Run` for it. What exists is not made again, so
the same command continues a run that was stopped at any point. `run` is what commands and `raysed.run` call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from raysed import interrupts
from raysed.cluster.session import is_ray_given, session
from raysed.config import dump_config
from raysed.errors import UserError, install_command
from raysed.process import heed_others, prepare_process
from raysed.recipe import BASE, SED, TEACHERS, member_nodes, parse_recipes
from raysed.store.metrics import native_output_to
from raysed.store.progress import emit, print_text
from raysed.store.status import Status, finished_report, refusal, status_of, wait_for_other
from raysed.store.storage import Storage, check_stays

if TYPE_CHECKING:
    from raysed.config import Config
    from raysed.made import Made
    from raysed.plan.check import Job
    from raysed.plan.models import TrainedEnsemble
    from raysed.plan.results import EvaluatedModel, Results
    from raysed.resources import Cluster
    from raysed.runner import Engine, Run


def ensemble_then_distill(run: Run, job: Job) -> Results:
    """Train ensembles, average them, distil learners, calibrate, and embed the evaluation's sentences."""
    from raysed.plan import calibrations, models, results, tables, teachers

    scored: dict[str, list[EvaluatedModel]] = {}  # by recipe

    # Text: tokens of the corpus, labelled pairs and views.
    start = tables.start_of_static(job)
    table = tables.tables_of(job, start)
    run.ensure(start, *table.values())
    run.check_room(table)
    corpus = table.get(tables.CORPUS)

    # What is there before any training: the original encoder, with every calibration, and teachers from elsewhere.
    base = models.evaluated(job, BASE, "base", 0, start, "the original encoder")
    outside = teachers.outside_teachers(job)
    run.ensure(*embeddings([base], outside.values()), teachers.speeds_of_teachers(job, start))
    scored[BASE] = [base]
    for recipe in calibrations.calibrations_of_base(job):
        scored[recipe.text] = calibrations.calibrated(job, recipe, [base], table, may_fail=False)
    run.ensure(*embeddings(*scored.values()))

    # Members: one experiment for all ensembles and grids of a depth. Of a grid, the best lower bound is the ensemble.
    ensembles: dict[str, TrainedEnsemble] = {}
    for nodes in member_nodes(job.recipes):
        stage = "+".join(nodes)
        members = [models.members(job, node, stage, ensembles, table, start, base.embeddings) for node in nodes]
        trained = run.train([member for of_node in members for member in of_node])
        for node in nodes:
            of_node = [each for each in trained if each.made.how.node == node]
            ensembles[node] = models.ensemble(job, node, of_node)
            run.decide(of_node, ensembles[node].lines(node))
            if any(recipe.ensemble == node for recipe in job.recipes):
                scored[node] = models.evaluated_members(job, node, ensembles[node])
        run.ensure(*embeddings(*(scored.get(node, []) for node in nodes)))

    # Targets: the mean of an ensemble's members, or what all teachers say together; streamed once they are needed.
    known = outside | teachers.teachers_of_run(job, scored)
    scored[TEACHERS] = [known[index] for index in sorted(known)]
    run.ensure(*embeddings(scored[TEACHERS]))
    means, targets, combination, together, worth = teachers.nodes_of_means(job), {}, None, None, None
    first = ensembles["mlm"].trained[0].made if job.config.sed.start == "mlm" else start
    for node in means:
        stage = "+".join(f"{node}-{SED}/targets" for node in means)
        targets[node] = teachers.mean_target(job, node, ensembles[node].healthy, stage, corpus)
    if job.is_combined:
        combination, targets[TEACHERS] = teachers.fitted_combination(job, targets, corpus, run.rows(corpus), first)
        together = teachers.embedded_together(job, combination, scored[TEACHERS])
        run.ensure(worth := teachers.scores_of_teachers(job, scored[TEACHERS]))
        run.ensure(together)

    # Learners: one run of Ray Train each, all at the same time.
    learners, compared = [], []
    for recipe in job.distilling:
        target = targets[recipe.ensemble]
        learners += (own := models.learners(job, recipe, first, corpus, target, base.embeddings))
        scored[recipe.uncalibrated] = models.evaluated_learners(job, recipe, own)
        compared.append(models.fidelity_of(job, recipe, own[0], corpus, target))
    run.train(learners)
    run.ensure(*embeddings(*(scored[recipe.uncalibrated] for recipe in job.distilling)), *compared)

    # Calibrations of members and learners.
    for recipe in job.recipes:
        if recipe.calibration and recipe.text not in scored:
            scored[recipe.text] = calibrations.calibrated(job, recipe, scored[recipe.uncalibrated], table)
    run.ensure(*embeddings(*(scored[recipe.text] for recipe in job.recipes if recipe.calibration)))
    return results.results_of(run, job, table, ensembles, scored, combination, together, worth)


def embeddings(*groups: Iterable[EvaluatedModel]) -> list[Made]:
    """Return the embeddings of the evaluation's sentences by all models of some groups."""
    return [model.embeddings for models in groups for model in models]


def run(
    config: Config, say: Callable[[str], None] = print_text, take_over: bool = False, starts_ray: bool = False
) -> str | None:
    """Run a configuration; reuse what already exists.

    Args:
        say: prints a line.
        take_over: on remote storage, end another job on this run instead of waiting for it.
        starts_ray: whether `resources.engine: auto` means Ray if it is installed.

    Returns:
        Why the model was not exported, see `export.allow_worse`; None if it was.
    """
    check_stays(config.storage)
    storage = Storage(config.storage, config.run)
    if not (take_over or storage.is_local):
        storage.check_access()
        wait_for_other(storage, say)
    prepare_process()
    engine, notes = _engine_of(config, starts_ray)
    notes += heed_others()
    with (
        storage.lock(),
        status_of(storage) as status,
        ExitStack() as modes,
        session(engine) as connect,
    ):
        import torch  # which takes seconds

        from raysed.plan.check import check
        from raysed.train.out_of_memory import random_state

        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):  # its cached, rounded weights would stay in use
            raise UserError("torch.autocast is on; call raysed outside of it")
        modes.callback(random_state(torch.device("cpu")))  # restore the caller's random state at the end
        modes.enter_context(torch.inference_mode(False))  # turns gradients on, too
        job = check(config)
        if report := finished_report(storage, job.depends):
            # Another command on this run may have written its own, and was stopped soon after.
            storage.write_text("config.yaml", dump_config(job.config))
            done = f"nothing to do: {storage} is complete, and no setting or input has changed"
            say("\n".join(filter(None, [done, report.meta["refusal"]])))
            return report.meta["refusal"]
        if storage.is_local and interrupts.listening():  # a command, not a program that calls `run`
            modes.enter_context(native_output_to(Path(storage.uri("logs/native.log"))))
        for line in [f"run: {storage}", *notes, *connect()]:
            say(line)
        _make(job, storage, status, engine, say)
        return refusal(storage)


def plan_text(config: Config, cluster: Cluster) -> str:
    """Return what a run needs of a cluster, as text; train and write nothing."""
    from raysed.plan.size import show_plan

    return show_plan(ensemble_then_distill, config, cluster)


def _engine_of(config: Config, starts_ray: bool) -> tuple[Engine, list[str]]:
    """Return the engine, see `resources.engine`, and a line for the user if Ray is not installed."""
    if config.resources.engine != "auto":
        return config.resources.engine, []
    distils = any(recipe.distils for recipe in parse_recipes(config.recipes))
    if not (starts_ray or is_ray_given() or ((config.sed.workers or 1) > 1 and distils)):
        return "local", []
    if find_spec("ray") is None or find_spec("deepspeed") is None:  # the extra `ray` has both
        return "local", [f"Ray: not all installed, so this process does all the work ({install_command('ray')})"]
    return "ray", []


def _make(job: Job, storage: Storage, status: Status, engine: Engine, say: Callable[[str], None]) -> None:
    from raysed.plan.size import check_room, rehearsed, totals
    from raysed.report.publish import publish, publish_failure
    from raysed.runner import Run, backend_of

    try:
        with interrupts.errors_are_stops():
            trainings, resources = rehearsed(ensemble_then_distill, job), job.config.resources
            emit(totals=totals(trainings))
            run = Run(
                storage,
                backend_of(engine, storage, resources, say),
                resources,
                say,
                trainings,
                members=job.config.members.count,
                learner_workers=job.config.sed.workers,
                check_room=partial(check_room, job, storage, trainings),
            )
            storage.write_text("config.yaml", dump_config(job.config))  # from here on, an earlier run is modified
            results = ensemble_then_distill(run, job)
            publish(job, storage, results, run.ensure, say)
            run.clear()
    except Exception as error:
        if storage.is_owner() and not status.follows_a_complete_run:
            publish_failure(job.config.model_dump(mode="json"), storage, error)
        raise
