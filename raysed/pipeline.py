"""START HERE: the stages of a run in order, skipping what the manifest says is done.

    corpus -> tokens -> views -> members -> teacher mean -> learner -> calibration -> evaluation -> export

Everything that can be checked is checked before the first second of training. Each stage reads and writes the run
directory only, so that the same command continues a run that was stopped at any point.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import ray

from raysed import interrupts
from raysed.config import Config, dump_config
from raysed.recipe import member_nodes
from raysed.status import status_of
from raysed.storage import Storage
from raysed.tracking import native_output_to, quiet_libraries

if TYPE_CHECKING:
    from raysed.check import Job

_ENDING_SECONDS = 10
"""For Ray's processes to end once they were told to."""


def run(config: Config, say: Callable[[str], None] = print) -> None:
    """Runs all stages of a configuration, or as many as are not done.

    Args:
        config: the settings.
        say: shows a line to the user.

    Raises:
        UserError: a wrong setting or input; nothing was trained, unless the error shows in training only.
        RunFailed: too few members could be trained.
    """
    quiet_libraries()
    # Imports keep one core busy for seconds, in which Ray's processes start on the others.
    threading.Thread(target=importlib.import_module, args=("raysed.check",), daemon=True).start()
    with _ray_session() as dashboard:
        from raysed.check import check

        _run_checked(check(config), dashboard, say)


def _run_checked(job: Job, dashboard: str | None, say: Callable[[str], None]) -> None:
    """Runs the stages under the run directory's lock, unless all of it is there."""
    from raysed import results

    config = job.config
    storage = Storage(config.storage, config.run)
    with storage.lock():
        if results.is_complete(job, storage):
            say(f"nothing to do: {storage} is complete, and no setting or input has changed")
            return
        storage.write_text("config.yaml", dump_config(config))
        if dashboard:
            say(f"Ray dashboard: http://{dashboard}")
        native = Path(storage.uri("logs") if storage.is_local else tempfile.mkdtemp(prefix="raysed-")) / "native.log"
        try:
            with native_output_to(native), status_of(storage):
                _run_stages(job, storage, say)
        except Exception as error:
            failed = {
                "run": config.run,
                "status": "failed",
                "error": str(error),
                "config": config.model_dump(mode="json"),
            }
            storage.write_text("report.json", json.dumps(failed, indent=1))
            raise


# -- the stages ------------------------------------------------------------------------------------------------------


def _run_stages(job: Job, storage: Storage, say: Callable[[str], None]) -> None:
    """Corpus -> views -> members -> mean -> learner -> calibration -> evaluation -> export."""
    from raysed import results
    from raysed.stages import Stages

    stages = Stages(job, storage, say)
    stages.make_encoder()
    stages.write_corpus()
    stages.write_pairs()
    stages.write_views()
    stages.train_encoder()
    stages.embed_base()
    stages.calibrate_base()
    for depth in member_nodes(job.recipes):
        stages.train_members(depth)
    stages.average_teachers()
    stages.distil()
    stages.calibrate()
    stages.probe()
    results.publish(job, storage, stages.lineage.models(), stages.facts(), say)


# -- around the stages -----------------------------------------------------------------------------------------------


@contextmanager
def _ray_session() -> Iterator[str | None]:
    """Connects to the cluster of RAY_ADDRESS (`ray job submit` sets it) or starts Ray on this machine.

    Yields the address of the dashboard of a Ray that was started here, if it has one.
    """
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C ends the job, not only the experiment
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the run directory has the logs already
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no host is asked that the user did not name
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    own, dashboard, started = not ray.is_initialized(), None, []
    if own:
        others = psutil.Process().children()
        options = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": None, "dashboard_host": "127.0.0.1"}
        listening = interrupts.listening()
        context = ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
        if listening:  # Ray has put its own handler of SIGTERM, which ends the process with exit code 1
            interrupts.listen()
        dashboard = context.dashboard_url
        started = [process for process in psutil.Process().children() if process not in others]
    try:
        yield dashboard
    except KeyboardInterrupt:
        interrupts.notice()
        raise
    finally:
        if own:
            _shut_down(started)


def _shut_down(started: Iterable[psutil.Process]) -> None:
    """Ends Ray and waits until its processes are gone: helpers of its dashboard outlive `ray.shutdown` by a second."""
    processes = set(started)
    for process in started:
        with suppress(psutil.NoSuchProcess):
            processes.update(process.children(recursive=True))
    ray.shutdown()
    deadline = time.monotonic() + _ENDING_SECONDS
    while any(map(_lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody asks for its exit code stays listed as a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
