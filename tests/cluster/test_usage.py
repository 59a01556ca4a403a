"""What a stage took: measured while it lasts, and put together over attempts."""

import time
from contextlib import contextmanager

import numpy as np
import pytest

from raysed.cluster import usage
from raysed.cluster.usage import combined, gpu_use, measured
from raysed.store.progress import emit


def test_a_stage_adds_up_what_it_is_told():
    found = {"seconds": 100.0, "sentences": 7, "gpu_use": 0.5}
    with pytest.raises(KeyboardInterrupt), measured(found):
        emit(line="train: 10 %", left=3.0)
        emit(sentences=10)
        emit(sentences=20)
        emit(gpu_use=0.9)
        emit(gpu_use=0.7)
        raise KeyboardInterrupt  # a stage that is stopped has taken its time, too
    emit(sentences=1000)
    assert (found["sentences"], found["gpu_use"]) == (
        37,
        pytest.approx(0.5, abs=5e-3),
    )  # as long as it took under 1.6 s
    assert 100.0 <= found["seconds"] < 101.6


def test_two_attempts_weigh_gpus_by_time():
    first, second = {"seconds": 30.0, "gpu_use": 1.0}, {"seconds": 10.0, "gpu_use": 0.2}
    assert combined(first, second) == {"seconds": 40.0, "gpu_use": 0.8}
    assert combined({"seconds": 30.0}, second) == {"seconds": 40.0, "gpu_use": 0.2}


@pytest.mark.cluster
def test_the_largest_content_of_the_object_store_is_seen(ray_cluster, monkeypatch):
    import ray

    monkeypatch.setattr(usage, "_EVERY_S", 0.1)
    found: usage.Usage = {}
    with measured(found):
        held = ray.put(np.zeros(40 * 2**20, np.uint8))
        time.sleep(1.0)
        del held
        time.sleep(1.0)
    assert 40 * 2**20 <= found["object_store_bytes"] < 300 * 2**20
    assert found["spilled_bytes"] == 0


@pytest.mark.cluster
def test_what_does_not_fit_is_counted_as_spilled(ray_cluster, monkeypatch):
    """The store holds 300 MiB."""
    import ray

    monkeypatch.setattr(usage, "_EVERY_S", 0.1)
    found: usage.Usage = {}
    with measured(found):
        held = [ray.put(np.full(100 * 2**20, index, np.uint8)) for index in range(4)]
        assert all(ray.get(one)[0] == index for index, one in enumerate(held))
        time.sleep(1.0)
    assert found["spilled_bytes"] >= 100 * 2**20


def test_where_the_store_says_nothing_the_rest_is_there(monkeypatch):
    monkeypatch.setattr(usage, "_object_stores", lambda: None)
    found: usage.Usage = {}
    with measured(found):
        pass
    assert list(found) == ["seconds"]


def test_bytes_of_a_node_that_has_gone_are_not_taken_back(monkeypatch):
    looks = iter([(5, 100), (9, 150), (2, 30), (1, 50)])
    monkeypatch.setattr(usage, "_object_stores", lambda: next(looks))

    @contextmanager
    def twice(look, every):
        look()
        look()
        yield

    monkeypatch.setattr(usage, "repeating", twice)
    found: usage.Usage = {}
    with measured(found):
        pass
    assert (found["object_store_bytes"], found["spilled_bytes"]) == (9, 70)


@pytest.mark.parametrize(
    ("printed", "use"), [("90\n10\n", 0.5), ("100\n", 1.0), ("[N/A]\n", None), ("", None), (None, None)]
)
def test_the_driver_is_asked_for_the_gpus_of_the_worker(monkeypatch, tmp_path, printed, use):
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [1, 3])
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    if printed is not None:
        program.write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\nprintf '{printed}'\n")
        program.chmod(0o755)
    assert gpu_use() == use
    if printed is not None:
        assert (tmp_path / "asked").read_text().startswith("--id=1,3 --query-gpu=utilization.gpu")


def test_without_gpus_nobody_is_asked(monkeypatch):
    monkeypatch.setattr("ray.get_gpu_ids", list)
    monkeypatch.setattr(usage.subprocess, "run", lambda *_, **__: pytest.fail("asked"))
    assert gpu_use() is None
