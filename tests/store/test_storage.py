"""The run directory: whatever happens while something is published, a reader sees the old artefact or the new one."""

import errno
import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.fs as pafs
import pytest

import raysed.store.storage
from raysed.config import stable_hash
from raysed.errors import RunFailed, UserError
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


def seen(location: Path | str, name: str = NAME) -> dict | None:
    """The dependencies of what a fresh reader accepts; fails if that is not complete."""
    storage = Storage(str(location), "run")
    accepted = [depends for depends in (OLD, NEW) if storage.finished(name, depends)]
    if not accepted:
        with pytest.raises(FileNotFoundError, match="not a finished artefact"):
            storage.fetch(name)
        return None
    (depends,) = accepted
    assert content(storage.fetch(name)) == files_of(depends)
    assert storage.entry(name).meta == {"score": depends["ct"]["steps"]}
    return depends


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path), "run")


@pytest.fixture
def remote(tmp_path, monkeypatch) -> Storage:
    """An object store as far as `Storage` can tell: no renaming, all through a pyarrow filesystem."""
    (tmp_path / "bucket").mkdir()
    fs = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    monkeypatch.setattr(raysed.store.storage, "_filesystem", lambda location: (fs, "runs"))
    monkeypatch.setattr(raysed.store.storage, "_cache", lambda: str(tmp_path / "cache"))
    monkeypatch.setattr(raysed.store.storage, "_PAUSES", (0.0,) * 4)
    storage = Storage("mock://bucket/runs", "run")
    assert not storage.is_local
    return storage


# -- crashes ---------------------------------------------------------------------------------------------------------

_WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "shutil.move", "os.truncate"}


def die_at(point: int, action) -> bool:
    """Runs an action in a child that dies without any clean-up just before its n-th write; whether it got that far.

    Python tells audit hooks of every change to the disk, whatever function makes it; `os.fsync` and what pyarrow
    deletes are the exceptions. A deletion dies half-way.
    """
    pid = os.fork()
    if pid == 0:
        left = point

        def count(*_) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)

        def hook(event: str, arguments: tuple) -> None:
            if event in _WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
                count()

        def delete(storage: Storage, name: str) -> None:
            if left == 1:
                paths = [Path(storage.uri(name)), *Path(storage.uri(name)).rglob("*")]
                for path in [path for path in paths if path.is_file()][:1]:
                    os.unlink(path)
            count()
            delete_all(storage, name)

        fsync, delete_all = os.fsync, Storage._delete
        os.fsync = lambda descriptor: (count(), fsync(descriptor))
        Storage._delete = delete
        sys.addaudithook(hook)
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def every_crash(action, prepare, check) -> int:
    """Crashes an action at its first write, at its second, and so on; returns how many there were."""
    for point in range(1, 200):
        prepare()
        died = die_at(point, action)
        check(died)
        if not died:
            return point - 1
    raise AssertionError("the action never ends")


def test_a_crash_at_any_write_of_a_first_commit_leaves_nothing_or_all(tmp_path):
    def check(died: bool) -> None:
        found = seen(tmp_path)
        assert found in (None, NEW) if died else found == NEW
        with Storage(str(tmp_path), "run").lock():
            pass
        assert seen(tmp_path) == found
        commit(Storage(str(tmp_path), "run"), NEW)
        assert seen(tmp_path) == NEW

    points = every_crash(
        lambda: commit(Storage(str(tmp_path), "run"), NEW),
        lambda: shutil.rmtree(tmp_path / "run", ignore_errors=True),
        check,
    )
    assert points >= 10  # directories, two files, their flushes, the rename, the manifest


@pytest.mark.parametrize("relock", [True, False])
def test_a_crash_at_any_write_of_a_replacement_leaves_the_old_artefact_or_the_new(tmp_path, relock):
    outcomes = set()

    def prepare() -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        commit(Storage(str(tmp_path), "run"), OLD)

    def check(died: bool) -> None:
        found = seen(tmp_path)
        assert found in (OLD, NEW) if died else found == NEW
        outcomes.add(str(found))
        if relock:  # the next run tidies up
            with Storage(str(tmp_path), "run").lock():
                assert seen(tmp_path) == found
                assert content(tmp_path / "run" / NAME) == files_of(found)
        for depends in (OLD, NEW):
            commit(Storage(str(tmp_path), "run"), depends)
            assert seen(tmp_path) == depends
            assert content(tmp_path / "run" / NAME) == files_of(depends)

    every_crash(lambda: commit(Storage(str(tmp_path), "run"), NEW), prepare, check)
    assert len(outcomes) == 2


