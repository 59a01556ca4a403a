"""The run directory on a disk and on S3: whatever happens while something is published, a reader sees old or new."""

import errno
import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from planned_faults import ERRORS, every_fault, wipe
from s3 import CREDENTIALS, below, s3_bucket

from raysed.config import stable_hash
from raysed.errors import RunFailed, UserError
from raysed.store import cache, files
from raysed.store.storage import Storage, runs_at

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = {"ct": {"steps": 1}}, {"ct": {"steps": 2}}
NAME = "ct/members/00"


def files_of(depends: dict) -> dict[str, bytes]:
    """Two files that belong together, one in a subdirectory."""
    mark = str(depends["ct"]["steps"]).encode()
    return {"model.bin": mark * 5000, "deep/config.json": mark * 10}


def writer(depends: dict):
    def write(path: Path) -> None:
        for name, data in files_of(depends).items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(data)

    return write


def commit(storage: Storage, depends: dict, name: str = NAME) -> None:
    storage.commit(name, writer(depends), depends, {"score": depends["ct"]["steps"]})


def content(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def content_there(storage: Storage, name: str) -> dict[str, bytes]:
    return {path.removeprefix(f"{name}/"): storage.plain.read(path) for path in storage.files(name)}


def seen(location: str, name: str = NAME) -> dict | None:
    """The dependencies of what a fresh reader accepts; fails if that is not complete."""
    storage = Storage(location, "run")
    accepted = [depends for depends in (OLD, NEW) if storage.finished(name, depends)]
    if not accepted:
        with pytest.raises(FileNotFoundError, match="not a finished artefact"):
            storage.fetch(name)
        return None
    (depends,) = accepted
    assert content(storage.fetch(name)) == files_of(depends)
    assert storage.entry(name).meta == {"score": depends["ct"]["steps"]}
    if name == "model":
        assert content_there(storage, name) == files_of(depends)
    return depends


@pytest.fixture(scope="module")
def bucket():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with s3_bucket() as uri:
            yield uri


@pytest.fixture(autouse=True)
def no_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PAUSES_S", (0.0,) * 4)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture(params=["disk", "s3"])
def location(request, tmp_path) -> str:
    if request.param == "disk":
        return str(tmp_path)
    return below(request.getfixturevalue("bucket"), uuid.uuid4().hex)


@pytest.fixture
def storage(location) -> Storage:
    return Storage(location, "run")


@pytest.fixture
def disk(tmp_path) -> Storage:
    return Storage(str(tmp_path), "run")


@pytest.fixture
def remote(bucket) -> Storage:
    return Storage(below(bucket, uuid.uuid4().hex), "run")


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault, name", [("kill", "model"), *((fault, NAME) for fault in ("kill", *ERRORS))])
def test_a_fault_at_any_call_leaves_the_old_artefact_or_the_new(storage, location, name, fault):
    outcomes = set()

    def prepare() -> None:
        wipe(storage)
        commit(Storage(location, "run"), OLD, name)

    def check(failed: bool) -> None:
        if name == "model":  # nobody who opens it finds a file gone
            there = content_there(storage, name)
            assert all(data in (files_of(OLD)[file], files_of(NEW)[file]) for file, data in there.items())
            assert there.keys() == files_of(OLD).keys()
        found = seen(location, name)
        outcomes.add(str(found))
        assert found in (OLD, NEW) if failed else found == NEW
        again = Storage(location, "run")
        with again.lock():  # sweeps
            assert seen(location, name) == found
            commit(again, OLD, name)
        assert seen(location, name) == OLD
        assert len([path for path in again.files("") if "attempt-" in path]) == len(files_of(OLD))

    points = every_fault(fault, storage, prepare, lambda: commit(Storage(location, "run"), NEW, name), check)
    assert points >= 4 and str(NEW) in outcomes
    assert str(OLD) in outcomes or (fault in ("EIO", "EMFILE", "ESTALE") and not storage.is_local)


def test_a_kill_at_any_call_of_a_first_commit_leaves_nothing_or_all(storage, location):
    def check(failed: bool) -> None:
        assert seen(location) in (None, NEW) if failed else seen(location) == NEW
        commit(Storage(location, "run"), NEW)
        assert seen(location) == NEW

    action = lambda: commit(Storage(location, "run"), NEW)  # noqa: E731
    every_fault("kill", storage, lambda: wipe(storage), action, check)


def test_a_kill_while_removing_leaves_all_or_nothing(storage, location):
    def check(failed: bool) -> None:
        assert seen(location) in (OLD, None)

    def prepare() -> None:
        commit(Storage(location, "run"), OLD)

    every_fault("kill", storage, prepare, lambda: Storage(location, "run").remove(NAME), check)


def test_a_small_file_is_replaced_at_once(storage, location):
    every_fault(
        "kill",
        storage,
        lambda: Storage(location, "run").write_text("report.json", "old" * 1000),
        lambda: Storage(location, "run").write_text("report.json", "new" * 1000),
        lambda failed: storage.read_text("report.json") in ("old" * 1000, "new" * 1000) or pytest.fail("a mixture"),
    )


def test_everything_is_flushed_before_the_manifest_names_it(disk, monkeypatch):
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    commit(disk, OLD)
    place = disk.uri(disk.entry(NAME).place)
    *before, entry, _ = flushed
    assert set(before) == {place, f"{place}/model.bin", f"{place}/deep", f"{place}/deep/config.json", disk.uri(NAME)}
    assert entry.startswith(disk.uri("manifest/ct/members/.00.json."))


def test_nothing_temporary_is_left(disk, tmp_path):
    with disk.lock():
        commit(disk, OLD)
        commit(disk, NEW)
        disk.write_text("config.yaml", "a: 1")
        killed = tmp_path / "run" / NAME / "attempt-0123456789ab"
        killed.mkdir()
        (tmp_path / f"run/.config.yaml.{'0' * 32}.tmp").write_text("half")
    place = disk.entry(NAME).place
    assert set(content(tmp_path / "run")) == {
        ".claim.json", "config.yaml", f"manifest/{NAME}.json", f"{place}/model.bin", f"{place}/deep/config.json",
    }  # fmt: skip
    assert not killed.exists()


def test_a_link_to_another_disk_is_followed(disk, tmp_path, monkeypatch):
    """Nothing is renamed or linked across it."""
    other = tmp_path / "other"

    def on_one_disk(action):
        def act(source, target) -> None:
            if Path(source).resolve().is_relative_to(other) != Path(target).resolve().is_relative_to(other):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            action(source, target)

        return act

    for action in ("replace", "link"):
        monkeypatch.setattr(os, action, on_one_disk(getattr(os, action)))
    for name in (NAME, "model", "checkpoints/m"):
        (other / name).mkdir(parents=True)
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).symlink_to(other / name)
    for depends in (OLD, NEW, OLD):
        with disk.lock():
            commit(disk, depends)
            commit(disk, depends, "model")
            save(disk, 5, 10, 15, depends=depends)
        assert seen(str(tmp_path)) == seen(str(tmp_path), "model") == depends
    assert (tmp_path / "run" / NAME).is_symlink()


