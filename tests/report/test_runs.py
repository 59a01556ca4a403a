"""The scores of several runs as one table."""

import json

import pytest
from made_up import full_run, row, scored

from raysed.errors import UserError
from raysed.report.runs import table_of_runs
from raysed.store.storage import Storage


@pytest.fixture
def run(tmp_path):
    """Writes the report of a complete run whose learner scores `score`."""

    def write(name, score=70.0, rows=None, report=None, status="complete", tasks=("sts12", "sts13"), seed=0, **config):
        summary = scored(rows or [row("ct-sed", "learner", score), row("tf-idf", "baseline", 60.0, layers=0)]).summary
        blocks = {task: {"source": f"{task}.csv"} for task in (*tasks, "dev")}
        evaluation = {"tasks": blocks, "dev": "dev", "report": report}
        storage = Storage(str(tmp_path), name)
        facts = {"status": status, "summary": summary, "config": {"seed": seed, "evaluation": evaluation}}
        facts["config"] |= {"run": name, **config}
        storage.write_text("report.json", json.dumps(facts))
        return storage

    return write


def test_runs_become_mean_and_standard_deviation(run):
    table, note = table_of_runs([run("a", 70.0), run("b", 72.0, seed=1)], [], [])
    assert table.plain().splitlines() == [
        "                          sts12         sts13          mean",
        "-----------------  ------------  ------------  ------------",
        "learner of ct-sed  70.00 ± 1.41  72.00 ± 1.41  71.00 ± 1.41",
        "TF-IDF             59.00 ± 0.00  61.00 ± 0.00  60.00 ± 0.00",
    ]
    assert note.endswith("seeds: 0, 1.")


def test_runs_of_other_settings_are_named_as_such(run):
    runs = [run("a", teachers=["A"], sed={"epochs": 3}), run("b", teachers=["B"], sed={"epochs": 3})]
    assert table_of_runs(runs, [], [])[1].endswith("seeds: 0, 0. The runs differ in teachers.")


def test_a_table_has_the_columns_and_rows_that_are_named(run):
    table, _ = table_of_runs([run("a", rows=full_run())], ["mean", "dev"], ["ct-sed", "ct"])
    assert list(table.header) == ["", "mean", "dev"]
    assert list(table.lines) == [
        ["learner of ct-sed", "70.00", "35.00"],
        ["members (3) of ct", "69.00", "34.50"],
        ["full ensemble of ct", "70.80", "35.40"],
    ]


@pytest.mark.parametrize(
    ("other", "options", "sentence"),
    [
        ({"tasks": ["sts12", "sts14"]}, [[], []], "the runs a and b differ in tasks: sts13, mean; .* with --columns"),
        ({"report": ["sts12"]}, [[], []], "the runs a and b differ in tasks: mean; .* with --columns"),
        ({"rows": full_run()}, [[], []], "the runs a and b differ in recipes: base, .*, full ensemble of ct, .*--rows"),
        ({"rows": full_run()}, [[], ["tf-idf"]], "the runs a and b differ in recipes: TF-IDF; "),
        ({"status": "failed"}, [[], []], "/b is not complete: it has no report.json of a complete run; complete it"),
        ({}, [["sts99"], []], "--columns: a has no sts99; it has sts12, sts13, dev, mean$"),
        ({}, [[], ["ct"]], "--rows: a has no ct; it has ct-sed, tf-idf$"),
    ],
)
def test_runs_that_do_not_fit_are_refused(run, other, options, sentence):
    with pytest.raises(UserError, match=sentence):
        table_of_runs([run("a"), run("b", **other)], *options)


def test_a_run_that_works_again_is_refused(run):
    storage = run("a")
    now = {"state": "failed", "since": 1, "told": 2, "every": 5, "host": "head", "pid": 7, "error": "no room"}
    storage.write_text("status.json", json.dumps(now))
    with pytest.raises(UserError, match=r"/a is not complete: failed after 1 s, .* ago: no room; complete it"):
        table_of_runs([storage], [], [])


@pytest.mark.parametrize(
    "damage",
    [
        lambda report: report.pop("summary"),
        lambda report: report.update(config=5),
        lambda report: report["config"]["evaluation"].update(report=5),
        lambda report: report["summary"][0].update(mean="high"),
        lambda report: report["summary"][0].update(kind="learners"),
        lambda report: report.clear(),
    ],
)
def test_an_edited_report_is_named(run, damage):
    storage = run("a")
    now = {"state": "complete", "since": 1, "told": 2, "every": 5, "host": "head", "pid": 7}
    storage.write_text("status.json", json.dumps(now))
    report = storage.read_json("report.json")
    damage(report)
    storage.write_text("report.json", json.dumps(report))
    with pytest.raises(UserError, match=r"/a/report\.json: it is damaged or was edited; the command "):
        table_of_runs([storage], [], [])