def test_a_crash_while_tidying_up_after_a_crash_loses_nothing(tmp_path):
    """The old artefact is aside and the new one in its place, unnamed, when the next process dies as well."""

    def prepare() -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        commit(Storage(str(tmp_path), "run"), OLD)
        aside = tmp_path / "run/.replaced/ct%2Fmembers%2F00"
        aside.parent.mkdir()
        (tmp_path / "run" / NAME).rename(aside)
        (tmp_path / "run" / NAME).mkdir()
        writer(NEW)(tmp_path / "run" / NAME)

    def tidy() -> None:
        with Storage(str(tmp_path), "run").lock():
            pass

    def check(died: bool) -> None:
        assert seen(tmp_path) == OLD
        tidy()
        assert seen(tmp_path) == OLD
        assert content(tmp_path / "run" / NAME) == files_of(OLD)

    assert every_crash(tidy, prepare, check) >= 3


def test_the_same_files_again_after_such_a_crash(storage, tmp_path):
    """A reader that knows the files to be aside must not look there once they are published anew."""
    commit(storage, OLD)
    (tmp_path / "run/.replaced").mkdir()
    (tmp_path / "run" / NAME).rename(tmp_path / "run/.replaced/ct%2Fmembers%2F00")
    reader = Storage(str(tmp_path), "run")
    assert content(reader.fetch(NAME)) == files_of(OLD)
    commit(reader, OLD)
    assert content(reader.fetch(NAME)) == files_of(OLD)


def test_everything_is_flushed_before_the_manifest_names_it(storage, monkeypatch):
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    commit(storage, OLD)
    below = [Path(path).relative_to(storage.uri("")).parts for path in flushed]
    scratch = below[0][:2]
    assert scratch[0] == ".tmp"
    assert {parts[2:] for parts in below if parts[:2] == scratch} == {
        ("model.bin",), ("deep", "config.json"), ("deep",), (),
    }  # fmt: skip
    assert below[-3] == ("ct", "members")
    assert below[-2][0] == ".tmp" and below[-2] != scratch  # the manifest entry
    assert below[-1] == ("manifest", "ct", "members")


def test_a_crash_while_removing_leaves_all_or_nothing(tmp_path):
    def prepare() -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        commit(Storage(str(tmp_path), "run"), OLD)

    every_crash(
        lambda: Storage(str(tmp_path), "run").remove(NAME),
        prepare,
        lambda died: seen(tmp_path) in (OLD, None) or pytest.fail("a part of it"),
    )


def test_a_small_file_is_replaced_at_once(tmp_path):
    every_crash(
        lambda: Storage(str(tmp_path), "run").write_text("report.json", "new" * 1000),
        lambda: Storage(str(tmp_path), "run").write_text("report.json", "old" * 1000),
        lambda died: (
            (tmp_path / "run/report.json").read_text() in ("old" * 1000, "new" * 1000) or pytest.fail("a mixture")
        ),
    )


def test_nothing_temporary_is_left(storage, tmp_path):
    with storage.lock():
        commit(storage, OLD)
        commit(storage, NEW)
        storage.write_text("config.yaml", "a: 1")
        (tmp_path / "run/.tmp/of-a-worker-that-was-killed").write_text("half")
    left = {p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert left == {
        ".lock", "config.yaml", f"manifest/{NAME}.json", f"{NAME}/model.bin", f"{NAME}/deep/config.json",
    }  # fmt: skip
    (tmp_path / "run/.tmp/abandoned").mkdir(parents=True)
    with storage.lock():
        assert not (tmp_path / "run/.tmp").exists()


# -- damage ----------------------------------------------------------------------------------------------------------

DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "one byte flipped": lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]),
    "missing": lambda path: path.unlink(),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["model.bin", "deep/config.json"])
