"""raysed's pieces in a Ray program of one's own: what they leave, what they override, and what mistakes say."""

import importlib.util
import io
import json
import shutil
import threading
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import ray
import yaml
from ray import tune
from started_jobs import ONE_LAYER, manifest, remade, small_tasks

import raysed.pipeline
from raysed.cluster.programs import Program, prepare_learner, prepare_member
from raysed.config import load_config
from raysed.errors import UserError, last_line
from raysed.make.models import Member
from raysed.ray import TargetSink, fit_flow, train_member
from raysed.store.storage import Storage

TEMPLATE = Path(__file__).resolve().parents[2] / "examples/ray_template.py"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def run(tmp_path) -> dict:
    """Settings of a run with a grid; a test that trains nothing makes only what it needs of it."""
    return {
        "run": "mine",
        "storage": str(tmp_path),
        "recipes": ["ct-sed-flow", "sts-sed"],
        "corpus": {"source": "bundled:generated-text", "sentences": 300},
        "encoder": ONE_LAYER,
        "members": {"count": 2, "evaluate_every": 1},
        "ct": {"steps": 2, "schedule": "scaled"},
        "sts": {
            "train": ["bundled:generated-train"],
            "lower_bounds": [0.1, 0.3, 0.5],
            "models": 2,
        },
        "evaluation": {"tasks": small_tasks(), "dev": "generated-dev", "pool_layers": [1]},
    }


# -- the template ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(ray_cluster, tmp_path_factory, tiny_encoder_dir, make_transformer, make_sentences) -> tuple[Path, str]:
    """The directory of the template's run, and what the program printed."""
    place, preserve_order = tmp_path_factory.mktemp("template"), ray.data.DataContext.get_current().execution_options
    text, encoder = place / "text.txt", shutil.copytree(tiny_encoder_dir, place / "encoder")
    text.write_text("\n".join(dict.fromkeys(make_sentences(400))))
    make_transformer("bert", positions=80).save_pretrained(encoder)
    spec = importlib.util.spec_from_file_location("ray_template", TEMPLATE)
    module, printed = importlib.util.module_from_spec(spec), io.StringIO()
    spec.loader.exec_module(module)
    with redirect_stdout(printed):
        module.main(str(text), str(encoder), str(place), members=2, steps=4, gpus=0)
    preserve_order.preserve_order = False
    return place / "template", printed.getvalue()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.more
def test_the_template_leaves_a_model_of_each_piece(template):
    root, printed = template
    table = [line.split() for line in printed.splitlines() if line.split()[:1] == ["ct"]]
    assert [(seed, step) for _, seed, step, *_ in table] == [("0", "4"), ("1", "4")]
    learner, flow = (line.split(": ")[1] for line in printed.splitlines()[-2:])
    paths = {"ct/members/00": table[0][-1], "ct/members/01": table[1][-1]}
    paths |= {"ct-sed/learners/00": learner, "ct-sed-flow/calibrations/00": flow}
    assert {name: str(Storage(str(root.parent), root.name).fetch(name)) for name in paths} == paths


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.usefixtures("blank_pictures")
def test_a_later_run_finds_all_that_a_program_has_made(template):
    root, _ = template
    before, config = manifest(root), load_config(root / "config.yaml", ["resources.engine=local"])
    raysed.pipeline.run(config, lambda line: None)
    made = remade(before, manifest(root))
    assert made and not made & before.keys() and (root / "report.json").exists()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.more
def test_trials_may_override_settings_and_a_mistake_is_the_error_of_its_trial(template):
    root, _ = template
    settings = yaml.safe_load((root / "config.yaml").read_text())
    results = tune.Tuner(
        tune.with_resources(train_member, {"CPU": 1}),
        param_space={"run": settings, "node": "ct", "seed": 0, "ct.steps": tune.grid_search([2, 4, "many"])},
        run_config=tune.RunConfig(storage_path=str(root.parent), verbose=0),
    ).fit()
    rows = {result.config["ct.steps"]: result for result in results}
    for steps in (2, 4):
        directory = Path(rows[steps].metrics["path"])
        own = next(path for path in directory.parents if path.name.startswith("template-"))
        assert own.parent == root.parent and load_config(own / "config.yaml").ct.steps == steps
        assert (directory / "model.safetensors").exists() and rows[steps].metrics["step"] == steps
    sentence = "setting ct.steps: input should be a valid integer, unable to parse string as an integer (got 'many')"
    assert last_line(rows["many"].error) == f"raysed.errors.UserError: {sentence}"
    again = tune.Tuner(
        tune.with_resources(train_member, {"CPU": 1}),
        param_space={"run": settings, "node": "ct", "seed": 1},
        run_config=tune.RunConfig(storage_path=str(root.parent), verbose=0),
    ).fit()[0]
    (*_, last) = (Path(again.metrics["path"]) / "history.jsonl").read_text().splitlines()
    assert (again.metrics["step"], again.metrics["loss"]) == (4, json.loads(last)["loss"])  # it was trained before


