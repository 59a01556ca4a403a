"""A cluster whose GPUs come later: nothing is planned for what is not there yet, and all is for what has come."""

from unittest.mock import Mock

import pytest

from raysed.cluster import execute, local, on_ray
from raysed.cluster.execute import make_executor
from raysed.cluster.resources import Cluster
from raysed.config import make_config
from raysed.errors import UserError
from raysed.plan import size
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.store.progress import emit
from raysed.store.status import read_timings
from raysed.store.storage import Storage

SETTINGS = {"recipes": ["ct-sed"], "corpus": {"source": "bundled:everyday", "sentences": 300}}
HEAD = (0.0, 0.0)


@pytest.fixture
def growing(monkeypatch, tmp_path):
    """An executor on a head without CPUs and GPUs, beside which a node comes when it is asked for."""

    def make():
        there = Cluster((HEAD,), autoscaling=True)
        grown = Cluster((HEAD, (8.0, 2.0)), autoscaling=True, gpu_bytes=24e9, gpu="A10G")
        monkeypatch.setattr(on_ray, "current_cluster", lambda: there)
        monkeypatch.setattr(on_ray, "gather", lambda *arguments: grown)
        monkeypatch.setattr(on_ray, "check_versions", lambda models: None)
        said: list[str] = []
        plan = Plan(check(make_config(SETTINGS)))
        return make_executor(plan.graph, Storage(str(tmp_path), "run"), plan.how(), said.append), said

    return make


def test_the_corpus_is_read_before_gpus_come_and_they_are_used_when_they_have(growing, monkeypatch):
    executor, said = growing()
    executor.make([executor.state.graph.artefacts["corpus"]])
    assert not any(line.startswith("cluster:") for line in said)
    monkeypatch.setattr(executor, "_by_task", lambda wanted, batch: None)
    executor.make([executor.state.graph.artefacts["base/embeddings/00"]])  # what workers make waits for nodes
    assert executor.gpu and executor.cluster.gpus == 2
    assert executor._memory([executor.state.graph.artefacts["ct/members/00"]]).device > 0
    assert said[-1].startswith("cluster: 2 nodes, 8 CPUs, 2 GPUs; members: 8 at a time, 1 CPU and 0.25 GPU each")


def test_a_disk_that_is_too_small_is_named_when_the_cluster_is_there(growing, monkeypatch):
    executor, _ = growing()
    monkeypatch.setattr(Storage, "free_bytes", lambda self: 10**6)
    with pytest.raises(UserError, match=r"has 0\.0 GB free, but this run needs about "):
        executor.gather()


def test_a_stage_adds_up_its_time_and_sentences_over_attempts_also_where_it_is_stopped(growing, monkeypatch):
    executor, _ = growing()
    clock = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr(execute, "monotonic", lambda: next(clock))
    with executor._timed("ct"):
        emit(line="train: 10 %", left=3.0)
    with pytest.raises(KeyboardInterrupt), executor._timed("ct"):
        emit(sentences=10)
        emit(sentences=20)
        raise KeyboardInterrupt
    emit(sentences=1000)
    assert read_timings(executor._storage) == {"ct": {"seconds": 3.5, "sentences": 30}}


def test_the_local_engine_gives_up_what_is_lost_while_embedding_and_ends_its_processes(monkeypatch, tmp_path):
    """Embedding counts no starts, unlike a training; what is lost for the third time ran out of memory."""
    processes = Mock(count=2)
    monkeypatch.setattr(local, "SideBySide", lambda watchdog: processes)
    monkeypatch.setattr(local, "this_machine", lambda gpu: Cluster(((2.0, 0.0),)))
    monkeypatch.setattr(local, "make_missing", lambda stream, storage, where, publish: publish([{}, {}], print))
    monkeypatch.setattr(local.LocalExecutor, "_plan_mean", lambda executor, tasks: (executor.share, 1))
    monkeypatch.setattr(local.LocalExecutor, "_stream", lambda *arguments: Mock(title="mean"))
    plan, task = Plan(check(make_config(SETTINGS))), Mock(inputs={"teachers": []})
    monkeypatch.setattr(plan.graph, "batches", lambda: [[]])

    def make(executor, batch):
        executor._make_groups("embed", [[Mock()], [Mock()]], True, print)
        executor._streamed([task], {})

    monkeypatch.setattr(local.LocalExecutor, "make", make)
    execute.execute(plan.graph, Storage(str(tmp_path), "run"), plan.how("local"), print)
    assert [call.kwargs["tries"] for call in processes.train.call_args_list] == [3, 3]
    assert processes.close.call_count == 1


def test_a_plan_without_the_gpus_that_may_come_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(size, "_here", lambda config: Cluster((HEAD, (8.0, 0.0)), autoscaling=True))
    with pytest.raises(UserError, match=r"^resources.gpu is true, but the cluster has no GPU \(2 nodes"):
        size.show_plan(make_config({**SETTINGS, "resources": {"gpu": True}}))
