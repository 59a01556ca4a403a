"""Members and learners are made by plain functions of their inputs and settings, in this process and without Ray."""

import errno
import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from started_jobs import described, tiny_settings

from raysed.config import MembersConfig, make_config
from raysed.context import Context, Outcome
from raysed.errors import RunFailed, UserError
from raysed.made import RemoteValue, Step
from raysed.make.models import MemberTrainer, train
from raysed.store.files import Watched
from raysed.store.storage import Storage
from raysed.train.setup import set_up


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
    found = described(make_config(tiny_settings(recipes=["ct"], storage=str(tmp_path))))
    storage = Storage(str(tmp_path), "tiny")
    for name in ("base/embeddings/00", "corpus"):
        found[name].step.run(storage, Context())
    for index in range(3):
        step = found[f"ct/members/{index:02d}"].step
        assert train(step, MemberTrainer, storage, Context()).failure is None
    monkeypatch.setattr("raysed.train.loop.TrainingLoop._logged", stop)
    failed = replace(step, name="ct/members/03")
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

    step = Step("ct/members/00", "", None, {}, {}, {"options": MembersConfig()}, (Watched("a file", look, "old"),))
    storage = Storage(str(tmp_path), "run")
    failure = train(step, Trained, storage, Context()).failure
    assert failure == (None if changes == "never" else "a file changed while the run was using it; start the run again")
    assert step.exists(storage) == (changes == "never") and len(steps) == (changes != "before")


# -- trainings that fail -----------------------------------------------------------------------------------------------


class Broken:
    """A training that fails with what its settings say."""

    def __init__(self, inputs, settings, context):
        raise settings["error"]


def broken(tmp_path, error: Exception | None, max_retries: int = 1) -> tuple[Step, Storage]:
    options = RemoteValue(lambda: SimpleNamespace(max_retries=max_retries))  # as on Ray
    step = Step("ct/members/00", "", None, {}, {"error": error}, {"options": options})
    return step, Storage(str(tmp_path), "run")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), UserError("no space left")])
def test_what_the_user_can_fix_is_not_tried_again(tmp_path, error):
    """Nor is an error of the storage, which tries again by itself."""
    step, storage = broken(tmp_path, error)
    assert train(step, Broken, storage, Context()) == Outcome(failure=str(error), is_mistake=True)


def test_other_failures_are_raised_until_there_are_no_retries_left(tmp_path):
    step, storage = broken(tmp_path, RuntimeError("Traceback\n  a line\nValueError: no loss"), max_retries=2)
    context = Context()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no loss"):
            train(step, Broken, storage, context)
    assert train(step, Broken, storage, context) == Outcome(failure="ValueError: no loss")
    with pytest.raises(RuntimeError, match="no loss"):  # another job has its own retries
        train(step, Broken, storage, Context())
    step, _ = broken(tmp_path, RunFailed("another job has taken over"), max_retries=2)
    assert train(step, Broken, storage, Context()) == Outcome(failure="another job has taken over")


def test_an_error_of_one_among_several_workers_may_be_the_loss_of_another(tmp_path):
    """As of a node; so it is no verdict on the training, whose next start counts."""
    step, storage = broken(tmp_path, RuntimeError("CUDA out of memory"), max_retries=0)
    context = Context(world=2)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(step, Broken, storage, context)
    step = replace(step, settings={"error": RuntimeError("Connection closed by peer")})
    with pytest.raises(RuntimeError, match="Connection closed"):
        train(step, Broken, storage, replace(context, rank=1))
    last = "lost 1 times without a new checkpoint in between; the last error was: CUDA out of memory"
    assert last in train(step, Broken, storage, context).failure


def test_a_member_whose_worker_is_lost_again_and_again_is_given_up(tmp_path):
    """Unless there is a new checkpoint in between, which is one of `test_engines.py`."""
    step, storage = broken(tmp_path, None)
    context = Context()
    for _ in range(2):
        step.checkpoints(storage).begin(context.job)
    reason = "its worker was lost 2 times without a new checkpoint in between"
    assert train(step, Broken, storage, context) == Outcome(failure=reason)


def test_the_failure_of_one_worker_ends_all_that_train_the_model(tmp_path):
    """It raises, as the others may wait for it; all start again, and rank 0 tells them what the first has recorded."""
    step, storage = broken(tmp_path, UserError("no space left"), max_retries=5)
    sent = [(0, {})]

    def send(value):
        sent[0] = value
        return value

    first = Context(world=2, job="this", broadcast=send)
    second = Context(rank=1, world=2, job="this", broadcast=lambda value: sent[0])
    with pytest.raises(UserError, match="no space left"):
        train(step, Broken, storage, second)
    cut_off = replace(step, settings={"error": RuntimeError("Connection closed by peer")})
    with pytest.raises(RuntimeError, match="Connection closed"):
        train(cut_off, Broken, storage, replace(first, rank=2, broadcast=second.broadcast))
    failure = Outcome(failure="no space left", is_mistake=True)
    assert train(step, Broken, storage, first) == failure == train(step, Broken, storage, second)
    with pytest.raises(UserError, match="no space left"):  # another job tries again
        train(step, Broken, storage, replace(first, job="next"))
