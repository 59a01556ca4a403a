"""The run directory on S3, through the filesystem that users have, against a server of the protocol."""

import json
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from s3 import CREDENTIALS, below, s3_bucket

import raysed.store.cache
from raysed.errors import RunFailed, UserError
from raysed.store import unchanged
from raysed.store.status import Status, refuse_at_work
from raysed.store.storage import Storage, runs_at

NAME = "ct/members/00"


@pytest.fixture(scope="module")
def bucket():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with s3_bucket() as uri:
            yield uri


@pytest.fixture
def location(bucket, request, tmp_path, monkeypatch):
    monkeypatch.setattr(raysed.store.cache.tempfile, "tempdir", str(tmp_path))
    return below(bucket, request.node.name)


def commit(storage: Storage, seed: int, name: str = NAME) -> None:
    def write(path: Path) -> None:
        (path / "deep").mkdir()
        (path / "deep/model.bin").write_bytes(str(seed).encode() * 100_000)
        (path / "config.json").write_text(json.dumps(seed))

    storage.commit(name, write, {"seed": seed}, {"score": seed})


def seed_of(storage: Storage, name: str = NAME) -> int:
    path = storage.fetch(name)
    seed = json.loads((path / "config.json").read_text())
    assert (path / "deep/model.bin").read_bytes() == str(seed).encode() * 100_000
    return seed


def test_an_artefact_is_published_replaced_found_and_removed(location):
    storage = Storage(location, "run")
    assert storage.entry(NAME) is None and storage.finished(NAME, {"seed": 1}) is None
    with storage.lock():
        for seed in (1, 2):
            commit(storage, seed)
            other = Storage(location, "run")
            assert other.finished(NAME, {"seed": seed}) and not other.finished(NAME, {"seed": 3 - seed})
            assert seed_of(other) == seed
        assert [entry.name for entry in other.entries("ct")] == [NAME]
        assert runs_at(location) == ["run"]
        storage.write_text("report.json", "{}")
        assert other.read_text("report.json") == "{}" and other.read_text("nothing") is None
        assert time.time() - 60 < other.written_at(NAME) < time.time() + 60
        storage.remove(NAME)
    assert storage.files("ct") == [] and Storage(location, "run").entry(NAME) is None


def test_nothing_is_left_of_attempts(location):
    storage = Storage(location, "run")
    for seed in range(3):
        commit(storage, seed)
        commit(storage, seed, "model")
    assert len(storage._attempts(NAME)) == 1
    files = [path.removeprefix("model/") for path in storage.files("model")]
    assert sorted(file for file in files if not file.startswith("attempt-")) == ["config.json", "deep/model.bin"]


def test_whether_an_artefact_is_finished_costs_no_download(location, tmp_path):
    commit(Storage(location, "run"), 1)
    assert Storage(location, "run").finished(NAME, {"seed": 1})
    assert list(tmp_path.glob("raysed-cache-*/*")) == []


def test_a_file_that_was_lost_is_noticed(location):
    storage = Storage(location, "run")
    commit(storage, 1)
    fs, base = pafs.FileSystem.from_uri(location)
    fs.delete_file(f"{base}/run/{storage.entry(NAME).place}/deep/model.bin")
    assert Storage(location, "run").finished(NAME, {"seed": 1}) is None


def test_checkpoints(location):
    storage = Storage(location, "run")
    checkpoints = storage.checkpoints("ct/members/00", {"seed": 1})
    for step in (5, 10, 15):
        checkpoints.save(step, lambda path, step=step: (path / "state").write_text(str(step)))
    step, path = Storage(location, "run").checkpoints("ct/members/00", {"seed": 1}).newest()
    assert step == 15 and (path / "state").read_text() == "15"
    assert len(storage.entries("checkpoints")) == 2
    assert checkpoints.begin("job") == 0 and checkpoints.begin("job") == 1
    checkpoints.clear()
    assert storage.files("checkpoints") == []


def test_another_run_that_has_the_same_is_found(location):
    commit(Storage(location, "one"), 7)
    found = Storage(location, "two").elsewhere(NAME, {"seed": 7})
    assert found.run == "one" and seed_of(found) == 7


def test_a_bucket_that_is_not_there_is_a_sentence(bucket):
    storage = Storage(below(bucket.replace("//bucket", "//nosuch"), "runs"), "run")
    with pytest.raises(
        UserError, match=r"^storage: s3://nosuch/runs/run.* cannot be used: there is no bucket 'nosuch'"
    ):
        with storage.lock():
            pass


def test_a_server_that_is_not_there_is_a_sentence():
    storage = Storage("s3://bucket/runs?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1", "run")
    with pytest.raises(UserError, match=r"^storage: s3://bucket/runs/run.* cannot be reached: "):
        storage.reach()


def test_a_second_job_is_refused_while_the_first_is_at_work(location):
    storage = Storage(location, "run")
    refuse_at_work(storage)
    status = Status(storage)
    status.say(host="elsewhere", pid=7)
    with pytest.raises(
        UserError, match=r"^run 'run' is in use by a job on elsewhere \(process 7\), which said so \d+ s ago"
    ):
        refuse_at_work(Storage(location, "run"))
    refuse_at_work(storage, now=time.time() + 600)  # it has said nothing for ten minutes
    status.say(state="stopped")
    refuse_at_work(storage)


def test_a_job_of_this_machine_that_was_killed_does_not_hinder_the_next(location):
    storage = Storage(location, "run")
    status = Status(storage)
    status.say()
    with pytest.raises(UserError, match=r"is in use by a job on .* --take-over$"):
        refuse_at_work(storage)
    status.say(pid=2**22 + 1)  # no process has this number
    refuse_at_work(storage)


def test_a_job_that_was_taken_over_can_not_publish(location):
    first, second = Storage(location, "run"), Storage(location, "run")
    with first.lock():
        commit(first, 1)
        with second.lock():
            with pytest.raises(RunFailed, match="has been taken over by a job on"):
                commit(first, 2)
            commit(second, 3)
    assert seed_of(Storage(location, "run")) == 3


def test_a_run_without_a_report_is_not_complete(location):
    storage = Storage(location, "run")
    assert not unchanged.has_report(storage)
    storage.write_text("report.json", json.dumps({"status": "failed"}))
    assert not unchanged.has_report(storage)
    storage.write_text("report.json", json.dumps({"status": "complete"}))
    storage.write_text("report.md", "# run")
    assert not unchanged.has_report(storage), "report.html is missing"
    storage.write_text("report.html", "<!doctype html>")
    assert unchanged.has_report(storage)
