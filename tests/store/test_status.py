"""Where a run is, as the run directory tells it."""

import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from s3 import CREDENTIALS, below, s3_bucket

import raysed.pipeline
import raysed.store.files
import raysed.store.status
from raysed import cli
from raysed.config import make_config, stable_hash
from raysed.errors import RunFailed, UserError
from raysed.store.progress import Progress, emit
from raysed.store.status import (
    REPORT,
    describe,
    describe_all,
    finished_report,
    job_at_work,
    read_timings,
    refusal,
    status_of,
    wait_for_other,
)
from raysed.store.storage import Storage


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path), "mine")


def status(storage: Storage) -> dict:
    return json.loads(storage.read_text("status.json"))


def facts_of(storage: Storage) -> tuple[dict, int]:
    """What `raysed status --json` prints, and its exit code."""
    lines, code = describe(storage, as_json=True)
    return json.loads(*lines), code


def wait_for(storage: Storage, **expected) -> dict:
    """The status, once it says all this; the thread that writes it has its own time."""
    until = time.monotonic() + 20
    while True:
        found = status(storage)
        if expected.items() <= found.items():
            return found
        assert time.monotonic() < until, found
        time.sleep(0.01)


NOTHING: Mapping = {}


def commit(storage: Storage, *names: str, depends: Mapping = NOTHING, meta: Mapping = NOTHING) -> None:
    for name in names:
        storage.commit(name, lambda path: (path / "file").write_text("x"), depends, meta)


def test_the_file_follows_stage_and_progress_and_is_renewed_while_nothing_moves(storage, capsys):
    with status_of(storage, every=0.01):
        assert status(storage)["state"] == "starting"
        emit(stage="ct")
        found = wait_for(storage, stage="ct", line=None)
        progress = Progress("train ct", 10, every=3600)
        progress.update(5, "loss 0.5")
        found = wait_for(storage, stage="ct", state="running")
        while found["line"] is None:
            found = status(storage)
        assert found["line"] == "train ct:  50 % · loss 0.5" and found["left"] >= 0
        emit(stage="ct-sed")
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
def test_how_the_newest_attempt_ended_is_told(storage, error, state, sentence):
    with pytest.raises(UserError), status_of(storage):
        raise UserError("corpus.source has no sentences")
    with pytest.raises(type(error)), status_of(storage):
        raise error
    emit(stage="after the end nobody listens")
    assert status(storage)["state"] == state
    assert re.sub(r"\d+ s", "0 s", describe(storage)[0][0]) == sentence  # a busy machine takes its time


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no Ray")])
def test_a_complete_run_stays_complete_until_a_stage_begins(storage, error):
    with status_of(storage):
        emit(stage="ct")
    before = status(storage)
    with pytest.raises(type(error)), status_of(storage) as now:
        assert status(storage)["state"] == "starting" and now.follows_a_complete_run
        raise error
    assert status(storage) == before
    with pytest.raises(type(error)), status_of(storage) as now:
        emit(stage="ct")
        assert not now.follows_a_complete_run
        raise error
    assert status(storage)["state"] in ("failed", "stopped")


def test_a_run_goes_on_when_it_cannot_say_where_it_is(storage, monkeypatch):
    failed = threading.Event()

    def full(name: str, text: str) -> None:
        failed.set()
        raise UserError("no disk space left")

    with status_of(storage, every=0.01):
        monkeypatch.setattr(storage, "write_text", full)
        assert failed.wait(20)


