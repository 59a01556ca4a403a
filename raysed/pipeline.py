"""START HERE: plan, execute, report.

    corpus -> tokens -> views -> members -> teacher mean -> learner -> calibration -> evaluation -> export

`check` refuses what cannot work before any training, and `Plan` turns the configuration into a graph of artefacts.
`execute` makes the missing artefacts, so the same command continues a run that was stopped at any point. `publish`
writes the report and the model.
"""

from __future__ import annotations

from collections.abc import Callable
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
from raysed.recipe import parse_recipes
from raysed.store.metrics import native_output_to
from raysed.store.progress import emit, print_text
from raysed.store.status import Status, finished_report, refusal, refuse_at_work, status_of
from raysed.store.storage import Storage, check_stays

if TYPE_CHECKING:
    from raysed.cluster.execute import Engine
    from raysed.config import Config
    from raysed.plan.check import Job


def run(
    config: Config, say: Callable[[str], None] = print_text, take_over: bool = False, starts_ray: bool = False
) -> str | None:
    """Run a configuration; reuse what already exists.

    Args:
        say: prints a line.
        take_over: on remote storage, end another job on this run instead of refusing to start.
        starts_ray: whether `resources.engine: auto` means Ray if it is installed.

    Returns:
        Why the model was not exported, see `export.allow_worse`; None if it was.
    """
    check_stays(config.storage)
    storage = Storage(config.storage, config.run)
    if not (take_over or storage.is_local):
        storage.check_access()
        refuse_at_work(storage)
    prepare_process()
    engine, notes = _engine_of(config, starts_ray)
    notes += heed_others()
    with (
        storage.lock(),
        status_of(storage) as status,
        ExitStack() as modes,
        # A new Ray starts while this process imports; a complete run may need none.
        session(engine, is_early=not status.follows_a_complete_run) as connect,
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
            done = f"nothing to do: {storage} is complete, and no setting or input has changed"
            say("\n".join(filter(None, [done, report.meta["refusal"]])))
            return report.meta["refusal"]
        if storage.is_local and interrupts.listening():  # a command, not a program that calls `run`
            modes.enter_context(native_output_to(Path(storage.uri("logs/native.log"))))
        for line in [f"run: {storage}", *notes, *connect()]:
            say(line)
        _make(job, storage, status, engine, say)
        return refusal(storage)


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
    from raysed.cluster.execute import ExecutionOptions, execute
    from raysed.plan.artefacts import facts_of, scored_models
    from raysed.plan.graph import Plan
    from raysed.plan.size import check_room
    from raysed.report.publish import publish, publish_failure

    try:
        with interrupts.errors_are_stops():
            plan = Plan(job)
            emit(totals=plan.totals())
            options = ExecutionOptions(
                job.config.resources,
                engine,
                members=job.config.members.count,
                learner_workers=job.config.sed.workers,
                check_room=partial(check_room, job, storage),
                settings=dump_config(job.config),
            )
            state, cluster = execute(plan.graph, storage, options, say)
            publish(job, storage, scored_models(plan, state), facts_of(plan, state, cluster), say)
    except Exception as error:
        if not status.follows_a_complete_run:
            publish_failure(job.config.model_dump(mode="json"), storage, error)
        raise
