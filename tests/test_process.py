"""Process-wide settings."""

import os

import pytest

from raysed.process import load_lines


@pytest.mark.parametrize(
    ("load", "said"), [(7.94, ["load: 7.9 on 4 cores; other programs slow this run down"]), (4.0, [])]
)
def test_a_run_beside_other_programs_says_so(monkeypatch, load, said):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert load_lines() == said
