"""The run directory on a disk and on S3: whatever happens while something is published, a reader sees old or new."""

import errno
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest
from planned_faults import ERRORS, every_fault
from s3 import CREDENTIALS, below, s3_bucket

from raysed.config import stable_hash
from raysed.errors import RunFailed, UserError
from raysed.store import cache, files
from raysed.store.storage import Storage

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


def seen(location: str, name: str = NAME) -> dict | None:
    """The dependencies of what a fresh reader accepts; fails if that is not complete."""
    storage = Storage(location, "run")
    accepted = [depends for depends in (OLD, NEW) if storage.finished(name, depends)]
    if not accepted:
        with pytest.raises(FileNotFoundError, match="not a finished artefact"):
            storage.fetch(name)
        return None
    (depends,) = accepted
    found = {path: data for path, data in content(storage.fetch(name)).items() if not files.is_temporary(path)}
    assert found == files_of(depends)
    assert storage.entry(name).meta == {"score": depends["ct"]["steps"]}
    if name == "model":  # its files are where people look for them, too
        there = {path.removeprefix("model/"): storage.plain.read(path) for path in storage.plain.sizes_below("model")}
        assert there == files_of(depends)
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
def quick(location) -> Iterator[str]:
    """The location, but a disk in memory where there is one: a thousand flushes take minutes elsewhere."""
    if "://" in location or not os.path.isdir("/dev/shm"):
        yield location
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield directory


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

ALL = (NAME, "model", "learner")


def job(location: str, depends: dict) -> None:
    """Makes what is not finished, and trains in three steps from the newest state on."""
    storage = Storage(location, "run")
    with storage.lock():
        for name in ALL[:-1]:
            if not storage.finished(name, depends):
                commit(storage, depends, name)
        checkpoints = storage.checkpoints("learner", depends)
        if not storage.finished("learner", depends):
            checkpoints.begin("job")
            for step in range((checkpoints.newest() or (0,))[0] + 1, 4):
                checkpoints.save(step, lambda path: (path / "state").write_text("x"))
            commit(storage, depends, "learner")
        checkpoints.clear()
        storage.write_text("report.json", json.dumps(depends))


def test_a_fault_at_any_call_leaves_old_or_new_and_the_next_start_ends_like_an_undisturbed_one(quick):
    """Every job replaces all of the one before it; states of a training that is not its own stay."""
    location = quick
    storage, versions, outcomes = Storage(location, "run"), [NEW, OLD], set()
    storage.checkpoints("another", OLD).save(1, lambda path: (path / "state").write_text("x"))

    def paths() -> list[str]:
        return sorted(re.sub("attempt-[0-9a-f]{12}", "attempt", path) for path in storage.plain.sizes_below(""))

    job(location, OLD)
    undisturbed = paths()

    def check(failed: bool) -> None:
        opened = {path.removeprefix("model/"): storage.plain.read(path) for path in storage.plain.sizes_below("model")}
        assert opened.keys() == files_of(OLD).keys()
        assert all(data in [files_of(version)[file] for version in versions] for file, data in opened.items())
        found = {name: seen(location, name) for name in ALL}
        assert found["model"] in (None, *versions), "which is replaced file by file"
        others = [version for name, version in found.items() if name != "model"]
        assert all(version in versions for version in [*others, storage.read_json("report.json")])
        outcomes.update((name, version == versions[0]) for name, version in found.items())
        job(location, versions[0])
        assert all(seen(location, name) == versions[0] for name in ALL)
        assert paths() == undisturbed and storage.checkpoints("another", OLD).newest()[0] == 1

    faults = ["kill", "torn", *ERRORS]
    which = {} if storage.is_local else {"step": 31}  # requests to an object store take long
    calls = every_fault(faults, storage, versions.reverse, lambda: job(location, versions[0]), check, **which)
    assert calls > 50 and (len(outcomes) == 2 * len(ALL) or which)  # each was found old, and found new


# -- publishing ------------------------------------------------------------------------------------------------------


def test_everything_is_flushed_before_the_manifest_names_it(disk, monkeypatch):
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    commit(disk, OLD)
    place = disk.uri(disk.entry(NAME).place)
    *before, entry, _ = flushed
    assert set(before) == {place, f"{place}/model.bin", f"{place}/deep", f"{place}/deep/config.json", disk.uri(NAME)}
    assert entry.startswith(disk.uri("manifest/ct/members/.00.json."))


