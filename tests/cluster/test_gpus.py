"""The main job, distillation and streams on GPUs, which are numbers only, and on a Ray with one CPU."""

import json
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import test_blocks
import yaml
from numbered_gpus import joined, ray_head
from started_jobs import ONE_LAYER, ROOT, small_tasks
from test_embedder import embed_as_on_the_page

from raysed import bundled, cli
from raysed.store.storage import Storage

GPUS = 2


@pytest.fixture(scope="module")
def head_with_gpus() -> Iterator[str]:
    with ray_head(cpus=GPUS, gpus=GPUS) as address:
        yield address


@pytest.fixture
def gpus(head_with_gpus) -> Iterator[None]:
    with joined(head_with_gpus, test_blocks):
        yield


@pytest.fixture
def one_cpu() -> Iterator[None]:
    with ray_head(cpus=1, gpus=1) as address, joined(address):
        yield


def command(monkeypatch, *words: str) -> int:
    """Runs a command of raysed in this process, whose Ray is the one that RAY_ADDRESS names."""
    monkeypatch.setattr("sys.argv", ["raysed", *words])
    return cli.main()


# -- whole commands ----------------------------------------------------------------------------------------------------


def main_job() -> dict:
    """The main job with few steps: ten members and a grid, a learner, a flow."""
    return {
        "run": "main",
        "recipes": ["sts", "ct-sed-flow"],
        "corpus": {"source": "bundled:generated-text", "sentences": 300},  # a block, and a shorter one
        "encoder": ONE_LAYER,
        "members": {"count": 10},
        "ct": {"steps": 2, "schedule": "scaled"},
        "sts": {"train": ["bundled:generated-train"], "lower_bounds": [0.0, 0.6], "models": 1, "epochs": 0.1},
        "sed": {"epochs": 0.1, "learners": 1},
        "flow": {"epochs": 1},
        "evaluation": {"tasks": small_tasks(), "dev": "generated-dev", "pool_layers": [1]},
        "export": {"recipe": "ct-sed-flow", "allow_worse": True},
    }


def rows_of_blocks(root: Path, table: str) -> list[int]:
    entries = Storage(str(root.parent), root.name).entries(table)
    return [entry.meta["rows"] for entry in entries if entry.name.rpartition("/")[2].isdecimal()]


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("undone", "blank_pictures", "gpus")
def test_the_main_job_goes_to_its_end_on_gpus(tmp_path, monkeypatch):
    config, root = tmp_path / "main.yaml", tmp_path / "main"
    config.write_text(yaml.safe_dump(main_job()))
    assert command(monkeypatch, "run", "--config", str(config), "--storage", str(tmp_path)) == 0
    (experiment,) = (root / "tune").iterdir()
    assert sum(path.is_dir() for path in experiment.iterdir()) == 12, "ten members and the grid in one experiment"
    assert rows_of_blocks(root, "ct-sed/targets") == [256, 44]
    assert (root / "train/ct-sed-learners-00").is_dir(), "Ray Train had it"
    scored = {row["recipe"] for row in json.loads((root / "report.json").read_text())["rows"]}
    assert {"sts", "ct", "ct-sed", "ct-sed-flow"} <= scored
    assert (root / "model/model.safetensors").exists()


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("undone", "blank_pictures", "gpus")
def test_two_outside_teachers_are_distilled_on_gpus(exports, tmp_path, monkeypatch, make_sentences):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(list(dict.fromkeys(make_sentences(400)))[:300]))
    words = ["--teachers", str(exports["1"]), str(exports["2"]), "--corpus", str(text), "--storage", str(tmp_path)]
    words += ["--run", "distilled"]
    assert command(monkeypatch, "distill", *words, "--allow-worse", "--set", "sed.epochs=0.1") == 0
    root = tmp_path / "distilled"
    kept = json.loads((root / "report.json").read_text())["corpus"]["kept"]
    assert rows_of_blocks(root, "teachers/rows") == 2 * [256, kept - 256]
    assert (root / "model/model.safetensors").exists()


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
def test_blocks_on_gpus_never_mix(gpus, tmp_path):
    """The first is late in both stages, the second exists by then, and the last is shorter."""
    storage, marks, text = Storage(str(tmp_path), "run"), tmp_path / "marks", [f"sentence {n}" for n in range(10)]
    test_blocks.save_corpus(storage, text)
    stream = test_blocks.stream_of(storage, marks, test_blocks.tables_of(text, is_keyed=True), **{"0": "late"})
    test_blocks.make_blocks_here(replace(stream, places=stream.places[1:2]), storage, print)
    marks.unlink()
    options, reported = ray.data.DataContext.get_current().execution_options, []
    on_event = lambda _, event: reported.append((event["rows"], event["made"]))  # noqa: E731
    test_blocks.on_ray(replace(stream, chain=2 * stream.chain), storage, on_event, gpus=1.0)
    assert not options.preserve_order, "a notebook's own datasets"
    assert sorted(reported) == [(1, 1), (3, 0), (3, 3), (3, 3)]
    assert sorted(marks.read_text().split()) == ["0", "0", "6", "6", "9", "9"]
    assert [each["id"] for each in test_blocks.read(storage, 4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
def test_known_text_is_copied_on_gpus(gpus, tmp_path):
    storage = Storage(str(tmp_path), "run")
    test_blocks.save_corpus(storage, test_blocks.TEXT)
    test_blocks.copy_what_is_known(tmp_path, storage, gpus=1.0)


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
    assert (tmp_path / "runs/vectors-vectors-bundled/model/model.safetensors").exists()