def test_a_damaged_artefact_is_not_finished_and_is_named(storage, tmp_path, caplog, damage, file):
    commit(storage, OLD)
    DAMAGES[damage](tmp_path / "run" / NAME / file)
    assert seen(tmp_path) is None
    assert f"{NAME} is made again: its files are missing or damaged" in caplog.text
    commit(Storage(str(tmp_path), "run"), OLD)
    assert seen(tmp_path) == OLD


def test_every_flipped_byte_of_a_manifest_entry_is_noticed(storage, tmp_path):
    """What it says of scores and dependencies is trusted, so it is check-summed as well."""
    commit(storage, OLD)
    entry, path = storage.entry(NAME), tmp_path / f"run/manifest/{NAME}.json"
    intact = path.read_bytes()
    for position in range(len(intact)):
        for bit in (0x01, 0x80):
            path.write_bytes(intact[:position] + bytes([intact[position] ^ bit]) + intact[position + 1 :])
            assert storage.entry(NAME) is None
    for length in range(0, len(intact), 7):
        path.write_bytes(intact[:length])
        assert storage.entry(NAME) is None
    path.write_bytes(intact)
    assert storage.entry(NAME) == entry


def test_an_empty_artefact_must_still_be_there(storage, tmp_path):
    storage.commit("empty", lambda path: None, {})
    assert storage.finished("empty", {})
    (tmp_path / "run/empty").rmdir()
    assert not Storage(str(tmp_path), "run").finished("empty", {})


# -- dependencies ----------------------------------------------------------------------------------------------------


def test_changed_dependencies_are_logged_with_both_values(storage, caplog):
    caplog.set_level(logging.INFO)
    depends = {"ct": {"steps": 5, "keep": "second"}, "seed": 1, "corpus": {"sources": [1, 2]}}
    storage.commit("x", lambda path: None, depends)
    assert storage.finished("x", depends)
    assert not caplog.records
    changed = {"ct": {"steps": 6, "keep": "second"}, "corpus": {"sources": [1, 3]}, "extra": "y" * 100}
    assert storage.finished("x", changed) is None
    message = caplog.records[-1].getMessage()
    assert message.startswith("x is made again: corpus.sources was [1, 2], is [1, 3]; ct.steps was 5, is 6; extra was ")
    assert message.endswith("; seed was 1, is null")
    assert "keep" not in message and len(message) < 200


def test_dependencies_compare_as_they_are_stored(storage):
    """Tuples become lists and keys become text on the way through JSON; that is no change."""
    storage.commit("x", lambda path: None, {"layers": (1, 2), 3: None})
    assert storage.finished("x", {"layers": [1, 2], "3": None})
    assert storage.entry("x").fingerprint == Storage(storage.location, "run").entry("x").fingerprint


def test_meta_may_be_filled_while_writing(storage):
    meta: dict = {}
    storage.commit("x", lambda path: meta.update(rows=3), {}, meta)
    assert storage.entry("x").meta == {"rows": 3}


def test_entries_lists_what_lies_below(storage):
    for name in ("ct/members/01", "ct/members/00", "ct/embeddings/00", "ct-sed/learners/00"):
        storage.commit(name, lambda path: None, {})
    assert [entry.name for entry in storage.entries("ct/members")] == ["ct/members/00", "ct/members/01"]
    assert storage.entries("nothing") == []
    storage.remove("ct/members")
    assert storage.entries("ct/members") == []
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


def test_the_newest_two_checkpoints_are_kept(storage, tmp_path):
    assert newest(storage) is None
    save(storage, 5, 10, 100, 1000)
    assert steps_of(storage) == [100, 1000]
    assert newest(storage) == 1000
    assert len(list((tmp_path / "run/checkpoints/m").iterdir())) == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(storage, tmp_path, caplog, damage):
    save(storage, 5, 10)
    path = tmp_path / "run/checkpoints/m/step-000000010"
    (path / "s").write_text("10" * 2000)
    DAMAGES[damage](path / "s")
    assert newest(storage) == 5
    assert f"{path} is damaged" in caplog.text
    save(storage, 8)  # continued from 5 with another cadence: the damaged later one must not count as one of two
    assert steps_of(storage) == [5, 8]
    (tmp_path / "run/checkpoints/m/step-000000008/s").unlink()
    assert newest(storage) == 5


