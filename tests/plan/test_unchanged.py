"""Whether a complete run has nothing to do: never said wrongly, and said without what takes time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import raysed.pipeline
from raysed.config import make_config
from raysed.plan.unchanged import fingerprint, is_unchanged
from raysed.store.status import refusal
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]
PAIRS = "0.5\tA cat sleeps.\tA dog runs.\n4.5\tIt rains.\tRain falls.\n"


@pytest.fixture
def settings(tmp_path) -> dict:
    """Inputs of every kind, all local."""
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder/config.json").write_text('{"hidden_size": 16}')
    (tmp_path / "corpus.txt").write_text("It rains.\nThe sun shines.\n")
    for name in ("test.tsv", "nli.tsv", "views.tsv", "fit.txt", "teacher.parquet"):
        (tmp_path / name).write_text(PAIRS)
    return {
        "storage": str(tmp_path / "runs"),
        "recipes": ["nli-contrastive-sed-flow", "teachers-sed"],
        "teachers": [str(tmp_path / "teacher.parquet")],
        "encoder": {"path": str(tmp_path / "encoder")},
        "corpus": {"source": [str(tmp_path / "corpus.txt"), "bundled:everyday"]},
        "nli": {"train": [str(tmp_path / "nli.tsv")]},
        "contrastive": {"views": ["files"]},
        "views": {"files": [str(tmp_path / "views.tsv")]},
        "flow": {"fit_on": str(tmp_path / "fit.txt")},
        "evaluation": {
            "tasks": {"mine": {"source": str(tmp_path / "test.tsv")}},
            "dev": "mine",
        },
    }


def complete(config, refusal: str | None = None, made_from: str | None = None) -> Storage:
    """A run directory as a complete run leaves it."""
    storage = Storage(config.storage, config.run)
    about = {"refusal": refusal, "made_from": made_from or fingerprint(config)}
    for name in ("plots",) if refusal else ("plots", "model"):
        storage.commit(name, lambda path: (path / "file").write_text("x"), {"config": 1}, about)
    for name in ("report.json", "report.md", "report.html"):
        storage.write_text(name, json.dumps({"status": "complete"}))
    return storage


def test_a_run_whose_model_was_refused_is_complete_without_it(settings):
    config = make_config(settings)
    storage = complete(config, "no model is exported")
    assert is_unchanged(fingerprint(config), storage) and refusal(storage) == "no model is exported"
    allowed = make_config({**settings, "export": {"allow_worse": True}})
    assert not is_unchanged(fingerprint(allowed), storage)
    storage.remove("plots")
    assert not is_unchanged(fingerprint(config), storage) and refusal(storage) is None


def test_a_run_that_has_lost_its_model_is_not_complete(settings):
    config = make_config(settings)
    storage = complete(config)
    storage.remove("model")
    assert not is_unchanged(fingerprint(config), storage) and refusal(storage) is None


def test_nothing_has_changed(settings):
    config = make_config(settings)
    storage = complete(config)
    assert is_unchanged(fingerprint(config), Storage(config.storage, config.run))
    elsewhere = make_config({**settings, "resources": {"silence_seconds": 77}})
    assert is_unchanged(fingerprint(elsewhere), storage)


@pytest.mark.parametrize(
    "name",
    [
        "corpus.txt",
        "encoder/config.json",
        "test.tsv",
        "nli.tsv",
        "views.tsv",
        "fit.txt",
        "teacher.parquet",
    ],
)
def test_every_input_counts_by_its_content(settings, tmp_path, name):
    """One letter is another one; size and modification time are the same."""
    config = make_config(settings)
    storage, path = complete(config), tmp_path / name
    before = path.stat()
    text = path.read_text()
    path.write_text(text[:-3] + "X" + text[-2:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
    assert not is_unchanged(fingerprint(config), storage)
    path.write_text(text)
    assert is_unchanged(fingerprint(config), storage)


def test_files_that_come_and_settings_count(settings, tmp_path):
    config = make_config(settings)
    storage = complete(config)
    assert not is_unchanged(fingerprint(make_config({**settings, "seed": 7})), storage)
    (tmp_path / "encoder/added.json").write_text("{}")
    assert not is_unchanged(fingerprint(config), storage)


def test_the_package_itself_counts(settings, tmp_path, monkeypatch):
    config = make_config(settings)
    storage = complete(config)
    monkeypatch.setattr("raysed.plan.unchanged._PACKAGE", tmp_path / "encoder")
    assert not is_unchanged(fingerprint(config), storage)


def test_an_encoder_in_another_package_counts_by_its_files(settings, tmp_path, monkeypatch):
    package = tmp_path / "site/with_an_encoder"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it is not imported')")
    (tmp_path / "encoder").rename(package / "model")
    monkeypatch.syspath_prepend(tmp_path / "site")
    config = make_config({**settings, "encoder": {"path": "package:with_an_encoder/model"}})
    storage = complete(config)
    assert is_unchanged(fingerprint(config), storage)
    (package / "model/config.json").write_text("{}")
    assert not is_unchanged(fingerprint(config), storage)


@pytest.mark.parametrize(
    "change",
    [
        {"corpus": {"source": "s3://bucket/corpus.txt"}},
        {"corpus": {"source": "user/dataset"}},
        {"encoder": {"path": "bert-base-uncased"}},
        {"encoder": {"path": "package:there_is_no_such_package/model"}},
        {"contrastive": {"views": ["synonym"]}},
        {"contrastive": {"views": ["back_translation"]}},
        {"contrastive": {"views": ["mlm"]}, "views": {"mlm_model": "roberta-base"}},
    ],
)
def test_inputs_that_are_no_local_files_are_left_to_the_checks(settings, change):
    assert fingerprint(make_config({**settings, **change})) is None


def test_a_directory_with_a_link_to_another_is_left_to_the_checks(settings, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "encoder/more").symlink_to(tmp_path / "more")
    assert fingerprint(make_config(settings)) is None


@pytest.mark.parametrize("damage", ["report", "model", "entry", "others"])
def test_a_run_that_is_not_whole_is_not_unchanged(settings, damage):
    config = make_config(settings)
    storage = complete(config)
    root = Path(storage.uri(""))
    if damage == "report":
        storage.write_text("report.json", json.dumps({"status": "failed"}))
    elif damage == "model":
        (root / "model/file").write_text("y")
    elif damage == "entry":
        (root / "manifest/plots.json").unlink()
    else:  # made since by other settings
        storage.commit("model", lambda path: (path / "file").write_text("x"), {"config": 2})
    assert not is_unchanged(fingerprint(config), Storage(config.storage, config.run))


def test_what_changes_while_a_run_works_is_noticed(settings, tmp_path, monkeypatch):
    """The fingerprint is that of before the inputs were read."""
    config = make_config(settings)

    def work(*arguments) -> None:
        (tmp_path / "corpus.txt").write_text("Another corpus.\n")
        complete(config, made_from=arguments[-1])

    monkeypatch.setattr("raysed.pipeline._make", work)
    monkeypatch.setattr("raysed.plan.check.check", lambda config: SimpleNamespace(depends={}))
    raysed.pipeline.run(config)
    assert not is_unchanged(fingerprint(config), Storage(config.storage, config.run))


def test_the_job_says_so_before_it_loads_anything(settings, tmp_path):
    complete(make_config(settings))
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    code = "import sys; sys.argv[0] = 'jobs/ensemble_then_distill.py'; import runpy, atexit\n"
    code += "names = ('ray', 'transformers', 'scipy', 'sklearn', 'matplotlib')\n"
    code += "atexit.register(lambda: print(*(name for name in names if name in sys.modules)))\n"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, "--config", str(tmp_path / "config.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    nothing = f"nothing to do: {tmp_path}/runs/quickstart is complete, and no setting or input has changed\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, nothing + "\n", "")
