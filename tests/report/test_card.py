"""The model card of a real run, as a stranger reads it."""

import json
import re

import pytest
from safetensors.numpy import load_file

from raysed.config import Config

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture
def card(finished_run) -> str:
    return (finished_run / "model/README.md").read_text()


@pytest.fixture
def made(finished_run) -> dict:
    return json.loads((finished_run / "model/raysed.json").read_text())


def rows_below(card: str, heading: str) -> dict[str, list[str]]:
    """The cells of the table below a heading, by its first column."""
    lines = [
        line for line in card.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines() if line[:1] == "|"
    ]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {first: others for first, *others in cells}


def test_three_rows_say_what_it_is_worth(card, finished_run):
    """The untouched encoder, the best that costs no training, and the model; with the numbers of the report."""
    report = json.loads((finished_run / "report.json").read_text())
    means = {entry["recipe"]: entry["mean"] for entry in report["summary"] if entry["task"] == "sts-avg"}
    free = {
        name: mean for name, mean in means.items() if name in ("tf-idf", "word-overlap", "base-flow", "base-whiten")
    }
    rows = rows_below(card, "Scores")
    assert [score for score, *_ in rows.values()] == [
        f"{means['base']:.2f}", f"{max(free.values()):.2f}", f"{means['ct-sed-flow']:.2f}",
    ]  # fmt: skip
    names = list(rows)
    assert names[0] == "the encoder before any training" and names[2] == "this model"
    assert names[1].endswith(": the best that needs no training")


def test_size_and_speed_are_those_of_the_files(card, finished_run):
    rows = {name: value for name, (value,) in rows_below(card, "Size and speed").items()}
    weights = list((finished_run / "model").rglob("*.safetensors"))
    assert rows["weights"] == f"{sum(file.stat().st_size for file in weights) / 1e6:.1f} MB"
    encoder = load_file(finished_run / "model/model.safetensors")
    assert rows["parameters"] == f"{sum(array.size for array in encoder.values()) / 1e6:.1f} million"
    assert rows["numbers per sentence"] == "192" and rows["longest text"] == "75 tokens"
    assert re.fullmatch(r"about [\d,]+ sentences per second in one process \(\w+, \d+ threads\)", rows["speed"])


def test_settings_are_on_the_card_where_they_differ_from_the_defaults(card, made):
    defaults = Config().model_dump(mode="json")
    for key, value in made["settings"].items():
        block, _, name = key.partition(".")
        assert (f"| `{key}` |" in card) == (value != defaults[block][name]), key
    assert "| `ct.steps` | `12` |" in card and "ct.groups" in made["settings"]


def test_its_code_runs(card, finished_run):
    code, shown = card.split("```python\n")[1].split("```")[0], []
    exec(code.replace("path/to/this/directory", str(finished_run / "model")), {"print": shown.append})
    assert list(shown[0].shape) == [3, 3]
