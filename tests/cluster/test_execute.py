"""A cluster whose GPUs come later: nothing is planned for what is not there yet, and all is for what has come."""

from functools import partial
from types import SimpleNamespace

import pytest
from trainings import job, starts

from raysed.cluster import execute, on_ray
from raysed.cluster.execute import ExecutionOptions, Executor
from raysed.cluster.jobs import ShortJob
from raysed.cluster.local import LocalBackend
from raysed.cluster.on_ray import RayBackend
from raysed.config import ResourcesConfig, make_config
from raysed.context import Context, ignore
from raysed.errors import UserError
from raysed.graph import Blocks, block_name
from raysed.plan import size
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.resources import Cluster
from raysed.store.progress import emit
from raysed.store.status import read_timings
from raysed.store.storage import Storage

SETTINGS = {"recipes": ["ct-sed"], "corpus": {"source": "bundled:generated-text", "sentences": 300}}
HEAD = (0.0, 0.0)


@pytest.fixture
def growing(monkeypatch, tmp_path):
    """An executor on a head without CPUs and GPUs, beside which a node comes when it is asked for; what is asked."""

    def make(config=None):
        there = Cluster((HEAD,), autoscaling=True)
        grown = Cluster((HEAD, (8.0, 2.0)), autoscaling=True, gpu_bytes=24e9, gpu="A10G")
        demands: list = []
        monkeypatch.setattr(on_ray, "current_cluster", lambda res: there)
        monkeypatch.setattr(on_ray, "gather", lambda res, demand, say: demands.append(demand) or grown)
        said: list[str] = []
        job = check(config or make_config(SETTINGS))
        plan, storage = Plan(job), Storage(str(tmp_path), "run")
        options = ExecutionOptions(
            job.config.resources,
            members=job.config.members.count,
            learner_workers=job.config.sed.workers,
            check_room=partial(size.check_room, job, storage),
        )
        backend = RayBackend(storage, job.config.resources, said.append)
        return Executor(plan.graph, storage, options, backend, said.append), said, demands

    return make


def test_the_corpus_is_read_before_gpus_come_and_they_are_used_when_they_have(growing, monkeypatch):
    executor, said, _ = growing()
    executor.make([executor.state.graph.artefacts["corpus"]])
    assert not any(line.startswith("cluster:") for line in said)
    monkeypatch.setattr(executor, "_short", lambda wanted, batch: None)
    executor.make([executor.state.graph.artefacts["base/embeddings/00"]])  # what workers make waits for nodes
    assert executor.gpu and executor.cluster.gpus == 2
    assert executor._memory([executor.state.graph.artefacts["ct/members/00"]]).device > 0
    assert said[-1].startswith("cluster: 2 nodes, 8 CPUs, 2 GPUs; members: 8 at a time, 1 CPU and 0.25 GPU each")


def test_a_disk_that_is_too_small_is_named_when_the_cluster_is_there(growing, monkeypatch):
    executor, *_ = growing()
    monkeypatch.setattr(Storage, "free_bytes", lambda self: 10**6)
    with pytest.raises(UserError, match=r"has 0\.0 GB free, but this run needs about "):
        executor.gather()


def test_a_stage_adds_up_its_time_and_sentences_over_attempts_also_where_it_is_stopped(growing, monkeypatch):
    executor, *_ = growing()
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