def test_checkpoints_with_other_dependencies_are_named_and_never_push_out_new_ones(storage, caplog):
    caplog.set_level(logging.INFO)
    save(storage, 900, 1000, depends=OLD)
    assert newest(storage, NEW) is None
    assert "checkpoints/m/step-000001000 cannot be continued after these changes: ct.steps was 1, is 2" in caplog.text
    save(storage, 5, depends=NEW)
    assert newest(storage, NEW) == 5
    save(storage, 10, 15, depends=NEW)
    assert steps_of(storage) == [10, 15]
    save(storage, 20, depends=OLD)
    assert steps_of(storage) == [20]


def test_cleared_checkpoints_are_gone(storage, tmp_path):
    save(storage, 5, 10)
    storage.checkpoints("m", OLD).clear()
    storage.checkpoints("m", OLD).clear()
    assert newest(storage) is None
    assert not list((tmp_path / "run").rglob("step-*"))


def test_starts_are_counted_until_there_is_something_new(storage):
    """By job: what a user stopped does not count against the next attempt."""
    checkpoints, other = storage.checkpoints("model", {"a": 1}), storage.checkpoints("model", {"a": 2})
    assert [checkpoints.begin("monday") for _ in range(3)] == [0, 1, 2]
    checkpoints.save(10, lambda path: (path / "state").write_text("x"))
    assert [checkpoints.begin("monday") for _ in range(2)] == [0, 1]
    assert [checkpoints.begin("tuesday") for _ in range(2)] == [0, 1]
    assert other.begin("tuesday") == 0  # the state of another setting is nothing to continue from
    checkpoints.save(20, lambda path: (path / "state").write_text("x"))
    assert checkpoints.begin("tuesday") == 0
    checkpoints.clear()
    assert checkpoints.begin("tuesday") == 0


def test_a_crash_while_saving_leaves_a_checkpoint_to_continue_from(tmp_path):
    def prepare() -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        save(Storage(str(tmp_path), "run"), 5, 10)

    def check(died: bool) -> None:
        storage = Storage(str(tmp_path), "run")
        found = newest(storage)
        assert found in (10, 15)
        save(storage, 20)
        assert newest(storage) == 20

    every_crash(lambda: save(Storage(str(tmp_path), "run"), 15), prepare, check)


# -- disk ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_sentence_and_keeps_the_last_checkpoint(storage, tmp_path, monkeypatch, code):
    """At the first flush, at the second, and so on, until there are no more."""
    save(storage, 5)
    real = os.fsync
    for point in range(1, 50):
        left = point

        def fsync(descriptor: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(code, os.strerror(code))
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            try:
                save(storage, 10)
            except UserError as error:
                assert str(error).startswith("no disk space left for ")
                assert str(tmp_path) in str(error) and "--storage" in str(error)
        assert newest(storage) in (5, 10)
        if left > 0:
            break
    assert point > 4 and newest(storage) == 10


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    Exception("I/O error: No space left on device (os error 28)"),  # safetensors and tokenizers, written in Rust
    OSError("25000 requested and 1024 written"),  # numpy
]


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_a_full_disk_is_understood_whoever_reports_it(storage, error):
    def write(path: Path) -> None:
        raise error

    with pytest.raises(UserError, match=r"no disk space left for .*run/x; free some"):
        storage.commit("x", write, {})
    assert not list(Path(storage.uri(".tmp")).iterdir())


@pytest.mark.parametrize("error", [RuntimeError("a bug"), FileNotFoundError(2, "gone"), UserError("a mistake")])
def test_other_errors_of_a_writer_stay_what_they_are(storage, error):
    def write(path: Path) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        storage.commit("x", write, {})
    assert caught.value is error
    assert storage.entry("x") is None


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for location in (tmp_path / "file", tmp_path / "file/below"):
        with (
            pytest.raises(UserError, match=r"^storage: .*file.* cannot be written"),
            Storage(str(location), "r").lock(),
        ):
            pass

    def refuse(*arguments, **named):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(UserError, match=r"cannot be written: Permission denied"), Storage(str(tmp_path), "r").lock():
        pass


