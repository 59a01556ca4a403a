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
AWS, OWN, KUBERNETES = "cluster.yaml", "docs/own-machines.yaml", "docs/rayjob.yaml"
# Of KubeRay's API reference (ray.io/v1): a misspelt field would be dropped in silence.
JOB = "entrypoint backoffLimit shutdownAfterJobFinishes ttlSecondsAfterFinished rayClusterSpec"
CLUSTER = "rayVersion enableInTreeAutoscaling autoscalerOptions authOptions headGroupSpec workerGroupSpecs"
GROUP = "groupName replicas minReplicas maxReplicas serviceType rayStartParams template"


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def pinned(package: str) -> str:
    (version,) = {next(iter(pin.specifier)).version for pin in pins() if pin.name == package}
    return version


def start_of_head(description: dict[str, Any]) -> list[str]:
    (line,) = [line for line in description["head_start_ray_commands"] if "ray start" in line]
    return shlex.split(line)


def check_by_ray(description: dict[str, Any]) -> None:
    """By the schema that `ray up` checks it with."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(description))


@pytest.mark.parametrize("name", [AWS, OWN])
def test_ray_takes_the_file(name):
    check_by_ray(load(name))
    with pytest.raises(Exception, match="idle_timeout"):  # a misspelt key is refused, which shows that it is checked
        check_by_ray({**load(name), "idle_timeout": 5})


@pytest.mark.parametrize("name", [AWS, OWN])
def test_the_cluster_is_closed_and_all_nodes_get_the_same(name):
    """Dashboard on the head itself only, and nothing without the token; pinned versions, and the extras."""
    description = load(name)
    for commands in (value for key, value in description.items() if key.endswith("_commands")):
        subprocess.run(["bash", "-n", "-c", "\n".join(commands)], check=True)
    assert "--dashboard-host=127.0.0.1" in start_of_head(description)
    mounts = description["file_mounts"].values()
    assert "~/.ray/auth_token" in mounts
    if "docker" in description:
        assert "--env RAY_AUTH_MODE=token" in description["docker"]["run_options"]
        images = [description["docker"][f"{kind}_image"] for kind in ("head", "worker")]
        assert all(image.startswith(f"rayproject/ray:{pinned('ray')}-py311-") for image in images)
    else:
        starts = [*description["head_start_ray_commands"], *description["worker_start_ray_commands"]]
        assert all("RAY_AUTH_MODE=token" in line for line in starts if "ray start" in line)
    (install,) = [line for line in description["setup_commands"] if "pip install" in line]
    mounted = {path for path in mounts if not path.startswith("~")} - {"tools/spot_watch.py"}
    assert all((ROOT / path).is_file() for path in mounted)
    if name == AWS:
        assert mounted == {"docs/requirements.lock"}
        assert install.endswith("pip install --quiet --require-hashes -r ~/raysed/requirements.lock")
        return
    assert mounted == {"constraints.txt", "pyproject.toml"} and "-c ~/raysed/constraints.txt" in install
    pytest.importorskip("tomllib")  # as in the image
    (makes,) = re.findall(r'python -c "(.+?)" > requirements.txt', "\n".join(description["setup_commands"]), re.DOTALL)
    made = subprocess.run([sys.executable, "-c", makes], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"torch>=2.8", "deepspeed>=0.19", "datasets>=4.0", "matplotlib>=3.8"} <= set(made.splitlines())


def test_the_head_on_aws_shows_figures_to_nobody_else_and_starts_without_them():
    shown = [line for line in load(AWS)["head_start_ray_commands"] if "metrics" in line or "grafana" in line]
    assert len(shown) == 3 and all(line.endswith(("|| true", "&")) for line in shown)
    assert ["GF_SERVER_HTTP_ADDR=127.0.0.1" in line for line in shown if "grafana server" in line] == [True]


def test_a_job_can_bring_the_locked_versions_but_ray():
    from ray.runtime_env import RuntimeEnv

    environment = load("runtime_env.yaml")
    assert RuntimeEnv(**environment).keys() <= RuntimeEnv.known_fields
    locked = re.findall(r"^\S+==\S+", (ROOT / "docs/requirements.lock").read_text(), flags=re.M)
    assert environment["uv"] == [pin for pin in locked if not pin.startswith("ray==")]
    assert environment["excludes"] == (ROOT / ".rayignore").read_text().split()


def test_heads_train_nothing_and_workers_on_aws_come_and_go():
    assert {"--num-cpus=0", "--num-gpus=0"} <= set(start_of_head(load(OWN)))
    description = load(AWS)
    kinds = description["available_node_types"]
    assert kinds.pop(description["head_node_type"])["resources"] == {"CPU": 0, "GPU": 0}
    assert all(kind["min_workers"] == 0 < kind["max_workers"] for kind in kinds.values())
    first, other = sorted(kinds.values(), key=lambda kind: -kind["priority"])
    spot, fallback = first["node_config"], other["node_config"]
    assert spot.pop("InstanceMarketOptions") and spot == fallback  # or the scheduler would prefer one for its size
    assert description["idle_timeout_minutes"] <= 30


def test_nothing_is_opened_to_the_world_on_aws(monkeypatch):
    """Ray's own group lets everybody knock at the ssh server; it makes none where every machine has one already."""
    from ray.autoscaler._private.aws import config as aws

    made: list[str] = []
    monkeypatch.setattr(aws, "_upsert_security_groups", lambda config, kinds: made.extend(kinds) or {})
    description = load(AWS)
    aws._configure_security_group(copy.deepcopy(description))
    assert made == []
    assert "security_group" not in description["provider"]  # its rules would be added to the open one


