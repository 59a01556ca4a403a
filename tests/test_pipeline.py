"""Whole runs: what they publish, what they skip, and what survives faults."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from started_jobs import (
    ALONE,
    ONE_LAYER,
    artefact,
    digest,
    manifest,
    remade,
    threads_of_ray,
    tiny_evaluation,
    tiny_settings,
)

import raysed.cluster.session
import raysed.pipeline
from raysed import cli
from raysed.config import EncoderConfig, load_config, make_config
from raysed.data.tokens import tokenize
from raysed.errors import RunFailed, UserError
from raysed.model.encoding import encode
from raysed.model.pretrained import load_checkpoint
from raysed.store.checkpoints import Checkpoints
from raysed.store.files import CLAIM
from raysed.store.status import describe, finished_report
from raysed.store.storage import Storage
from raysed.train.state import seed_everything

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("blank_pictures")]
ROOT = Path(__file__).resolve().parent.parent


def run(storage: Path, said: list[str] | None = None, **changes) -> str | None:
    settings = tiny_settings(**changes, storage=str(storage))
    settings["resources"] |= ALONE
    config = make_config(settings)
    with threads_of_ray():
        return raysed.pipeline.run(config, said.append if said is not None else lambda line: None)


@pytest.fixture
def copied(finished_run, tmp_path) -> Path:
    """The finished run in a place of its own."""
    subprocess.run(["cp", "-a", str(finished_run), str(tmp_path / "tiny")], check=True)
    return tmp_path / "tiny"


def test_the_report_has_every_row_and_says_it_is_complete(finished_run):
    report = json.loads((finished_run / "report.json").read_text())
    kinds = [(row["recipe"], row["kind"], row["layers"]) for row in report["rows"]]
    expected = {
        *((recipe, "base", 1) for recipe in ("base", "base-flow")),
        ("ct", "ensemble", 1),
    }
    expected |= {("ct", "member", 1), ("ct-sed", "learner", 1), ("ct-sed-flow", "learner", 1)}
    assert set(kinds) == expected | {("word-overlap", "baseline", 0), ("tf-idf", "baseline", 0)}
    assert kinds.count(("ct", "member", 1)) == 3
    assert report["status"] == "complete"
    assert report["rows"][0]["metrics"]["generated-test"]["pairs"] == 150
    assert (finished_run / "report.md").read_text().startswith("# tiny")


def test_the_ensemble_is_scored_by_its_mean_embedding(finished_run):
    """Recomputed from the members' checkpoints."""
    report = json.loads((finished_run / "report.json").read_text())
    row = next(row for row in report["rows"] if row["kind"] == "ensemble")
    evaluation = tiny_evaluation()
    from raysed.model.pretrained import load_encoder

    _, tokenizer = load_encoder(EncoderConfig(**ONE_LAYER))
    tokens = tokenize(tokenizer, evaluation.sentences, 75)
    members = [load_checkpoint(artefact(finished_run, f"ct/members/{i:02d}")) for i in range(3)]
    mean = np.mean([encode(member, tokens, (1,))[0] for member in members], axis=0)
    expected = evaluation.score(mean).metrics["generated-test"]["spearman"]
    assert row["metrics"]["generated-test"]["spearman"] == pytest.approx(expected, abs=0.02)


def test_a_finished_run_has_nothing_to_do(copied, tmp_path):
    before, said = manifest(copied), []
    config = load_config(copied / "config.yaml", [f"storage={tmp_path}"])
    (copied / "config.yaml").write_text("seed: 7  # of a command that was stopped before it changed more")
    raysed.pipeline.run(config, said.append)
    assert said == [f"nothing to do: {copied} is complete, and no setting or input has changed"]
    assert manifest(copied) == before and load_config(copied / "config.yaml").seed == config.seed
    assert json.loads((copied / "status.json").read_text())["state"] == "complete"


