"""About how long a run takes: rates of models on a clock that they move."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import raysed.plan.minutes
from raysed.config import make_config
from raysed.plan.minutes import show_minutes
from raysed.recipe import parse_recipes
from raysed.resources import Cluster

TEXTS, ROWS = [f"sentence {n}" for n in range(100)], 6000
ONE, TWO = Cluster(((4.0, 0.0),)), Cluster(((4.0, 0.0),) * 2)


@pytest.fixture
def clock(monkeypatch):
    """Counts what each model has embedded, by title; a sentence takes as long as its `model` says."""
    found = SimpleNamespace(now=0.0, embedded={})
    monkeypatch.setattr(raysed.plan.minutes, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(raysed.plan.minutes, "device_here", lambda gpu: "cpu")
    monkeypatch.setattr(raysed.plan.minutes, "load_start", lambda encoder, start: (SimpleNamespace(to=str), None))
    monkeypatch.setattr(raysed.plan.minutes, "NativeModel", lambda *parts: Model(found, "own", 0.01))
    return found


@dataclass
class Model:
    clock: SimpleNamespace
    title: str
    seconds: float
    is_model: bool = True
    device: str = ""

    def embed(self, texts):
        self.clock.embedded[self.title] = self.clock.embedded.get(self.title, 0) + len(texts)
        self.clock.now += self.seconds * len(texts)


def job_of(*teachers, recipes=("ct-sed",), old=None, **settings):
    config = make_config({"recipes": list(recipes), **settings})
    return SimpleNamespace(config=config, teachers=teachers, old=old, distilling=parse_recipes(config.recipes))


def step(node="ct-sed", sentences=3000, trainings=1, at_once=1):
    return SimpleNamespace(node=node, sentences=sentences, trainings=trainings, at_once=at_once, workers=1)


def test_minutes_are_sentences_by_rates_measured_on_64(clock):
    job = job_of(Model(clock, "A", 0.025), Model(clock, "file", 9.0, is_model=False), old=Model(clock, "old", 0.0125))
    line = show_minutes(job, [step(), step("ct", 0, trainings=3)], ROWS, TEXTS, ONE)
    # Each step takes three times what its sentences do, and three members embed the corpus: 90 s + 180 s. A: 150 s.
    assert line == "about 10 minutes at the rates of this machine's CPU: trainings 5, old 2, A 3"
    assert clock.embedded == dict.fromkeys(("own", "old", "A"), 1 + 8 + 64)


def test_nodes_of_a_cluster_are_taken_for_the_head(clock):
    line = show_minutes(job_of(Model(clock, "A", 0.025)), [step(), step("ct", 0, 2, at_once=2)], ROWS, TEXTS, TWO)
    assert line == "about 5 minutes at the rates of the head's CPU: trainings 3, A 2"


def test_half_a_minute_is_enough(clock):
    """A slow model embeds fewer sentences; there is no time for those after it."""
    job = job_of(Model(clock, "late", 0.01), Model(clock, "slow", 3.5), recipes=("base",))
    assert show_minutes(job, [], 100, TEXTS, ONE) == "about 6 minutes at the rates of this machine's CPU: slow 6"
    assert clock.embedded == {"slow": 1 + 8}


def test_files_and_static_learners_have_no_rate(clock):
    static = {"encoder": {"static": {}, "pool_layers": 1}, "evaluation": {"pool_layers": [1]}}
    job = job_of(Model(clock, "file", 9.0, is_model=False), recipes=("teachers-sed",), teachers=["a.parquet"], **static)
    line = show_minutes(job, [step("teachers-sed")], ROWS, TEXTS, ONE)
    assert line == "about 0 minutes at the rates of this machine's CPU: no model has a rate" and not clock.embedded