# -- damage ----------------------------------------------------------------------------------------------------------

DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one byte flipped": lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]),
    "missing": lambda path: path.unlink(),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["model.bin", "deep/config.json"])
def test_a_damaged_artefact_is_not_finished_and_is_named(disk, tmp_path, caplog, damage, file):
    commit(disk, OLD)
    DAMAGES[damage](disk.fetch(NAME) / file)
    assert seen(str(tmp_path)) is None
    assert f"{NAME} is made again: its files are missing or damaged" in caplog.text


@pytest.mark.parametrize("code", ["EMFILE", "EIO", "ESTALE", "EACCES"])
def test_an_error_of_reading_is_retried_then_raised_and_is_no_damage(disk, tmp_path, monkeypatch, code):
    commit(disk, OLD)
    real, calls = files.sha256_of, 0

    def failing(path: Path) -> str:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        return real(path)

    monkeypatch.setattr(files, "sha256_of", failing)
    failures = 3
    assert seen(str(tmp_path)) == OLD
    calls, failures = 0, 1000
    with pytest.raises(OSError, match=os.strerror(getattr(errno, code))):
        Storage(str(tmp_path), "run").finished(NAME, OLD)


def test_every_flipped_byte_of_a_manifest_entry_is_noticed(disk, tmp_path):
    """What it says of scores and dependencies is trusted, so it is check-summed as well."""
    commit(disk, OLD)
    entry, path = disk.entry(NAME), tmp_path / f"run/manifest/{NAME}.json"
    intact = path.read_bytes()
    for position in range(len(intact)):
        for bit in (0x01, 0x80):
            path.write_bytes(intact[:position] + bytes([intact[position] ^ bit]) + intact[position + 1 :])
            assert disk.entry(NAME) is None
    for other in (intact[: len(intact) // 2], 10**5 * b"["):
        path.write_bytes(other)
        assert disk.entry(NAME) is None
    path.write_bytes(intact)
    assert disk.entry(NAME) == entry


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../precious"},
        {"name": "../other/ct/members/00"},
        {"name": "/etc"},
        {"attempt": "../../../precious"},
        {"attempt": "attempt-0"},
        {"files": {"../../../../precious/file": "0"}},
        {"files": {"/etc/passwd": "0"}},
        {"depends": None},
    ],
)
def test_an_entry_that_leads_out_of_the_run_is_damaged(storage, tmp_path, change):
    """The next checkpoint would delete what it names."""
    for outside in (tmp_path / "precious", tmp_path / "other/ct/members/00"):
        outside.mkdir(parents=True)
        (outside / "file").write_text("kept")
    save(storage, 5)
    content = json.loads(storage.read_text("manifest/checkpoints/m/step-000000005.json")) | change
    content.pop("checksum")
    storage.write_text(
        "manifest/checkpoints/m/step-000000005.json", json.dumps({**content, "checksum": stable_hash(content)})
    )
    again = Storage(storage.location, "run")
    assert again.entry("checkpoints/m/step-000000005") is None and newest(again) is None
    save(again, 10, 15, 20)
    assert (tmp_path / "precious/file").exists() and (tmp_path / "other/ct/members/00/file").exists()