USERS = ("onnx/model.onnx", ".gitattributes", "deep/notes.txt", "attempt-0123456789ab/model.bin")
CHANGES = {
    "an equal command": lambda storage, name: storage.finished(name, OLD),
    "another setting": lambda storage, name: storage.commit(name, lambda path: (path / "new").touch(), NEW),
    "a job that was killed before": lambda storage, name: (
        storage.plain.write(f"manifest/{name}.json", _interrupted(storage, name)),
        storage.commit(name, lambda path: (path / "new").touch(), NEW),
    ),
    "no model": lambda storage, name: storage.remove(name),
}


def _interrupted(storage: Storage, name: str) -> bytes:
    """The manifest entry while another artefact takes the place of this one, which lacks a file of it."""
    kept, read, upload = [], storage.plain.read, storage.plain.upload

    def stop(*call: object) -> None:
        kept.append(read(f"manifest/{name}.json"))
        raise OSError(errno.EIO, "the job was killed")

    storage.plain.upload = stop
    with pytest.raises(OSError, match="was killed"):
        storage.commit(name, lambda path: (path / "half").touch(), {"ct": 3})
    storage.plain.upload = upload
    assert not storage.finished(name, OLD)
    return kept[0]


@pytest.mark.parametrize("name", ["model", "plots"])
@pytest.mark.parametrize("change", CHANGES)
def test_files_that_a_user_put_beside_ours_stay_and_are_named_once(storage, caplog, name, change):
    """Whatever becomes of ours; an equal command writes nothing."""
    with storage.lock():
        commit(storage, OLD, name)
    for file in USERS:
        storage.plain.write(f"{name}/{file}", b"a user's")
    written = {path: storage.plain.modified_at(path) for path in storage.plain.sizes_below(name)}
    with storage.lock():
        CHANGES[change](storage, name)
    found = storage.plain.sizes_below(name)
    assert {path.removeprefix(f"{name}/") for path in found} - set(USERS) == {
        "an equal command": set(files_of(OLD)), "no model": set()
    }.get(change, {"new"})  # fmt: skip
    assert all(storage.plain.read(f"{name}/{file}") == b"a user's" for file in USERS)
    named = [record.getMessage() for record in caplog.records if "not written by this run" in record.getMessage()]
    assert len(named) == (change != "an equal command")
    assert all(line.startswith(f"{name}/.gitattributes, {name}/attempt-") for line in named)
    assert all(("an export of older weights" in line) == (name == "model") for line in named)
    if change == "an equal command":
        assert written == {path: storage.plain.modified_at(path) for path in found}


def test_a_directory_of_ours_goes_when_it_is_empty(disk, tmp_path):
    commit(disk, OLD, "model")
    disk.commit("model", lambda path: (path / "new").touch(), NEW)
    assert [path.name for path in (tmp_path / "run/model").iterdir()] == ["new"]
    disk.remove("model")
    assert not (tmp_path / "run/model").exists()


def test_a_copy_of_artefacts_that_a_user_made_in_the_run_directory_stays(disk, tmp_path):
    commit(disk, OLD)
    shutil.copytree(tmp_path / "run/ct", tmp_path / "run/ct-before")
    with disk.lock():
        commit(disk, NEW)
    assert list(content(tmp_path / "run/ct-before").values()) == list(files_of(OLD).values())


