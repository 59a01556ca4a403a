"""What the settings alone can tell is told at once: before the heavy libraries are imported and Ray is started."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from raysed.config import make_config
from raysed.errors import UserError
from raysed.plan.consistency import check_depths, check_settings, check_width

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"transformers", "ray", "deepspeed", "datasets", "matplotlib"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flow": {"fit_on": "nli"}}, r"nli\.train names no sentence pairs"),
        ({"flow": {"fit_on": "sts"}}, r"sts\.train names no sentence pairs"),
        ({"flow": {"fit_tasks": []}}, r"flow\.fit_tasks is empty"),
        (
            {"flow": {"fit_tasks": ["a"], "fit_on": "corpus"}},
            r"flow\.fit_tasks needs flow\.fit_on: tasks, but that is corpus",
        ),
        ({"flow": {"per_task": True, "fit_on": "corpus"}}, r"flow\.per_task fits on each task's own"),
        (
            {"flow": {"per_task": True, "fit_on": "tasks", "fit_tasks": ["a"]}},
            r"flow\.per_task fits on each task's own",
        ),
        (
            {"flow": {"per_task": True, "fit_on": "tasks"}, "export": {"recipe": "base-flow"}},
            r"one for each task; export base$",
        ),
        (
            {"export": {"formats": ["onnx"]}, "encoder": {"layers": 1, "static": {}}, "recipes": ["base"]},
            r"^export\.formats has onnx, which is for transformers, but encoder\.static makes a table",
        ),
        (
            {"export": {"formats": ["int8"]}, "encoder": {"layers": 2}},
            r"^export\.formats has int8, which gives the last layer only, but encoder\.layers is 2; set",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    tasks = {"tasks": {"a": "a.tsv", "b": "b.tsv"}, "dev": "a"}
    with pytest.raises(UserError, match=message):
        check_settings(make_config({"recipes": ["base-flow"], "evaluation": tasks, **settings}))
    check_settings(make_config({"recipes": ["ct-sed"], "evaluation": tasks, **settings, "export": {}}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flow": {"fit_tasks": ["c"]}}, r"^flow\.fit_tasks names 'c', which is not in .*; the tasks are a, b$"),
        (
            {"ct": {"keep": "best_on_dev"}},
            r"^ct\.keep: best_on_dev needs evaluation\.dev; set it, or leave ct\.keep out$",
        ),
        (
            {"sed": {"keep": "best_on_dev"}},
            r"^sed\.keep: best_on_dev needs evaluation\.dev; set it, or leave sed\.keep out$",
        ),
        ({"calibration": {"natsv_k": "dev"}}, r"^calibration\.natsv_k: dev needs evaluation\.dev; "),
    ],
)
def test_settings_that_name_tasks_need_them(settings, message):
    tasks, recipes = {"a": "a.tsv", "b": "b.tsv"}, ["ct-sed"]
    without = {"tasks": tasks, "dev": None}
    with pytest.raises(UserError, match=message):
        check_settings(make_config({"recipes": recipes, "evaluation": without, **settings}))
    there = {"tasks": {**tasks, "c": "c.tsv"}, "dev": "a"}
    check_settings(make_config({"recipes": recipes, "evaluation": there, **settings}))


def taught(**changes) -> dict:
    """Settings of a learner of two teachers, of which files are not looked at."""
    tasks = {"tasks": {"a": "a.tsv"}, "dev": "a"}
    return {"recipes": ["teachers-sed"], "teachers": ["one", "other"], "evaluation": tasks, **changes}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipes": ["ct-sed"], "teachers": []}, r"^recipe 'ct-sed': sed\.widths is for recipes of teachers, .*-sed$"),
        (
            {"recipes": ["teachers-sed", "teachers-sed-whiten"]},
            r"^recipe 'teachers-sed-whiten': .* mixes them; use teachers-sed, or leave sed\.widths out$",
        ),
        ({"combination": {"turn": True}}, r"^sed\.widths turns targets .*; leave combination\.turn out$"),
        ({"sed": {"target": "centred_mean"}}, r"^sed\.widths needs targets in the order .*; use sed\.target: mean$"),
    ],
)
def test_what_does_not_go_with_shorter_embeddings(settings, message):
    check_settings(make_config(taught(**settings)))
    with pytest.raises(UserError, match=message):
        check_settings(make_config(taught(**{**settings, "sed": {"widths": [8], **settings.get("sed", {})}})))
    check_settings(make_config(taught(recipes=["teachers-sed", "base-whiten"], sed={"widths": [8]})))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"combination": {"how": "mean"}},
            r"^combination\.balance: centred is for .*; use combination\.how: concatenated$",
        ),
        (
            {"teachers": ["bundled:encoder"]},
            r"^combination\.balance: centred is between several .*; with 1 leave it out$",
        ),
    ],
)
def test_what_does_not_go_with_a_balance(settings, message):
    taught_by_two = {"teachers": ["bundled:encoder", "a.parquet"], **settings}
    check_settings(make_config(taught(**taught_by_two)))
    balance = {"balance": "centred", **settings.get("combination", {})}
    with pytest.raises(UserError, match=message):
        check_settings(make_config(taught(**{**taught_by_two, "combination": balance})))


@pytest.mark.parametrize(
    ("settings", "head", "message"),
    [
        ({"recipes": ["ct-sed"], "teachers": []}, "fold", r"^recipe 'ct-sed': sed\.head is for recipes of teachers"),
        ({"combination": {"turn": True}}, "fold", r"^sed\.head learns its own turn .*; leave combination\.turn out$"),
        ({"sed": {"widths": [8]}}, "fold", r"^sed\.widths needs targets in the order .*; use only one of the two$"),
        (
            {"recipes": ["teachers-sed-sn"]},
            "keep",
            r"^recipe 'teachers-sed-sn': .*; use teachers-sed, or .*: fold or drop$",
        ),
    ],
)
def test_what_does_not_go_with_a_head(settings, head, message):
    check_settings(make_config(taught(**settings)))
    with pytest.raises(UserError, match=message):
        check_settings(make_config(taught(**{**settings, "sed": {**settings.get("sed", {}), "head": head}})))
    for other in ("fold", "drop"):
        check_settings(make_config(taught(recipes=["teachers-sed-sn"], sed={"head": other})))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"recipes": ["ct-sed"], "teachers": []},
            r"^recipe 'ct-sed': sed\.loss: nll .* recipes of teachers; .*: drop, or",
        ),
        (
            {"sed": {"head": "fold"}},
            r"^recipe 'teachers-sed': sed\.loss: nll learns .*; set sed\.head: drop, or use mse",
        ),
        (
            {"sed": {"head": "drop"}, "combination": {"weights": [1, 2]}},
            r"^sed\.loss: nll .* leave combination\.weights",
        ),
    ],
)
def test_what_does_not_go_with_learnt_variances(settings, message):
    check_settings(make_config(taught(**settings)))
    with pytest.raises(UserError, match=message):
        check_settings(make_config(taught(**{**settings, "sed": {**settings.get("sed", {}), "loss": "nll"}})))
    for loss in ("nll", ["contrastive", "nll"]):
        check_settings(make_config(taught(recipes=["teachers-sed-sn"], sed={"loss": loss, "head": "drop"})))
    both = {"weights": [1, 2]}
    check_settings(make_config(taught(sed={"loss": ["unit_mse", "nll"], "head": "drop"}, combination=both)))


def test_losses_that_are_no_sum_are_refused():
    for loss in ([], ["mse", "mse"]):
        with pytest.raises(UserError, match=r"^setting sed\.loss: list at least one, and each once"):
            make_config(taught(sed={"loss": loss}))
    with pytest.raises(
        UserError, match=r"^sed\.loss: contrastive compares .* batch; set sed\.batch_size to 2 or more$"
    ):
        make_config(taught(sed={"loss": ["mse", "contrastive"], "batch_size": 1}))


def test_shorter_embeddings_are_shorter_and_in_order():
    config = make_config(taught(sed={"widths": [64, 128]}))
    check_width(config, 129)
    with pytest.raises(UserError, match=r"^sed\.widths has 128, but the learner's embeddings have 128 dimensions, "):
        check_width(config, 128)
    for widths in ([128, 64], [64, 64]):
        with pytest.raises(UserError, match=r"name each once and in ascending order"):
            make_config(taught(sed={"widths": widths}))


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"layers": [1, 4]}, r"^evaluation\.layers has 4, but 'bundled:encoder' has 3 layers$"),
        ({"layers": [0]}, r"^evaluation\.layers has 0, but "),
    ],
)
def test_depths_that_the_encoder_does_not_have(evaluation, message):
    with pytest.raises(UserError, match=message):
        check_depths(make_config({"evaluation": evaluation}), 3)
    check_depths(make_config({"evaluation": evaluation | {"layers": [1, "first_last"]}}), 4)


def imported(done: subprocess.CompletedProcess) -> set[str]:
    """What `python -X importtime` lists, and it lists to the end."""
    found = set(re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, flags=re.MULTILINE))
    assert {"yaml", "raysed.config"} <= found, "the list is read"
    return {name.split(".")[0] for name in found}


COMMANDS = {
    "ensemble_then_distill": ["--storage", "runs"],
    "evaluate": ["--model", "bundled:encoder"],
    "reproduce": ["sed-table-1", "--scale", "small", "--data", "DATA", "--output", "tables"],
}


@pytest.mark.parametrize(
    ("job", "setting", "sentence"),
    [
        ("ensemble_then_distill", "flow.fit_on=nli", "flow.fit_on is nli, but nli.train names no sentence pairs;"),
        ("evaluate", "encoder.layers=none", "setting encoder.layers: "),
        ("reproduce", "flow.fit_on=nli", "flow.fit_on is nli, but nli.train names no sentence pairs;"),
    ],
)
def test_a_mistake_in_the_settings_costs_no_heavy_import(tmp_path, data_dir, job, setting, sentence):
    options = [str(data_dir) if option == "DATA" else option for option in COMMANDS[job]]
    options += ["--set", setting, *(["--set", "nli.train=[]"] if job == "reproduce" else [])]
    command = [sys.executable, "-X", "importtime", str(ROOT / f"jobs/{job}.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and f"error: {sentence}" in done.stderr
    assert not imported(done) & HEAVY
    assert not (tmp_path / "runs").exists()
