"""Ask the nodes of a cluster which versions they run.

Nodes that differ fail late and obscurely, or not at all: members of one ensemble then come from different code or
weights. When a node joins, Ray compares only its own version and Python's.
"""

import hashlib
import logging
import platform
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysed.errors import UserError, last_line
from raysed.store.hub import cached_commit

log = logging.getLogger(__name__)

ANSWER_S = 60.0
"""Seconds for all nodes to answer: a node without work so far first unpacks the job and starts a process."""
_MODEL = "the model "
_REMEDIES = {
    _MODEL: "fetch the same commit on all nodes, or name one with encoder.model_kwargs: {revision: COMMIT}",
    "raysed": "submit the job with --working-dir, or install the same raysed on all nodes",
    "": "install the same version on all nodes, such as the one in constraints.txt",
}
"""What to do about a difference, by the prefix of its name."""
_PACKAGE = Path(__file__).resolve().parents[1]


def ask_nodes(question: Any, nodes: Sequence[str], *arguments: Any) -> dict[str, Any]:
    """Run a Ray remote function that needs no CPU on several nodes at once; return its answer by node.

    An answer is the error if the function failed there, and None if the node is lost or silent.
    """
    strategies = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    asked = [question.options(scheduling_strategy=there).remote(*arguments) for there in strategies]
    answers: dict[str, Any] = dict.fromkeys(nodes)
    until = time.monotonic() + ANSWER_S
    for node, reference in zip(nodes, asked):
        try:
            answers[node] = ray.get(reference, timeout=max(until - time.monotonic(), 0))
        except ray.exceptions.RayTaskError as error:
            answers[node] = error
        except ray.exceptions.RayError as error:  # the node is gone or silent
            log.debug("a node does not answer: %s", error)
    return answers


def check_versions(models: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a node that runs something else than this process; do nothing on a single node.

    A node that is lost or does not answer is skipped with a warning. Hub models are compared if a node has them cached;
    `models` has, by ID, the options that select their files, such as `revision`.
    """
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if len(nodes) < 2:
        return
    here = versions(models)
    for node, said in ask_nodes(_versions_there, list(nodes), dict(models)).items():
        where = f"node {nodes[node]}"
        if isinstance(said, Exception):
            raise UserError(f"{where} cannot run the job: {last_line(said)}; {_REMEDIES['raysed']}")
        if said is None:
            log.warning("%s has not reported its versions", where)
        elif what := difference(here, said):
            raise UserError(f"{where} has {what}")


def difference(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> str | None:
    """Return the first difference as a sentence with both versions and a remedy; None is not compared.

    >>> difference({"torch": "2.13.0"}, {"torch": "2.12.1"}).partition(";")[0]
    "torch 2.12.1, but the job's own process has 2.13.0"
    """
    for what, ours in here.items():
        theirs = there.get(what)
        if ours is not None and theirs is not None and ours != theirs:
            remedy = next(words for start, words in _REMEDIES.items() if what.startswith(start))
            return f"{what} {theirs}, but the job's own process has {ours}; {remedy}"
    return None


def versions(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """Return what this process runs: versions, a digest of raysed's own code, and commits of models if known.

    The code travels with the job, so no installed version describes it.
    """
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    of_python = ".".join(platform.python_version_tuple()[:2])
    commits = {f"{_MODEL}{name}": cached_commit(name, options) for name, options in models.items()}
    names = ("ray", "torch", "transformers")
    libraries = {name: metadata.version(name).partition("+")[0] for name in names}  # no build tags such as +cpu
    return {"Python": of_python, **libraries, "raysed": f"code {digest.hexdigest()[:8]}", **commits}


@ray.remote(num_cpus=0, max_retries=0)
def _versions_there(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    return versions(models)
