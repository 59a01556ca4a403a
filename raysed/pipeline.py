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

from raysed import interrupts
from raysed.config import Config, dump_config
from raysed.recipe import member_nodes
from raysed.store import unchanged
from raysed.store.metrics import native_output_to, quiet_libraries
from raysed.store.status import Status, status_of
from raysed.store.storage import Storage, check_stays

if TYPE_CHECKING:
    from raysed.plan.check import Job

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
    check_stays(config.storage)
    print_, storage = unchanged.fingerprint(config), Storage(config.storage, config.run)
    with storage.lock():
        if unchanged.is_unchanged(print_, storage):
            say(_nothing_to_do(storage))
            return
        with status_of(storage) as status:
            quiet_libraries()
            with _ray_session() as dashboard:
                from raysed.plan.check import check

                _run_checked(check(config), storage, status, dashboard, say)
        unchanged.remember(print_, storage)


def _run_checked(job: Job, storage: Storage, status: Status, dashboard: str | None, say: Callable[[str], None]) -> None:
    """Runs the stages, unless all of it is there."""
    from raysed.report.publish import is_complete

    if is_complete(job, storage):
        say(_nothing_to_do(storage))
        return
    if dashboard:
        say(f"Ray dashboard: http://{dashboard}{_how_to_log_in()}")
    native = Path(storage.uri("logs") if storage.is_local else tempfile.mkdtemp(prefix="raysed-")) / "native.log"
    try:
        with native_output_to(native), interrupts.errors_are_stops():
            _run_stages(job, storage, say)
    except Exception as error:
        if not status.follows_a_complete_run:
            _report_failure(job.config, storage, error)
        raise


def _how_to_log_in() -> str:
    """Ray sets this variable, too, when it starts with the token of an earlier start."""
    is_closed = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    return " (the page asks for a token; `ray get-auth-token` prints it)" if is_closed else ""


def _nothing_to_do(storage: Storage) -> str:
    return f"nothing to do: {storage} is complete, and no setting or input has changed"


def _report_failure(config: Config, storage: Storage, error: Exception) -> None:
    settings = config.model_dump(mode="json")
    failed = {"run": config.run, "status": "failed", "error": str(error), "config": settings}
    storage.write_text("report.json", json.dumps(failed, indent=1))


# -- the stages ------------------------------------------------------------------------------------------------------


def _run_stages(job: Job, storage: Storage, say: Callable[[str], None]) -> None:
    """Corpus -> views -> members -> mean -> learner -> calibration -> evaluation -> export."""
    from raysed.report.publish import publish
    from raysed.stages.stages import Stages

    stages = Stages(job, storage, say)
    stages.make_encoder()
    storage.write_text("config.yaml", dump_config(job.config))  # from here on an earlier run of that name is changed
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
    publish(job, storage, stages.lineage.models(), stages.facts(), say)


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
    import ray  # takes a second that a run with nothing to do can save

    # Imports keep one core busy for seconds, in which Ray's processes start on the others.
    threading.Thread(target=importlib.import_module, args=("raysed.plan.check",), daemon=True).start()
    if ray.is_initialized():
        yield None
        return
    own = _OwnRay()
    options = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": None, "dashboard_host": "127.0.0.1"}
    listening = interrupts.listening()
    with interrupts.when_stopped(interrupts.Stopping(is_hopeless=own.is_lost, at_last=own.kill)):
        try:
            context = ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
            own.has_started()
            if listening:  # Ray has put its own handler of SIGTERM, which ends the process with exit code 1
                interrupts.listen_again()
            with interrupts.errors_are_stops():
                yield context.dashboard_url
        except KeyboardInterrupt:
            interrupts.notice()
            raise
        finally:
            own.end()


class _OwnRay:
    """The processes of a Ray that this one starts; none where it connects to a cluster."""

    def __init__(self) -> None:
        self._others = psutil.Process().children()
        self._servers: list[psutil.Process] = []
        self._family: set[psutil.Process] = set()
        self._is_ending = False

    def has_started(self) -> None:
        """Looks who is there, once Ray says that it has started."""
        self._servers = self._children()

    def _children(self) -> list[psutil.Process]:
        return [process for process in psutil.Process().children() if process not in self._others]

    def is_lost(self) -> bool:
        """Whether servers that nobody has told to end have ended: what is asked of them is never answered."""
        return not self._is_ending and not all(map(_lives, self._servers))

    def kill(self) -> None:
        """Ends all of them at once.

        First the one that would tell this process that its raylet is gone: Ray's own threads would end it then.
        """
        servers = self._servers or self._children()
        _kill(process for process in servers if _name(process) == "gcs_server")
        self._remember(servers)
        _kill(self._family)
        psutil.wait_procs(self._family, timeout=1.0)

    def _remember(self, servers: Iterable[psutil.Process]) -> None:
        """Looks who is there: workers whose raylet is gone are nobody's children any more."""
        for server in servers:
            self._family.add(server)
            with suppress(psutil.NoSuchProcess):
                self._family.update(server.children(recursive=True))

    def end(self) -> None:
        """Ends Ray and waits until its processes are gone: helpers of its dashboard outlive `ray.shutdown` by a second.

        A Ray that was ended by somebody else is not asked, because it would not answer.
        """
        import ray

        if self.is_lost():
            self.kill()
        else:
            self._remember(self._servers)
            self._is_ending = True
        ray.shutdown()
        deadline = time.monotonic() + _ENDING_SECONDS
        while any(map(_lives, self._family)) and time.monotonic() < deadline:
            time.sleep(0.05)


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def _lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody asks for its exit code stays listed as a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
