"""Workers that stand still are ended; those that work or have ended well are left alone."""

import os
import signal
import time

import pytest
import ray

import raysed.pulse
from raysed.pulse import Pulse, beating, watched

SILENCE = 3.0


def test_a_worker_is_silent_when_it_was_not_heard_for_so_long(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(raysed.pulse.time, "monotonic", lambda: now[0])
    pulse, one, two, three = Pulse(), ("node", 1, 10), ("node", 2, 10), ("node", 3, 10)
    for worker in (one, two, three):
        pulse.beat(worker, "ct")
    pulse.forget(three)
    now[0] = 5.0
    pulse.beat(two, "sts")
    assert pulse.silent(6.0) == []
    now[0] = 7.0
    assert pulse.silent(6.0) == [(one, "ct")]
    assert pulse.silent(6.0) == []  # said once
    now[0] = 12.0
    assert pulse.silent(6.0) == [(two, "sts")]


def test_a_process_that_took_the_number_of_another_is_left_alone():
    started = raysed.pulse._started_at(os.getpid())
    assert started > 0 or not os.path.exists("/proc/self")
    assert not raysed.pulse._kill(os.getpid(), started + 1)
    assert raysed.pulse._started_at(2**22 - 1) == -1  # nobody has it


@pytest.mark.cluster
@pytest.mark.slow
def test_a_worker_that_is_stopped_is_ended_and_one_that_is_busy_is_not(ray_cluster, tmp_path, caplog):
    """Ray itself starts the ended one again."""

    @ray.remote(num_cpus=1, max_retries=1)
    def work(watch, name: str, stands_still: bool) -> int:
        marks = tmp_path / name
        marks.mkdir(exist_ok=True)
        starts = len(list(marks.iterdir()))
        (marks / str(os.getpid())).touch()
        with beating(watch, name):
            if stands_still and starts == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            until = time.monotonic() + 3 * SILENCE
            while time.monotonic() < until:  # without a rest, and without giving anybody a turn of its own
                sum(range(100_000))
        return starts

    with watched(SILENCE) as watch:
        stopped, busy = work.remote(watch, "stopped", True), work.remote(watch, "busy", False)
        assert ray.get([stopped, busy], timeout=90) == [1, 0]
        time.sleep(2 * SILENCE)  # workers that have ended well wait for more work: they are not touched
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("stopped: its worker (process ")
    assert "said nothing for 3 s and was ended" in caplog.text
