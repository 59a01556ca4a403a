"""What a stage took: measured while it lasts, and put together over attempts."""

import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from raysed.cluster import usage
from raysed.cluster.usage import combined, measured
from raysed.store.progress import emit


def test_a_stage_adds_up_what_it_is_told(monkeypatch):
    monkeypatch.setattr(usage, "_metrics_of_nodes", lambda: {usage._HELD: [], usage._SPILLED: [], usage._GPU: [90, 70]})
    found = {"seconds": 100.0, "sentences": 7, "gpu_use": 0.5}
    with pytest.raises(KeyboardInterrupt), measured(found):
        emit(line="train: 10 %", left=3.0)
        emit(sentences=10)
        emit(sentences=20)
        raise KeyboardInterrupt  # a stage that is stopped has taken its time, too
    emit(sentences=1000)
    # As long as it took under 1.6 s:
    assert (found["sentences"], found["gpu_use"]) == (37, pytest.approx(0.5, abs=5e-3))
    assert 100.0 <= found["seconds"] < 101.6 and "object_store_bytes" not in found


def test_a_node_that_is_lost_is_not_asked(monkeypatch):
    """Ray goes on listing it, and a machine that is gone would take the whole patience at every look."""
    asked = []

    def ask(address: str, timeout: float) -> None:
        asked.append(address)
        raise OSError("nobody is there")

    nodes = [
        {"Alive": alive, "NodeManagerAddress": name, "MetricsExportPort": 1} for name, alive in (("a", 1), ("b", 0))
    ]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True, nodes=lambda: nodes))
    monkeypatch.setattr(usage, "_direct", SimpleNamespace(open=ask))
    assert not any(usage._metrics_of_nodes().values()) and asked == ["http://a:1/metrics"]


def test_two_attempts_weigh_gpus_by_time():
    first, second = {"seconds": 30.0, "gpu_use": 1.0}, {"seconds": 10.0, "gpu_use": 0.2}
    assert combined(first, second) == {"seconds": 40.0, "gpu_use": 0.8}
    assert combined({"seconds": 30.0}, second) == {"seconds": 40.0, "gpu_use": 0.2}


@pytest.mark.cluster
@pytest.mark.slow
def test_the_content_of_the_object_store_is_seen_and_what_it_spills(ray_cluster, monkeypatch):
    """The store holds 300 MiB; Ray measures every ten seconds."""
    import ray

    monkeypatch.setattr(usage, "_EVERY_S", 1.0)
    found: usage.Usage = {}
    with measured(found):
        held = [ray.put(np.full(100 * 2**20, index, np.uint8)) for index in range(4)]
        assert all(ray.get(one)[0] == index for index, one in enumerate(held))
        time.sleep(15)
    assert 100 * 2**20 <= found["object_store_bytes"] <= 300 * 2**20
    assert found["spilled_bytes"] >= 100 * 2**20


def test_bytes_of_a_node_that_has_gone_are_not_taken_back(monkeypatch):
    looks = iter([(5, 100), (9, 150), (2, 30), (1, 50)])

    def metrics() -> dict[str, list[float]]:
        held, spilled = next(looks)
        return {usage._HELD: [held], usage._SPILLED: [spilled], usage._GPU: []}

    @contextmanager
    def twice(look, every):
        look()
        look()
        yield

    monkeypatch.setattr(usage, "_metrics_of_nodes", metrics)
    monkeypatch.setattr(usage, "repeating", twice)
    found: usage.Usage = {}
    with measured(found):
        pass
    assert (found["object_store_bytes"], found["spilled_bytes"]) == (9, 70)
