"""A run makes what is missing and nothing else, whatever was killed, lost or changed; makers only record."""

import shutil
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainings import Scored, job, starts

from raysed import runner
from raysed.cluster import on_ray
from raysed.cluster.jobs import ShortJob
from raysed.cluster.local import LocalBackend
from raysed.cluster.on_ray import RayBackend
from raysed.config import ResourcesConfig, make_config
from raysed.context import Context, ignore
from raysed.errors import UserError
from raysed.made import Blocks, Made, Training, block_name, made
from raysed.pipeline import ensemble_then_distill
from raysed.plan import size
from raysed.plan.check import check
from raysed.resources import Cluster, Need
from raysed.runner import Run
from raysed.store.checkpoints import Checkpoints
from raysed.store.progress import emit
from raysed.store.status import read_timings
from raysed.store.storage import Storage

RESOURCES = ResourcesConfig(gpu=False)


def note(out, inputs, settings, context):
    """Notes what is made; stops where it should be killed."""
    own = inputs["own"]
    if own.name == own.killed:
        raise KeyboardInterrupt
    (out / "made").touch()
    own.marks.append(own.name)


def thing(name: str, marks: list | None = None, given=None, killed: str = "", how="driver", **settings) -> Made:
    untracked = {"own": SimpleNamespace(name=name, marks=[] if marks is None else marks, killed=killed)}
    return made(name, name, "s", note, given or {}, settings, untracked, how=how)


def run_at(storage: Storage, say=ignore) -> Run:
    return Run(storage, LocalBackend(storage, RESOURCES), RESOURCES, say)


@st.composite
def scripts(draw) -> list[tuple[list[int], int, str]]:
    """Of each thing the places of its inputs, a setting, and where it is made."""
    count = draw(st.integers(1, 7))
    return [
        (
            draw(st.lists(st.integers(0, place - 1), max_size=2, unique=True)) if place else [],
            draw(st.integers(0, 2)),
            draw(st.sampled_from(["driver", "worker", "cpu"])),
        )
        for place in range(count)
    ]


@settings(max_examples=25, deadline=None)
@given(scripts(), st.integers(0, 6), st.integers(0, 6))
def test_a_killed_run_continues_and_a_changed_setting_remakes_what_depends_on_it(
    tmp_path_factory, script, kill, change
):
    storage = Storage(str(tmp_path_factory.mktemp("run")), "run")
    kill, change = kill % len(script), change % len(script)

    def make(bump: int = 0, kills: str = "") -> set[str]:
        things, marks = [], []
        for index, (inputs, setting, how) in enumerate(script):
            given, setting = {f"of {other}": things[other] for other in inputs}, setting + bump * (index == change)
            things.append(thing(f"a/{index}", marks, given, kills, how, setting=setting))
        try:
            run_at(storage).ensure(*reversed(things))
        except KeyboardInterrupt:
            assert kills
        assert len(set(marks)) == len(marks)
        return set(marks)

    first = make(kills=f"a/{kill}")
    everything = {f"a/{index}" for index in range(len(script))}
    assert f"a/{kill}" not in first and make() == everything - first
    assert make() == set()
    below = {change}
    for index, (inputs, *_) in enumerate(script):
        below |= {index} if below & set(inputs) else set()
    assert make(bump=10) == {f"a/{index}" for index in below}


# -- trainings -------------------------------------------------------------------------------------------------------


def model(marks, index: int, score: float = 0.0, behaves: str = "", **options) -> Made:
    settings = {"steps": 2, "score": score, "behaves": behaves, "marks": str(marks)}
    untracked = {"options": SimpleNamespace(max_retries=0, **options)}
    how = Training("ct", None, index, Scored, lambda **about: Need(), lambda rows: 2, {}, 0, 4)
    return made(f"ct/members/{index:02d}", f"member {index}", "ct", Scored, {}, settings, untracked, how=how)