def test_a_model_that_is_worse_than_words_is_refused_until_it_is_allowed(copied, tmp_path, monkeypatch, undone):
    """All else is there; the model of earlier settings is gone; and to allow it trains nothing again."""
    fresh, said, again = {"recipes": ["ct-sed"]}, [], []
    before = manifest(copied)
    refusal = run(tmp_path, said, **fresh, export={})
    report = json.loads((copied / "report.json").read_text())
    (tf_idf,) = [r["metrics"]["generated-dev"]["spearman"] for r in report["rows"] if r["recipe"] == "tf-idf"]
    assert (
        said[-2] == refusal
        and said[-1].startswith("report: ")
        and "TF-IDF" in said[-3]
        and f"less than TF-IDF ({tf_idf:.1f}); to export" in refusal
    )
    assert report["status"] == "complete" and report["refused"]["why"] == refusal and "exported" not in report
    assert "No model is exported" in (copied / "report.md").read_text() and not (copied / "model").exists()
    assert run(tmp_path, again, **fresh, export={}) == refusal
    assert again == [f"nothing to do: {copied} is complete, and no setting or input has changed\n{refusal}"]
    (tmp_path / "tiny.yaml").write_text((copied / "config.yaml").read_text())
    monkeypatch.setattr(sys, "argv", ["raysed", "run", "--config", str(tmp_path / "tiny.yaml")])
    assert cli.main() == 3
    described, code = describe(Storage(str(tmp_path), "tiny"))
    assert refusal in described and code == 0
    assert run(tmp_path, **fresh, export={"allow_worse": True}) is None
    assert remade(before, manifest(copied)) == {"model", "plots"} and (copied / "model/modules.json").is_file()


def test_a_report_that_is_not_whole_is_written_again(copied, tmp_path):
    files = ("report.html", "report.md", "report.json")
    storage, before = Storage(str(tmp_path), "tiny"), manifest(copied)
    depends = storage.entry("plots").depends
    for file in files:
        (copied / file).rename(tmp_path / file)
        assert finished_report(storage, depends) is None
        (tmp_path / file).rename(copied / file)
    assert finished_report(storage, depends)
    report = json.loads((tmp_path / "tiny/report.json").read_text())
    (tmp_path / "tiny/report.json").write_text(json.dumps({**report, "run": "another"}))
    (tmp_path / "tiny/report.md").unlink()
    config = load_config(copied / "config.yaml", [f"storage={tmp_path}"])
    raysed.pipeline.run(config, lambda line: None)
    assert remade(before, manifest(copied)) == {"model", "plots"}
    again = json.loads((tmp_path / "tiny/report.json").read_text())
    assert again["rows"] == report["rows"] and finished_report(storage, depends)


def test_the_output_of_a_program_that_calls_raysed_is_its_own(tmp_path, monkeypatch, capfd):
    """Its log is not redirected, and `sys.stderr` stays what it was."""
    stderr = sys.stderr

    def connect() -> None:
        os.write(2, b"the caller's\n")
        assert sys.stderr is stderr
        raise ZeroDivisionError

    monkeypatch.setattr(raysed.pipeline, "session", lambda engine: nullcontext(connect))
    monkeypatch.setattr("raysed.plan.check.check", lambda config: SimpleNamespace(depends={}))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # not that of a command, whose test came before
    try:
        with pytest.raises(ZeroDivisionError):
            raysed.pipeline.run(make_config({"storage": str(tmp_path), "run": "run"}))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capfd.readouterr().err == "the caller's\n" and not (tmp_path / "run/logs").exists()


@pytest.mark.parametrize("mode", [torch.no_grad(), torch.inference_mode(), nullcontext()])
def test_a_callers_modes_and_random_states_end_no_run_and_are_put_back(tmp_path, monkeypatch, mode):
    def draws(config: object) -> None:
        torch.ones(1, requires_grad=True).sum().backward()
        seed_everything(0, 0)
        raise UserError("checked")

    def states() -> list:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        of_numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
        return [modes, torch.get_rng_state().tolist(), of_numpy, random.getstate()]

    monkeypatch.setattr("raysed.plan.check.check", draws)
    with mode:
        before = states()
        with pytest.raises(UserError, match="checked"):
            raysed.pipeline.run(make_config({"storage": str(tmp_path)}))
        assert states() == before


def test_a_run_under_autocast_is_refused(tmp_path):
    """It would train on weights that were rounded once."""
    with torch.autocast("cpu"), pytest.raises(UserError, match=r"^torch\.autocast is on; call raysed outside of it$"):
        raysed.pipeline.run(make_config({"storage": str(tmp_path)}))


