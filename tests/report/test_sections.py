"""Every section of the report, from made-up data, as Markdown and JSON."""

import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_up import full_run, grid, report_of, run_of, scored

from raysed.commands.run import parser as run_parser
from raysed.config import TeacherConfig, dump_config, find_config, load_config, make_config
from raysed.report.document import Document
from raysed.report.section import all_sections
from raysed.report.sections.run import how_to_repeat
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]
NASTY = '<img src=x onerror="alert(1)"> [me](http://x) `code` $5$ {{ 7 * 7 }}'
EXPORTED = {
    "recipe": "ct-flow",
    "why": "ct-flow, the last recipe",
    "warning": None,
    "worth": "3.0 (1.0 to 5.0) above the original encoder.",
    "against": [
        {"model": "this model", "score": 76.0, "tasks": {"sts12": 75.0, "sts13": 77.0}, "parameters": 22_714_000},
        {"model": "A", "score": 73.0, "tasks": {"sts12": 72.0, "sts13": 74.0}, "gain": 3.0, "low": 1.0, "high": 5.0},
    ],
    "width": 384,
    "parameters": 22_714_000,
    "bytes": 90_856_000,
    "sentences_per_second": 1234.6,
}
SCRIPT = "</script><script>alert(2)</script>"


def assert_is_tidy(text):
    """The template leaves one empty line between any two blocks, and no blanks at ends."""
    assert text.endswith("\n") and not re.search(r" \n|\n\n\n|\n\n$|[^\n]\n(#|!\[|\| models|```sh)", text)


def test_lower_bounds():
    """The choice and its margin."""
    clear = grid({0.5: [80.0, 80.2], 0.0: [78.9, 79.1], 0.9: [60.0, 62.0]})
    report = report_of(grids=[clear])
    text = report.to_markdown()
    assert_is_tidy(text)
    assert (
        "`sts`: the lower bound 0.5 was chosen for the mean Spearman correlation of its models on dev, 80.10; that is "
        "1.10 above the next bound, 0; the standard error of this difference is 0.14.\n"
    ) in text
    assert "|         0.5 |      2 | 80.20 | 80.10 | 0.14 | chosen |" in text
    assert json.loads(report.to_json())["grids"] == [clear] and "grids" not in json.loads(report_of().to_json())
    noisy = report_of(grids=[grid({0.0: [79.0, 81.0], 0.5: [80.0, 80.2]})]).to_markdown()
    assert "this difference is 1.00, so the choice is within noise." in noisy


def test_report_json_has_the_documented_shape():
    """Numpy values are unwrapped, and what is no number in JSON becomes null. The page: docs/files.md."""
    rows = full_run()
    rows[0].metrics["dev"]["spearman"] = np.float32("nan")
    rows[1].metrics["dev"]["spearman"] = np.float64(0.5)
    left_out = [{"recipe": "ct", "index": np.int64(3), "reason": "loss is not finite"}]
    report = report_of(rows, timings={"ct": {"seconds": np.float32(2)}}, members=left_out)
    text = report.to_json()
    assert "NaN" not in text
    data, page = json.loads(text), (ROOT / "docs/files.md").read_text()
    example = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    assert data.keys() == example.keys()
    for name in ("rows", "summary"):
        assert {frozenset({*one} - {"low", "high"}) for one in data[name]} == {frozenset(one) for one in example[name]}
    assert data["rows"][0]["metrics"]["dev"].keys() == example["rows"][0]["metrics"]["generated-test"].keys()
    assert all(f"`{key}`" in page for key in [*data, *data["rows"][0], *data["rows"][0]["metrics"]["dev"]])
    assert [row["metrics"]["dev"]["spearman"] for row in data["rows"][:2]] == [None, 0.5]
    assert (data["timings"], data["members"][0]["index"]) == ({"ct": {"seconds": 2.0}}, 3)
    assert data["findings"].startswith("Training: members of ct against the base +3.0 (+3.0 to +3.0).\n\n")


def test_the_run():
    data = {
        "timings": {"ct": {"seconds": 90.0, "sentences": 900}, "ct-sed": {"seconds": 30.0}},
        "members": [{"recipe": "ct", "index": 4, "reason": "died\ntwice | for good"}],
        "started": {"command": "python jobs/x.py --config demo", "repeat": how_to_repeat("/my runs", "demo")},
    }
    text = Document(run_of(scored(full_run(), sizes={"sts12": "20 pairs"}), run="demo"), data).to_markdown()
    assert_is_tidy(text)
    for part in (
        "sts12: 20 pairs",
        "| ct     |      4 | died twice / for good |",
        "| ct     | 1 min 30 s |   75% |          10 |",
        "with:\n\n```sh\npython jobs/x.py --config demo\n```",
    ):
        assert part in text, part


