"""The main job, distillation and streams on four GPUs, which are numbers only, and on a Ray with one CPU."""

import itertools
import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import test_blocks
import trainings
import yaml
from numbered_gpus import joined, ray_head
from started_jobs import ONE_LAYER, ROOT, small_tasks
from test_embedder import embed_as_on_the_page
from trainings import Scored

import raysed.make.models
from raysed import bundled, cli
from raysed.cluster.execute import ExecutionOptions, Executor
from raysed.cluster.on_ray import RayBackend
from raysed.config import find_config, load_config
from raysed.graph import Training
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.store.storage import Storage
from raysed.train.selection import TrainingResult

GPUS = 4


class Recorded(Scored):
    """Notes on which GPU it is, from when to when; waits until all are in use."""

    marks: Path

    def __init__(self, inputs, settings, context):
        self.inputs, self.settings, self.context = inputs, settings, context
        self.setup = SimpleNamespace(plan=SimpleNamespace(steps=10**6))

    def run(self) -> TrainingResult:
        (gpu,), began = ray.get_gpu_ids(), time.time()
        mark = self.marks / f"{os.getpid()}-{began}.json"
        about = {"name": self.context.task.name, "gpu": gpu, "began": began}
        mark.write_text(json.dumps(about))
        everywhere = self.marks / "everywhere"
        while not everywhere.exists() and time.time() - began < 120:
            at_work = [json.loads(path.read_text() or "{}") for path in self.marks.glob("*.json")]
            if len({each["gpu"] for each in at_work if each and "ended" not in each}) == GPUS:
                everywhere.touch()
            time.sleep(0.05)
        time.sleep(0.1)
        mark.write_text(json.dumps({**about, "ended": time.time()}))
        steps, score = 10**6, 100 * (self.settings.get("lower_bound") or 0.0)
        self.context.checkpoints.save(steps, lambda out: (out / "state").touch())
        return TrainingResult([{"step": 1, "dev": {"": score}}], "", steps, score, steps=steps)


@pytest.fixture(scope="module")
def head_of_four() -> Iterator[str]:
    with ray_head(cpus=GPUS, gpus=GPUS) as address:
        yield address


@pytest.fixture
def four_gpus(head_of_four) -> Iterator[None]:
    with joined(head_of_four, trainings, test_blocks, sys.modules[__name__]):
        yield


@pytest.fixture
def one_cpu() -> Iterator[None]:
    with ray_head(cpus=1, gpus=1) as address, joined(address):
        yield


def command(monkeypatch, *words: str) -> int:
    """Runs a command of raysed in this process, whose Ray is the one that RAY_ADDRESS names."""
    monkeypatch.setattr("sys.argv", ["raysed", *words])
    return cli.main()


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_members_and_grid_of_the_main_job_use_all_gpus_in_one_experiment(four_gpus, tmp_path, monkeypatch):
    Recorded.marks = tmp_path / "marks"
    Recorded.marks.mkdir()
    monkeypatch.setattr(raysed.make.models, "MemberTrainer", Recorded)
    config, storage = load_config(find_config("quickstart"), []), Storage(str(tmp_path), "run")
    graph = Plan(check(config)).graph
    options = ExecutionOptions(config.resources, members=config.members.count)
    executor = Executor(graph, storage, options, RayBackend(storage, config.resources, print), print)
    (members,) = [batch for batch in graph.batches() if isinstance(batch[0].execution, Training)]
    for needed in {source for member in members for source in member.sources()}:
        depends = executor.state.task(needed).depends
        storage.commit(needed.name, lambda out: (out / "table").touch(), depends, {"rows": 600})
    executor.make(members)

    found = [json.loads(path.read_text()) for path in Recorded.marks.glob("*.json")]
    names = [f"ct/members/{i:02d}" for i in range(10)]
    names += [f"sts/grid/{bound}/{i:02d}" for bound in ("0", "0.3", "0.6") for i in range(2)]
    assert {each["name"] for each in found} == {member.name for member in members} == set(names)
    (experiment,) = (tmp_path / "run/tune").iterdir()
    assert len([path for path in experiment.iterdir() if path.is_dir()]) == len(names)
    assert (Recorded.marks / "everywhere").exists(), "all GPUs were in use at once"
    for one, other in itertools.combinations(found, 2):  # each training has a GPU for itself
        is_apart = one["ended"] <= other["began"] or other["ended"] <= one["began"]
        assert is_apart or one["gpu"] != other["gpu"], (one, other)
    assert all(map(executor.state.entry, names))


# -- whole commands ----------------------------------------------------------------------------------------------------


