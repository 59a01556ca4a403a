"""Where a run is, as the run directory tells it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysed.errors import UserError
from raysed.store.progress import Progress, tell
from raysed.store.status import describe, status_of
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path), "mine")


def status(storage: Storage) -> dict:
    return json.loads(storage.read_text("status.json"))


def wait_for(storage: Storage, **expected) -> dict:
    """The status, once it says all this; the thread that writes it has its own time."""
    until = time.monotonic() + 20
    while True:
        found = status(storage)
        if expected.items() <= found.items():
            return found
        assert time.monotonic() < until, found
        time.sleep(0.01)


def commit(storage: Storage, *names: str) -> None:
    for name in names:
        storage.commit(name, lambda path: (path / "file").write_text("x"), {})


def test_the_file_follows_stage_and_progress_and_is_renewed_while_nothing_moves(storage, capsys):
    with status_of(storage, every=0.01):
        assert status(storage)["state"] == "starting"
        tell(stage="ct")
        found = wait_for(storage, stage="ct", line=None)
        progress = Progress("train ct", 10, every=3600)
        progress.update(5, "loss 0.5")
        found = wait_for(storage, stage="ct", state="running")
        while found["line"] is None:
            found = status(storage)
        assert found["line"].startswith("train ct:  50 % · loss 0.5 · ") and found["left"] >= 0
        tell(stage="ct-sed")
        found = wait_for(storage, stage="ct-sed", line=None, left=None)
        first = found["told"]
        while status(storage)["told"] <= first:
            time.sleep(0.01)
    assert status(storage)["state"] == "complete"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "state", "sentence"),
    [
        (KeyboardInterrupt(), "stopped", "mine: stopped after 0 s, 0 s ago"),
        (UserError("the loss is nan"), "failed", "mine: failed after 0 s, 0 s ago: the loss is nan"),
    ],
)
def test_how_a_run_ended_is_told(storage, error, state, sentence):
    with pytest.raises(type(error)), status_of(storage):
        raise error
    assert status(storage)["state"] == state
    assert re.sub(r"\d+ s", "0 s", describe(storage)[0][0]) == sentence  # a busy machine takes its time


@pytest.mark.parametrize("error", [UserError("sed.workers is 3, but …"), KeyboardInterrupt(), RuntimeError("no Ray")])
def test_a_complete_run_stays_complete_until_a_stage_begins(storage, error):
    with status_of(storage):
        tell(stage="ct")
    before = status(storage)
    with pytest.raises(type(error)), status_of(storage) as now:
        assert status(storage)["state"] == "starting" and now.follows_a_complete_run
        raise error
    assert status(storage) == before
    with pytest.raises(type(error)), status_of(storage) as now:
        tell(stage="ct")
        assert not now.follows_a_complete_run
        raise error
    assert status(storage)["state"] in ("failed", "stopped")


def test_a_run_that_is_not_complete_tells_its_newest_attempt(storage):
    for error in ("the loss is nan", "corpus.source has no sentences"):
        with pytest.raises(UserError), status_of(storage):
            raise UserError(error)
        assert status(storage)["error"] == error


def test_nobody_listens_after_the_end(storage):
    with status_of(storage):
        pass
    before = status(storage)
    tell(stage="another")
    assert status(storage) == before


def test_what_a_run_will_train_is_remembered_while_it_works(storage):
    commit(storage, "ct/members/00")
    with status_of(storage, every=0.01):
        tell(totals={"ct/members": 3})
        tell(stage="corpus")
        wait_for(storage, totals={"ct/members": 3}, stage="corpus")
        assert "finished: 1 of 3 members of ct" in describe(storage)[0]
    assert "finished: 1 of 3 members of ct" in describe(storage)[0]


def test_a_run_goes_on_when_it_cannot_say_where_it_is(storage, monkeypatch):
    def full(name: str, text: str) -> None:
        raise UserError("no disk space left")

    monkeypatch.setattr(storage, "write_text", full)
    with status_of(storage, every=0.01):
        tell(stage="ct")
        time.sleep(0.05)


def test_a_running_run_is_described(storage):
    commit(storage, "corpus", "ct/members/00", "ct/members/01", "sts/grid/0.3/00")
    checkpoints = storage.checkpoints("ct/members/02", {})
    for step in (50, 100):
        checkpoints.save(step, lambda path: (path / "state").write_text("x"))
    now = time.time()
    storage.write_text(
        "status.json",
        json.dumps(
            {
                **{"state": "running", "since": now - 130, "every": 5, "host": "head", "pid": 7, "told": now - 3},
                **{"stage": "ct+sts", "stage_since": now - 60, "line": "train ct+sts: 40 %", "left": 90.0},
                "totals": {"ct/members": 10, "sts/grid": 8, "ct-sed/learners": 2},
            }
        ),
    )
    assert describe(storage, now)[0] == [
        "mine: running for 2 min 7 s, about 1 min 30 s left in this stage (as of 3 s ago)",
        "stage: members of ct and sts, for 1 min 0 s",
        "train ct+sts: 40 %",
        "finished: corpus, 2 of 10 members of ct, 1 of 8 grid models of sts, 0 of 2 learners of ct-sed",
        "checkpoint: member 02 of ct after 100 updates, 0 s ago",
    ]
    assert describe(storage, now + 600)[0][0] == (
        "mine: no sign of life for 10 min 3 s: the job on head (process 7) is gone; the same command continues it"
    )


def test_a_run_of_old_without_a_status_is_described(storage):
    commit(storage, "corpus")
    assert describe(storage)[0] == ["mine: state unknown (no readable status.json)", "finished: corpus"]


def tell_of(location: Path, run: str, state: str, age: float = 0) -> None:
    then = time.time() - age
    words = {"state": state, "since": then - 60, "every": 5, "host": "head", "pid": 7, "told": then}
    Storage(str(location), run).write_text("status.json", json.dumps(words))


def job(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "jobs/status.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("state", "age", "code"),
    [
        ("complete", 0, 0),
        ("failed", 0, 1),
        ("starting", 0, 3),
        ("running", 0, 3),
        ("stopped", 0, 4),
        ("running", 500, 4),
        ("starting", 500, 4),
    ],
)
def test_the_exit_code_is_the_state(tmp_path, state, age, code):
    tell_of(tmp_path, "mine", state, age)
    assert describe(Storage(str(tmp_path), "mine"))[1] == code


def test_the_job_prints_it_and_refuses_a_run_that_is_not_there(tmp_path):
    commit(Storage(str(tmp_path), "mine"), "corpus")
    done = job("mine", "--storage", tmp_path)
    assert (done.returncode, done.stdout) == (4, "mine: state unknown (no readable status.json)\nfinished: corpus\n")
    done = job("yours", "--storage", tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: there is no run at {tmp_path}/yours; without a name, all runs of its storage are listed\n"
    )


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_job_lists_all_runs(tmp_path, scheme):
    tell_of(tmp_path, "first", "complete", 7200)
    tell_of(tmp_path, "second-one", "running", 2)
    commit(Storage(str(tmp_path), "third"), "corpus")
    (tmp_path / "no-run").mkdir()
    done = job("--storage", f"{scheme}{tmp_path}")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "first       complete after 1 min 0 s, 2 h 0 min ago"
    assert lines[1].startswith("second-one  running for 1 min 0 s (as of ")
    assert lines[2:] == ["third       state unknown (no readable status.json)"]
    done = job("--storage", tmp_path / "no-run")
    assert done.returncode == 2
    assert done.stderr == f"error: there are no runs at {tmp_path}/no-run; name another place with --storage\n"
