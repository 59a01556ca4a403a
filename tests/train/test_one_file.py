"""A new objective and a new calibration are one file each: the worked examples of CONTRIBUTING.md."""

import functools
import importlib
import re
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from raysed import config, registry
from raysed.data.tokens import FlatTokens
from raysed.errors import UserError
from raysed.recipe import parse_recipe
from raysed.train.calibration import fit_calibration
from raysed.train.loop import TrainingLoop
from raysed.train.setup import set_up
from raysed.train.stage import Start

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def new_file(tmp_path, monkeypatch):
    """Puts the example of a package into a file that is found like those of the package."""

    def forget():
        for cached in (registry.calibration_names, registry.stages, registry.calibrations):
            cached.cache_clear()

    def put(package: str) -> None:
        pattern = rf"```python\n(# raysed/train/{package}/(\w+)\.py\n.*?)```"
        ((code, name),) = re.findall(pattern, (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
        (tmp_path / f"{name}.py").write_text(code)
        found = importlib.import_module(f"raysed.train.{package}")
        monkeypatch.setattr(found, "__path__", [*found.__path__, str(tmp_path)])
        monkeypatch.setitem(sys.modules, f"raysed.train.{package}.{name}", None)
        del sys.modules[f"raysed.train.{package}.{name}"]
        forget()
        monkeypatch.setattr(config, "_config", functools.cache(config._config.__wrapped__))  # others keep their class

    yield put
    monkeypatch.undo()
    forget()


def test_an_objective(new_file, make_encoder, make_table, tmp_path):
    new_file("stages")
    assert parse_recipe("spread-sed-flow").members == ("spread",)
    settings = config.make_config({"spread": {"epochs": 10, "learning_rate": 1e-3, "temperature": 3}})
    assert settings.spread.temperature == 3
    with pytest.raises(UserError, match=r"did you mean spread\.temperature"):
        config.make_config({"spread": {"temperatur": 3}})
    table = make_table(40)
    with closing(FlatTokens(tmp_path)) as flat:
        flat.add(table)
    stage, start = registry.stages()["spread"], Start(make_encoder("bert"), None, {"corpus": tmp_path}, seed=0)
    assert stage.steps(settings.spread, 40) == 20
    setup = set_up(stage, settings.spread, settings.members, start)
    result = TrainingLoop(setup.objective, setup.batch_at, setup.plan, setup.engine).train()
    assert result.steps == 20 and result.kept == "encoder"
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_a_calibration(new_file):
    new_file("calibrations")
    assert parse_recipe("ct-centre-whiten").calibration == ("centre", "whiten")
    x_ND = np.random.default_rng(0).normal(3, 1, (50, 4))
    fitted = fit_calibration(["centre"], x_ND, config.FlowConfig(), None, seed=0)
    assert np.abs(fitted.transform(x_ND).mean(0)).max() < 1e-5
    assert "subtracted" in registry.calibrations()["centre"].words
