"""The files that launch clusters: taken by Ray's own checks, closed to others, with the same versions everywhere."""

import copy
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import pins

ROOT = Path(__file__).resolve().parent.parent
LAUNCHED = ("cluster.yaml", "docs/own-machines.yaml")

# Of KubeRay's API reference (ray.io/v1): a misspelt field would be dropped in silence.
RAYJOB = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
RAYCLUSTER = {
    *("rayVersion", "enableInTreeAutoscaling", "autoscalerOptions", "authOptions"),
    *("headGroupSpec", "workerGroupSpecs"),
}
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "serviceType", "rayStartParams", "template"}


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def pinned(package: str) -> str:
    (version,) = {next(iter(pin.specifier)).version for pin in pins() if pin.name == package}
    return version


def start_of_head(description: dict[str, Any]) -> list[str]:
    (line,) = [line for line in description["head_start_ray_commands"] if "ray start" in line]
    return shlex.split(line)


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_takes_the_file(name):
    """By the schema that `ray up` checks it with; a misspelt key is refused, which shows that it is checked."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(load(name)))
    with pytest.raises(Exception, match="idle_timeout"):
        validate_config(prepare_config({**load(name), "idle_timeout": 5}))


@pytest.mark.parametrize("name", [*LAUNCHED, "docs/rayjob.yaml"])
def test_every_line_to_fill_in_is_marked(name):
    text = (ROOT / name).read_text()
    assert "What has to be filled in is marked FILL IN" in text
    for placeholder in ("ami-0000", "[sg-0000", "192.0.2.", "BUCKET/runs\n", "REGISTRY/raysed:1 "):
        for number, line in enumerate(text.splitlines(keepends=True)):
            if placeholder in line and not line.startswith("#"):
                near = "".join(text.splitlines(keepends=True)[max(0, number - 3) : number + 1])
                assert "FILL IN" in near, line


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_cluster_is_closed(name):
    """Dashboard on the head itself only, and nothing without the token."""
    description = load(name)
    assert "--dashboard-host=127.0.0.1" in start_of_head(description)
    assert "~/.ray/auth_token" in description["file_mounts"].values()
    if "docker" in description:
        assert "--env RAY_AUTH_MODE=token" in description["docker"]["run_options"]
    else:
        starts = [*description["head_start_ray_commands"], *description["worker_start_ray_commands"]]
        assert all("RAY_AUTH_MODE=token" in line for line in starts if "ray start" in line)


@pytest.mark.parametrize("name", LAUNCHED)
def test_all_nodes_get_the_pinned_versions(name):
    description = load(name)
    images = [description.get("docker", {}).get(f"{kind}_image") for kind in ("head", "worker")]
    assert all(image is None or image.startswith(f"rayproject/ray:{pinned('ray')}-py311-") for image in images)
    installs = [line for line in description["setup_commands"] if "pip install" in line]
    assert installs and all("-c ~/raysed/constraints.txt" in line for line in installs)
    mounted = [path for path in description["file_mounts"].values() if not path.startswith("~")]
    assert sorted(set(mounted) - {"tools/spot_watch.py"}) == ["constraints.txt", "pyproject.toml"]
    assert all((ROOT / path).is_file() for path in mounted)


@pytest.mark.parametrize("name", LAUNCHED)
def test_all_nodes_get_the_extras(name):
    pytest.importorskip("tomllib")  # as in the image
    description = load(name)
    (makes,) = re.findall(r'python -c "(.+?)" > requirements.txt', "\n".join(description["setup_commands"]), re.DOTALL)
    made = subprocess.run([sys.executable, "-c", makes], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"torch>=2.8", "deepspeed>=0.19", "datasets>=4.0", "matplotlib>=3.8"} <= set(made.splitlines())


def test_the_head_on_aws_shows_figures_to_nobody_else_and_starts_without_them():
    lines = load("cluster.yaml")["head_start_ray_commands"]
    shown = [line for line in lines if "metrics" in line or "grafana" in line]
    assert len(shown) == 3 and all(line.endswith(("|| true", "&")) for line in shown)
    (grafana,) = [line for line in shown if "grafana server" in line]
    assert "GF_SERVER_HTTP_ADDR=127.0.0.1" in grafana


def test_the_head_on_aws_trains_nothing_and_workers_come_and_go():
    description = load("cluster.yaml")
    kinds = copy.deepcopy(description["available_node_types"])
    assert kinds.pop(description["head_node_type"])["resources"] == {"CPU": 0, "GPU": 0}
    assert all(kind["min_workers"] == 0 < kind["max_workers"] for kind in kinds.values())
    spot = {name for name, kind in kinds.items() if "InstanceMarketOptions" in kind["node_config"]}
    first = max(kinds, key=lambda name: kinds[name]["priority"])
    assert spot == {first} and len(kinds) == 2  # and then the fallback
    sizes = [{k: v for k, v in kind["node_config"].items() if k != "InstanceMarketOptions"} for kind in kinds.values()]
    assert sizes[0] == sizes[1]  # or the scheduler would prefer one for its size
    assert description["idle_timeout_minutes"] <= 30


def test_nothing_is_opened_to_the_world_on_aws(monkeypatch):
    """Ray's own group lets everybody knock at the ssh server; it makes none where every machine has one already."""
    from ray.autoscaler._private.aws import config as aws

    made: list[str] = []
    monkeypatch.setattr(aws, "_upsert_security_groups", lambda config, kinds: made.extend(kinds) or {})
    description = load("cluster.yaml")
    aws._configure_security_group(copy.deepcopy(description))
    assert made == []
    world = [rule for rule in aws._create_default_inbound_rules({"sg-1"}) if "0.0.0.0/0" in str(rule)]
    assert [rule["ToPort"] for rule in world] == [22], "Ray's default has changed: the comment in the file is not true"
    groups = {str(kind["node_config"]["SecurityGroupIds"]) for kind in description["available_node_types"].values()}
    assert len(groups) == 1
    assert "security_group" not in description["provider"]  # its rules would be added to the open one


