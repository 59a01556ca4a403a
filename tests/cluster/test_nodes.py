"""Nodes that run something else than the job are refused, with both versions; on one node nothing is asked."""

import logging
import shutil
from pathlib import Path

import pytest
import ray

import raysed
import raysed.cluster.on_ray
import raysed.pipeline
from raysed.cluster import nodes
from raysed.config import make_config
from raysed.errors import UserError
from raysed.plan.check import Job
from raysed.store.hub import cached_commit

MODEL, COMMITS = "some/model", ("a" * 40, "b" * 40)


def fill_hub_cache(cache: Path, commit: str) -> None:
    """As a download of the main branch leaves it."""
    folder = cache / "models--some--model"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text("{}")
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs/main").write_text(commit)


@pytest.fixture
def two_nodes(ray_cluster, monkeypatch) -> str:
    """The only node, one that is lost before it is asked, and a dead one; returns the address of the first."""
    (node,) = ray.nodes()
    others = [{**node, "NodeID": "e" * 56, "Alive": False}, {**node, "NodeID": "ab" * 28}]
    monkeypatch.setattr(ray, "nodes", lambda: [*others, node])
    return node["NodeManagerAddress"]


@pytest.mark.cluster
def test_nodes_that_run_the_same_are_taken(two_nodes):
    nodes.check_versions({})


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("torch", "install the same version on all nodes, such as"),
        ("Python", "install the same version on all nodes, such as"),
        ("raysed", "submit the job with --working-dir"),
    ],
)
def test_a_node_with_another_version_is_refused(two_nodes, monkeypatch, what, remedy):
    real = nodes.versions({})
    monkeypatch.setattr(nodes, "versions", lambda models: {**real, what: "0.1"})
    expected = rf"^node {two_nodes} has {what} {real[what]}, but the job's own process has 0\.1; {remedy}[^\n]*$"
    with pytest.raises(UserError, match=expected):
        nodes.check_versions({})


@pytest.mark.cluster
def test_a_node_with_another_commit_of_a_hub_model_is_refused(two_nodes, monkeypatch, tmp_path):
    fill_hub_cache(tmp_path, COMMITS[0])
    models = {MODEL: {"cache_dir": str(tmp_path)}}
    nodes.check_versions(models)
    real = nodes.versions
    monkeypatch.setattr(nodes, "versions", lambda models: {**real(models), "the model some/model": COMMITS[1]})
    expected = rf"^node .* has the model some/model {COMMITS[0]}, but .* has {COMMITS[1]}; fetch the same commit"
    with pytest.raises(UserError, match=expected):
        nodes.check_versions(models)


@pytest.mark.cluster
def test_a_node_without_the_code_of_the_job_is_refused(two_nodes, monkeypatch):
    @ray.remote(num_cpus=0, max_retries=0)
    def fails(models):
        raise ModuleNotFoundError("No module named 'raysed'")

    monkeypatch.setattr(nodes, "_versions_there", fails)
    with pytest.raises(UserError, match=r"^node .* cannot run the job: .*No module named 'raysed'; submit the job"):
        nodes.check_versions({})


@pytest.mark.cluster
def test_a_node_that_says_nothing_is_named_and_left_out(two_nodes, monkeypatch, caplog):
    monkeypatch.setattr(nodes, "ANSWER_S", 0.0)
    with caplog.at_level(logging.WARNING):
        nodes.check_versions({})
    assert f"node {two_nodes} has not reported its versions" in caplog.messages


def test_one_node_is_not_asked(monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "a", "NodeManagerAddress": "1.2.3.4", "Alive": True}])
    monkeypatch.setattr(nodes, "ask_nodes", None)
    nodes.check_versions({})


def test_what_is_not_known_is_not_compared():
    assert nodes.difference({"the model a/b": None}, {"the model a/b": "c"}) is None
    assert nodes.difference({"the model a/b": "c"}, {"the model a/b": None}) is None


def test_what_a_library_was_built_for_does_not_count(monkeypatch):
    monkeypatch.setattr(nodes.metadata, "version", lambda library: "2.13.0+cu130")
    assert nodes.versions({})["torch"] == "2.13.0"


def test_the_code_of_raysed_is_that_which_was_imported(monkeypatch, tmp_path):
    """A copy elsewhere is the same, a changed line is not."""
    copy = tmp_path / "raysed"
    shutil.copytree(Path(raysed.__file__).parent, copy, ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    (copy / "bundled").mkdir()
    shutil.copy(Path(raysed.__file__).parent / "bundled/__init__.py", copy / "bundled")
    before = nodes.versions({})["raysed"]
    monkeypatch.setattr(nodes, "_PACKAGE", copy)
    assert nodes.versions({})["raysed"] == before
    with (copy / "store/storage.py").open("a") as file:
        file.write("\n")
    assert nodes.versions({})["raysed"] != before


def test_the_commit_is_that_of_the_cache(tmp_path):
    assert cached_commit(MODEL, {"cache_dir": str(tmp_path), "num_hidden_layers": 2}) is None
    fill_hub_cache(tmp_path, COMMITS[0])
    assert cached_commit(MODEL, {"cache_dir": str(tmp_path), "num_hidden_layers": 2}) == COMMITS[0]
    assert cached_commit(MODEL, {"cache_dir": str(tmp_path), "revision": COMMITS[1]}) is None


def test_only_models_of_the_hub_are_compared(tiny_encoder_dir):
    def hub_models(kinds=(), **settings):
        return Job(make_config(settings), [], None, {}, {}, dict.fromkeys(kinds), None, ()).hub_models

    pivots = [["there/one", "back/one"]]
    assert hub_models() == hub_models(encoder={"path": str(tiny_encoder_dir)}) == {}
    assert hub_models(encoder={"path": "a/b", "model_kwargs": {"revision": "c"}}) == {"a/b": {"revision": "c"}}
    assert hub_models(teachers=["c/d", "members", str(tiny_encoder_dir)]) == {"c/d": {}}
    assert hub_models(views={"mlm_model": "e/f", "pivots": pivots}) == {}
    views = {"mlm_model": "e/f", "pivots": pivots}
    assert list(hub_models(("mlm", "back_translation"), views=views)) == ["e/f", "there/one", "back/one"]


@pytest.mark.cluster
def test_a_job_compares_before_it_makes_anything(ray_cluster, monkeypatch, tiny_encoder_dir, tmp_path):
    def refuse(models):
        assert models == {}
        raise UserError("node x has torch 1")

    monkeypatch.setattr(raysed.cluster.on_ray, "check_versions", refuse)
    settings = {"storage": str(tmp_path), "encoder": {"path": str(tiny_encoder_dir), "max_length": 16}}
    with pytest.raises(UserError, match="node x has torch 1"):
        raysed.pipeline.run(make_config({**settings, "recipes": ["ct"], "ct": {"steps": 1}, "members": {"count": 1}}))
    assert not list(tmp_path.rglob("manifest"))