def test_a_link_to_another_disk_is_followed(disk, tmp_path):
    """Nothing is renamed or linked across it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert os.stat(other).st_dev != tmp_path.stat().st_dev
        for name in (NAME, "model", "checkpoints/m"):
            Path(other, name).mkdir(parents=True)
            (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "run" / name).symlink_to(Path(other, name))
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
def test_a_damaged_artefact_is_not_finished_and_is_named(disk, tmp_path, caplog, damage):
    commit(disk, OLD)
    DAMAGES[damage](disk.fetch(NAME) / "deep/config.json")
    assert seen(str(tmp_path)) is None
    assert f"recomputing {NAME}: its files are missing or damaged" in caplog.text
    disk.commit("empty", lambda path: None, {})
    disk.fetch("empty").rmdir()
    assert not Storage(str(tmp_path), "run").finished("empty", {})


def test_an_error_of_reading_is_retried_then_raised_and_is_no_damage(disk, tmp_path, monkeypatch):
    commit(disk, OLD)
    real, errors = files.sha256_of, [OSError(errno.ESTALE, "Stale file handle")] * 3

    def failing(path: Path) -> str:
        if errors:
            raise errors.pop()
        return real(path)

    monkeypatch.setattr(files, "sha256_of", failing)
    assert seen(str(tmp_path)) == OLD and not errors
    errors += [OSError(errno.EMFILE, "Too many open files")] * 1000
    with pytest.raises(OSError, match="Too many open files"):
        Storage(str(tmp_path), "run").finished(NAME, OLD)


def test_every_flipped_byte_of_a_manifest_entry_is_noticed(disk, tmp_path):
    """What it says of scores and dependencies is trusted, so it is check-summed as well."""
    commit(disk, OLD)
    entry, path = disk.entry(NAME), tmp_path / f"run/manifest/{NAME}.json"
    intact = path.read_bytes()
    for position in range(len(intact)):
        flipped = bytes([intact[position] ^ (0x01, 0x80)[position % 2]])
        path.write_bytes(intact[:position] + flipped + intact[position + 1 :])
        assert disk.entry(NAME) is None
    for other in (b"", intact[: len(intact) // 2], 10**5 * b"["):
        path.write_bytes(other)
        assert disk.entry(NAME) is None
    path.write_bytes(intact)
    assert disk.entry(NAME) == entry


@pytest.mark.parametrize(
    "change",
    [
        *({"name": name} for name in ("../../precious", "/etc")),
        *({"attempt": attempt} for attempt in ("../../../precious", "attempt-0")),
        *({"files": {file: "0"}} for file in ("../../../../precious/file", "/etc/passwd")),
        {"depends": None},
    ],
)
def test_an_entry_that_leads_out_of_the_run_is_damaged(disk, tmp_path, change):
    """The next checkpoint would delete what it names."""
    name = "checkpoints/m/step-000000005"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("kept")
    save(disk, 5)
    content = disk.read_json(f"manifest/{name}.json") | change
    content.pop("checksum")
    disk.write_text(f"manifest/{name}.json", json.dumps({**content, "checksum": stable_hash(content)}))
    assert disk.entry(name) is None and newest(disk) is None
    save(disk, 10, 15, 20)
    assert (tmp_path / "precious/file").exists()


@pytest.mark.parametrize("name", ["../other", "/etc", "a/../../b", "a//b"])
def test_no_name_leads_out_of_the_run(disk, name):
    for method in (disk.remove, disk.read_text, disk.fetch, disk.uri, lambda n: disk.write_text(n, "x")):
        with pytest.raises(ValueError, match="no path below a run"):
            method(name)
    with pytest.raises(ValueError, match="no path below a run"):
        disk.commit(name, lambda path: None, {})


def test_a_small_file_that_does_not_parse_is_an_empty_one(disk):
    for text in ("", "{", "[1]", '{"job": ', "null"):
        disk.write_text("timings.json", text)
        assert disk.read_json("timings.json") == {}
        disk.write_text("checkpoints/m/starts.json", text)
        assert disk.checkpoints("m", OLD).begin("job") == 0


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
    known = "corpus.sources changed from [1, 2] to [1, 3]; ct.steps changed from 5 to 6; extra changed from "
    assert message.startswith(f"out of date: x: {known}")
    assert message.endswith("; seed changed from 1 to null")
    assert "keep" not in message and len(message) < 240


def test_dependencies_compare_as_they_are_stored_and_meta_may_be_filled_while_writing(disk):
    """Tuples become lists and keys become text on the way through JSON; that is no change."""
    meta: dict = {}
    disk.commit("x", lambda path: meta.update(rows=3), {"layers": (1, 2), 3: None}, meta)
    assert disk.finished("x", {"layers": [1, 2], "3": None}).meta == {"rows": 3}


def test_entries_lists_what_lies_below(storage):
    for name in ("ct/members/01", "ct/members/00", "ct/embeddings/00", "ct-sed/learners/00"):
        commit(storage, OLD, name)
    assert [entry.name for entry in storage.entries("ct/members")] == ["ct/members/00", "ct/members/01"]
    assert storage.entries("nothing") == []
    storage.remove("ct/members")
    assert storage.entries("ct/members") == [] and list(storage.plain.sizes_below("ct/members")) == []
    assert storage.entry("ct/embeddings/00") and storage.entry("ct-sed/learners/00")


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
    save(storage, 5, 10, 100, 1000)
    assert steps_of(storage) == [100, 1000] and newest(storage) == 1000
    assert len(storage.plain.sizes_below("checkpoints/m")) == 2
    for _ in range(2):
        storage.checkpoints("m", OLD).clear()
        assert newest(storage) is None and list(storage.plain.sizes_below("checkpoints")) == []


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(disk, caplog):
    save(disk, 5, 10)
    DAMAGES["truncated"](disk.fetch("checkpoints/m/step-000000010") / "s")
    assert newest(disk) == 5
    assert "step-000000010 is damaged" in caplog.text
    save(disk, 8)  # continued from 5 with another cadence: the damaged later one must not count as one of two
    assert steps_of(disk) == [5, 8]


def test_checkpoints_with_other_dependencies_are_named_and_never_push_out_new_ones(disk, caplog):
    caplog.set_level(logging.INFO)
    save(disk, 900, 1000, depends=OLD)
    assert newest(disk, NEW) is None
    assert "checkpoints/m/step-000001000 cannot be continued: ct.steps changed from 1 to 2" in caplog.text
    save(disk, 5, depends=NEW)
    assert newest(disk, NEW) == 5
    save(disk, 10, 15, depends=NEW)
    assert steps_of(disk) == [10, 15]
    save(disk, 20, depends=OLD)
    assert steps_of(disk) == [20]


def test_starts_are_counted_until_there_is_something_new(disk, monkeypatch):
    """By job: what a user stopped does not count against the next attempt."""
    checkpoints, other = disk.checkpoints("model", {"a": 1}), disk.checkpoints("model", {"a": 2})
    assert [checkpoints.begin("monday") for _ in range(3)] == [0, 1, 2]
    checkpoints.save(10, lambda path: (path / "state").write_text("x"))
    assert [checkpoints.begin(day) for day in ("monday", "monday", "tuesday", "tuesday")] == [0, 1, 0, 1]
    starts = disk.read_text("checkpoints/model/starts.json")
    disk.write_text("checkpoints/model/starts.json", starts.replace('"count": 1', '"count": [1]'))
    assert [checkpoints.begin("tuesday") for _ in range(2)] == [0, 1], "what is damaged counts for nothing"
    assert other.begin("tuesday") == 0  # the state of another setting is nothing to continue from
    checkpoints.clear()
    assert checkpoints.begin("tuesday") == 0
    # Where the disk is full, so that starts cannot be counted, the next write of the training says so.
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(FULL[0]))
    assert checkpoints.begin("wednesday") == 0
    with pytest.raises(UserError, match="no disk space left"):
        checkpoints.save(20, lambda path: (path / "state").write_text("x"))


# -- disk ------------------------------------------------------------------------------------------------------------

FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    Exception("I/O error: No space left on device (os error 28)"),  # safetensors and tokenizers, written in Rust
    OSError("25000 requested and 1024 written"),  # numpy
]


@pytest.mark.parametrize("error", [*FULL, RuntimeError("a bug"), FileNotFoundError(2, "gone"), UserError("a mistake")])
def test_a_full_disk_is_a_sentence_whoever_reports_it_and_other_errors_stay_what_they_are(disk, error):
    def write(path: Path) -> None:
        raise error

    with pytest.raises(UserError if error in FULL else type(error)) as caught:
        disk.commit("x", write, {})
    if error in FULL:
        assert re.search(r"no disk space left for .*run/x; free some space, or choose", str(caught.value))
    else:
        assert caught.value is error
    assert list(disk.plain.sizes_below("")) == []


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
actions = [
    lambda path: (path / "a").write_bytes(rows.tobytes()),
    lambda path: np.save(path / "a.npy", rows),
    lambda path: save_file({"a": torch.from_numpy(rows)}, path / "a.safetensors"),
    lambda path: pq.write_table(pa.table({"a": rows}), path / "a.parquet"),
]
for write in actions:
    try:
        checkpoints.save(6, write)
    except UserError as error:
        print(error)
with suppress(OSError), open(place / "filler", "wb", buffering=0) as file:
    while file.write(bytes(4096)):
        pass
try:
    with Storage(str(place), "new").lock():
        pass
except UserError as error:
    print(error)
(place / "filler").unlink()
print(checkpoints.newest()[0], storage.names(), len(storage.plain.sizes_below("checkpoints")))
"""