BLOCK_DAMAGES = {
    "its entry is gone": lambda storage, name: storage.forget(name),
    "its file is gone": lambda storage, name: (storage.fetch(name) / "rows").unlink(),
    "its file is damaged": lambda storage, name: (storage.fetch(name) / "rows").write_text("y"),
    "nothing": lambda storage, name: None,
}


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("damage", BLOCK_DAMAGES)
def test_a_table_that_lacks_a_block_is_no_longer_finished_if_it_is_to_be_read(tmp_path, damage, is_read):
    storage = Storage(str(tmp_path), "run")
    storage.commit("targets", lambda path: None, {}, {"blocks": 2})
    for number in range(2):
        storage.commit(block_name("targets", number), lambda path: (path / "rows").write_text("x"), {})
    BLOCK_DAMAGES[damage](storage, block_name("targets", 1))
    executor, forgotten = object.__new__(Executor), []
    executor._storage = Storage(str(tmp_path), "run")  # of another process, which reads what is there
    executor._graph = SimpleNamespace(users=lambda artefact: ["a learner"])
    executor.state = SimpleNamespace(
        entry=lambda artefact: storage.finished("targets", {}),
        is_wanted=lambda artefact: artefact == "a learner" and is_read,
        forget=forgotten.append,
    )
    targets = SimpleNamespace(name="targets", execution=object.__new__(Blocks), lines=None)
    executor.make([targets])
    is_forgotten = is_read and damage != "nothing"
    assert (storage.entry("targets") is None) == is_forgotten == (forgotten == [targets])


def test_entries_of_new_blocks_are_copied_in_files_as_they_come(monkeypatch):
    monkeypatch.setattr(execute, "_PACKED", 2)
    entries = [SimpleNamespace(name=block_name(f"{table}/targets", number)) for number in range(5) for table in "ab"]
    executor, packs = object.__new__(Executor), []
    task = lambda artefact, **blocks: SimpleNamespace(name=artefact.name, depends={}, inputs={}, settings={})  # noqa: E731
    storage = SimpleNamespace(forget=ignore, listed=lambda *of: iter(()), finished_below=lambda *of: set())
    storage.pack = lambda below, entries: packs.append((below, [entry.name[-1] for entry in entries]))
    executor._storage, executor._task = storage, task
    executor.state = SimpleNamespace(entry=lambda corpus: SimpleNamespace(meta={"rows": 5 * 256}))
    executor._plan_stream = lambda execution, tasks: (SimpleNamespace(workers=100), 1)
    executor._context = executor._map_short = lambda *given, **named: None

    def stream(stream, share, on_event) -> None:
        for index in range(0, 10, 2):
            on_event("average", {"rows": 256, "made": 256, "entries": entries[index : index + 2]})

    executor._backend = SimpleNamespace(stream=stream)
    worker = SimpleNamespace(columns=(), kept=())
    blocks = Blocks(SimpleNamespace(name="corpus"), worker, "average")
    executor._stream([SimpleNamespace(name=f"{table}/targets", execution=blocks) for table in "ab"])
    assert packs == [(f"{table}/targets", pair) for pair in (["0", "1"], ["2", "3"], ["4"]) for table in "ab"]


def test_without_ray_one_training_follows_the_other_and_is_tried_again_as_often_as_is_set(tmp_path):
    marks, events = tmp_path / "marks", []
    marks.mkdir()
    backend = LocalBackend(Storage(str(tmp_path), "run"), ResourcesConfig(gpu=False), print)
    kinds = {"ct": "lost", "mlm": "lost always", "bsl": "wrong"}
    jobs = [job(marks, node, 0, behaves=behaves) for node, behaves in kinds.items()]
    backend.map(jobs, backend.share, Context("cuda"), lambda *event: events.append(event))
    assert starts(marks) == {"bsl-00": [9], "ct-00": [9, 9], "mlm-00": [9, 9]}
    outcomes = {name: event["outcome"] for name, event in events if "outcome" in event}
    assert [each.failure for each in outcomes.values()] == [None, "lost", "a planted mistake"]
    assert [name for name, _ in events] == ["ct/00", "ct/00", "mlm/00", "bsl/00"]


def test_what_cannot_be_made_for_a_reason_of_the_users_leaves_the_others():
    def task(name: str, error: Exception | None = None) -> SimpleNamespace:
        def run(storage, context) -> None:
            if error:
                raise error

        return SimpleNamespace(name=name, run=run)

    made = ShortJob("fit", [task("a", UserError("no text", setting="flow.fit_on")), task("b")])
    assert made.run(None, None) == {"a": "flow.fit_on: no text"}
    with pytest.raises(RuntimeError, match="a bug"):
        ShortJob("fit", [task("a", RuntimeError("a bug"))]).run(None, None)
