"""The examples run as they are, in a directory of their own, on less text."""

import json
import runpy
from pathlib import Path

import pytest

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
    sentences, pairs = bundled.corpus()[:400], {split: bundled.pairs(split)[:260] for split in ("dev", "test")}
    monkeypatch.setattr(bundled, "corpus", lambda: sentences)
    monkeypatch.setattr(bundled, "pairs", pairs.get)
    path = EXAMPLES / name
    if path.suffix == ".py":
        runpy.run_path(str(path), run_name="__main__")
        assert len(capsys.readouterr().out.splitlines()) > 5
        return
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names = {"__name__": "__main__"}
    for cell in cells:
        exec("".join(cell["source"]), names)
    assert (tmp_path / "runs/notebook/model/model.safetensors").exists()
