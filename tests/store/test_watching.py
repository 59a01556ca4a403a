"""One screen that follows a run, from what a run really writes."""

import io
import time

import pyarrow.fs as pafs
import pytest
from rich.console import Console

import raysed.store.files
import raysed.store.watching
from raysed.store.metrics import MetricsLog
from raysed.store.progress import Progress, emit
from raysed.store.status import status_of
from raysed.store.storage import Storage
from raysed.store.watching import watch

HISTORY = [
    {"step": 0, "dev": {"first": 50.0}},
    {"step": 10, "loss": 4.0, "learning_rate": 1e-5},
    {"step": 20, "loss": 1.0, "learning_rate": 1e-5, "dev": {"first": 60.5, "second": 61.25}},
]


@pytest.fixture
def local(tmp_path) -> Storage:
    return Storage(str(tmp_path), "run")


@pytest.fixture(params=["local", "remote"])
def storage(request, tmp_path, monkeypatch) -> Storage:
    if request.param == "local":
        return request.getfixturevalue("local")
    (tmp_path / "bucket").mkdir()
    fs = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    monkeypatch.setattr(raysed.store.files, "filesystem", lambda location: (fs, "runs"))
    return Storage("mock://bucket/runs", "run")


def train(storage: Storage, name: str, entries: int, is_done: bool = False) -> None:
    """Leaves behind what a training does."""
    checkpoints = storage.checkpoints(name, {"seed": 1})
    with MetricsLog(storage, name) as metrics:
        for entry in HISTORY[:entries]:
            metrics.write(entry)
            checkpoints.save(entry["step"], lambda path: (path / "state").write_text("x"))
    if is_done:
        storage.commit(name, lambda path: (path / "weights").write_text("x"), {"seed": 1})
        checkpoints.clear()


def test_a_run_at_work_is_seen_with_its_stage_and_trainings_under_way(storage, monkeypatch):
    """Two of five updates and one of two members are done."""
    train(storage, "ct/members/00", 3, is_done=True)
    train(storage, "ct/members/01", 2)
    if storage.is_local:  # a line that is half written is left for the next look
        with open(storage.uri("logs/ct/members/01/metrics.jsonl"), "a") as log:
            log.write('{"step": 30, "lo')
        storage.write_text("logs/ct/members/\x1b[2J[bold]/metrics.jsonl", '{"step": "many"}\n')
    console = Console(file=io.StringIO(), width=100)

    def ctrl_c(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(raysed.store.watching.time, "sleep", ctrl_c)
    with pytest.raises(KeyboardInterrupt), status_of(storage, every=60) as status:
        emit(stage="ct")
        Progress("train ct", 5).update(2)
        status.write()
        watch(storage, console)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines[0].startswith("run: running for") and lines[1].startswith("stage: ct, for ")
    assert any(line.startswith("train ct: 40 %") for line in lines)
    assert any(line.startswith("checkpoint: ct/members/01 after 10 updates, ") for line in lines)
    assert "training updates loss dev" in lines and "ct/members/01 10 4.0000 50.0" in lines
    assert not any(line.startswith("ct/members/00") for line in lines)
    assert (r"ct/members/\x1b[2J[bold] 0" in lines) == storage.is_local


def test_watching_ends_with_the_run_and_with_its_exit_code(local, monkeypatch):
    console, looks = Console(file=io.StringIO(), width=100), []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            status.end(state="complete")

    monkeypatch.setattr(raysed.store.watching.time, "sleep", pause)
    with status_of(local, every=60) as status:
        emit(stage="ct")
        status.write()
        assert watch(local, console) == 0
    assert len(looks) == 3 and "run: complete" in console.file.getvalue()
    with pytest.raises(RuntimeError), status_of(local, every=60):
        emit(stage="ct")
        raise RuntimeError("no luck")
    assert watch(local, console) == 1 and "no luck" in console.file.getvalue()


def test_a_job_that_is_gone_is_not_waited_for(local):
    with status_of(local, every=0.001) as status:
        emit(stage="ct")
        status.write()
        told = local.read_text("status.json")
    local.write_text("status.json", told)  # as it was when the job was killed
    time.sleep(0.05)
    assert watch(local, Console(file=io.StringIO(), width=100)) == 4
