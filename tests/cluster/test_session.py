"""The Ray of a run, where somebody has started it before."""

import os

import pytest
import ray

from raysed.cluster import session
from raysed.errors import UserError


def test_a_ray_that_runs_already_gets_the_same_variables(monkeypatch):
    """Tune and Train read them in this process, whoever has started Ray."""
    for name in session.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")  # a user's own choice stays
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with session.ray_session(lambda: None) as dashboard:
        found = {name: os.environ.get(name) for name in session.VARIABLES}
    assert dashboard is None and found == {**session.VARIABLES, "RAY_AIR_NEW_OUTPUT": "1"}


@pytest.mark.cluster
def test_a_disk_that_is_full_under_rays_memory_is_said_in_a_sentence(ray_cluster):
    """As Ray raises it where a task's result fits neither into memory nor on the disk."""

    @ray.remote
    def fills() -> None:
        raise ray.exceptions.OutOfDiskError

    with pytest.raises(UserError, match=r"^no disk space left for what Ray moves out of memory; free"):
        with session.ray_session(lambda: None):
            ray.get(fills.remote())