def test_a_running_run_is_described(storage):
    commit(storage, "corpus", "ct/members/00", "ct/members/01", "sts/grid/0.3/00")
    checkpoints = storage.checkpoints("ct/members/02", {})
    for step in (50, 100):
        checkpoints.save(step, lambda path: (path / "state").write_text("x"))
    now = time.time() - 3
    facts = {"state": "running", "since": now - 127, "every": 5, "host": "head", "pid": 7, "told": now}
    facts |= {"stage": "ct+sts", "stage_since": now - 57, "line": "train ct+sts: 40 %", "left": 90.0}
    facts["totals"] = {"ct/members": 10, "sts/grid": 8, "ct-sed/learners": 2}
    storage.write_text("status.json", json.dumps(facts))
    written(storage, age=3)
    assert describe(storage)[0] == [
        "mine: running for 2 min 7 s, about 1 min 30 s left in this stage (as of 3 s ago)",
        "stage: ct+sts, for 1 min 0 s",
        "train ct+sts: 40 %",
        "finished: corpus, 2 of 10 ct/members, 1 of 8 sts/grid, 0 of 2 ct-sed/learners",
        "checkpoint: ct/members/02 after 100 updates, 0 s ago",
    ]
    written(storage, age=603)
    assert describe(storage)[0][0] == (
        "mine: no update for 10 min 3 s: the job on head (process 7) is gone; run the same command again to continue"
    )


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"null", 10**5 * b"[", b"\xff", b'{"state": 3}', b'{"state": "running", "told": "x"}'),
        b'{"state": "running", "since": NaN, "told": 1e999, "every": 5, "host": "a", "pid": 1}',
        b'{"state": "running", "since": 1%s, "told": 1, "every": 5, "host": "a", "pid": 1}' % (400 * b"0"),
    ],
    ids=lambda text: text[:40].decode(errors="replace"),
)
def test_a_status_that_is_damaged_is_unknown_also_in_the_list_of_all_runs(storage, tmp_path, text):
    commit(storage, "corpus")
    storage.plain.write("status.json", text)
    damaged = '"corpus": 5, "ct": {"seconds": "x"}, "sts": {"seconds": 1, "sentences": "x"}'
    storage.write_text("timings.json", f'{{{damaged}, "ct-sed": {{"seconds": 1.5}}}}')
    assert describe(storage) == (
        ["mine: state unknown (no readable status.json)", "finished: corpus"],
        4,
    )
    assert facts_of(storage) == ({"run": "mine", "state": "unknown", "refusal": None}, 4)
    assert describe_all(str(tmp_path)) == ["mine  state unknown (no readable status.json)"]
    assert read_timings(storage) == {"ct-sed": {"seconds": 1.5}}
    with status_of(storage):
        pass
    assert status(storage)["state"] == "complete"


UNREADABLE = {
    "a directory": lambda run: (run / "status.json").mkdir(),
    "a FIFO": lambda run: os.mkfifo(run / "status.json"),
    "a circle": lambda run: (run / "status.json").symlink_to("status.json"),
    "no manifest": lambda run: (run / "manifest").write_text("x"),
    "Latin-1": lambda run: open(bytes(run) + b"/manifest/\xfc.json", "x"),
}


@pytest.mark.parametrize("damage", UNREADABLE)
def test_one_run_that_cannot_be_read_leaves_the_others_in_the_list(tmp_path, monkeypatch, capsys, damage):
    tell_of(tmp_path, "good", "complete", 2)
    os.mkdir(bytes(tmp_path) + b"/no-run-\xfc")
    (tmp_path / "bad").mkdir()
    if damage != "no manifest":
        commit(Storage(str(tmp_path), "bad"), "corpus")
    UNREADABLE[damage](tmp_path / "bad")
    bad, good = describe_all(str(tmp_path))
    assert bad.startswith("bad   state unknown (") and good.startswith("good  complete after 1 min 0 s, 2 s ago")
    monkeypatch.setattr(sys, "argv", ["raysed", "status", "bad", "--storage", str(tmp_path)])
    assert cli.main() in (2, 4) and "Traceback" not in capsys.readouterr().err


def test_a_job_that_was_taken_over_does_not_write_over_the_status_of_the_other(storage):
    other = Storage(storage.location, "mine")
    other.is_local = False  # as on an object store, which has no lock
    with storage.lock(), pytest.raises(RunFailed, match="taken over"), status_of(storage, every=60):
        with other.lock(), status_of(other, every=60):
            pass
        commit(storage, "corpus")
    assert status(storage)["state"] == "complete"


def complete(storage: Storage, refusal: str | None = None) -> None:
    """Leaves a run directory as a complete run does."""
    text = json.dumps({"status": "complete"})
    for name in ("plots",) if refusal else ("plots", "model"):
        commit(storage, name, depends={"config": 1}, meta={"refusal": refusal, "report": stable_hash([text] * 3)})
    for name in REPORT:
        storage.write_text(name, text)


