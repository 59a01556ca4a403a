"""The check of a GPU keeps working: it runs on the CPU, and what is wrong shows."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from raysed.train.recorded import RecordedUpdates

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/gpu_check.py"


@pytest.mark.slow
def test_parts_run_on_the_cpu_and_are_right(tmp_path):
    """Part 1 is in a test below, part 5 is a run, and part 7 calls what part 6 calls."""
    page, parts = tmp_path / "page.md", "02346"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--output", str(page), "--parts", *parts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")][2:]
    assert {line[0].removeprefix("| ").strip() for line in lines} == set(parts)
    assert sum(line[-1].startswith("yes") for line in lines) >= 4


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_check")


def launch(updates, batch, rate):
    return None


def replay_of_other_loss(updates, recording, batch, replay=RecordedUpdates._replay):
    return replay(updates, recording, batch) * (1 + 1e-5)  # too little for the comparison that a training makes


@pytest.mark.parametrize(
    ("name", "replaced", "right"),
    [("update", RecordedUpdates.update, True), ("update", launch, False), ("_replay", replay_of_other_loss, False)],
)
def test_updates_that_differ_or_are_not_recorded_are_not_right(gpu_check, tmp_path, monkeypatch, name, replaced, right):
    monkeypatch.setattr(RecordedUpdates, name, replaced)
    check = gpu_check.Check("cpu", tmp_path)
    gpu_check._compare(check, 1, "sed", check.encoder("small", dropout=0.1), "fp32")
    assert [row.right for row in check.rows] == [right]
