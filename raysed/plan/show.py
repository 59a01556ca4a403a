"""The plan of a run as people read it, for the machines at hand or for others."""

from raysed.cluster.resources import Cluster, current_cluster, what_is_missing
from raysed.cluster.session import ray_session
from raysed.config import Config
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.errors import UserError
from raysed.model.shape import shape_of
from raysed.plan.check import Job, check
from raysed.plan.size import described, known_rows, plan_run, rate_of
from raysed.store.progress import Progress


def show_plan(config: Config, cluster: str | None = None, sentences: int | None = None) -> str:
    """Check a configuration as a run does, and return what it needs in words; nothing is trained or written.

    Args:
        cluster: what to plan for, see `raysed.plan.size.described`; None: the machines at hand.
        sentences: of the corpus; None: they are counted, which means reading all of it.

    Raises:
        UserError: a wrong setting or input, or a training that fits on no node.
    """
    if sentences is not None and sentences < 1:
        raise UserError(f"--sentences is {sentences}; it must be at least 1")
    there = described(cluster) if cluster else _here()
    if missing := what_is_missing(config.resources, config.sed.workers)(there):  # such as GPUs that have not come yet
        raise UserError(missing)
    job = check(config)
    rows = known_rows(job)
    if job.needs_corpus:
        count = sentences or job.config.corpus.sentences or _count(job)
        rows |= {"corpus": count} | {f"views/{kind}": count for kind, views in job.views.items() if views is None}
    rate = rate_of(there, config)
    return plan_run(job.config, job.recipes, shape_of(config.encoder), rows, there, rate, job.widths).words()


def _here() -> Cluster:
    with ray_session(lambda: None):
        return current_cluster()


def _count(job: Job) -> int:
    progress, report = Progress("read corpus", 0), CorpusReport()
    for ids, _ in sentence_chunks(job.config.corpus, job.config.seed, report):
        progress.update(int(ids[-1]) + 1)
    return report.kept
