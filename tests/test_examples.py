"""The examples run as they are, in a directory of their own, on less text."""

import json
import runpy
from pathlib import Path

import pytest
from started_jobs import artefact

import raysed
from raysed import bundled

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("sys.argv", [name])
    sentences, pairs = bundled.corpus()[:1200], {split: bundled.pairs(split)[:260] for split in ("dev", "test")}
    monkeypatch.setattr(bundled, "corpus", lambda: sentences)
    monkeypatch.setattr(bundled, "pairs", pairs.get)
    path = EXAMPLES / name
    if path.suffix == ".py":
        made = runpy.run_path(str(path), run_name="__main__")
        assert len(capsys.readouterr().out.splitlines()) > 5
        if name == "distill_lists.py":
            assert_a_table_has_learnt(made["result"], made["pairs"][200:])
        return
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names = {"__name__": "__main__"}
    for cell in cells:
        exec("".join(cell["source"]), names)
    assert (tmp_path / "runs/notebook/model/model.safetensors").exists()


def assert_a_table_has_learnt(result: raysed.Result, held_out: list) -> None:
    """Its losses fell, and what is exported scores as it did in the run."""
    learner = artefact(Path(result.path).parent, "teachers-sed/learners/00")
    history = map(json.loads, (learner / "history.jsonl").read_text().splitlines())
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]
    (module,) = json.loads(Path(result.path, "modules.json").read_text())
    assert module["type"].endswith(".StaticEmbedding")
    scored = raysed.evaluate(result.path, {"held out": held_out})["held out"]["spearman"]
    (said,) = (of for name, of in result.scores.items() if name.startswith(f"{result.report['exported']['recipe']}/"))
    assert scored == pytest.approx(said["held out"], abs=0.05)
