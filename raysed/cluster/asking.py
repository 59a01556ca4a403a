"""Questions to nodes: all are asked at once, and one that says nothing is not waited for."""

import logging
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

log = logging.getLogger(__name__)

SECONDS = 60.0
"""For all nodes to answer: a node that has had no work yet first unpacks the job and starts a process."""


def ask_nodes(question: Any, nodes: Sequence[str], *arguments: Any) -> dict[str, Any]:
    """Ask several nodes the same, by a remote function of Ray without CPUs.

    Returns:
        By node its answer; the error where it cannot run the question, and None where it is lost or silent.
    """
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        asked[question.options(scheduling_strategy=there).remote(*arguments)] = node
    if not asked:
        return {}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS)
    for reference in late:
        ray.cancel(reference)
    return {**{asked[reference]: None for reference in late}, **{asked[ref]: _answer(ref) for ref in ready}}


def _answer(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return error
    except ray.exceptions.RayError as error:  # the node has gone
        log.debug("a node does not answer: %s", error)
        return None
