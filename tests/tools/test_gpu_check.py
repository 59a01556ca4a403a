"""The check of a GPU keeps working: all of it runs on the CPU, and what is wrong shows."""

import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import raysed.model.encoder

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/gpu_check.py"


@pytest.mark.slow
def test_every_part_runs_on_the_cpu_and_is_right(tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--output", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")][2:]
    assert {line[0].removeprefix("| ").strip() for line in lines} == set("012345678")
    assert sum(line[-1].startswith("yes") for line in lines) >= 20 and not any(
        line[-1].startswith("no") for line in lines
    )


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_check")


def test_parts_that_fail_do_not_hide_wrong_gradients_and_end_with_1(gpu_check, tmp_path, monkeypatch):
    """Where the random numbers of the first pass are not put back, other units are dropped in the second."""

    def fails(check) -> None:
        raise RuntimeError("CUDA error: no kernel image")

    monkeypatch.setattr(gpu_check, "PARTS", (fails, gpu_check.recomputation))
    forgets = functools.partial(raysed.model.encoder.checkpoint, preserve_rng_state=False)
    monkeypatch.setattr(raysed.model.encoder, "checkpoint", forgets)
    assert gpu_check.main(["--device", "cpu", "--output", str(tmp_path / "page.md")]) == 1
    page = (tmp_path / "page.md").read_text()
    assert "| failed: RuntimeError: CUDA error: no kernel image | no " in page
    assert re.search(r"gradient of two parts with dropout.*\| no", page)