# -- one process -----------------------------------------------------------------------------------------------------


def test_processes_that_start_together_make_the_corpus_once(run, tmp_path):
    programs, barrier = [Program({"run": run}) for _ in range(2)], threading.Barrier(2)

    def complete(program: Program) -> None:
        barrier.wait()
        program.completed(program.artefacts["ct/members/00"])

    threads = [threading.Thread(target=complete, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert json.loads((tmp_path / "mine/timings.json").read_text())["corpus"]["sentences"] == 300


def test_a_mistake_in_a_config_is_a_sentence(run):
    member = {"run": run, "node": "ct", "seed": 0}
    grid = {"run": run, "node": "sts", "lower_bound": 0.1, "seed": 0}
    learner = {"run": run, "node": "ct-sed", "seed": 0}
    wrong = [
        (
            prepare_member,
            {**member, "node": "nothing"},
            "node is 'nothing'; the run's ensembles are: ct, sts (recipes)",
        ),
        (prepare_member, {**grid, "lower_bound": 1.5}, "lower_bound is 1.5; it must be one of sts.lower_bounds: 0.1, "),
        (prepare_member, {**grid, "lower_bound": None}, "lower_bound is None; it must be one of sts.lower_bounds: 0.1"),
        (prepare_member, {**member, "lower_bound": 0.1}, "lower_bound is 0.1; ct has no grid; leave it out"),
        (prepare_member, {**member, "seed": 0.5}, "seed is 0.5; it numbers the models of ct (members.count), so it "),
        (prepare_member, {**member, "seed": True}, "seed is True; it numbers the models of ct (members.count), so it "),
        (prepare_member, {**grid, "seed": 2}, "(sts.models), so it must be a whole number from 0 to 1"),
        (prepare_member, {"node": "ct", "seed": 0}, "config has no run; set it to the path of a configuration, or to"),
        (prepare_member, {**member, "run": {}}, "storage is 'runs'; workers have other working directories, so it "),
        (prepare_member, {**member, "steps": 3}, "config has 'steps'; write an override with its block, such as ct.st"),
        (prepare_member, {**member, "storage.x": 3}, "config has 'storage.x'; write an override with its block, such"),
        (prepare_member, {**member, "ct.stepz": 3}, "unknown setting ct.stepz: did you mean ct.steps?"),
        (prepare_member, {**member, "ct.keep": "closest"}, "unknown setting ct.keep; the settings here are "),
        (prepare_learner, learner, "there are no targets of ct-sed; make them with raysed.ray.TargetSink"),
        (prepare_learner, {**learner, "seed": 1}, "seed is 1; it numbers the models of ct-sed (sed.learners), so it "),
        (prepare_learner, member, "node is 'ct'; the run's learners are: ct-sed, sts-sed (recipes)"),
        (TargetSink, learner, "no model of ct exists; train them first"),
        (TargetSink, member, "node is 'ct'; the run has targets of: ct-sed, sts-sed (recipes)"),
        (fit_flow, {**learner, "node": "ct-flow"}, "node is 'ct-flow'; the run's calibrations are: base-flow, base-wh"),
        (fit_flow, {**learner, "node": "ct-sed-flow"}, "no model of ct exists; train them first"),
    ]
    for piece, config, sentence in wrong:
        with pytest.raises(UserError) as caught:
            piece(config)
        assert sentence in str(caught.value) and str(caught.value).count(". ") == 0, (piece, sentence)


def test_storage_may_be_named_beside_the_settings(run, tmp_path):
    config = {"run": {**run, "storage": "elsewhere"}, "storage": tmp_path / "there", "node": "ct", "seed": 0}
    program = Program(config)
    assert str(program.storage) == str(tmp_path / "there/mine")
    assert isinstance(program.find(config, Member), Member)
