"""START HERE: plan, execute, report.

    corpus -> tokens -> views -> members -> teacher mean -> learner -> calibration -> evaluation -> export

`plan` turns the configuration into a graph of artefacts, and checks all it can before any training. `execute` makes the
missing artefacts, so the same command continues a run that was stopped at any point. `publish` writes the report and
the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from raysed import interrupts
from raysed.cluster.process import prepare_process
from raysed.cluster.session import is_ray_given, session
from raysed.errors import RunFailed, UserError
from raysed.recipe import parse_recipes
from raysed.store import cache
from raysed.store.metrics import native_output_to
from raysed.store.progress import emit, print_text
from raysed.store.status import Status, finished_report, refusal, refuse_at_work, status_of
from raysed.store.storage import Storage, check_stays

if TYPE_CHECKING:
    from raysed.cluster.execute import Engine
    from raysed.config import Config
    from raysed.plan.check import Job


def run(config: Config, say: Callable[[str], None] = print_text, take_over: bool = False) -> str | None:
    """Make what is missing of all that a configuration asks for.

    If another job is at work on the run, on remote storage, this one ends, or with `take_over` the other one.

    Returns:
        Why there is no model, see `export.allow_worse`; None if there is one.
    """
    check_stays(config.storage)
    storage = Storage(config.storage, config.run)
    if not (take_over or storage.is_local):
        storage.check_access()
        refuse_at_work(storage)
    with storage.lock(), status_of(storage) as status, ExitStack() as modes:
        prepare_process()
        import torch  # which takes seconds

        from raysed.plan.check import check
        from raysed.train.out_of_memory import random_state

        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):  # weights that it has rounded would stay in use
            raise UserError("torch.autocast is on; call raysed outside of it")
        modes.callback(random_state(torch.device("cpu")))  # at the end, the caller has its own again
        modes.enter_context(torch.inference_mode(False))  # turns gradients on, too
        job = check(config)
        if report := finished_report(storage, job.depends):
            done = f"nothing to do: {storage} is complete, and no setting or input has changed"
            say("\n".join(filter(None, [done, report.meta["refusal"]])))
            return report.meta["refusal"]
        _make(job, storage, status, say)
        return refusal(storage)


_KEPT_OF_LOG = 2**20  # bytes
_FEW_CPUS = 16
"""Above, embedding is left to several workers: threads that share a batch wait for each other."""


def _engine_of(config: Config) -> Engine:
    """Return the engine, see `resources.engine`; `auto` is Ray where it is given, or gains more than it takes to start.

    That is on several GPUs, or where several trainings can share one, or many CPUs.
    """
    if config.resources.engine != "auto":
        return config.resources.engine
    if find_spec("ray") is None or find_spec("deepspeed") is None:  # the extra `ray` has both
        return "local"
    recipes = parse_recipes(config.recipes)
    if is_ray_given() or ((config.sed.workers or 1) > 1 and any(recipe.distils for recipe in recipes)):
        return "ray"
    from raysed.cluster.local import this_machine

    here = this_machine(config.resources.gpu)
    learners = len({recipe.uncalibrated for recipe in recipes if recipe.distils}) * config.sed.learners
    has_several = any(recipe.members for recipe in recipes) or learners > 1
    return "ray" if here.gpus > 1 or (has_several and (here.gpus or here.cpus > _FEW_CPUS)) else "local"


@contextmanager
def _native_output(log: Path, storage: Storage) -> Iterator[None]:
    """Collect what C++ libraries print, if this process is a command; on remote storage, upload it at the end."""
    if not interrupts.listening():
        yield
        return
    try:
        with native_output_to(log):
            yield
    finally:
        if not storage.is_local and log.stat().st_size:
            with suppress(OSError, UserError, RunFailed):  # another job may have taken over
                earlier = b""
                with suppress(FileNotFoundError):
                    earlier = storage.plain.read("logs/native.log")
                storage.write_bytes("logs/native.log", (earlier + log.read_bytes())[-_KEPT_OF_LOG:])


def _make(job: Job, storage: Storage, status: Status, say: Callable[[str], None]) -> None:
    from raysed.cluster.execute import execute
    from raysed.plan.artefacts import facts_of, scored_models
    from raysed.plan.graph import Plan
    from raysed.report.publish import publish, publish_failure

    engine = _engine_of(job.config)
    with session(engine) as dashboard:
        if dashboard:
            say(f"Ray dashboard: {dashboard}")
        logs = nullcontext(Path(storage.uri("logs"))) if storage.is_local else cache.half_written()
        try:
            with logs as place, _native_output(place / "native.log", storage), interrupts.errors_are_stops():
                plan = Plan(job)
                emit(totals=plan.totals())
                state, cluster = execute(plan.graph, storage, plan.how(engine), say)
                publish(job, storage, scored_models(plan, state), facts_of(plan, state, cluster), say)
        except Exception as error:
            if not status.follows_a_complete_run:
                publish_failure(job.config.model_dump(mode="json"), storage, error)
            raise
