"""Short tasks of Ray, and a warning while the cluster lacks room for a stage's workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from raysed.errors import RunFailed, last_line
from raysed.store.progress import repeating

if TYPE_CHECKING:
    from raysed.resources import Share

log = logging.getLogger(__name__)

_PAUSE_S = 15.0  # between two checks of the cluster's room


@contextmanager
def missing_nodes_logged(share: Share, least: int = 1) -> Iterator[None]:
    """Warn while the cluster lacks room for `least` of a stage's workers at once."""
    # The check may hang on a cluster that is going away.
    with repeating(partial(_log_what_is_missing, share, least), _PAUSE_S, patience=1.0):
        yield


def _log_what_is_missing(share: Share, least: int) -> None:
    import ray

    from raysed.cluster.machines import current_cluster

    with suppress(ray.exceptions.RayError):  # the cluster may be losing a node
        cluster = current_cluster()
        if (share.cpus or share.gpus) and (room := cluster.fit(share.cpus, share.gpus)) < least:
            wanted = f"{share.cpus:g} CPU{'s' * (share.cpus != 1)}" + (f" and {share.gpus:g} GPU" if share.gpus else "")
            log.warning(
                "waiting for nodes: workers of %s need %d slots, but there are only %d (%s)",
                wanted, least, room, cluster,
            )  # fmt: skip


def run_tasks(
    function: Callable[..., Any], jobs: Sequence[Any], *arguments: Any, work: str, share: Share
) -> Iterator[Any]:
    """Call a function on every job in Ray tasks; yield its results as tasks finish.

    A task whose process died is rerun, up to Ray's limit, so jobs must be safe to repeat. With a GPU, Ray
    starts a process per task, which imports torch and transformers, so there each task does many jobs. References into
    the object store are resolved in `arguments`, which follow the job.

    Raises:
        RunFailed: a task failed, or was lost too often.
    """
    import ray

    count = min(share.workers, len(jobs)) if share.gpus else len(jobs)
    with missing_nodes_logged(share):

        def run(some: Sequence[Any], *arguments: Any) -> list[Any]:
            return [function(job, *arguments) for job in some]

        task = ray.remote(**share.remote_options)(run).options(name=work)
        waiting = [task.remote(jobs[start::count], *arguments) for start in range(count)]
        while waiting:
            (done,), waiting = ray.wait(waiting, num_returns=1)
            try:
                results = ray.get(done)
            except ray.exceptions.RayError as error:
                raise RunFailed(f"{work}: {last_line(error)}") from error
            yield from results