def test_names_and_sentences_are_shown_as_they_are_in_markdown_and_on_the_page():
    pair = {"score": 4.6, "cosine": 0.1, "rank_by_score": 95.0, "rank_by_cosine": 5.0}
    gain = {"over": NASTY, "value": 1.0, "ends": [0.5, 1.5]}
    rows = [{"teachers": names, "scores": {"mean": 7.0}, "gains": {}} for names in ([NASTY], ["b"])]
    rows.append({"teachers": [NASTY, "b"], "scores": {"mean": 8.0}, "gains": {"mean": gain}})
    report = report_of(
        failures={"task": NASTY, "model": NASTY, "pairs": [{**pair, "sentence1": NASTY, "sentence2": NASTY}]},
        worth={"teachers": [NASTY, "b"], "tasks": [NASTY], "kinds": {"pairs": [NASTY]}, "rows": rows},
        grids=[grid({0.0: [79.0], 0.5: [80.0]}, task=NASTY)],
    )
    text = report.to_markdown()
    assert text.count("&lt;img src=x") == text.count("<img") + text.count("&lt;img") >= 5
    assert "[me]" not in text and re.search(r"(?<!\\)\$5", text) is None
    page = report.to_html()
    assert "<img" not in page and "$5$ 49" not in page and "{{ 7 * 7 }}" in page
    page = Document(run_of(report.run.scores, run=SCRIPT), {}).to_html()
    assert "<img" not in page and "<script>alert" not in page


def test_teachers():
    """A learner in a teacher's space can search its vectors; code that came with a teacher is named."""
    about = {"width": 384, "parameters": 9, "speed": {"ratio": 0.5, "low": 0.4, "high": 0.6}}
    models = [
        {"model": "big", **about, "score": 80.0, "trust_remote_code": True},
        {"model": "teachers-sed searching big", **dict.fromkeys(about), "score": 70.0, "searches": "big"},
        {"model": "teachers-sed (exported)", **about, "score": 72.0},
    ]
    text = report_of(teachers=models).to_markdown()
    assert "Its queries find the documents of big: 70.00 on the same tasks." in text
    assert "Code that came with the model was allowed to run: big." in text


def test_a_run_marks_teachers_whose_code_may_run():
    names = {"own": False, "foreign": True, "other": False, "also-foreign": True}
    run = run_of(scored(full_run()))
    run.config.teachers = [TeacherConfig(path=name, trust_remote_code=trusted) for name, trusted in names.items()]
    run.meta = lambda name: {"width": 384}
    run.costs = {("ct-sed", "learner", 0): {}} | {("teachers", "member", index): {} for index in range(4)}
    run.facts.shares_space_of = None
    run.choice = SimpleNamespace(title="learner", model=SimpleNamespace(recipe="ct-sed", kind="learner", index=0))
    run.exported_model = SimpleNamespace(encoder=SimpleNamespace(width=384))
    (section,) = [section for section in all_sections() if section.name == "teachers"]
    *teachers, own = section.data(run)
    assert [teacher["model"] for teacher in teachers if teacher.get("trust_remote_code")] == ["foreign", "also-foreign"]
    assert len(teachers) == 4 and "trust_remote_code" not in own


def test_the_exported_model_and_the_one_that_was_refused():
    text = report_of(exported={**EXPORTED, "warning": "ct-flow scores less"}).to_markdown()
    assert_is_tidy(text)
    assert text.index("## The model") < text.index("## Scores") < text.index("## Findings")
    for part in (
        "## The model\n\n3.0 (1.0 to 5.0) above the original encoder.\n",
        "| sts12 (20 pairs) | sts13 (20 pairs) | parameters |",
        "Size: 22.7 million parameters (90.9 MB), 384 numbers per sentence. Speed: about 1,200 sentences per second",
        "SentenceTransformer('runs/r/model', trust_remote_code=True)",
        "\n\nWarning: ct-flow scores less.\n",
    ):
        assert part in text, part
    refused = {"chosen": "ct: 40.0", "why": "no model is exported: ct has 40.0", "worth": "It is.", "against": []}
    report = report_of(refused=refused)
    assert "## The model\n\nNo model is exported: ct has 40.0. The best candidate: ct: 40.0." in report.to_markdown()
    found = json.loads(report.to_json())
    assert found["refused"] == refused and "exported" not in found


def test_what_the_report_says_to_type_has_the_settings_of_the_run(tmp_path):
    """Changed by --set, as the job writes it; the words go through the shell's rules and the job's own parser."""
    config = load_config(ROOT / "raysed/configs/distill.yaml", ["members.count=4", "sed.learning_rate=1.5e-5"])
    location = f"{tmp_path}/my runs"
    Storage(location, config.run).write_text("config.yaml", dump_config(config))
    python, job, *words = shlex.split(how_to_repeat(location, config.run))
    arguments = run_parser().parse_args(words)
    assert (python, job) == ("python", "jobs/ensemble_then_distill.py")
    assert (arguments.run, arguments.storage) == (f"{config.run}-again", location)
    assert load_config(find_config(arguments.config, tmp_path)) == config
    assert "--config demo.yaml" in how_to_repeat("s3://bucket/runs", "demo")
    long = how_to_repeat(location, "r" * 100)
    assert make_config({"run": shlex.split(long)[5]}).run == "r" * 94 + "-again"


@pytest.mark.parametrize(
    ("program", "modules", "is_command"),
    [("jobs/ensemble_then_distill.py", (), True), ("", (), False), ("x.py", ("ipykernel",), False)],
)
def test_a_notebook_or_prompt_is_no_command_to_repeat(monkeypatch, program, modules, is_command):
    (section,) = [section for section in all_sections() if section.name == "started"]
    monkeypatch.setattr("sys.argv", [program])
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)
    repeat = section.data(SimpleNamespace(storage=SimpleNamespace(location="runs", run="demo")))
    assert bool(repeat["command"]) == is_command and repeat["repeat"].endswith("--run demo-again --storage runs")