@pytest.mark.parametrize("name", ["../other", "/etc", "a/../../b", "a//b"])
def test_no_name_leads_out_of_the_run(disk, name):
    for method in (disk.remove, disk.read_text, disk.fetch, disk.files, disk.uri, lambda n: disk.write_text(n, "x")):
        with pytest.raises(ValueError, match="no path below a run"):
            method(name)
    with pytest.raises(ValueError, match="no path below a run"):
        disk.commit(name, lambda path: None, {})


def test_an_empty_artefact_must_still_be_there(disk, tmp_path):
    disk.commit("empty", lambda path: None, {})
    assert disk.finished("empty", {})
    disk.fetch("empty").rmdir()
    assert not Storage(str(tmp_path), "run").finished("empty", {})


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"job": ', "null", '"x"'])
def test_a_small_file_that_does_not_parse_is_an_empty_one(storage, text):
    storage.write_text("timings.json", text)
    assert storage.read_json("timings.json") == {}
    storage.write_text("checkpoints/m/starts.json", text)
    assert storage.checkpoints("m", OLD).begin("job") == 0


# -- dependencies ----------------------------------------------------------------------------------------------------


def test_changed_dependencies_are_logged_with_both_values(disk, caplog):
    caplog.set_level(logging.INFO)
    depends = {"ct": {"steps": 5, "keep": "second"}, "seed": 1, "corpus": {"sources": [1, 2]}}
    disk.commit("x", lambda path: None, depends)
    assert disk.finished("x", depends)
    assert not caplog.records
    changed = {"ct": {"steps": 6, "keep": "second"}, "corpus": {"sources": [1, 3]}, "extra": "y" * 100}
    assert disk.finished("x", changed) is None
    message = caplog.records[-1].getMessage()
    assert message.startswith("x is made again: corpus.sources was [1, 2], is [1, 3]; ct.steps was 5, is 6; extra was ")
    assert message.endswith("; seed was 1, is null")
    assert "keep" not in message and len(message) < 200


def test_dependencies_compare_as_they_are_stored(disk):
    """Tuples become lists and keys become text on the way through JSON; that is no change."""
    disk.commit("x", lambda path: None, {"layers": (1, 2), 3: None})
    assert disk.finished("x", {"layers": [1, 2], "3": None})
    assert disk.entry("x").depends == Storage(disk.location, "run").entry("x").depends


