"""START HERE: the stages of a run in order, skipping what the manifest says is done.

    corpus -> tokens -> views -> members -> teacher mean -> learner -> calibration -> evaluation -> export

Everything that can be checked is checked before the first second of training. Each stage reads and writes the run
directory only, so that the same command continues a run that was stopped at any point.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from raysed import interrupts
from raysed.cluster.process import prepare_process
from raysed.cluster.session import ray_session
from raysed.config import dump_config
from raysed.recipe import member_nodes
from raysed.store import unchanged
from raysed.store.metrics import native_output_to
from raysed.store.progress import emit
from raysed.store.status import Status, refuse_at_work, status_of
from raysed.store.storage import Storage, check_stays

if TYPE_CHECKING:
    from raysed.config import Config
    from raysed.plan.check import Job


def run(config: Config, say: Callable[[str], None] = print, take_over: bool = False) -> str | None:
    """Runs all stages of a configuration, or as many as are not done.

    Args:
        take_over: whether a job that is at work on the run, on remote storage, is ended instead of this one.

    Returns:
        Why there is no model, see `export.allow_worse`; None where there is one.

    Raises:
        UserError: a wrong setting or input; nothing was trained, unless the error shows in training only.
        RunFailed: too few members could be trained.
    """
    check_stays(config.storage)
    print_, storage = unchanged.fingerprint(config), Storage(config.storage, config.run)
    if not (take_over or storage.is_local):
        storage.reach()
        refuse_at_work(storage)
    with storage.lock():
        if unchanged.is_unchanged(print_, storage):
            say(_nothing_to_do(storage))
            return unchanged.refusal(storage)
        with status_of(storage) as status:
            prepare_process()
            with ray_session(partial(importlib.import_module, "raysed.plan.check")) as dashboard:
                from raysed.plan.check import check

                _run_checked(check(config), storage, status, dashboard, say)
        unchanged.remember(print_, storage)
        return unchanged.refusal(storage)


def _run_checked(job: Job, storage: Storage, status: Status, dashboard: str | None, say: Callable[[str], None]) -> None:
    """Runs the stages, unless all of it is there."""
    from raysed.cluster.gauges import stage_gauges
    from raysed.report.publish import is_complete, publish_failure

    if is_complete(job, storage):
        say(_nothing_to_do(storage))
        return
    if dashboard:
        say(f"Ray dashboard: {dashboard}")
    native = Path(storage.uri("logs") if storage.is_local else tempfile.mkdtemp(prefix="raysed-")) / "native.log"
    try:
        with native_output_to(native), interrupts.errors_are_stops(), stage_gauges(job.config.run):
            _run_stages(job, storage, say)
    except Exception as error:
        if not status.follows_a_complete_run:
            publish_failure(job.config, storage, error)
        raise


def _nothing_to_do(storage: Storage) -> str:
    done = f"nothing to do: {storage} is complete, and no setting or input has changed"
    return "\n".join(filter(None, [done, unchanged.refusal(storage)]))


def _run_stages(job: Job, storage: Storage, say: Callable[[str], None]) -> None:
    """Corpus -> views -> members -> mean -> learner -> calibration -> evaluation -> export."""
    from raysed.report.publish import publish
    from raysed.stages.stages import Stages

    stages = Stages(job, storage, say)
    emit(totals=stages.lineage.totals(), titles=stages.lineage.titles())
    stages.make_encoder()
    storage.write_text("config.yaml", dump_config(job.config))  # from here on an earlier run of that name is changed
    stages.write_corpus()
    stages.write_pairs()
    stages.gather_cluster()
    stages.write_views()
    stages.embed_base()
    stages.ask_teachers()
    stages.calibrate_base()
    for depth in member_nodes(job.recipes):
        stages.train_members(depth)
    stages.take_up_members()
    stages.average_teachers()
    stages.combine_teachers()
    stages.distil()
    stages.calibrate()
    stages.probe()
    publish(job, storage, stages.lineage.models(), stages.facts(), say)