def settings_of(**changes) -> dict:
    """The main job with few steps: ten members and a grid, two learners, a flow."""
    return {
        "run": "main",
        "recipes": ["sts", "ct-sed-flow"],
        "corpus": {"source": "bundled:generated-text", "sentences": 600},  # two blocks, and a shorter one
        "encoder": ONE_LAYER,
        "members": {"count": 10},
        "ct": {"steps": 2, "schedule": "scaled"},
        "sts": {"train": ["bundled:generated-train"], "lower_bounds": [0.0, 0.3, 0.6], "models": 1, "batch_size": 256},
        "sed": {"epochs": 0.1, "learners": 2},
        "flow": {"epochs": 1},
        "evaluation": {"tasks": small_tasks(), "dev": "generated-dev", "pool_layers": [1]},
        "export": {"recipe": "ct-sed-flow", "allow_worse": True},
        **changes,
    }


def rows_of_blocks(root: Path, table: str) -> list[int]:
    entries = Storage(str(root.parent), root.name).entries(table)
    return [entry.meta["rows"] for entry in entries if entry.name.rpartition("/")[2].isdecimal()]


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("undone", "blank_pictures", "four_gpus")
def test_the_main_job_goes_to_its_end_on_gpus(tmp_path, monkeypatch):
    config, root = tmp_path / "main.yaml", tmp_path / "main"
    config.write_text(yaml.safe_dump(settings_of()))
    assert command(monkeypatch, "run", "--config", str(config), "--storage", str(tmp_path)) == 0
    (experiment,) = (root / "tune").iterdir()
    assert sum(path.is_dir() for path in experiment.iterdir()) == 13, "ten members and the grid in one experiment"
    assert rows_of_blocks(root, "ct-sed/targets") == [256, 256, 88]
    learners = [root / "train" / f"ct-sed-learners-{number:02d}" for number in range(2)]
    assert all(learner.is_dir() for learner in learners), "Ray Train had both"
    scored = {row["recipe"] for row in json.loads((root / "report.json").read_text())["rows"]}
    assert {"sts", "ct", "ct-sed", "ct-sed-flow"} <= scored
    assert (root / "model/model.safetensors").exists()


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("undone", "blank_pictures", "four_gpus")
def test_two_outside_teachers_are_distilled_on_gpus(exports, tmp_path, monkeypatch, make_sentences):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(list(dict.fromkeys(make_sentences(800)))[:600]))
    words = ["--teachers", str(exports["1"]), str(exports["2"]), "--corpus", str(text), "--storage", str(tmp_path)]
    assert command(monkeypatch, "distill", *words, "--allow-worse", "--set", "sed.epochs=0.1") == 0
    root = tmp_path / "distilled"
    kept = json.loads((root / "report.json").read_text())["corpus"]["kept"]
    assert rows_of_blocks(root, "teachers/rows") == 2 * [256, 256, kept - 512]
    assert (root / "model/model.safetensors").exists()


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
def test_blocks_on_gpus_never_mix(four_gpus, tmp_path):
    """The first is late in both stages, the second exists by then, and the last is shorter."""
    storage, marks, text = Storage(str(tmp_path), "run"), tmp_path / "marks", [f"sentence {n}" for n in range(10)]
    test_blocks.save_corpus(storage, text)
    stream = test_blocks.stream_of(storage, marks, test_blocks.tables_of(text, is_keyed=True), **{"0": "late"})
    test_blocks.make_blocks_here(replace(stream, places=stream.places[1:2]), storage, print)
    marks.unlink()
    options, reported = ray.data.DataContext.get_current().execution_options, []
    on_block = lambda rows, made: reported.append((rows, made))  # noqa: E731
    test_blocks.on_ray(replace(stream, chain=2 * stream.chain), storage, on_block, gpus=1.0)
    assert not options.preserve_order, "a notebook's own datasets"
    assert sorted(reported) == [(1, 1), (3, 0), (3, 3), (3, 3)]
    assert sorted(marks.read_text().split()) == ["0", "0", "6", "6", "9", "9"]
    assert [each["id"] for each in test_blocks.read(storage, 4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("one_cpu", "blank_pictures")
def test_one_cpu_is_enough_for_the_pages_example_and_the_template(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    embed_as_on_the_page(tmp_path, "num_cpus=0, num_gpus=1")
    (tmp_path / "text.txt").write_text("\n".join(bundled.corpus()[:300]))
    main = runpy.run_path(str(ROOT / "examples/ray_template.py"))["main"]
    main(str(tmp_path / "text.txt"), ["bundled:encoder", "bundled:raw"], "vectors", gpus=1)
    assert (tmp_path / "runs/distilled/model/model.safetensors").exists()