@pytest.fixture
def marks(tmp_path):
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def test_a_trained_model_is_believed_until_its_files_are_read(tmp_path, marks):
    storage = Storage(str(tmp_path), "run")
    models = [model(marks, index, score=index) for index in range(2)]
    assert [each.dev for each in run_at(storage).train(models)] == [2, 3]
    shutil.rmtree(storage.fetch("ct/members/01"))
    assert [each.dev for each in run_at(Storage(str(tmp_path), "run")).train(models)] == [2, 3]
    assert starts(marks) == {"ct-members-00": [2], "ct-members-01": [2]}
    run_at(Storage(str(tmp_path), "run")).ensure(thing("mean", given={"of": models}))
    assert starts(marks) == {"ct-members-00": [2], "ct-members-01": [2, 2]}


def test_a_training_that_a_job_went_on_without_is_not_tried_again(tmp_path, marks):
    storage, said = Storage(str(tmp_path), "run"), []
    models = [model(marks, 0), model(marks, 1, behaves="lost always")]
    trained = run_at(storage).train(models)
    assert [each.failure for each in trained] == [None, "lost"]
    run_at(storage).train(models)
    assert starts(marks)["ct-members-01"] == [2, 2], "the job before may have ended for this very reason"
    run_at(storage, said.append).decide(trained, ["left out: one"])
    assert [each.failure for each in run_at(storage).train(models)] == [None, "lost"] and said[-1] == "left out: one"
    assert starts(marks) == {"ct-members-00": [2], "ct-members-01": [2, 2]}
    for changed in ({"score": 1}, {"min_members": 2}):
        run_at(storage).train([model(marks, 0), model(marks, 1, behaves="lost always", **changed)])
    assert starts(marks)["ct-members-01"] == [2, 2, 2, 2]


# -- tables of blocks ------------------------------------------------------------------------------------------------

BLOCK_DAMAGES = {
    "its entry is gone": lambda storage, name: storage.forget(name),
    "its file is gone": lambda storage, name: (storage.fetch(name) / "rows").unlink(),
    "its file is damaged": lambda storage, name: (storage.fetch(name) / "rows").write_text("y"),
    "nothing": lambda storage, name: None,
}


@pytest.mark.parametrize("damage", BLOCK_DAMAGES)
def test_a_table_that_lacks_a_block_does_not_exist(tmp_path, damage):
    storage = Storage(str(tmp_path), "run")
    table = thing("targets", how=Blocks(Made("corpus"), Scored, "average"))
    storage.commit("targets", lambda path: None, table.step.depends, {"blocks": 2})
    for number in range(2):
        storage.commit(block_name("targets", number), lambda path: (path / "rows").write_text("x"), {})
    BLOCK_DAMAGES[damage](storage, block_name("targets", 1))
    run = run_at(Storage(str(tmp_path), "run"))  # of another process, which reads what is there
    assert run._exists(table) == (damage == "nothing")


def run_of_tables(rows: int) -> Run:
    """A run whose backend makes none."""
    run = object.__new__(Run)
    run._storage = SimpleNamespace(forget=ignore, finished_below=lambda *of: set())
    run._storage.listed = run._storage.replaced = lambda *of: iter(())
    run.rows = lambda corpus: rows
    run._plan_stream = lambda how, steps: (SimpleNamespace(workers=100), 1)
    run._context = run._map_short = run._storage.pack = lambda *given, **named: None
    return run


@pytest.mark.parametrize(
    ("rows", "weights", "is_keyed", "where"),
    [
        (4096, lambda: 0, False, "here"),
        (4097, lambda: 0, False, "on the backend"),
        (1, lambda: 10, False, "on the backend"),
        (1, None, False, "on the backend"),
        (1, lambda: 0, True, "on the backend"),
    ],
    ids=["few rows", "more", "of a model", "of members", "of a large file, perhaps"],
)
def test_few_rows_are_combined_in_the_runs_own_process(monkeypatch, rows, weights, is_keyed, where):
    run, made = run_of_tables(rows), []
    monkeypatch.setattr(runner, "make_blocks_here", lambda stream, storage, on_event: made.append("here"))
    run._backend = SimpleNamespace(stream=lambda stream, share, on_event: made.append("on the backend"))
    worker = SimpleNamespace(columns=(), kept=())
    run._make_tables([thing("targets", how=Blocks(Made("corpus"), worker, "combine", weights, is_keyed=is_keyed))])
    assert made == [where]


