"""What Ray's interface shows while a learner trains."""

import json
import urllib.request

import pytest

import faults


@pytest.mark.slow
@pytest.mark.nodes
@pytest.mark.timeout(600)
def test_ray_knows_the_training_of_a_learner_and_its_state(tmp_path):
    """By its interface, because there is no page for it."""
    with faults.Nodes(2, dashboard=True) as nodes:
        job = faults.Job(tmp_path, nodes.address, members={"count": 2}, ct={"steps": 10}, sed={"epochs": 200})
        try:
            job.wait_for_step("ct-sed/learners/00", 1)
            address = f"http://{nodes.cluster.head_node.webui_url}/api/train/v2/runs/v1"
            with urllib.request.urlopen(address, timeout=60) as answer:
                (training,) = json.load(answer)["train_runs"]
        finally:
            job.process.kill()
    assert training["name"] == "ct-sed-learners-00" and training["status"] == "RUNNING"
