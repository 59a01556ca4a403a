"""The Ray of a run, where somebody has started it before."""

import os

from raysed.cluster import session


def test_a_ray_that_runs_already_gets_the_same_variables(monkeypatch):
    """Tune and Train read them in this process, whoever has started Ray."""
    for name in session._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")  # a user's own choice stays
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with session.ray_session(lambda: None) as dashboard:
        found = {name: os.environ.get(name) for name in session._VARIABLES}
    assert dashboard is None and found == {**session._VARIABLES, "RAY_AIR_NEW_OUTPUT": "1"}
