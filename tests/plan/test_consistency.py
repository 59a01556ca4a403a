"""Mistakes that the settings alone can tell are told at once: before the heavy libraries are imported."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raysed.config import Config, make_config
from raysed.errors import UserError
from raysed.plan.consistency import check_settings, check_width

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"transformers", "ray", "deepspeed", "datasets", "matplotlib"}
PLAIN = {"recipes": ["base-flow"], "evaluation.tasks": {"a": "a.tsv", "b": "b.tsv"}, "evaluation.dev": "a"}
TAUGHT = {**PLAIN, "recipes": ["teachers-sed"], "teachers": ["one", "other"]}
PER_TASK = {**PLAIN, "flow.per_task": True, "flow.fit_on": "tasks"}
MEMBERS = {**PLAIN, "recipes": ["ct-sed"]}
TURNED = {**TAUGHT, "combination.turn": True}
OLD = {**TAUGHT, "combination.turn": "old/model"}
NO_DEV, WIDTHS, HEAD = {"evaluation.dev": None}, {"sed.widths": [8]}, {"sed.head": "keep"}
GERMAN = {"corpus.translations": ["de"]}


def config(settings: dict[str, Any]) -> Config:
    """Of settings with dotted names."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        block, _, key = name.rpartition(".")
        (nested.setdefault(block, {}) if block else nested)[key] = value
    return make_config(nested)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (PLAIN, {"flow.fit_on": "nli"}, r"nli\.train names no sentence pairs"),
        (PLAIN, {"flow.fit_on": "sts"}, r"sts\.train names no sentence pairs"),
        (PLAIN, {"flow.fit_tasks": []}, r"flow\.fit_tasks is empty"),
        (PLAIN, {"flow.fit_tasks": ["a"], "flow.fit_on": "corpus"}, r"fit_tasks needs .*fit_on: tasks, but .* corpus"),
        (PLAIN, {"flow.fit_tasks": ["c"]}, r"^flow\.fit_tasks names 'c', which is not in .*; the tasks are a, b$"),
        (PLAIN, {"flow.per_task": True, "flow.fit_on": "corpus"}, r"flow\.per_task fits on each task's own"),
        (PER_TASK, {"flow.fit_tasks": ["a"]}, r"flow\.per_task fits on each task's own"),
        (PER_TASK, {"export.recipe": "base-flow"}, r"one for each task; export base$"),
        ({**TAUGHT, "recipes": ["teachers", "teachers-sed"]}, {"export.recipe": "teachers"}, r"name teachers-sed$"),
        (MEMBERS, {"ct.copy": "best_on_dev", **NO_DEV}, r"^ct\.copy: best_on_dev needs evaluation\.dev; "),
        (MEMBERS, {"sed.checkpoint": "best_on_dev", **NO_DEV}, r"^sed\.checkpoint: best_on_dev needs evaluation\.dev"),
        (MEMBERS, {"calibration.natsv_k": "dev", **NO_DEV}, r"^calibration\.natsv_k: dev needs evaluation"),
        (MEMBERS, WIDTHS, r"^recipe 'ct-sed': sed\.widths orders the targets of teachers, .*-sed$"),
        (
            {**TAUGHT, "recipes": ["teachers-sed-whiten"]},
            WIDTHS,
            r"^recipe 'teachers-sed-whiten': .* mixes them; use teachers-sed, or leave sed\.widths out$",
        ),
        (TURNED, WIDTHS, r"^sed\.widths already rotates .*; remove combination\.turn$"),
        ({**TAUGHT, "sed.target": "centred_mean"}, WIDTHS, r"^sed\.widths needs .*; set sed\.target: mean$"),
        (MEMBERS, HEAD, r"^recipe 'ct-sed': sed\.head is only for teachers, "),
        (TURNED, HEAD, r"^sed\.head learns .*; remove combination\.turn$"),
        (OLD, WIDTHS, r"^sed\.widths already rotates .*; remove combination\.turn$"),
        (OLD, HEAD, r"^sed\.head learns .*; remove combination\.turn$"),
        (OLD, {"sed.target": "centred_mean"}, r"^recipe 'teachers-sed': combination\.turn leads .* sed\.target: mean$"),
        (OLD, {"recipes": ["teachers-sed-sn"]}, r"^recipe 'teachers-sed-sn': .* calibration .* use teachers-sed and"),
        (OLD, {"combination.turn": "members:ct"}, r"^combination\.turn is 'members:ct'; name a model from elsewhere"),
        (PLAIN, {"combination.turn": "old/model"}, r"^combination\.turn is 'old/model'; .* teachers to learn from$"),
        ({**TAUGHT, **WIDTHS}, HEAD, r"^sed\.widths needs .* sed\.head does not give; remove one$"),
        (
            {**TAUGHT, "recipes": ["teachers-sed-sn"]},
            {"sed.head": "keep"},
            r"^recipe 'teachers-sed-sn': .*; use teachers-sed, or remove sed\.head$",
        ),
        (MEMBERS, {**GERMAN, "corpus.passage_characters": 100}, r"cuts sentences, but not their corpus\.translations"),
        (PLAIN, GERMAN, r"^corpus\.translations has text for learners, but recipes has none; add one such"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(right, wrong, message):
    check_settings(config(right))
    with pytest.raises(UserError, match=message):
        check_settings(config({**right, **wrong}))


def test_shorter_embeddings_are_shorter():
    shorter = config({**TAUGHT, "sed.widths": [64, 128]})
    check_width(shorter, 129)
    with pytest.raises(UserError, match=r"^sed\.widths has 128, but the learner's embeddings have 128 dimensions; "):
        check_width(shorter, 128)


def test_a_mistake_in_the_settings_costs_no_heavy_import(tmp_path):
    command = [ROOT / "jobs/ensemble_then_distill.py", "--storage", "runs", "--set", "flow.fit_on=nli"]
    words = [sys.executable, "-X", "importtime", *command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "error: flow.fit_on is nli, but nli.train names no sentence pairs;" in done.stderr
    imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, flags=re.MULTILINE))
    assert {"yaml", "raysed.config"} <= imported, "the list is read"
    assert not {name.split(".")[0] for name in imported} & HEAVY
    assert not (tmp_path / "runs").exists()