def test_a_mistake_leaves_a_complete_run_as_it_is(copied, tmp_path):
    """Found by the checks, and found with a look at the cluster, before anything was made."""
    kept = ("status.json", "report.json", "report.md", "config.yaml")
    before = {name: (copied / name).read_text() for name in kept}
    for changes in ({"corpus": {"source": "no/such/file.txt"}}, {"sed": {**tiny_settings()["sed"], "workers": 77}}):
        with pytest.raises(UserError):
            run(tmp_path, **changes)
        assert {name: (copied / name).read_text() for name in kept} == before


def test_a_job_that_was_taken_over_leaves_the_report_to_the_other(tmp_path, monkeypatch):
    def taken_over(*of):
        (tmp_path / "tiny" / CLAIM).write_text('{"job": "the other"}')
        raise RunFailed("taken over")

    monkeypatch.setattr("raysed.plan.size.rehearsed", taken_over)
    with pytest.raises(RunFailed, match="taken over"):
        run(tmp_path, recipes=["ct"])
    assert not (tmp_path / "tiny/report.json").exists()


def test_a_changed_setting_remakes_what_depends_on_it(copied, tmp_path, caplog):
    """Another learning rate of the learner: members and targets stay, and the log names the setting."""
    before = manifest(copied)
    with caplog.at_level("INFO", logger="raysed"):
        run(tmp_path, sed={**tiny_settings()["sed"], "learning_rate": 2e-3})
    assert remade(before, manifest(copied)) == {
        "ct-sed/learners/00", "ct-sed/embeddings/00", "ct-sed/fidelity/00", "ct-sed-flow/calibrations/00",
        "model", "plots",
    }  # fmt: skip
    notes = [record.getMessage() for record in caplog.records]
    assert "out of date: ct-sed/learners/00: sed.learning_rate changed from 0.01 to 0.002" in notes
    assert len(notes) == len(set(notes))
    assert not [note for note in notes if re.search("[0-9a-f]{16}", note)]


def test_a_damaged_member_is_trained_again_and_comes_out_the_same(finished_run, copied, tmp_path):
    """Where something reads it: here, its embeddings are damaged, too."""
    weights = artefact(copied, "ct/members/01") / "model.safetensors"
    expected = digest(weights.parent)
    (artefact(copied, "ct/embeddings/01") / "layers-1.npy").write_bytes(b"")
    weights.write_bytes(weights.read_bytes()[:1000])
    (copied / "report.json").unlink()  # as if the run had ended before it
    before = manifest(copied)
    run(tmp_path)
    assert json.loads((copied / "report.json").read_text())["status"] == "complete"
    assert digest(artefact(copied, "ct/members/01")) == expected
    assert "ct/members/00" not in remade(before, manifest(copied))
    assert digest(copied / "model") == digest(finished_run / "model")


def test_a_member_that_keeps_failing_is_left_out_down_to_min_members(copied, monkeypatch, tmp_path):
    members, save = {**tiny_settings()["members"], "max_retries": 1}, Checkpoints.save

    def failing(checkpoints, step, write):
        if checkpoints._name.endswith("ct/members/01"):
            raise RuntimeError("planted fault")
        save(checkpoints, step, write)

    monkeypatch.setattr(Checkpoints, "save", failing)
    (tmp_path / "tiny/report.json").unlink()
    (tmp_path / "tiny/manifest/ct/members/01.json").unlink()
    with pytest.raises(RunFailed, match=r"only 2 of 3 members of ct .* 3 are needed .*ct/members/01: .*planted fault"):
        run(tmp_path, recipes=["ct"], members=members)
    assert json.loads((tmp_path / "tiny/report.json").read_text())["status"] == "failed"
    said: list[str] = []
    run(tmp_path, said, recipes=["ct"], members={**members, "min_members": 2})
    report = json.loads((tmp_path / "tiny/report.json").read_text())
    assert [(m["recipe"], m["index"]) for m in report["members"]] == [("ct", 1)]
    assert sum(row["kind"] == "member" and row["layers"] == 1 for row in report["rows"]) == 2
    assert any("left out: ct/members/01" in line for line in said)
