"""What the Ray backend adds to Tune, Data and Train: short makers as tasks, and a queue for what workers report."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import ray

from raysed.cluster import on_ray
from raysed.cluster.events import drain
from raysed.cluster.jobs import ShortJob
from raysed.cluster.on_ray import RayBackend
from raysed.config import ResourcesConfig
from raysed.context import Context
from raysed.errors import UserError
from raysed.made import BlockShape, Made, RemoteValue, Step
from raysed.resources import Cluster, Share
from raysed.store.storage import Storage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
ONE = Share(2, 1, 0.0, 1)


@pytest.fixture
def backend(ray_cluster, tmp_path):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield RayBackend(Storage(str(tmp_path), "run"), ResourcesConfig(gpu=False), print)
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def fit(out, inputs, settings, context) -> dict:
    if settings["behaves"] == "wrong":
        raise UserError("a planted mistake", setting="flow")
    (out / "sum").write_text(str(inputs["table"].sum()))
    return {"process": os.getpid()}


def job(name: str, table: np.ndarray, behaves: str = "") -> ShortJob:
    return ShortJob("fit flows", [Step(name, name, fit, {"name": name}, {"behaves": behaves}, {"table": table})])


def test_short_makers_are_tasks_where_there_are_several_machines(backend, monkeypatch):
    """Large inputs go to the object store once; what a user can mend is reported."""
    storage, table, puts, failed = backend._storage, np.ones(1000), [], {}
    backend.map([job("a", table)], ONE, Context(), print)
    assert storage.entry("a").meta["process"] == os.getpid(), "one machine"

    monkeypatch.setattr(on_ray, "current_cluster", lambda res: Cluster(((1, 0), (1, 0))))
    monkeypatch.setattr(ray, "put", lambda value, put=ray.put: puts.append(value) or put(value))
    jobs = [job("d", table), job("e", table), job("f", table, "wrong")]
    backend.map(jobs, ONE, Context(), lambda name, event: failed.update(event["failed"]))
    assert failed == {"f": "flow: a planted mistake"} and sum(value is table for value in puts) == 1
    assert os.getpid() not in {storage.entry(name).meta["process"] for name in "de"}
    assert (storage.fetch("e") / "sum").read_text() == "1000.0"


def test_what_a_worker_finds_in_the_run_is_not_put_into_the_object_store(backend):
    inputs = {"blocks": BlockShape("table", 1, 256, 3), "model": Made("ct/members/00"), "teachers": [Made("a")]}
    sent = backend._to_workers(Step("table", "", fit, {}, {}, {**inputs, "table": np.ones(3)}))
    assert {role: sent.inputs[role] for role in inputs} == inputs and isinstance(sent.inputs["table"], RemoteValue)


def test_the_queue_needs_no_cpu_and_is_on_the_node_of_the_job(backend, monkeypatch):
    """Where all CPUs are taken, it would never come; and a node that is lost must not take it along."""

    @ray.remote(num_cpus=2)
    class Busy:
        def begin(self) -> bool:
            return True

    options, make = {}, on_ray.Queue
    monkeypatch.setattr(on_ray, "Queue", lambda actor_options: options.update(actor_options) or make(0, actor_options))
    busy = Busy.remote()
    assert ray.get(busy.begin.remote()) and not ray.available_resources().get("CPU")
    backend._events.put(("a", {"step": 1}))
    assert drain(backend._events, patience=60) == [("a", {"step": 1})] and drain(backend._events) == []
    assert options["scheduling_strategy"].node_id == ray.get_runtime_context().get_node_id()
    ray.kill(busy)


def test_an_empty_queue_is_asked_for_nothing_but_its_size():
    """All else would raise in its actor, and the dashboard would show failed tasks."""
    assert drain(SimpleNamespace(qsize=lambda: 0), patience=0.3) == []


def test_what_is_reported_is_no_longer_heard_once_the_queue_is_gone(backend):
    """As while a cluster goes down; the work's own end says what became of it."""
    ray.kill(backend._events.actor)
    assert drain(backend._events, patience=0.1) == []