def test_meta_may_be_filled_while_writing(disk):
    meta: dict = {}
    disk.commit("x", lambda path: meta.update(rows=3), {}, meta)
    assert disk.entry("x").meta == {"rows": 3}


def test_entries_lists_what_lies_below(storage):
    for name in ("ct/members/01", "ct/members/00", "ct/embeddings/00", "ct-sed/learners/00"):
        commit(storage, OLD, name)
    assert [entry.name for entry in storage.entries("ct/members")] == ["ct/members/00", "ct/members/01"]
    assert storage.entries("nothing") == []
    storage.remove("ct/members")
    assert storage.entries("ct/members") == [] and storage.files("ct/members") == []
    assert storage.entry("ct/embeddings/00") and storage.entry("ct-sed/learners/00")


def test_runs_are_listed(location):
    commit(storage := Storage(location, "one"), OLD)
    assert runs_at(location) == (["one", "tmp"] if storage.is_local else ["one"])


# -- checkpoints -----------------------------------------------------------------------------------------------------


def save(storage: Storage, *steps: int, depends: dict = OLD) -> None:
    for step in steps:
        storage.checkpoints("m", depends).save(step, lambda path, step=step: (path / "s").write_text(str(step)))


def steps_of(storage: Storage) -> list[int]:
    return [entry.meta["step"] for entry in storage.entries("checkpoints/m")]


def newest(storage: Storage, depends: dict = OLD) -> int | None:
    found = Storage(storage.location, "run").checkpoints("m", depends).newest()
    if found is None:
        return None
    assert (found[1] / "s").read_text() == str(found[0])
    return found[0]


def test_the_newest_two_checkpoints_are_kept_until_they_are_cleared(storage):
    assert newest(storage) is None
    save(storage, 5, 10, 100, 1000)
    assert steps_of(storage) == [100, 1000]
    assert newest(storage) == 1000
    assert len(storage.files("checkpoints/m")) == 2
    storage.checkpoints("m", OLD).clear()
    storage.checkpoints("m", OLD).clear()
    assert newest(storage) is None and storage.files("checkpoints") == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(disk, caplog, damage):
    save(disk, 5, 10)
    DAMAGES[damage](disk.fetch("checkpoints/m/step-000000010") / "s")
    assert newest(disk) == 5
    assert "step-000000010 is damaged" in caplog.text
    save(disk, 8)  # continued from 5 with another cadence: the damaged later one must not count as one of two
    assert steps_of(disk) == [5, 8]


def test_checkpoints_with_other_dependencies_are_named_and_never_push_out_new_ones(disk, caplog):
    caplog.set_level(logging.INFO)
    save(disk, 900, 1000, depends=OLD)
    assert newest(disk, NEW) is None
    assert "checkpoints/m/step-000001000 cannot be continued after these changes: ct.steps was 1, is 2" in caplog.text
    save(disk, 5, depends=NEW)
    assert newest(disk, NEW) == 5
    save(disk, 10, 15, depends=NEW)
    assert steps_of(disk) == [10, 15]
    save(disk, 20, depends=OLD)
    assert steps_of(disk) == [20]


def test_starts_are_counted_until_there_is_something_new(disk):
    """By job: what a user stopped does not count against the next attempt."""
    checkpoints, other = disk.checkpoints("model", {"a": 1}), disk.checkpoints("model", {"a": 2})
    assert [checkpoints.begin("monday") for _ in range(3)] == [0, 1, 2]
    checkpoints.save(10, lambda path: (path / "state").write_text("x"))
    assert [checkpoints.begin("monday") for _ in range(2)] == [0, 1]
    assert [checkpoints.begin("tuesday") for _ in range(2)] == [0, 1]
    starts = disk.read_text("checkpoints/model/starts.json")
    disk.write_text("checkpoints/model/starts.json", starts.replace('"count": 1', '"count": [1]'))
    assert [checkpoints.begin("tuesday") for _ in range(2)] == [0, 1], "what is damaged counts for nothing"
    assert other.begin("tuesday") == 0  # the state of another setting is nothing to continue from
    checkpoints.clear()
    assert checkpoints.begin("tuesday") == 0


