"""Every section of the report, from made-up data, as Markdown and JSON."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from made_up import full_run, grid, report_of, scored

from raysed.commands.run import parser as run_parser
from raysed.config import dump_config, find_config, load_config, make_config
from raysed.report.document import Report
from raysed.report.section import all_sections
from raysed.report.sections.run import how_to_repeat
from raysed.report.sections.scores import scores_chart
from raysed.report.sections.teachers import teachers_table
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]
NASTY = '<img src=x onerror="alert(1)"> [me](http://x) `code` $5$ {{ 7 * 7 }}'


def assert_is_tidy(text):
    """The template leaves one empty line between any two blocks, and no blanks at ends."""
    assert text.endswith("\n") and not re.search(r" \n|\n\n\n|\n\n$", text)
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if i and line.startswith(("#", "![", "| models", "```sh"))]
    assert all(lines[i - 1] == "" for i in starts), [lines[i - 1 : i + 1] for i in starts if lines[i - 1]]


def test_grid_section_names_the_choice_and_its_margin():
    clear = grid({0.5: [80.0, 80.2], 0.0: [78.9, 79.1], 0.9: [60.0, 62.0]})
    report = report_of(grids=[clear])
    text = report.to_markdown()
    assert_is_tidy(text)
    assert (
        "`sts`: the lower bound 0.5 was chosen for the mean Spearman correlation of its models on dev, 80.10; that is "
        "1.10 above the next bound, 0; the standard error of this difference is 0.14.\n"
    ) in text
    assert [line for line in text.splitlines() if "| chosen" in line or "| next" in line] == [
        "|           0 |      2 | 79.10 | 79.00 | 0.14 | next   |",
        "|         0.5 |      2 | 80.20 | 80.10 | 0.14 | chosen |",
    ]
    assert text.count("## Lower bounds") == 1
    assert json.loads(report.to_json())["grids"] == [clear]
    assert "grids" not in json.loads(report_of().to_json())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (grid({0.0: [79.0, 81.0], 0.5: [80.0, 80.2]}), "this difference is 1.00, so the choice is within noise."),
        (grid({0.0: [80.0, 80.0], 0.5: [80.0, 80.0]}), "this difference is 0.00, so the choice is within noise."),
        (grid({0.0: [79.0], 0.5: [80.0]}), "bound, 0."),
        (grid({0.3: [79.0], 0.4: [70.0]}, stopped=[0.4]), "on dev, 79.00."),
        (
            grid({0.0: [79.0], 0.5: [80.0], 0.6: [50.0]}, stopped=[0.6], scheduler="asha"),
            "Bounds that fell behind were stopped early: 3,000 updates were made instead of 6,000 (50%).",
        ),
        (grid({0.0: [79.0], 0.5: [80.0], 0.6: [50.0]}, stopped=[0.6]), "| stopped after update 1,200 |"),
    ],
)  # fmt: skip
def test_grid_section_in_other_situations(found, words):
    assert words in report_of(grids=[grid({0.1: [50.0]}, "other"), found]).to_markdown()


def test_the_space_is_a_section_of_its_own():
    models = {"base": {"cosine": 0.57641, "effective_rank": 212.36, "first_direction": 0.58679}}
    report = report_of(analysis__isotropy=models)
    text = report.to_markdown()
    assert_is_tidy(text)
    line = "| base   |                  0.576 |          212.4 |                        58.7% |"
    assert line in text.partition("## The embedding space")[2]
    assert json.loads(report.to_json())["analysis"]["isotropy"] == models
    assert "embedding space" not in report_of().to_markdown()


def test_every_subset_of_a_run_makes_a_report():
    """No combination of missing rows may break a report."""
    rng, rows = np.random.default_rng(0), full_run()
    for _ in range(60):
        kept = [r for r in rows if rng.random() < 0.5]
        report = report_of(kept)
        text = report.to_markdown()
        assert report.findings() in text
        assert_is_tidy(text)
        json.loads(report.to_json())


def test_report_json_has_the_documented_shape():
    """Numpy values are unwrapped, and what is no number in JSON becomes null."""
    rows = full_run()
    rows[0].metrics["dev"]["spearman"] = np.float32("nan")
    rows[1].metrics["dev"]["spearman"] = np.float64(0.5)
    left_out = [{"recipe": "ct", "index": np.int64(3), "reason": "loss is not finite"}]
    report = report_of(rows, timings={"ct": {"seconds": np.float32(2)}}, members=left_out)

    def refuse(constant):
        raise AssertionError(constant)

    data = json.loads(report.to_json(), parse_constant=refuse)
    assert set(data) == set("run status rows summary timings environment config corpus members findings".split())
    assert all(
        list(r) == ["recipe", "kind", "index", "lower_bound", "layers", "metrics", "left_out"] for r in data["rows"]
    )
    assert {tuple(e) for e in data["summary"]} == {("recipe", "kind", "task", "max", "mean", "std", "n")}
    assert data["rows"][0]["metrics"]["dev"]["spearman"] is None
    assert data["rows"][1]["metrics"]["dev"]["spearman"] == 0.5
    assert (data["timings"], data["members"][0]["index"]) == ({"ct": {"seconds": 2.0}}, 3)
    assert data["findings"] == report.findings()


def test_report_md_says_everything_a_reader_needs():
    rows = full_run()
    scores = scored(rows, sizes={"sts12": "20 pairs, mean over 2 subsets", "sts13": "10 pairs"})
    data = {
        "timings": {
            "ct": {"seconds": 90.0, "sentences": 900},
            "ct-sed": {"seconds": 30.0},
        },
        "environment": {"python": "3.11", "ray": "2.60.0"},
        "corpus": {"lines": 100, "truncated_tokens": 7},
        "members": [{"recipe": "ct", "index": 4, "reason": "died\ntwice | for good"}],
        "started": {
            "command": "python jobs/ensemble_then_distill.py --config demo",
            "repeat": how_to_repeat("/my runs", "demo"),
        },
    }
    text = Report("demo", scores, data, {"scores": [scores_chart(scores)]}).to_markdown()
    assert_is_tidy(text)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# demo: results", "## Findings", "## Scores", "### By task", "### By pooled layers",
        "## The run", "### Left out", "### Corpus", "### Time", "### Environment", "### Repeat",
    ]  # fmt: skip
    assert text.index("CT raised") < text.index("## Scores")
    for part in (
        "sts12: 20 pairs, mean over 2 subsets; sts13: 10 pairs.",
        "| full ensemble  | ct           | 69.80 | 71.80 | 35.40 |",
        "| truncated tokens |     7 |",
        "| ct     |      4 | died twice / for good |",
        "| stage  | time       | share | sentences/s |",
        "| ct     | 1 min 30 s |   75% |          10 |",
        "| ct-sed | 30.0 s     |   25% |           - |",
        "| total  | 2 min 00 s |  100% |",
        "| ray    | 2.60.0 |",
        "![Best: base + flow 73.0, base encoder 66.0](plots/scores.png)",
        "with:\n\n```sh\npython jobs/ensemble_then_distill.py --config demo\n```",
        "```sh\npython jobs/ensemble_then_distill.py --config '/my runs/demo/config.yaml' --run demo-again "
        "--storage '/my runs'\n```",
    ):
        assert part in text, part


def test_names_and_sentences_are_shown_as_they_are_in_markdown_and_on_the_page():
    pair = {"score": 4.6, "cosine": 0.1, "rank_by_score": 95.0, "rank_by_cosine": 5.0}
    near = {"sentences": 2, "found": 1.0, "alignment": 0.0, "uniformity": 0.0, "cosine": 0.0, "effective_rank": 1.0}
    near["neighbours"] = [{"sentence": NASTY, "nearest": [{"sentence": NASTY, "cosine": 0.5}]}]
    gain = {"over": NASTY, "value": 1.0, "ends": [0.5, 1.5]}
    rows = [{"teachers": names, "scores": {"mean": 7.0}, "gains": {}} for names in ([NASTY], ["b"])]
    rows.append({"teachers": [NASTY, "b"], "scores": {"mean": 8.0}, "gains": {"mean": gain}})
    report = report_of(
        failures={"task": NASTY, "model": NASTY, "pairs": [{**pair, "sentence1": NASTY, "sentence2": NASTY}]},
        analysis__unlabelled={NASTY: near},
        worth={"teachers": [NASTY, "b"], "tasks": [NASTY], "kinds": {"pairs": [NASTY]}, "rows": rows},
        grids=[grid({0.0: [79.0], 0.5: [80.0]}, task=NASTY)],
    )
    text = report.to_markdown()
    assert text.count("&lt;img src=x") == text.count("<img") + text.count("&lt;img") >= 7
    assert "[me]" not in text and re.search(r"(?<!\\)\$5", text) is None
    page = report.to_html()
    assert "<img" not in page and "49" not in page and "{{ 7 * 7 }}" in page


def test_a_new_section_is_one_file(monkeypatch):
    """The worked example of CONTRIBUTING.md, as it stands there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(# raysed/report/sections/.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(code, names)
    sections = sorted([*all_sections(), *names["SECTIONS"]], key=lambda one: one.order)
    monkeypatch.setattr("raysed.report.document.all_sections", lambda: sections)
    (new,) = names["SECTIONS"]

    class Run:
        evaluation = type("Evaluation", (), {"sentences": ["a", "bb", "cccc"]})

    report = Report("r", scored(full_run()), {new.name: new.data(Run())})
    assert json.loads(report.to_json())[new.name] == {"shortest": 1, "median": 2.0, "longest": 4}
    for shown in (report.to_markdown(), report.to_html()):
        assert new.title in shown and "median" in shown
    assert new.title not in report_of().to_markdown()


def test_searching_a_teacher_is_a_line_that_is_no_teacher():
    about = {"width": 384, "parameters": 9, "sentences_per_second": 5.0}
    models = [
        {"model": "big", **about, "score": 80.0},
        {"model": "teachers-sed searching big", **dict.fromkeys(about), "score": 70.0, "searches": "big"},
        {"model": "teachers-sed (exported)", **about, "score": 72.0},
    ]
    big, line, _ = [text.split() for text in teachers_table(models).plain().splitlines()[2:]]
    assert big[-2:] == ["90.0", "%"] and line[-2:] == ["70.00", "-"]


def test_the_report_shows_where_the_model_fails_its_formats_and_why_there_is_none():
    pair = {"score": 4.6, "cosine": 0.1, "rank_by_score": 95.0, "rank_by_cosine": 5.0}
    pair |= {"sentence1": "A | B", "sentence2": "C"}
    formats = [
        {"format": name, "file": file, "bytes": 5e6, "cosine": 1.0, "difference": 0.0, "sentences_per_second": 1234.5}
        for name, file in (("torch", "model.safetensors"), ("onnx", "onnx/model.onnx"))
    ]
    report = report_of(
        dev="dev",
        exported={"recipe": "ct", "why": "ct, the last recipe"},
        formats=[{**row, "score": 58.0} for row in formats],
        failures={"task": "sts12", "model": "ct (exported)", "pairs": [pair]},
    )
    text = report.to_markdown()
    assert_is_tidy(text)
    assert "| onnx   | onnx/model.onnx   | 5.0 MB |       1,234 | 58.00 | 1.0000 |" in text
    assert "The pairs that ct (exported) on sts12 ranks most differently than people do." in text
    assert "| A / B | C | 4.60 | 0.10 | 95 | 5 |" in text
    found = json.loads(report.to_json())
    assert found["failures"]["pairs"] == [pair] and found["formats"][1]["file"] == "onnx/model.onnx"
    refused = report_of(refused={"chosen": "ct: 40.0", "why": "no model is exported: ct has 40.0"})
    text = refused.to_markdown()
    assert_is_tidy(text)
    assert "## The export\n\nNo model is exported: ct has 40.0. The model would be: ct: 40.0." in text
    found = json.loads(refused.to_json())
    assert found["refused"] == {"chosen": "ct: 40.0", "why": "no model is exported: ct has 40.0"}
    assert "exported" not in found


@pytest.mark.parametrize("name", ["quickstart", "distill"])
def test_what_the_report_says_to_type_has_the_settings_of_the_run(tmp_path, name):
    """Changed by --set, as the job writes it; the words go through the shell's rules and the job's own parser."""
    config = load_config(ROOT / f"raysed/configs/{name}.yaml", ["members.count=4", "sed.learning_rate=1.5e-5"])
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
