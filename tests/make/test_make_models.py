"""Members and learners are made by plain functions of their inputs and settings, in this process and without Ray."""

import errno
import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from started_jobs import tiny_settings

from raysed.config import MembersConfig, make_config
from raysed.context import Context, Outcome
from raysed.errors import RunFailed, UserError
from raysed.graph import LISTS, CandidateResult, RemoteValue, State, Task
from raysed.make.models import MemberTrainer, ensemble, grid_choice, train
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.store.files import Watched
from raysed.store.storage import Storage
from raysed.train.setup import set_up

MEMBERS = ["ct/members/00", "ct/members/01"]


def test_a_full_disk_is_no_member_that_can_be_left_out(tmp_path):
    settings = {"node": "ct", "min_members": 1, "is_used": True}
    members = [
        CandidateResult("ct/members/00", "a", {"dev": 1.0}),
        CandidateResult("ct/members/01", "b", None, "no space left", True),
    ]
    for outcome in (ensemble, grid_choice):
        with pytest.raises(UserError, match=r"^ct/members/01: no space left$"):
            outcome(tmp_path, {"members": members}, settings, Context())
    ensemble(tmp_path, {"members": [members[0], replace(members[1], is_mistake=False)]}, settings, Context())


def test_members_without_one_to_go_on_from_are_not_counted(tmp_path):
    """Where a member of the stage before has collapsed."""
    found = [
        CandidateResult("a/0", "x", {"dev": 1.0}),
        CandidateResult("a/1", "", None),
        CandidateResult("b/0", "y", {"dev": 2.0}),
        CandidateResult("b/1", "", None),
    ]
    settings = {"node": "nli-ct", "min_members": None, "is_used": True, "task": "dev"}
    settings |= {"bounds": {"a/0": 0.0, "a/1": 0.0, "b/0": 0.5, "b/1": 0.5}}
    assert ensemble(tmp_path, {"members": found[:2]}, settings, Context())[LISTS]["all"] == [("a/0", "x")]
    assert grid_choice(tmp_path, {"members": found}, settings, Context())[LISTS]["all"] == [("b/0", "y")]


@pytest.fixture
def engines(monkeypatch):
    """Weak references to the engines and objectives of trainings, while nothing collects circles."""
    found = []

    def noted(*arguments):
        setup = set_up(*arguments)
        found.extend([weakref.ref(setup.engine), weakref.ref(setup.objective)])
        return setup

    monkeypatch.setattr("raysed.make.models.set_up", noted)
    gc.disable()
    yield found
    gc.enable()


def stop(*arguments):
    raise UserError("stop")


def test_nothing_of_a_training_stays_in_memory(tmp_path, engines, monkeypatch):
    """Four in one process, the last of which fails."""
    plan = Plan(check(make_config(tiny_settings(recipes=["ct"], storage=str(tmp_path)))))
    storage = Storage(str(tmp_path), "tiny")
    state = State(plan.graph, storage)
    for name in ("base/embeddings/00", "corpus"):
        state.task(name).run(storage, Context())
    for index in range(3):
        task = state.task(f"ct/members/{index:02d}")
        assert train(task, MemberTrainer, storage, Context()).failure is None
    monkeypatch.setattr("raysed.train.loop.TrainingLoop._logged", stop)
    failed = replace(task, name="ct/members/03")
    assert train(failed, MemberTrainer, storage, Context()).failure == "stop"
    assert len(engines) == 8 and not any(reference() for reference in engines)


@pytest.mark.parametrize("changes", ["before", "while it trains", "never"])
def test_a_model_whose_inputs_change_is_not_published(tmp_path, monkeypatch, changes):
    """They are compared before the first update and after the last one."""
    states, steps = [], []

    def look() -> str:
        states.append("new" if changes == "before" or (changes == "while it trains" and steps) else "old")
        return states[-1]

    class Trained(MemberTrainer):
        def __init__(self, *arguments):
            pass

        def run(self) -> SimpleNamespace:
            steps.append(1)
            return SimpleNamespace(steps=1, resumed_at=0)

        def write(self, out, result) -> dict:
            return {}

    task = Task("ct/members/00", "", None, {}, {}, {"options": MembersConfig()}, (Watched("a file", look, "old"),))
    storage = Storage(str(tmp_path), "run")
    failure = train(task, Trained, storage, Context()).failure
    assert failure == (None if changes == "never" else "a file changed while the run was using it; start the run again")
    assert task.exists(storage) == (changes == "never") and len(steps) == (changes != "before")