def test_workers_on_aws_watch_for_the_notice():
    description = load("cluster.yaml")
    (line,) = [line for line in description["worker_start_ray_commands"] if "spot_watch" in line]
    path = re.search(r"~(/raysed/\S+\.py)", line)[1]
    assert (ROOT / description["file_mounts"][f"/home/ray{path}"]).is_file()
    assert re.fullmatch(r"nohup setsid python \S+ >> \S+ 2>&1 < /dev/null &", line)  # or ssh would wait for it
    assert all(
        kind["node_config"]["MetadataOptions"] == {"HttpTokens": "required"}
        for kind in description["available_node_types"].values()
    )


def test_the_head_of_own_machines_trains_nothing():
    start = start_of_head(load("docs/own-machines.yaml"))
    assert {"--num-cpus=0", "--num-gpus=0"} <= set(start)


def test_kubernetes_gets_a_cluster_that_ray_can_scale():
    """As KubeRay's autoscaler reads it: a head for nobody, GPU workers from none to some."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.util import prepare_config, validate_config

    job = load("docs/rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) <= RAYJOB
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) <= RAYCLUSTER
    config = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "x", "namespace": "default"}, "spec": cluster}
    )
    validate_config(prepare_config(config))
    kinds = config["available_node_types"]
    assert kinds.pop("headgroup")["resources"]["CPU"] == 0
    assert all(kind["min_workers"] == 0 < kind["max_workers"] and kind["resources"]["GPU"] for kind in kinds.values())


def test_kubernetes_runs_the_pinned_image_behind_the_token():
    job = load("docs/rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == pinned("ray")
    assert cluster["authOptions"] == {"mode": "token"} and cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert all(set(group) <= GROUP for group in groups)
    images = {box["image"] for group in groups for box in group["template"]["spec"]["containers"]}
    assert len(images) == 1
    recipe = (ROOT / "docs/Dockerfile").read_text()
    assert f"FROM rayproject/ray:{pinned('ray')}-py311-gpu\n" in recipe
    assert "--require-hashes -r /home/ray/raysed/docs/requirements.lock" in recipe


def test_every_job_that_is_submitted_names_its_storage():
    """Its working directory goes with it, so without that the job is refused."""
    places = [*ROOT.glob("*.md"), *ROOT.glob("*.yaml"), *ROOT.glob("docs/*"), *ROOT.glob("jobs/*.*")]
    places += [*ROOT.glob("raysed/configs/*"), *ROOT.glob("papers/tables/*"), *ROOT.glob("raysed/commands/*")]
    texts = {path: path.read_text() for path in places if path.suffix in (".md", ".yaml", ".py")}
    calls = re.compile(r"ray job submit (?:.*\\\\?\n)*.*jobs/\w+\.py.*(?:(?<=\\)\n.*)*")
    submitted = [(path, call) for path, text in texts.items() for call in calls.findall(text)]
    assert len(submitted) > 10
    assert [(path, call) for path, call in submitted if "--storage" not in call] == []


def test_the_jobs_of_kubernetes_and_of_the_pages_exist():
    words = shlex.split(load("docs/rayjob.yaml")["spec"]["entrypoint"])
    assert words[0] == "python"
    assert (ROOT / words[1].removeprefix("/home/ray/raysed/")).is_file()
    assert (ROOT / f"raysed/configs/{words[words.index('--config') + 1]}.yaml").is_file()
    page = (ROOT / "docs/cluster.md").read_text()
    assert f"jobs/status.py {words[words.index('--run') + 1]} " in page
    assert set(re.findall(r"kubectl logs -f -l job-name=(\S+)", page)) == {load("docs/rayjob.yaml")["metadata"]["name"]}