def test_entries_of_new_blocks_are_copied_in_files_as_they_come(monkeypatch):
    monkeypatch.setattr(runner, "_PACKED", 2)
    entries = [SimpleNamespace(name=block_name(f"{table}/targets", number)) for number in range(5) for table in "ab"]
    run, packs = run_of_tables(5 * 256), []
    run._storage.pack = lambda below, entries: packs.append((below, [entry.name[-1] for entry in entries]))

    def stream(stream, share, on_event) -> None:
        for index in range(0, 10, 2):
            on_event("average", {"rows": 256, "made": 256, "entries": entries[index : index + 2]})

    run._backend = SimpleNamespace(stream=stream)
    how = Blocks(Made("corpus"), SimpleNamespace(columns=(), kept=()), "average")
    run._make_tables([thing(f"{table}/targets", how=how) for table in "ab"])
    assert packs == [(f"{table}/targets", pair) for pair in (["0", "1"], ["2", "3"], ["4"]) for table in "ab"]


@pytest.mark.parametrize(
    ("precision", "machines", "bytes_"),
    [
        ("auto", Cluster(((8, 1),), gpu_bytes=80e9, gpu="A100"), 2),
        ("bf16", Cluster(((8, 0),), node_bytes=80e9), 2),
        ("fp32", Cluster(((8, 1),), gpu_bytes=80e9, gpu="A100"), 4),
        ("auto", Cluster(((8, 1),), gpu_bytes=80e9, gpu="V100"), 4),
        ("auto", Cluster(((8, 0),), node_bytes=80e9), 4),
    ],
    ids=["a GPU", "on CPUs, too", "as set", "an old GPU", "CPUs"],
)
def test_a_teachers_weights_take_the_memory_of_their_precision(monkeypatch, precision, machines, bytes_):
    planned = []
    monkeypatch.setattr(runner, "plan_teachers", lambda machines, res, count, weights: planned.append(weights))
    run = object.__new__(Run)
    run._backend = SimpleNamespace(machines=lambda: machines, share=None)
    run._resources = ResourcesConfig(encode_precision=precision)
    run._plan_stream(Blocks(Made("corpus"), SimpleNamespace(), "the teacher", weights=lambda: 4 * 8_000_000_000), [])
    assert planned == [bytes_ * 8_000_000_000]


@pytest.mark.parametrize(
    ("precision", "gpu_bytes", "weights", "share"),
    [
        ("auto", 40e9, 28e9, (2, 1.0)),
        ("auto", 80e9, 1e9, (3, 0.5)),
        ("auto", 24e9, 28e9, (3, 0.0)),
        ("bf16", 24e9, 28e9, (2, 1.0)),
        ("auto", 80e9, None, (4, 0.5)),
    ],
    ids=["a GPU each", "two share one", "too large for GPUs", "as set", "the run's own members"],
)
def test_teachers_embed_what_is_scored_on_gpus_that_hold_them(precision, gpu_bytes, weights, share):
    run, shares, machines = object.__new__(Run), [], Cluster(((8, 2),), node_bytes=200e9, gpu_bytes=gpu_bytes)
    run._resources, run._members = ResourcesConfig(encode_precision=precision), 4
    run._backend = SimpleNamespace(machines=lambda: machines, share=None, map=lambda *of: shares.append(of[1]))
    run._map_short([SimpleNamespace(name="embeddings")] * 3, False, ignore, weights or 0)
    assert [(each.workers, each.gpus) for each in shares] == [share]


# -- machines --------------------------------------------------------------------------------------------------------

HEAD = (0.0, 0.0)


@pytest.fixture
def growing(monkeypatch, tmp_path):
    """A run on a head without CPUs and GPUs, beside which a node comes when it is asked for; what is said."""
    there = Cluster((HEAD,), autoscaling=True)
    grown = Cluster((HEAD, (8.0, 2.0)), autoscaling=True, gpu_bytes=24e9, gpu="A10G")
    monkeypatch.setattr(on_ray, "current_cluster", lambda res: there)
    monkeypatch.setattr(on_ray, "gather", lambda res, demand, say: grown)
    said: list[str] = []
    settings = {"recipes": ["ct-sed"], "corpus": {"source": "bundled:generated-text", "sentences": 300}}
    job_, storage = check(make_config(settings)), Storage(str(tmp_path), "run")
    trainings = size.rehearsed(ensemble_then_distill, job_)
    backend = RayBackend(storage, job_.config.resources, said.append)
    room = partial(size.check_room, job_, storage, trainings)
    return Run(storage, backend, job_.config.resources, said.append, trainings, 10, check_room=room), said