def test_workers_on_aws_watch_for_the_notice():
    description = load(AWS)
    (line,) = [line for line in description["worker_start_ray_commands"] if "spot_watch" in line]
    path = re.search(r"~(/raysed/\S+\.py)", line)[1]
    assert (ROOT / description["file_mounts"][f"/home/ray{path}"]).is_file()
    assert re.fullmatch(r"nohup setsid python \S+ >> \S+ 2>&1 < /dev/null &", line)  # or ssh would wait for it
    for kind in description["available_node_types"].values():
        assert kind["node_config"]["MetadataOptions"] == {"HttpTokens": "required"}


def test_kubernetes_gets_a_cluster_that_ray_can_scale_of_the_pinned_image_behind_the_token():
    """As KubeRay's autoscaler reads it: a head for nobody, GPU workers from none to some."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    job = load(KUBERNETES)
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    for found, known in ((job["spec"], JOB), (cluster, CLUSTER), *((group, GROUP) for group in groups)):
        assert set(found) <= set(known.split())
    config = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "x", "namespace": "default"}, "spec": cluster}
    )
    check_by_ray(config)
    kinds = config["available_node_types"]
    assert kinds.pop("headgroup")["resources"]["CPU"] == 0
    assert all(kind["min_workers"] == 0 < kind["max_workers"] and kind["resources"]["GPU"] for kind in kinds.values())
    assert cluster["rayVersion"] == pinned("ray")
    assert cluster["authOptions"] == {"mode": "token"} and cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert len({box["image"] for group in groups for box in group["template"]["spec"]["containers"]}) == 1
    recipe = (ROOT / "docs/Dockerfile").read_text()
    assert f"FROM rayproject/ray:{pinned('ray')}-py311-gpu\n" in recipe
    assert "--require-hashes -r /home/ray/raysed/docs/requirements.lock" in recipe


def test_every_job_that_is_submitted_names_its_storage():
    """Its working directory goes with it, so without that the job is refused."""
    places = "*.md *.yaml docs/*.* jobs/*.* raysed/configs/* papers/tables/* raysed/commands/*".split()
    files = (path for place in places for path in ROOT.glob(place) if path.suffix in (".md", ".yaml", ".py"))
    calls = re.compile(r"ray job submit (?:.*\\\\?\n)*.*jobs/\w+\.py.*(?:(?<=\\)\n.*)*")
    submitted = [(path, call) for path in files for call in calls.findall(path.read_text())]
    assert len(submitted) > 10
    assert [(path, call) for path, call in submitted if "--storage" not in call] == []
