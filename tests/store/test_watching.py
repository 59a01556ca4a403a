"""One screen that follows a run, from what a run really writes."""

import io
import time
from collections.abc import Callable

import pyarrow.fs as pafs
import pytest
from rich.console import Console

import raysed.store.files
import raysed.store.watching
from raysed.store.metrics import MetricsLog
from raysed.store.progress import Progress, emit
from raysed.store.status import status_of
from raysed.store.storage import Storage
from raysed.store.watching import Watcher, watch

HISTORY = [
    {"step": 0, "dev": {"first": 50.0}},
    {"step": 10, "loss": 4.0, "learning_rate": 1e-5},
    {"step": 20, "loss": 1.0, "learning_rate": 1e-5, "dev": {"first": 60.5, "second": 61.25}},
]


@pytest.fixture(params=["local", "remote"])
def storage(request, tmp_path, monkeypatch) -> Storage:
    if request.param == "local":
        return Storage(str(tmp_path), "run")
    (tmp_path / "bucket").mkdir()
    fs = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    monkeypatch.setattr(raysed.store.files, "filesystem", lambda location: (fs, "runs"))
    monkeypatch.setattr(raysed.store.watching, "_REMOTE_EVERY_S", 0.01)
    return Storage("mock://bucket/runs", "run")


def train(storage: Storage, name: str, entries: int, is_done: bool = False) -> None:
    """Leaves behind what a training does."""
    checkpoints = storage.checkpoints(name, {"seed": 1}, keep=2)
    with MetricsLog(storage, name) as metrics:
        for entry in HISTORY[:entries]:
            metrics.write(entry)
            checkpoints.save(entry["step"], lambda path: (path / "state").write_text("x"))
    if is_done:
        storage.commit(name, lambda path: (path / "weights").write_text("x"), {"seed": 1})
        checkpoints.clear()


def shown(storage: Storage, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(Watcher(storage).screen(height))
    return console.file.getvalue()


@pytest.fixture
def at_work(storage, capsys) -> Callable[[], Storage]:
    """Within a stage of which two of five updates and one of two members are done."""
    storage.write_text("timings.json", '{"corpus": {"seconds": 3.2}}')
    train(storage, "ct/members/00", 3, is_done=True)
    train(storage, "ct/members/01", 2)
    with status_of(storage, every=60) as status:
        emit(titles={"corpus": "reading the corpus", "ct": "members of ct"})
        emit(stage="ct")
        Progress("train ct", 5).update(2)
        emit(trained=1, trainings=2)
        status.write()
        yield storage


def test_a_run_at_work_is_seen_with_its_stage_and_every_training(at_work):
    watcher = Watcher(at_work)
    assert watcher.stages == {"corpus": 3.2}
    assert (watcher.status["stage"], watcher.status["share"], watcher.status["trained"]) == ("ct", 0.4, 1)
    done, training = watcher.curves
    assert (done.name, done.is_done, done.step, list(done.losses), done.dev) == (
        "ct/members/00",
        True,
        20,
        [4, 1],
        61.25,
    )
    assert (training.name, training.is_done, training.step, training.saved) == ("ct/members/01", False, 10, 10)
    text = shown(at_work)
    assert text.startswith("run: running for")
    for words in ("reading the corpus  done", "members of ct", "1 of 2 trained", "61.2", "finished", "after 10", "█▁"):
        assert words in text, words
    assert text.index("ct/members/01") < text.index("ct/members/00")  # what is under way comes first


def test_a_small_screen_counts_what_it_leaves_out(at_work):
    for index in range(2, 12):
        train(at_work, f"ct/members/{index:02d}", 1)
    lines = shown(at_work, height=16).splitlines()
    assert len(lines) <= 16 and lines[-1].startswith("and ")
    assert int(lines[-1].split()[1]) + sum("ct/members/" in line for line in lines) == 12


def test_a_line_that_is_half_written_is_left_for_the_next_look(at_work):
    if at_work.is_local:
        with open(at_work.uri("logs/ct/members/01/metrics.jsonl"), "a") as log:
            log.write('{"step": 30, "lo')
    assert Watcher(at_work).curves[1].step == 10


def test_what_has_ended_is_not_read_again(at_work, monkeypatch):
    asked, read = [], at_work.read_text
    monkeypatch.setattr(at_work, "read_text", lambda name: asked.append(name) or read(name))
    Watcher(at_work).look()
    assert asked.count("logs/ct/members/00/metrics.jsonl") == 1
    assert asked.count("logs/ct/members/01/metrics.jsonl") == 2


def test_watching_ends_with_the_run_and_with_its_exit_code(storage, monkeypatch):
    """It looks until the job is over, whatever it ends with."""
    train(storage, "ct/members/00", 3, is_done=True)
    console = Console(file=io.StringIO(), width=100)
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            status.end(state="complete")

    monkeypatch.setattr(raysed.store.watching.time, "sleep", pause)
    with status_of(storage, every=60) as status:
        emit(stage="ct")
        status.write()
        assert watch(storage, console) == 0
    assert len(looks) == 3 and "run: complete" in console.file.getvalue()
    with pytest.raises(RuntimeError), status_of(storage, every=60) as status:
        emit(stage="ct")
        raise RuntimeError("no luck")
    assert watch(storage, console) == 1 and "no luck" in console.file.getvalue()


def test_a_job_that_is_gone_is_not_waited_for(storage):
    with status_of(storage, every=0.001) as status:
        emit(stage="ct")
        status.write()
        told = storage.read_text("status.json")
    storage.write_text("status.json", told)  # as it was when the job was killed
    time.sleep(0.05)
    assert watch(storage, Console(file=io.StringIO(), width=100)) == 4