def test_the_text_is_read_before_gpus_come_and_they_are_used_when_they_have(growing, monkeypatch):
    """What workers make waits for nodes."""
    run, said = growing
    run.ensure(thing("text"))
    assert said == []
    monkeypatch.setattr(RayBackend, "map", ignore)
    run.ensure(thing("vectors", how="worker"))
    assert run.cluster.gpus == 2 and run._memory(run._trainings).device > 0
    assert said == ["cluster: 2 nodes, 8 CPUs, 2 GPUs; members: 8 at a time, 1 CPU and 0.25 GPU each"]


def test_a_disk_that_is_too_small_is_named_when_the_cluster_is_there(growing, monkeypatch):
    run, _ = growing
    monkeypatch.setattr(Storage, "free_bytes", lambda self: 10**6)
    with pytest.raises(UserError, match=r"has 0\.0 GB free, but this run needs about "):
        run._gather()


def test_a_stage_adds_up_its_time_and_sentences_over_attempts_also_where_it_is_stopped(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path), "run")
    run, clock = run_at(storage), iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr(runner, "monotonic", lambda: next(clock))
    with run._timed("ct"):
        emit(line="train: 10 %", left=3.0)
    with pytest.raises(KeyboardInterrupt), run._timed("ct"):
        emit(sentences=10)
        emit(sentences=20)
        raise KeyboardInterrupt
    emit(sentences=1000)
    assert read_timings(storage) == {"ct": {"seconds": 3.5, "sentences": 30}}


# -- in this process -------------------------------------------------------------------------------------------------


def test_without_ray_one_training_follows_the_other_and_is_tried_again_as_often_as_is_set(tmp_path, marks):
    events: list = []
    backend = LocalBackend(Storage(str(tmp_path), "run"), RESOURCES)
    kinds = {"ct": "lost", "mlm": "lost always", "bsl": "wrong"}
    jobs = [job(marks, node, 0, behaves=behaves) for node, behaves in kinds.items()]
    backend.map(jobs, backend.share, Context("cuda"), lambda *event: events.append(event))
    assert starts(marks) == {"bsl-00": [9], "ct-00": [9, 9], "mlm-00": [9, 9]}
    outcomes = {name: event["outcome"] for name, event in events if "outcome" in event}
    assert [each.failure for each in outcomes.values()] == [None, "lost", "a planted mistake"]
    assert [name for name, _ in events] == ["ct/00", "ct/00", "mlm/00", "bsl/00"]


def test_storage_that_does_not_answer_ends_a_training_also_before_its_start(tmp_path, marks, monkeypatch):
    def begin(checkpoints, job):
        raise OSError(113, "no route to host")

    monkeypatch.setattr(Checkpoints, "begin", begin)
    events, backend = [], LocalBackend(Storage(str(tmp_path), "run"), RESOURCES)
    backend.map([job(marks, "ct", 0)], backend.share, Context(), lambda name, event: events.append(event["outcome"]))
    assert [(each.failure, each.is_mistake) for each in events] == [("[Errno 113] no route to host", True)]


def test_what_cannot_be_made_for_a_reason_of_the_users_leaves_the_others():
    def step(name: str, error: Exception | None = None) -> SimpleNamespace:
        def run(storage, context) -> None:
            if error:
                raise error

        return SimpleNamespace(name=name, run=run)

    some = ShortJob("fit", [step("a", UserError("no text", setting="flow.fit_on")), step("b")])
    assert some.run(None, None) == {"a": "flow.fit_on: no text"}
    with pytest.raises(RuntimeError, match="a bug"):
        ShortJob("fit", [step("a", RuntimeError("a bug"))]).run(None, None)
