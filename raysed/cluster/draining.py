"""Whether this machine is about to be taken away, as far as Ray was told."""

import logging

import ray

log = logging.getLogger(__name__)


def is_draining() -> bool:
    """Whether this process' node is announced to go; False where Ray does not say.

    Ray Train tells its workers itself. Ray has no public question for all others, so that a version of Ray that no
    longer knows this one costs no training, but the advantage of notice.
    """
    try:
        from ray._private.state import state

        return ray.get_runtime_context().get_node_id() in state.get_draining_nodes()
    except Exception as error:
        log.debug("whether this node is to go is unknown: %s", error)
        return False