def test_on_a_disk_that_is_really_full_every_writer_ends_with_a_sentence(tmp_path):
    """Two megabytes in memory, mounted for a process of its own; the last state is kept, and nothing half-written."""
    mount = f'mount -t tmpfs -o size=2m tmpfs {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}'
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", mount, _FULL_DISK], cwd=ROOT, capture_output=True, text=True)
    places = [*["run/checkpoints/model/step-000000006"] * 4, "new"]
    said = [f"no disk space left for {tmp_path / p}; free some space, or choose another --storage" for p in places]
    assert done.stdout.splitlines() == [*said, "5 ['checkpoints/model/step-000000005'] 1"], done.stderr


def test_what_a_run_has_written_is_room_for_it(disk, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert disk.free_bytes() == 1000
    disk.plain.write("checkpoints/big", b"x" * 500)
    assert disk.free_bytes() == 1500


# -- one job at a time -----------------------------------------------------------------------------------------------

_HOLD = """
import sys, time
from raysed.store.storage import Storage
with Storage(sys.argv[1], "run").lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(disk, tmp_path):
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(UserError, match=r"run 'run' is in use by another process; wait for it, or choose"):
                with disk.lock():
                    pass
            with Storage(str(tmp_path), "another").lock():
                pass
        finally:
            holder.kill()
    with disk.lock():
        pass


def test_many_entries_are_read_with_few_requests_and_none_that_is_out_of_date(remote, monkeypatch):
    """Of 30 copies, one belongs to an artefact that is gone, one to another attempt, and one's files are damaged."""
    names = [f"rows/{number:02d}" for number in range(32)]
    for name in names:
        commit(remote, OLD, name)
    remote.pack("rows", [remote.entry(name) for name in names[:30]])
    remote.remove(names[0])
    commit(remote, NEW, names[1])
    remote.plain.write(f"{remote.entry(names[2]).place}/model.bin", b"half")
    read, requests = files.Files.read, []
    monkeypatch.setattr(files.Files, "read", lambda self, name: requests.append(name) or read(self, name))
    listed = {entry.name: entry.depends for entry in remote.listed("rows")}
    assert listed == {**dict.fromkeys(names[2:], OLD), names[1]: NEW}
    assert len(requests) == 4, "the copies, the newer entry, and two that were not copied"
    assert {entry.name for entry in remote.finished_below("rows")} == {*names[1:]} - {names[2]}
    assert {entry.name for entry in remote.finished_below("rows", OLD)} == {*names[3:]}


def test_copies_go_when_all_of_their_entries_have_been_replaced(remote):
    """Else a run that is used every night would have more of them to read each time."""
    names = ["rows/0", "rows/1"]

    def packs() -> int:
        assert len(list(remote.listed("rows"))) == 2
        return len([path for path in remote.plain.sizes_below("rows") if "/entries-" in path])

    with remote.lock():
        for name in names:
            commit(remote, OLD, name)
        remote.pack("rows", [remote.entry(name) for name in names])
        commit(remote, NEW, names[0])
        assert packs() == 1
        commit(remote, NEW, names[1])
        assert packs() == 0


def test_entries_are_read_where_their_copies_are_damaged(remote):
    commit(remote, OLD)
    remote.pack("ct", [remote.entry(NAME)])
    (path,) = (path for path in remote.plain.sizes_below("ct") if "entries-" in path)
    text = remote.read_text(path)
    for harm in (text[:50], text.replace("steps", "stops"), "\n", "\udcff"):
        remote.plain.write(path, harm.encode(errors="surrogateescape"))
        assert [entry.name for entry in remote.finished_below("ct", OLD)] == [NAME]


def test_a_job_that_was_taken_over_commits_nothing_more_nor_do_its_workers(remote):
    with remote.lock():
        commit(remote, OLD)
        worker = pickle.loads(pickle.dumps(remote))
        other = Storage(remote.location, "run")
        with other.lock():
            before = list(remote.plain.sizes_below(""))
            for late in (remote, worker):
                with pytest.raises(RunFailed, match=r"taken over by a job on .* \(process \d+\), so this job ends"):
                    commit(late, NEW)
                with pytest.raises(RunFailed, match="taken over"):
                    late.forget(NAME)
            assert seen(remote.location) == OLD and list(remote.plain.sizes_below("")) == before
            commit(pickle.loads(pickle.dumps(other)), NEW)
    assert seen(remote.location) == NEW


def test_a_job_that_is_taken_over_while_it_uploads_does_not_publish(remote, monkeypatch):
    upload = files.Files.upload

    def taken_over(*arguments) -> None:
        upload(*arguments)
        with Storage(remote.location, "run").lock():
            pass

    monkeypatch.setattr(files.Files, "upload", taken_over)
    with remote.lock(), pytest.raises(RunFailed, match="taken over"):
        commit(remote, OLD)
    assert seen(remote.location) is None


# -- where it lies ---------------------------------------------------------------------------------------------------


def test_a_relative_place_means_the_same_in_every_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = Storage("runs", "run")
    commit(storage, OLD)
    pickled = pickle.dumps(storage)
    monkeypatch.chdir("/")
    copy = pickle.loads(pickled)
    assert content(copy.fetch(NAME)) == files_of(OLD)
    assert str(copy) == str(tmp_path / "runs/run") and copy.uri(NAME) == str(tmp_path / "runs/run" / NAME)
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in (f"file://{tmp_path}/runs", "~/runs"):
        storage = pickle.loads(pickle.dumps(Storage(place, "run")))
        assert storage.is_local and storage.uri("x") == copy.uri("x")


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
        nobody.check_access()


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
        path = f"{remote.entry(NAME).place}/model.bin"
        remote.plain.delete(path) if damage == "missing" else remote.plain.write(path, b"x" * 5000)
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


def test_workers_of_one_machine_fetch_an_artefact_once(remote, monkeypatch):
    commit(remote, OLD)
    download, fetched = files.Files.download, []

    def slow(*arguments) -> None:
        fetched.append(arguments)
        time.sleep(0.2)
        download(*arguments)

    monkeypatch.setattr(files.Files, "download", slow)
    workers = [pickle.loads(pickle.dumps(remote)) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        paths = list(threads.map(lambda worker: worker.fetch(NAME), workers))
    assert len(set(paths)) == len(fetched) == 1 and content(paths[0]) == files_of(OLD)


def test_a_disk_that_is_full_while_something_is_fetched_is_a_sentence(remote, tmp_path, monkeypatch):
    """Said at once, because waiting does not help; and nothing is left of the copy."""
    commit(remote, OLD)

    def full(source, target, **named):
        Path(target, "model.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pafs, "copy_files", full)
        patch.setattr(files.time, "sleep", lambda seconds: pytest.fail("waited"))
        with pytest.raises(UserError, match=r"^no disk space left for .*/raysed-cache-\d+; .*, or set TMPDIR to"):
            Storage(remote.location, "run").fetch(NAME)
    assert list((tmp_path / "tmp").glob("raysed-cache-*/[!.]*")) == []
    assert content(Storage(remote.location, "run").fetch(NAME)) == files_of(OLD)


def test_a_remote_that_keeps_failing_raises(remote, monkeypatch, caplog):
    """And does not look like a damaged artefact, which would be trained again."""

    def broken(*arguments, **named):
        raise OSError("no route to host")

    with remote.lock():
        commit(remote, OLD)
        with monkeypatch.context() as patch:
            patch.setattr(pafs, "copy_files", broken)
            with pytest.raises(OSError, match="no route to host"):
                remote.fetch(NAME)
    assert caplog.text.count("no route to host; trying again") == 4
    assert seen(remote.location) == OLD
