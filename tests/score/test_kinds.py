"""A new kind of task is one file: the worked example of CONTRIBUTING.md."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from raysed.config import make_config
from raysed.score import kinds
from raysed.score.intervals import interval, resample
from raysed.score.tasks import Evaluation, mean_score

ROOT = Path(__file__).resolve().parents[2]
LINES = ["the red cat\ta red cat\tstocks fell", "rain today\train soon\tgood soup", "a b\tc d\te f"]


def test_the_example_is_found_scored_and_resampled(tmp_path, monkeypatch):
    pattern = r"```python\n(# raysed/score/kinds/odd_one_out\.py\n.*?)```"
    (code,) = re.findall(pattern, (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (tmp_path / "odd_one_out.py").write_text(code)
    (tmp_path / "odd.txt").write_text("\n".join(LINES) + "\n")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
    kinds.kinds.cache_clear()
    try:
        task = {"source": str(tmp_path / "odd.txt"), "kind": "odd-one-out"}
        config = make_config({"evaluation": {"tasks": {"odd": task}, "dev": None}})
        evaluation = Evaluation.load(config.evaluation)
        names: list[str] = []
        x_UD = np.array([[1, 0], [1, 0.1], [0, 1]] * 2 + [[0, 1], [1, 0], [1, 0.1]])
        scores = evaluation.score(x_UD, names.append)
        outcomes, metrics = scores.outcomes, scores.metrics
        assert (
            names == ["odd"] and metrics["odd"]["lines"] == 3 and mean_score(metrics, ["odd"]) == pytest.approx(200 / 3)
        )
        low, high = interval(resample(evaluation, {"m": [outcomes]}, ["odd"], 500)["m"])
        assert 0 <= low < 200 / 3 < high <= 100
        begun: list[str] = []
        baselines = evaluation.score_baselines(begun.append)
        assert baselines["word-overlap"].outcomes["odd"].tolist()[:2] == [True, True]
        assert begun == ["odd by word-overlap", "odd by tf-idf"]
    finally:
        kinds.kinds.cache_clear()
        sys.modules.pop(f"{kinds.__name__}.odd_one_out", None)
