"""Process-wide settings."""

import os
import sys

import pytest

from raysed import process


@pytest.mark.parametrize(
    ("load", "said"), [(7.94, ["load: 7.9 on 4 cores; other programs slow this run down"]), (4.0, [])]
)
def test_a_run_beside_other_programs_says_so(monkeypatch, load, said):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert process.heed_others() == said


@pytest.mark.parametrize(
    ("busy", "before", "after"),
    [(60.0, {}, {"OMP_WAIT_POLICY": "PASSIVE"}), (10.0, {}, {}), (60.0, *[{"GOMP_SPINCOUNT": "9"}] * 2)],
    ids=["beside others", "alone", "as the user says"],
)
def test_threads_sleep_while_they_wait_beside_other_programs(monkeypatch, busy, before, after):
    monkeypatch.setattr(os, "environ", dict(before))
    monkeypatch.setattr(process.psutil, "cpu_percent", lambda interval: busy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    process.heed_others()
    assert os.environ == after
