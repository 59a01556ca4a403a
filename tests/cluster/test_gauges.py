"""What Prometheus and Grafana are given: figures of stages and trainings, as the dashboard asks for them."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from raysed.cluster import gauges
from raysed.cluster.gauges import Gauges, stage_gauges
from raysed.store.progress import Progress, emit

import faults

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana.json"


class Recorded:
    """Stands in for Ray's gauges and counters."""

    values: dict[tuple, float]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]):
        self.name, self.tag_keys, self.tags = name, tag_keys, {}

    def set_default_tags(self, tags: dict[str, str]) -> None:
        assert set(tags) == set(self.tag_keys)
        self.tags = tags

    def set(self, value: float) -> None:
        self.values[(self.name, *self.tags.values())] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        key = (self.name, *tags.values())
        self.values[key] = self.values.get(key, 0) + value


@pytest.fixture
def values(monkeypatch) -> dict[tuple, float]:
    monkeypatch.setattr(Recorded, "values", {}, raising=False)
    monkeypatch.setattr(gauges, "Gauge", Recorded)
    monkeypatch.setattr(gauges, "Counter", Recorded)
    return Recorded.values


def test_a_training_sets_its_figures(values):
    report = Gauges("training", "run", "ct/members/00")
    report({"step": 10, "total": 40, "loss": 0.5, "dev": 60.0})
    report({"step": 20, "total": 40, "loss": 0.25, "dev": None})
    assert {name: value for (name, *_), value in values.items()} == {
        "raysed_training_loss": 0.25,
        "raysed_training_dev": 60.0,
        "raysed_training_updates": 20,
        "raysed_training_updates_planned": 40,
    }
    assert {tuple(tags) for _, *tags in values} == {("run", "ct/members/00")}


def test_stages_set_what_their_progress_says(values, capsys):
    with stage_gauges("run"):
        emit(sentences=3)  # before any stage: there is nothing to name it by
        for stage, total in (("corpus", 8), ("ct", 4)):
            emit(stage=stage)
            progress = Progress(stage, total)
            progress.update(2)
            emit(trained=1, trainings=2)
            emit(sentences=5)
            emit(sentences=6)
    emit(stage="report")  # nobody listens any more
    assert values["raysed_stage_share", "run", "corpus"] == 0.25
    assert values["raysed_stage_share", "run", "ct"] == 0.5
    assert values["raysed_stage_trainings_done", "run", "ct"] == 1
    assert values["raysed_stage_trainings", "run", "ct"] == 2
    assert values["raysed_stage_seconds_left", "run", "ct"] >= 0
    assert values["raysed_sentences", "run", "ct"] == 11
    assert not [key for key in values if "report" in key]


# -- the dashboard ---------------------------------------------------------------------------------------------------


def board() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def metrics_of(panels: list[dict]) -> set[str]:
    found = set()
    for panel in panels:
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            found |= set(re.findall(r"ray_\w+", target["expr"]))
    return found


def test_the_dashboard_draws_every_figure_that_there_is(values):
    """And no other one of this project's."""
    Gauges("training", "run", "x")({"step": 1, "total": 2, "loss": 0.1, "dev": 1.0})
    with stage_gauges("run"):
        emit(stage="ct")
        emit(share=0.5, left=1.0, trained=1, trainings=2, sentences=1)
    made = {f"ray_{name}{'_total' * (name == 'raysed_sentences')}" for name, *_ in values}
    asked = {name for name in metrics_of(board()["panels"]) if name.startswith("ray_raysed")}
    assert made - asked == {"ray_raysed_training_updates_planned"} and asked <= made


def unknown(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Yields where Grafana has nothing, or something else, for what a file says; it may add defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from unknown(value, theirs.get(key), f"{place}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs)):
            yield from unknown(*pair, f"{place}/{index}")
    elif ours != theirs:
        yield place


def as_grafana_has_it(content: dict[str, Any]) -> dict[str, Any]:
    """Reads and writes a dashboard by the classes that Grafana makes of its schemas."""
    return json.loads(JSONEncoder().encode(Dashboard.from_json(content)))


def test_every_field_of_the_dashboard_is_one_of_grafanas_schema():
    register_default_plugins()  # the schemas of panels and queries
    found = set(unknown(board(), as_grafana_has_it(board())))
    assert found == {"/templating/list/1/definition"}  # which Grafana writes itself, and its schema has not
    wrong = board()
    wrong["panels"][0]["gridPos"]["width"] = 12
    wrong["panels"][3]["targets"][0]["expression"] = "up"
    found = set(unknown(wrong, as_grafana_has_it(wrong))) - found
    assert found == {"/panels/0/gridPos/width", "/panels/3/targets/0/expression"}


def test_panels_have_places_and_names_of_their_own():
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert max(x for x, _ in cells) < 24 and not cells & places
        places |= cells
    assert {variable["name"] for variable in board()["templating"]["list"]} == {"datasource", "run"}


@pytest.mark.nodes
@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")
def test_prometheus_has_what_the_dashboard_asks_for_while_a_job_runs(tmp_path):
    """By the configuration that Ray writes for it."""
    with faults.Nodes(1, dashboard=True) as nodes:
        job = faults.Job(tmp_path, nodes.address, members={"count": 2}, sed={"epochs": 60})
        command = ["prometheus", f"--config.file={nodes.session}/metrics/prometheus/prometheus.yml"]
        address = f"127.0.0.1:{faults.free_port()}"
        command += [f"--storage.tsdb.path={tmp_path}/prometheus", f"--web.listen-address={address}"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wanted, seen = metrics_of(board()["panels"]) - {"ray_node_gpus_utilization", "ray_node_gram_used"}, set()
        try:
            until = time.monotonic() + 240
            while not seen >= wanted and time.monotonic() < until and job.process.poll() is None:
                time.sleep(2)
                seen |= {name for name in wanted - seen if _has(address, name)}
        finally:
            server.kill()
            job.process.kill()
        assert seen >= wanted, f"{sorted(wanted - seen)} never came\n{job.output()[-2000:]}"


def _has(address: str, metric: str) -> bool:
    """Whether any value of a metric was scraped."""
    query = urllib.parse.urlencode({"query": f"last_over_time({metric}[10m])"})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=5) as answer:
            return bool(json.load(answer)["data"]["result"])
    except OSError:
        return False