def test_a_run_whose_model_was_refused_is_complete_without_it(storage):
    complete(storage, "no model is exported")
    assert finished_report(storage, {"config": 1}).meta["refusal"] == refusal(storage) == "no model is exported"
    assert finished_report(storage, {"config": 2}) is None
    storage.remove("plots")
    assert finished_report(storage, {"config": 1}) is None and refusal(storage) is None


DAMAGES = {
    "report": lambda storage: storage.write_text("report.json", json.dumps({"status": "failed"})),
    "report of another": lambda storage: storage.write_text("report.json", '{"status": "complete", "score": 99}'),
    "half a report": lambda storage: storage.plain.write("report.json", b"\xff"),
    "words": lambda storage: storage.write_text("report.md", "edited"),
    "page": lambda storage: Path(storage.uri("report.html")).unlink(),
    "model": lambda storage: storage.remove("model"),
    "entry": lambda storage: Path(storage.uri("manifest/plots.json")).unlink(),
    "others": lambda storage: commit(storage, "model", depends={"config": 2}),  # made since by other settings
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_is_not_whole_is_not_complete(storage, damage):
    complete(storage)
    assert finished_report(storage, {"config": 1}).name == "plots"
    DAMAGES[damage](storage)
    assert finished_report(storage, {"config": 1}) is None


def written(storage: Storage, age: float) -> None:
    """When, by the clock of the storage."""
    then = time.time() - age
    os.utime(storage.uri("status.json"), (then, then))


def tell_of(location: Path, run: str, state: str, age: float = 0) -> None:
    then = time.time() - age
    words = {"state": state, "since": then - 60, "every": 5, "host": "head", "pid": 7, "told": then}
    storage = Storage(str(location), run)
    storage.write_text("status.json", json.dumps(words))
    written(storage, age)


def test_a_job_at_work_is_seen_by_the_clock_of_the_storage(storage, tmp_path, monkeypatch):
    """That of the job that wrote it, or of the one that reads, may be an hour off."""
    tell_of(tmp_path, "mine", "running")
    words, clock = status(storage), time.time
    long_ago = clock() - 600
    for off in (-3600, 3600):
        storage.write_text("status.json", json.dumps({**words, "told": words["told"] + off}))
        monkeypatch.setattr(time, "time", lambda off=off: clock() - off)
        assert job_at_work(storage).silent < 60
        os.utime(storage.uri("status.json"), (long_ago, long_ago))
        assert job_at_work(storage) is None
    storage.write_text("status.json", json.dumps({**words, "host": socket.gethostname(), "pid": 2**22 + 1}))
    assert job_at_work(storage) is None  # no process has this number
    storage.write_text("status.json", json.dumps({**words, "state": "stopped"}))
    assert job_at_work(storage) is None


@pytest.fixture
def on_s3(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(raysed.store.status, "_LOCAL_EVERY_S", 0.05)
    with s3_bucket() as bucket:
        yield lambda: Storage(below(bucket, "runs"), "mine")


USED = r"^run 'mine' is in use by a job on .+ \(process \d+\)"


def test_a_second_driver_waits_and_is_refused_only_if_the_first_writes(on_s3):
    first, second, said = on_s3(), on_s3(), []
    with first.lock(), status_of(first, every=0.5) as works:
        with pytest.raises(UserError, match=rf"{USED}; wait for it, choose another --run, or .* --take-over$"):
            wait_for_other(second, said.append)
        soon = threading.Timer(0.2, works.write, kwargs={"state": "stopped"})
        soon.start()
        wait_for_other(second, said.append)
        soon.join()
    assert len(said) == 2 and re.search(rf"{USED}, last seen \d s ago; waiting at most [0-3] s to see whether", said[0])


def test_a_second_driver_takes_over_from_one_that_was_killed(on_s3):
    """The first has neither ended its status nor given up its claim, and counts as gone after six intervals."""
    first, second, said = on_s3(), on_s3(), []
    with first.lock():
        now = time.time()
        words = {"state": "running", "since": now - 60, "every": 0.2, "host": "head", "pid": 7, "told": now}
        first.write_text("status.json", json.dumps(words))
        wait_for_other(second, said.append)
        assert re.match(r".*a job on head \(process 7\), last seen [01] s ago; waiting at most [01] s", *said)
        with second.lock(), status_of(second):
            commit(second, "corpus")
            with pytest.raises(RunFailed, match="taken over"):
                commit(first, "corpus")
        wait_for_other(first, said.append)
    assert status(first)["state"] == "complete" and len(said) == 1


def test_a_status_that_is_half_written_is_not_the_end_of_its_job(storage, tmp_path, monkeypatch):
    tell_of(tmp_path, "mine", "running")
    words = status(storage)
    texts = iter(["{", json.dumps({**words, "told": words["told"] + 5})])
    monkeypatch.setattr(time, "sleep", lambda seconds: storage.write_text("status.json", next(texts)))
    with pytest.raises(UserError, match=USED):
        wait_for_other(storage, lambda line: None)


def test_the_wait_has_an_end_whatever_the_status_says(storage, tmp_path):
    """A job that writes rarely is waited for three minutes, here a moment."""
    tell_of(tmp_path, "mine", "running")
    began = time.monotonic()
    wait_for_other(storage, lambda line: None, longest=0.01)
    assert time.monotonic() - began < 5


def test_a_job_waits_for_another_unless_it_takes_over(tmp_path, monkeypatch):
    """On an object store, which has no lock."""
    fs = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    tell_of(tmp_path / "runs", "mine", "running")
    monkeypatch.setattr(raysed.store.files, "filesystem", lambda location: (fs, "runs"))
    monkeypatch.setattr(Storage, "lock", lambda storage: 1 / 0)
    monkeypatch.setattr(raysed.pipeline, "wait_for_other", partial(wait_for_other, longest=0.01))
    config, said = make_config({"storage": "mock://bucket/runs", "run": "mine"}), []
    for take_over in (False, True):
        with pytest.raises(ZeroDivisionError):
            raysed.pipeline.run(config, said.append, take_over=take_over)
    assert len(said) == 1 and re.search(rf"{USED}, last seen", said[0])


def test_the_exit_code_is_the_state(tmp_path):
    codes = {"complete": 0, "failed": 1, "starting": 5, "running": 5, "stopped": 4}
    for (state, code), age in itertools.product(codes.items(), (0, 500)):
        tell_of(tmp_path, "mine", state, age)
        is_gone = code == 5 and age
        storage = Storage(str(tmp_path), "mine")
        facts, code_of_facts = facts_of(storage)
        assert facts["state"] == ("gone" if is_gone else state) and age <= facts["silent"] < age + 60
        assert describe(storage)[1] == code_of_facts == (4 if is_gone else code)


def test_the_keys_of_status_are_documented(storage):
    """Of a run whose model was refused; `status.json` has no others."""
    complete(storage, "no model is exported")
    with status_of(storage):
        emit(stage="ct")
    facts, code = facts_of(storage)
    assert (facts["refusal"], code) == ("no model is exported", 0) and status(storage).keys() <= facts.keys()
    page = (Path(__file__).parents[2] / "docs/files.md").read_text()
    keys = re.findall(r"^- (`.*?): ", page.partition("## status.json")[2].partition("\n## ")[0], flags=re.M)
    assert set(re.findall(r"\w+", " ".join(keys))) == set(facts)


def test_all_runs_of_a_place_are_listed(tmp_path):
    tell_of(tmp_path, "first", "complete", 7200)
    tell_of(tmp_path, "second-one", "running", 2)
    commit(Storage(str(tmp_path), "third"), "corpus")
    (tmp_path / "no-run").mkdir()
    first, second, *others = describe_all(f"file://{tmp_path}")
    assert first == "first       complete after 1 min 0 s, 2 h 0 min ago"
    assert second.startswith("second-one  running for 1 min 0 s (as of ")
    assert others == ["third       state unknown (no readable status.json)"]
    with pytest.raises(UserError, match=f"^there are no runs at {tmp_path}/no-run; name another location .*$"):
        describe_all(str(tmp_path / "no-run"))