# -- trainings that fail -----------------------------------------------------------------------------------------------


class Broken:
    """A training that fails with what its settings say."""

    def __init__(self, inputs, settings, context):
        raise settings["error"]


def broken(tmp_path, error: Exception | None, max_retries: int = 1) -> tuple[Task, Storage]:
    options = RemoteValue(lambda: SimpleNamespace(max_retries=max_retries))  # as on Ray
    task = Task("ct/members/00", "", None, {}, {"error": error}, {"options": options})
    return task, Storage(str(tmp_path), "run")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), UserError("no space left")])
def test_what_the_user_can_fix_is_not_tried_again(tmp_path, error):
    """Nor is an error of the storage, which tries again by itself."""
    task, storage = broken(tmp_path, error)
    assert train(task, Broken, storage, Context()) == Outcome(failure=str(error), is_mistake=True)


def test_other_failures_are_raised_until_there_are_no_retries_left(tmp_path):
    task, storage = broken(tmp_path, RuntimeError("Traceback\n  a line\nValueError: no loss"), max_retries=2)
    context = Context()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no loss"):
            train(task, Broken, storage, context)
    assert train(task, Broken, storage, context) == Outcome(failure="ValueError: no loss")
    with pytest.raises(RuntimeError, match="no loss"):  # another job has its own retries
        train(task, Broken, storage, Context())
    task, _ = broken(tmp_path, RunFailed("another job has taken over"), max_retries=2)
    assert train(task, Broken, storage, Context()) == Outcome(failure="another job has taken over")


def test_an_error_of_one_among_several_workers_may_be_the_loss_of_another(tmp_path):
    """As of a node; so it is no verdict on the training, whose next start counts."""
    task, storage = broken(tmp_path, RuntimeError("CUDA out of memory"), max_retries=0)
    context = Context(world=2)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(task, Broken, storage, context)
    task = replace(task, settings={"error": RuntimeError("Connection closed by peer")})
    with pytest.raises(RuntimeError, match="Connection closed"):
        train(task, Broken, storage, replace(context, rank=1))
    last = "lost 1 times without a new checkpoint in between; the last error was: CUDA out of memory"
    assert last in train(task, Broken, storage, context).failure


def test_a_member_whose_worker_is_lost_again_and_again_is_given_up(tmp_path):
    """Unless there is a new checkpoint in between, which is one of `test_engines.py`."""
    task, storage = broken(tmp_path, None)
    context = Context()
    for _ in range(2):
        task.checkpoints(storage).begin(context.job)
    reason = "its worker was lost 2 times without a new checkpoint in between"
    assert train(task, Broken, storage, context) == Outcome(failure=reason)


def test_the_failure_of_one_worker_ends_all_that_train_the_model(tmp_path):
    """It raises, as the others may wait for it; all start again, and rank 0 tells them what the first has recorded."""
    task, storage = broken(tmp_path, UserError("no space left"), max_retries=5)
    sent = [(0, {})]

    def send(value):
        sent[0] = value
        return value

    first = Context(world=2, job="this", broadcast=send)
    second = Context(rank=1, world=2, job="this", broadcast=lambda value: sent[0])
    with pytest.raises(UserError, match="no space left"):
        train(task, Broken, storage, second)
    cut_off = replace(task, settings={"error": RuntimeError("Connection closed by peer")})
    with pytest.raises(RuntimeError, match="Connection closed"):
        train(cut_off, Broken, storage, replace(first, rank=2, broadcast=second.broadcast))
    failure = Outcome(failure="no space left", is_mistake=True)
    assert train(task, Broken, storage, first) == failure == train(task, Broken, storage, second)
    with pytest.raises(UserError, match="no space left"):  # another job tries again
        train(task, Broken, storage, replace(first, job="next"))