def test_free_space_of_a_directory_that_is_not_there_yet(tmp_path):
    assert Storage(str(tmp_path / "a/b"), "run").free_bytes() == pytest.approx(
        shutil.disk_usage(tmp_path).free, rel=0.1
    )


# -- one process at a time -------------------------------------------------------------------------------------------

_HOLD = """
import sys, time
from raysed.store.storage import Storage
with Storage(sys.argv[1], "run").lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(storage, tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=r"run 'run' is in use by another process; wait for it, or choose another"):
            with storage.lock():
                pass
        with Storage(str(tmp_path), "another").lock():
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with storage.lock():
        pass


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
    monkeypatch.setattr(raysed.store.storage, "_filesystem", lambda location: (pafs._MockFileSystem(), "bucket/runs"))
    assert Storage("s3://bucket/runs/", "a").uri("ct/members/00") == "s3://bucket/runs/a/ct/members/00"
    assert Storage("s3://bucket/runs?region=eu-west-1", "a").uri("x") == "s3://bucket/runs/a/x?region=eu-west-1"


@pytest.mark.parametrize("location", ["nosuch://bucket/runs", "file://relative/runs", "s3://[", "http://example.org/x"])
def test_an_unusable_uri_is_a_sentence(location):
    with pytest.raises(UserError, match=r"^storage: .* is not a usable directory or URI: [^\n]*$"):
        Storage(location, "run")


def test_a_password_in_a_uri_is_refused_and_not_repeated():
    with pytest.raises(UserError, match=r"^storage: the URI contains a password") as caught:
        Storage("s3://key:geheim@bucket/runs", "run")
    assert "geheim" not in str(caught.value)


# -- elsewhere -------------------------------------------------------------------------------------------------------


def test_a_remote_run_directory_works_like_a_local_one(remote, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with remote.lock():
        commit(remote, OLD)
        commit(remote, NEW)
        remote.write_text("report.json", "{}")
    assert remote.read_text("report.json") == "{}"
    assert remote.read_text("nothing") is None
    assert remote.free_bytes() is None
    assert remote.uri(NAME) == f"mock://bucket/runs/run/{NAME}"
    assert list(content(tmp_path / "bucket/runs/run" / NAME).values()) == list(files_of(NEW).values())
    assert seen("mock://bucket/runs") == NEW
    assert "ct.steps was 2, is 1" in caplog.text
    remote.remove(NAME)
    assert seen("mock://bucket/runs") is None


def test_remote_checkpoints(remote):
    save(remote, 5, 10, 15)
    assert steps_of(remote) == [10, 15]
    assert newest(remote) == 15
    remote.checkpoints("m", OLD).clear()
    assert newest(remote) is None


def files_there(tmp_path, name: str = NAME) -> Path:
    """Where the bucket has the files of the artefact that the manifest names."""
    return tmp_path / "bucket/runs/run" / Storage("mock://bucket/runs", "run").entry(name).place


@pytest.mark.parametrize("damage", DAMAGES)
def test_remote_damage_is_noticed(remote, tmp_path, damage):
    """Before anything is read, but for bytes that are others in a file of the same size; when it is read, always."""
    commit(remote, OLD)
    DAMAGES[damage](files_there(tmp_path) / "model.bin")
    other = Storage("mock://bucket/runs", "run")
    assert (other.finished(NAME, OLD) is not None) == (damage == "one byte flipped")
    with pytest.raises(FileNotFoundError, match="not a finished artefact"):
        other.fetch(NAME)
    assert list((tmp_path / "cache").iterdir()) == []
    assert seen("mock://bucket/runs") is None  # and the next start makes it again
    commit(remote, OLD)
    assert seen("mock://bucket/runs") == OLD


def test_whether_it_is_finished_is_told_without_reading_it(remote, tmp_path, monkeypatch):
    commit(remote, OLD)
    monkeypatch.setattr(pafs, "copy_files", lambda *arguments, **named: pytest.fail("downloaded"))
    assert Storage("mock://bucket/runs", "run").finished(NAME, OLD)
    assert not (tmp_path / "cache").exists()


def test_what_is_replaced_while_it_is_read_is_not_taken_for_damaged(remote, monkeypatch):
    """The reader has missed it, and fails; the new one stays."""
    commit(remote, OLD)
    reader = Storage("mock://bucket/runs", "run")

    def replaced(*arguments):
        commit(remote, NEW)
        raise FileNotFoundError

    monkeypatch.setattr(reader, "_copied_here", replaced)
    with pytest.raises(FileNotFoundError, match="not a finished artefact"):
        reader.fetch(NAME)
    assert seen("mock://bucket/runs") == NEW


def test_files_of_earlier_versions_are_read_and_replaced(remote, tmp_path):
    """They lay in the artefact's own directory, and nobody had noted their sizes."""
    commit(remote, OLD)
    directory = tmp_path / "bucket/runs/run" / NAME
    attempt = files_there(tmp_path)
    shutil.copytree(attempt, directory, dirs_exist_ok=True)
    shutil.rmtree(attempt)
    entry = remote.entry(NAME)
    kept = {"name": entry.name, "depends": entry.depends, "files": entry.files, "meta": entry.meta}
    text = json.dumps({**kept, "checksum": stable_hash(kept)})
    remote.write_text(f"manifest/{NAME}.json", text)
    assert seen("mock://bucket/runs") == OLD
    commit(remote, NEW)
    assert seen("mock://bucket/runs") == NEW
    assert {file.partition("-")[0] for file in content(directory)} == {"attempt"}


