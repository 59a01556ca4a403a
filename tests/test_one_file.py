"""Whatever CONTRIBUTING.md adds is one file: its examples, as they stand there and in examples/extend/."""

import functools
import importlib
import re
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from raysed import config, registry
from raysed.data.tokens import FlatTokens
from raysed.errors import UserError
from raysed.model import teacher
from raysed.recipe import parse_recipe
from raysed.report import section
from raysed.score import kinds
from raysed.score.intervals import interval, resample
from raysed.score.tasks import Evaluation, mean_score
from raysed.train.calibration import fit_calibration
from raysed.train.loop import TrainingLoop
from raysed.train.setup import set_up
from raysed.train.stage import Start

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = [
    *re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL),
    *(path.read_text() for path in sorted(ROOT.glob("examples/extend/*.py"))),
]
FOUND = (
    *(registry.stages, registry.calibrations, registry.calibration_names),
    *(teacher.kinds, kinds.kinds, section.all_sections),
)


@pytest.fixture
def new_file(tmp_path, monkeypatch):
    """Puts the example of a package into a file that is found like those of the package."""

    def forget():
        for cached in FOUND:
            cached.cache_clear()

    def put(package: str) -> None:
        places = ((re.match(rf"# raysed/{package}/(\w+)\.py\n", code), code) for code in EXAMPLES)
        ((name, code),) = ((place[1], code) for place, code in places if place)
        (tmp_path / f"{name}.py").write_text(code)
        found = importlib.import_module(f"raysed.{package.replace('/', '.')}")
        monkeypatch.setattr(found, "__path__", [*found.__path__, str(tmp_path)])
        monkeypatch.setitem(sys.modules, f"{found.__name__}.{name}", None)
        del sys.modules[f"{found.__name__}.{name}"]
        forget()
        monkeypatch.setattr(config, "_config", functools.cache(config._config.__wrapped__))  # others keep their class

    yield put
    monkeypatch.undo()
    forget()


def test_an_objective(new_file, make_encoder, make_table, tmp_path):
    new_file("train/stages")
    assert parse_recipe("spread-sed-flow").members == ("spread",)
    settings = config.make_config({"spread": {"epochs": 10, "learning_rate": 1e-3, "temperature": 3}})
    with pytest.raises(UserError, match=r"did you mean spread\.temperature"):
        config.make_config({"spread": {"temperatur": 3}})
    with closing(FlatTokens(tmp_path)) as flat:
        flat.add(make_table(40))
    stage, start = registry.stages()["spread"], Start(make_encoder("bert"), None, {"corpus": tmp_path}, seed=0)
    setup = set_up(stage, settings.spread, settings.members, start)
    result = TrainingLoop(setup.objective, setup.batch_at, setup.plan, setup.engine).train()
    assert result.steps == stage.steps(settings.spread, 40) == 20 and result.kept == "encoder"
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_a_calibration(new_file):
    new_file("train/calibrations")
    assert parse_recipe("ct-centre-whiten").calibration == ("centre", "whiten")
    x_ND = np.random.default_rng(0).normal(3, 1, (50, 4))
    fitted = fit_calibration(["centre"], x_ND, config.FlowConfig(), None, seed=0)
    assert np.abs(fitted.transform(x_ND).mean(0)).max() < 1e-5


def test_a_section_of_the_report(new_file):
    new_file("report/sections")
    (new,) = (one for one in section.all_sections() if one.name == "lengths")
    found = new.data(SimpleNamespace(evaluation=SimpleNamespace(sentences=["a", "bb", "cccc"])))
    assert found == {"shortest": 1, "median": 2.0, "longest": 4}
    (table,) = new.blocks(found, None)
    assert table.lines[1] == ["median", "2"]


def test_a_kind_of_teacher(new_file):
    new_file("model/teachers")
    letters = teacher.load_teacher(config.TeacherConfig(path="letters", name="by letters"))
    letters.check()
    assert (letters.width, letters.identity, letters.title) == (26, "letters-1", "by letters")
    assert letters.embed(["Abba", "c"])[:, :3].tolist() == [[2, 2, 0], [0, 0, 1]]
    assert teacher.default_learner(["letters", "bundled:encoder"])["path"] == "bundled:encoder"


def test_a_kind_of_task(new_file, tmp_path):
    new_file("score/kinds")
    (tmp_path / "odd.txt").write_text(
        "the red cat\ta red cat\tstocks fell\nrain today\train soon\tsoup\na b\tc d\te f\n"
    )
    task = {"source": str(tmp_path / "odd.txt"), "kind": "odd-one-out"}
    evaluation = Evaluation.load(config.make_config({"evaluation": {"tasks": {"odd": task}, "dev": None}}).evaluation)
    scores = evaluation.score(np.array([[1, 0], [1, 0.1], [0, 1]] * 2 + [[0, 1], [1, 0], [1, 0.1]]))
    assert mean_score(scores.metrics, ["odd"]) == pytest.approx(200 / 3)
    low, high = interval(resample(evaluation, {"m": [scores.outcomes]}, ["odd"], 500)["m"])
    assert 0 <= low < 200 / 3 < high <= 100
    assert evaluation.score_baselines()["word-overlap"].outcomes["odd"].tolist()[:2] == [True, True]