def test_a_start_that_cannot_be_counted_is_no_reason_to_try_for_ever(disk, monkeypatch):
    """What the training writes next says that the disk is full, where it is not started again."""
    checkpoints = disk.checkpoints("model", {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        assert checkpoints.begin("monday") == 0
        with pytest.raises(UserError, match="no disk space left"):
            checkpoints.save(10, lambda path: (path / "state").write_text("x"))


# -- disk ------------------------------------------------------------------------------------------------------------

FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    Exception("I/O error: No space left on device (os error 28)"),  # safetensors and tokenizers, written in Rust
    OSError("25000 requested and 1024 written"),  # numpy
]


@pytest.mark.parametrize("error", FULL, ids=str)
def test_a_full_disk_is_a_sentence_whoever_reports_it(disk, error):
    def write(path: Path) -> None:
        raise error

    with pytest.raises(UserError, match=r"no disk space left for .*run/x; free some space, or choose"):
        disk.commit("x", write, {})
    assert disk.files("") == []


@pytest.mark.parametrize("error", [RuntimeError("a bug"), FileNotFoundError(2, "gone"), UserError("a mistake")])
def test_other_errors_of_a_writer_stay_what_they_are(disk, error):
    def write(path: Path) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        disk.commit("x", write, {})
    assert caught.value is error
    assert disk.entry("x") is None


_FULL_DISK = """
import sys
from contextlib import suppress
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, torch
from safetensors.torch import save_file
from raysed.errors import UserError
from raysed.store.storage import Storage

place, rows = Path(sys.argv[1]), np.random.default_rng(0).random(500_000)
storage, checkpoints = Storage(str(place), "run"), Storage(str(place), "run").checkpoints("model", {})
checkpoints.save(5, lambda path: (path / "state").write_text("kept"))
writers = {
    "bytes": lambda path: (path / "a").write_bytes(rows.tobytes()),
    "numpy": lambda path: np.save(path / "a.npy", rows),
    "safetensors": lambda path: save_file({"a": torch.from_numpy(rows)}, path / "a.safetensors"),
    "parquet": lambda path: pq.write_table(pa.table({"a": rows}), path / "a.parquet"),
}
for step, write in enumerate(writers.values(), start=10):
    with suppress(UserError):
        print(checkpoints.save(step, write))
    try:
        storage.commit("a", write, {})
    except UserError as error:
        print(error)
(place / "filler").write_bytes(bytes(1000))
with suppress(OSError), open(place / "filler", "ab", buffering=0) as file:
    while file.write(bytes(4096)):
        pass
try:
    with Storage(str(place), "new").lock():
        pass
except UserError as error:
    print(error)
(place / "filler").unlink()
print(checkpoints.newest()[0], *storage.names(), [path for path in storage.files("") if path.startswith("a/")])
"""


def test_on_a_disk_that_is_really_full_every_writer_ends_with_a_sentence(tmp_path):
    """Two megabytes in memory, mounted for a process of its own; the last state is kept, and nothing half-written."""
    mount = f'mount -t tmpfs -o size=2m tmpfs {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}'
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", mount, _FULL_DISK], cwd=ROOT, capture_output=True, text=True)
    sentence = "no disk space left for {}; free some space, or choose another --storage"
    said = [*[sentence.format(tmp_path / "run/a")] * 4, sentence.format(tmp_path / "new")]
    assert done.stdout.splitlines() == [*said, "5 checkpoints/model/step-000000005 []"], done.stderr


def test_a_run_of_an_earlier_layout_is_refused(disk):
    entry = {"name": NAME, "depends": OLD, "files": {}, "meta": {}, "sizes": {}, "attempt": ""}
    disk.write_text(f"manifest/{NAME}.json", json.dumps({**entry, "checksum": stable_hash(entry)}))
    with pytest.raises(UserError, match=r"was made by an earlier version of raysed, .* choose another --run"):
        disk.finished(NAME, OLD)


# -- one job at a time -----------------------------------------------------------------------------------------------

_HOLD = """
import sys, time
from raysed.store.storage import Storage
with Storage(sys.argv[1], "run").lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(disk, tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=r"run 'run' is in use by another process; wait for it, or choose another"):
            with disk.lock():
                pass
        with Storage(str(tmp_path), "another").lock():
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with disk.lock():
        pass


def test_a_job_that_was_taken_over_writes_nothing_more(remote):
    """Nor do the workers of the job."""
    with remote.lock():
        commit(remote, OLD)
        worker = pickle.loads(pickle.dumps(remote))
        other = Storage(remote.location, "run")
        with other.lock():
            before = remote.files("")
            for late in (remote, worker):
                for write in (
                    lambda late=late: commit(late, NEW),
                    lambda late=late: late.write_text("report.json", ""),
                ):
                    with pytest.raises(RunFailed, match=r"taken over by a job on .* \(process \d+\), so this one ends"):
                        write()
            assert seen(remote.location) == OLD and remote.files("") == before
            commit(pickle.loads(pickle.dumps(other)), NEW)
    assert seen(remote.location) == NEW


def test_a_job_that_is_taken_over_while_it_uploads_does_not_publish(remote, monkeypatch):
    with remote.lock():
        upload = files.Files.upload

        def taken_over(*arguments) -> None:
            upload(*arguments)
            with Storage(remote.location, "run").lock():
                pass

        monkeypatch.setattr(files.Files, "upload", taken_over)
        with pytest.raises(RunFailed, match="taken over"):
            commit(remote, OLD)
    assert seen(remote.location) is None


def test_ages_are_by_the_clock_of_the_storage(storage, monkeypatch):
    storage.write_text("status.json", "{}")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert (
        0 <= storage.now() - storage.plain.modified_at("status.json") < 30
        and storage.plain.modified_at("nothing") is None
    )
    assert storage.files("") == ["status.json"]


# -- where it lies ---------------------------------------------------------------------------------------------------


def test_a_relative_place_means_the_same_in_every_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = Storage("runs", "run")
    commit(storage, OLD)
    pickled = pickle.dumps(storage)
    monkeypatch.chdir("/")
    copy = pickle.loads(pickled)
    assert content(copy.fetch(NAME)) == files_of(OLD)
    assert str(copy) == copy.uri("") == str(tmp_path / "runs/run")
    assert copy.uri(NAME) == str(tmp_path / "runs/run" / NAME)


def test_a_file_uri_and_the_home_directory_are_local(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for location in (f"file://{tmp_path}/s", "~/s"):
        storage = Storage(location, "run")
        assert storage.is_local
        assert storage.uri("x") == str(tmp_path / "s/run/x")
        assert str(pickle.loads(pickle.dumps(storage))) == str(storage)


def test_uris_keep_their_options_behind_the_path(monkeypatch):
    monkeypatch.setattr(files, "filesystem", lambda location: (pafs._MockFileSystem(), "bucket/runs"))
    assert Storage("s3://bucket/runs/", "a").uri("ct/members/00") == "s3://bucket/runs/a/ct/members/00"
    assert Storage("s3://bucket/runs?region=eu-west-1", "a").uri("x") == "s3://bucket/runs/a/x?region=eu-west-1"


# -- S3 --------------------------------------------------------------------------------------------------------------


def test_a_bucket_or_server_that_is_not_there_is_a_sentence(bucket):
    place = below(bucket.replace("//bucket", "//nosuch"), "runs")
    with pytest.raises(UserError, match=r"^storage: s3://nosuch/runs/run.* there is no bucket 'nosuch'"):
        with Storage(place, "run").lock():
            pass
    nobody = Storage("s3://bucket/runs?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1", "run")
    with pytest.raises(UserError, match=r"^storage: s3://bucket/runs/run.* cannot be reached: "):
        nobody.reach()


def test_whether_it_is_finished_is_told_without_reading_it(remote, tmp_path, monkeypatch):
    commit(remote, OLD)
    monkeypatch.setattr(pafs, "copy_files", lambda *arguments, **named: pytest.fail("downloaded"))
    assert Storage(remote.location, "run").finished(NAME, OLD)
    assert list((tmp_path / "tmp").glob("raysed-cache-*/[!.]*")) == []


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_remote_damage_is_noticed(remote, damage):
    """Before anything is read, but for other bytes in a file of the same size; when it is read, always."""
    with remote.lock():
        commit(remote, OLD)
        path = remote.plain.path(f"{remote.entry(NAME).place}/model.bin")
        if damage == "missing":
            remote.plain.fs.delete_file(path)
        else:
            with remote.plain.fs.open_output_stream(path) as stream:
                stream.write(b"x" * 5000)
        again = pickle.loads(pickle.dumps(remote))
        assert (again.finished(NAME, OLD) is not None) == (damage == "flipped")
        with pytest.raises(FileNotFoundError, match="not a finished artefact"):
            Storage(remote.location, "run").fetch(NAME)
        assert remote.entry(NAME), "who has not claimed the run deletes nothing"
        with pytest.raises(FileNotFoundError, match="not a finished artefact"):
            again.fetch(NAME)
        assert seen(remote.location) is None  # and the next start makes it again


def test_what_is_replaced_while_it_is_read_is_not_taken_for_damaged(remote, monkeypatch):
    """The reader has missed it, and fails; the new one stays."""
    with remote.lock():
        commit(remote, OLD)
        reader = pickle.loads(pickle.dumps(remote))
        download = files.Files.download

        def replaced(*arguments) -> None:
            monkeypatch.undo()
            commit(remote, NEW)
            download(*arguments)

        monkeypatch.setattr(files.Files, "download", replaced)
        with pytest.raises(FileNotFoundError, match="not a finished artefact"):
            reader.fetch(NAME)
        assert seen(remote.location) == NEW


def test_a_copy_that_is_damaged_or_gone_is_fetched_again(remote, tmp_path):
    commit(remote, OLD)
    for harm in (*DAMAGES.values(), lambda path: shutil.rmtree(path.parent)):
        harm(remote.fetch(NAME) / "model.bin")
        assert seen(remote.location) == OLD
        remote._intact.clear()
    shutil.rmtree(remote.fetch(NAME))
    assert content(remote.fetch(NAME)) == files_of(OLD)
    assert len(list((tmp_path / "tmp").glob("raysed-cache-*/[!.]*"))) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_what_arrives_damaged_is_no_damage_of_the_remote(remote, monkeypatch, times):
    """A disk of this machine that changes bytes: nothing local takes anything out of the manifest."""
    real, calls = pafs.copy_files, 0

    def damaging(source, target, **named):
        nonlocal calls
        real(source, target, **named)
        calls += "source_filesystem" in named
        if "source_filesystem" in named and calls <= times:
            Path(target, "model.bin").write_bytes(b"noise")

    with remote.lock():
        commit(remote, OLD)
        monkeypatch.setattr(pafs, "copy_files", damaging)
        reader = pickle.loads(pickle.dumps(remote))
        if times == 1:
            assert content(reader.fetch(NAME)) == files_of(OLD) and calls == 2
        else:
            with pytest.raises(OSError, match="are damaged, but the files are not"):
                reader.fetch(NAME)
    assert seen(remote.location) == OLD


def test_a_disk_that_is_full_while_something_is_fetched_is_a_sentence(remote, tmp_path, monkeypatch):
    """Said at once, because waiting does not help; and nothing is left of the copy."""
    commit(remote, OLD)

    def full(source, target, **named):
        Path(target, "model.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pafs, "copy_files", full)
        patch.setattr(files.time, "sleep", lambda seconds: pytest.fail("waited"))
        with pytest.raises(
            UserError, match=r"^no disk space left for .*/raysed-cache-\d+; free some space, or set TMPDIR to"
        ):
            Storage(remote.location, "run").fetch(NAME)
    assert list((tmp_path / "tmp").glob("raysed-cache-*/[!.]*")) == []
    assert content(Storage(remote.location, "run").fetch(NAME)) == files_of(OLD)


def test_a_remote_that_keeps_failing_raises(remote, monkeypatch, caplog):
    """And does not look like a damaged artefact, which would be trained again."""
    with remote.lock():
        commit(remote, OLD)

        def broken(*arguments, **named):
            raise OSError("no route to host")

        with monkeypatch.context() as patch:
            patch.setattr(pafs, "copy_files", broken)
            with pytest.raises(OSError, match="no route to host"):
                remote.fetch(NAME)
    assert caplog.text.count("no route to host; trying again") == 4
    assert seen(remote.location) == OLD