def test_what_people_open_lies_where_its_name_says(remote, tmp_path):
    for depends in (OLD, NEW):
        commit(remote, depends, "model")
        there = {p: d for p, d in content(tmp_path / "bucket/runs/run/model").items() if not p.startswith("attempt-")}
        assert there == files_of(depends)
        assert seen("mock://bucket/runs", "model") == depends


def test_what_arrives_damaged_is_read_once_more(remote, monkeypatch):
    commit(remote, OLD)
    real, calls = pafs.copy_files, 0

    def damaging(source, target, **named):
        nonlocal calls
        real(source, target, **named)
        calls += 1
        if calls == 1:
            Path(target, "model.bin").write_bytes(b"noise")

    monkeypatch.setattr(pafs, "copy_files", damaging)
    assert content(Storage("mock://bucket/runs", "run").fetch(NAME)) == files_of(OLD) and calls == 2


def test_a_disk_that_is_full_while_something_is_fetched_is_a_sentence(remote, monkeypatch):
    """Said at once, because waiting does not help; and nothing is left of the copy."""
    commit(remote, OLD)

    def full(source, target, **named):
        Path(target, "model.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pafs, "copy_files", full)
        patch.setattr(raysed.store.storage.time, "sleep", lambda seconds: pytest.fail("waited"))
        with pytest.raises(UserError, match=r"^no disk space left for .*/cache/\w+; free some space, or set TMPDIR to"):
            Storage("mock://bucket/runs", "run").fetch(NAME)
    assert content(Storage("mock://bucket/runs", "run").fetch(NAME)) == files_of(OLD)


def test_a_job_that_was_taken_over_publishes_nothing_more(remote, tmp_path):
    """Nor do the workers of the job."""
    with remote.lock():
        commit(remote, OLD)
        worker = pickle.loads(pickle.dumps(remote))
        other = Storage("mock://bucket/runs", "run")
        with other.lock():
            for late in (remote, worker):
                with pytest.raises(
                    RunFailed, match=r"has been taken over by a job on .* \(process \d+\), so this one end"
                ):
                    commit(late, NEW)
            assert seen("mock://bucket/runs") == OLD
            commit(pickle.loads(pickle.dumps(other)), NEW)
    assert seen("mock://bucket/runs") == NEW


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_local_copy_is_fetched_again(remote, tmp_path, damage):
    commit(remote, OLD)
    path = remote.fetch(NAME)
    assert path.is_relative_to(tmp_path / "cache")
    DAMAGES[damage](path / "model.bin")
    assert seen("mock://bucket/runs") == OLD
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_processes_of_one_machine_share_a_copy_without_disturbing_each_other(remote, monkeypatch):
    """A second process finishes the same download while this one is still at it."""
    commit(remote, OLD)
    real, depth, inodes = pafs.copy_files, 0, []

    def copy_files(*arguments, **named):
        nonlocal depth
        real(*arguments, **named)
        depth += 1
        if depth == 1:
            other = Storage("mock://bucket/runs", "run").fetch(NAME)
            assert content(other) == files_of(OLD)
            inodes.append((other / "model.bin").stat().st_ino)

    monkeypatch.setattr(pafs, "copy_files", copy_files)
    path = remote.fetch(NAME)
    assert depth == 2 and content(path) == files_of(OLD)
    assert inodes == [(path / "model.bin").stat().st_ino]  # what the other process may be reading stays
    assert [p.name for p in path.parent.iterdir()] == [path.name]


class Interrupted(BaseException):
    """A death of the process as far as `Storage` is concerned."""


def test_a_crash_at_any_remote_write_leaves_the_old_artefact_or_the_new(remote, tmp_path, monkeypatch):
    """The old artefact is there until the new one is; the next commit works, and takes away what was left behind."""
    outcomes = []
    for point in range(1, 20):
        commit(remote, OLD)
        left = point
        with monkeypatch.context() as patch:
            for owner, name in (
                (raysed.store.storage.Storage, "_delete"),
                (raysed.store.storage.Storage, "_put"),
                (pafs, "copy_files"),
            ):
                original = getattr(owner, name)

                def interrupted(*arguments, original=original, **named):
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise Interrupted
                    return original(*arguments, **named)

                patch.setattr(owner, name, interrupted)
            try:
                commit(remote, NEW)
            except Interrupted:
                pass
        outcomes.append(seen("mock://bucket/runs"))
        if left > 0:
            break
    assert outcomes[0] == OLD and outcomes[-1] == NEW
    assert None not in outcomes and outcomes == sorted(outcomes, key=lambda depends: depends == NEW)
    assert OLD in outcomes[1:] and len(outcomes) > 3
    commit(remote, OLD)
    assert len(list((tmp_path / "bucket/runs/run" / NAME).iterdir())) == 1


def test_a_remote_that_fails_now_and_then_is_tried_again(remote, monkeypatch, caplog):
    """Two of five operations fail."""
    real, calls = pafs.copy_files, 0

    def flaky(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls % 5 in (1, 2):
            raise OSError("connection reset by peer")
        return real(*arguments, **named)

    monkeypatch.setattr(pafs, "copy_files", flaky)
    commit(remote, OLD)
    assert calls == 3
    assert caplog.text.count("connection reset by peer; trying again") == 2
    assert seen("mock://bucket/runs") == OLD


def test_a_remote_that_keeps_failing_raises(remote, monkeypatch):
    """And does not look like a damaged artefact, which would be trained again."""
    commit(remote, OLD)

    def broken(*arguments, **named):
        raise OSError("no route to host")

    monkeypatch.setattr(pafs, "copy_files", broken)
    with pytest.raises(OSError, match="no route to host"):
        seen("mock://bucket/runs")


def test_a_remote_that_cannot_be_reached_is_a_sentence(remote, monkeypatch):
    class Broken:
        type_name = "s3"

        def get_file_info(self, path):
            raise OSError("AWS Error ACCESS_DENIED during HeadBucket\nmore")

    monkeypatch.setattr(remote, "_fs", Broken())
    with pytest.raises(UserError, match=r"^storage: mock://bucket/runs/run cannot be reached: AWS .* HeadBucket$"):
        with remote.lock():
            pass


def test_the_manifest_is_plain_json(storage, tmp_path):
    commit(storage, OLD)
    entry = json.loads((tmp_path / f"run/manifest/{NAME}.json").read_text())
    assert entry["name"] == NAME and entry["depends"] == OLD and entry["meta"] == {"score": 1}
    assert set(entry["files"]) == {"model.bin", "deep/config.json"}
