"""The training loop: a continued run is the undisturbed run, and nothing broken reaches weights or saved states."""

import math
import random
import re
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stopping import stop_after
from torch import nn

from papers.masked import dtype_on as views_dtype
from raysed.data.batches import EpochBatches
from raysed.errors import UserError
from raysed.model.encoder import Encoder
from raysed.model.precision import uses_bf16
from raysed.model.static import StaticVectors
from raysed.store.checkpoints import Checkpoints
from raysed.store.storage import Storage
from raysed.train import loop
from raysed.train.engine import TorchEngine
from raysed.train.out_of_memory import CUDA_CONTEXT, retry_in_parts
from raysed.train.selection import TrainingResult
from raysed.train.stage import TrainingPlan, warmup_schedule
from raysed.train.stages.contrastive import Contrastive
from raysed.train.state import load_state, seed_everything, snapshot, write_state

# -- what is kept ----------------------------------------------------------------------------------------------------


class Line(nn.Module):
    """Two candidates of one weight each; the gradient is 1, so that SGD of rate 1 counts the updates down."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.first.weight), nn.init.zeros_(self.second.weight)

    def loss(self, batch) -> torch.Tensor:
        return self.first.weight.sum() + 2 * self.second.weight.sum()

    def candidates(self) -> dict[str, nn.Module]:
        return {"first": self.first, "second": self.second}


def run_of(line: nn.Module, plan: TrainingPlan, **named) -> loop.TrainingLoop:
    return loop.TrainingLoop(
        line, lambda step: None, plan, TorchEngine(line, torch.optim.SGD(line.parameters())), **named
    )


def train_line(scores=None, steps: int = 10, **plan) -> tuple[Line, TrainingResult, list[tuple[int, float]]]:
    """`scores` by weight of the candidate that is evaluated; returns the weights that were asked for, too."""
    line, asked = Line(), []

    def evaluate(candidate: nn.Module) -> float:
        asked.append(-candidate.weight.item())
        return float(scores(asked[-1]))

    plan = TrainingPlan(steps, lambda step: 1.0, evaluate_every=4, log_every=3, **plan)
    result = run_of(line, plan, evaluate=scores and evaluate).train()
    return line, result, asked


@pytest.mark.parametrize(("patience", "kept_step", "steps"), [(1, 8, 12), (2, 16, 24), (None, 16, 40)])
def test_the_training_ends_when_nothing_gets_better(patience, kept_step, steps):
    """An evaluation every 4 updates; the score has a small peak after 4 updates and its largest after 16."""
    score = {4: 1, 16: 2}
    _, result, _ = train_line(lambda weight: score.get(weight, 0), steps=40, keep="best", patience=patience)
    # The second model gets to 16 after 8 updates already, where patience 1 does not wait for the first.
    assert (result.kept_step, result.steps) == (kept_step, steps)
    assert result.kept == ("second" if patience == 1 else "first")


def test_without_labels_the_lowest_loss_on_held_out_rows_is_kept(tmp_path):
    """Weighted by sentences. The dev score, which rises to the end, is shown and chooses nothing."""

    class Valley(Line):
        def loss(self, batch) -> torch.Tensor:
            return self.first.weight.sum() if batch is None else (self.first.weight.sum() + batch.place).abs()

        def candidates(self) -> dict[str, nn.Module]:
            return {"first": self.first}

    held_out = [SimpleNamespace(place=place, ids=range(count)) for place, count in ((10.0, 3), (18.0, 1))]
    plan = TrainingPlan(40, lambda step: 1.0, evaluate_every=4, keep="best", patience=2, held_out=held_out)

    for stop in (None, 14):
        checkpoints = Storage(str(tmp_path / str(stop)), "run").checkpoints("line", {})
        named = {"evaluate": lambda module: -module.weight.item(), "checkpoints": checkpoints}
        if stop:
            stop_after(run_of(Valley(), plan, **named), stop)
        line = Valley()
        found = run_of(line, plan, **named).train()
        losses = {entry["step"]: entry["held_out"] for entry in found.history if "held_out" in entry}
        assert losses == {4: 8.0, 8: 4.0, 12: 3.0, 16: 5.0, 20: 8.0}
        assert (found.kept_step, found.held_out, found.score, found.steps) == (12, 3.0, 12.0, 20)
        assert line.first.weight.item() == -12


ASKED = [4, 8, 8, 16, 10, 20]
"""The weights of both candidates at three evaluations."""


@pytest.mark.parametrize(
    ("scores", "keep", "asked", "kept", "step", "score"),
    [
        (lambda weight: -abs(weight - 4), "best", ASKED, "first", 4, 0.0),
        (lambda weight: 1.0, "best", ASKED, "second", 10, 1.0),  # of equal ones the later, as in CT's code
        (lambda weight: -abs(weight - 8), "second", [8, 16, 20], "second", 10, -12.0),
        (None, "second", [], "second", 10, None),
        (None, "best", [], "first", 10, None),
    ],
)
def test_the_best_evaluation_is_put_back_and_the_last_weights_where_none_is_known(
    scores, keep, asked, kept, step, score
):
    line, result, found = train_line(scores, keep=keep)
    assert (found, result.kept, result.kept_step, result.score) == (asked, kept, step, score)
    assert (line.first.weight.item(), line.second.weight.item()) == (-step, -20)  # the other one as it ended
    assert {3, 6, 9, 10} <= {entry["step"] for entry in result.history}
    assert [entry["dev"][kept] for entry in result.history if entry["step"] == step and asked] == [score][: len(asked)]
    assert not line.training


# -- updates ---------------------------------------------------------------------------------------------------------


class Broken(nn.Module):
    """A line whose loss, or its gradient, or both, are no finite numbers for some batches."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(3, 1)

    def loss(self, batch) -> torch.Tensor:
        healthy = self.only(torch.ones(3)).square().sum()
        zero = self.only.weight.sum() * 0
        broken = {"loss": healthy + math.inf, "gradient": healthy + zero.abs().sqrt(), "both": healthy / zero}
        return broken.get(batch.kind, healthy)

    def candidates(self) -> dict[str, nn.Module]:
        return {"only": self.only}


@pytest.mark.parametrize(("kind", "clip"), [("loss", None), ("gradient", 0.5), ("gradient", None), ("both", None)])
def test_what_is_not_finite_stops_the_run_and_touches_nothing(tmp_path, kind, clip):
    torch.manual_seed(0)
    objective, weights = Broken(), {}
    engine = TorchEngine(objective, torch.optim.AdamW(objective.parameters(), fused=True), clip)

    def batch_at(step: int) -> SimpleNamespace:
        weights[step] = [p.detach().clone() for p in objective.parameters()]
        return SimpleNamespace(kind=kind if step == 6 else "healthy", ids=np.array([40, 7, 40, 12]))

    checkpoints = Storage(str(tmp_path), "run").checkpoints("model", {})
    plan = TrainingPlan(20, lambda step: 0.1, checkpoint_every=3, log_every=9, keep="only")
    with pytest.raises(UserError) as caught:
        loop.TrainingLoop(objective, batch_at, plan, engine, checkpoints=checkpoints).train()
    assert str(caught.value) == (
        "the loss or its gradient is not finite at step 6 (sentence ids 40, 7, 12); "
        "lower the learning rate or look at these rows"
    )
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(objective.parameters(), weights[6]))
    assert not torch.equal(weights[6][0], weights[5][0])
    step, path = checkpoints.newest()
    assert step == 6
    assert all(torch.isfinite(t).all() for t in load_state(path)["engine"]["objective"].values())


@pytest.mark.parametrize("clip", [None, 100.0, 0.25])
def test_clipping_is_of_the_global_norm(clip):
    """Against gradients scaled by hand."""
    torch.manual_seed(0)
    objective = Broken()
    reference = [p.detach().clone().requires_grad_() for p in objective.parameters()]
    loss = ((reference[0].sum() + reference[1]) ** 2).sum()
    grads = torch.autograd.grad(loss, reference)
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads))
    scale = 1.0 if clip is None else min(1.0, clip / norm)
    engine = TorchEngine(objective, torch.optim.SGD(objective.parameters()), clip)
    value = engine.update(SimpleNamespace(kind="healthy"), 0.1)
    assert value == pytest.approx(loss.item(), rel=1e-6) and norm > 0.25
    for parameter, start, gradient in zip(objective.parameters(), reference, grads):
        torch.testing.assert_close(parameter.data, start.data - 0.1 * scale * gradient)


@given(st.integers(1, 200), st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0]), st.sampled_from(["constant", "linear"]))
def test_the_schedule_rises_then_holds_or_falls(steps, warmup, decay):
    """Straight lines: up to the rate at the end of the rise, then flat, or down to one step short of zero."""
    at = warmup_schedule(2.0, steps, warmup, decay)
    rates = [at(step) for step in range(steps)]
    rising = max(int(steps * warmup), 1) if warmup else 0
    assert max(rates) == pytest.approx(2.0) and min(rates) > 0
    np.testing.assert_allclose(rates[:rising], 2.0 * np.arange(1, rising + 1) / max(rising, 1))
    after = rates[rising:]
    if decay == "constant":
        assert all(rate == 2.0 for rate in after)
    elif after:
        np.testing.assert_allclose(after, 2.0 * np.arange(len(after), 0, -1) / len(after))


def test_a_seed_and_a_step_fix_all_randomness():
    def draws(seed: int, step: int) -> tuple:
        seed_everything(seed, step)
        return random.random(), float(np.random.rand()), float(torch.rand(1))  # noqa: NPY002

    assert draws(2**61 + 1, 7) == draws(2**61 + 1, 7)
    rows = [draws(seed, step) for seed, step in ((0, 0), (0, 1), (1, 0), (2**61, 0), (2**61 + 1, 0))]
    assert all(len(set(column)) == len(rows) for column in zip(*rows))


# -- saving while training goes on -----------------------------------------------------------------------------------


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    return Storage(str(tmp_path), "run").checkpoints("line", {})


def saving(**named) -> loop.TrainingLoop:
    plan = TrainingPlan(9, lambda step: 1.0, checkpoint_every=4, log_every=1, keep="first")
    return run_of(Line(), plan, **named)


def test_a_state_is_written_while_training_goes_on_and_is_that_of_its_step(checkpoints, monkeypatch):
    reached, may_write, save = [], threading.Event(), checkpoints.save
    monkeypatch.setattr(checkpoints, "save", lambda *arguments: may_write.wait(30) and save(*arguments))

    def on_metrics(entry):
        reached.append(entry["step"])
        if entry["step"] == 7:  # three updates after the state was due
            may_write.set()

    saving(checkpoints=checkpoints, on_metrics=on_metrics).train()
    assert reached == list(range(1, 10))
    for step in (4, 8):
        state = load_state(checkpoints.at(step))
        assert state["step"] == len(state["result"]["history"]) == step
        assert [weight.item() for weight in state["engine"]["objective"].values()] == [-step, -2 * step]


def test_fast_updates_save_seldom_but_before_the_machine_goes(checkpoints, monkeypatch):
    """A save takes a second, an update none; the next one starts ten seconds after it, except on a notice."""
    now, kept = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "ThreadPoolExecutor", lambda *_: nullcontext(SimpleNamespace(submit=at_once)))

    def at_once(function, *arguments) -> Future:
        future = Future()
        future.set_result(function(*arguments))
        return future

    def save(step: int, write) -> None:
        now[0] += 1.0
        kept.append(step)

    monkeypatch.setattr(checkpoints, "save", save)

    def batch_at(step: int) -> None:
        now[0] += 0.25

    line = Line()
    plan = TrainingPlan(160, lambda step: 1.0, checkpoint_every=5, log_every=100, keep="first")
    engine = TorchEngine(line, torch.optim.SGD(line.parameters()))
    run = loop.TrainingLoop(line, batch_at, plan, engine, checkpoints=checkpoints)
    monkeypatch.setattr(run, "_on_gpu", True)
    monkeypatch.setattr(run, "warned", lambda: run._step in (70, 75))  # asked every ten updates
    run.train()
    assert kept == [5, 45, 70, 110, 150]


def test_slow_steps_are_saved_every_two_minutes(checkpoints, monkeypatch):
    now, kept = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoints, "save", lambda step, write: kept.append(step))

    def batch_at(step: int) -> None:
        now[0] += 5.0

    line = Line()
    plan = TrainingPlan(100, lambda step: 1.0, checkpoint_every=500, log_every=100, keep="first")
    loop.TrainingLoop(
        line, batch_at, plan, TorchEngine(line, torch.optim.SGD(line.parameters())), checkpoints=checkpoints
    ).train()
    assert kept == [30, 60, 90]  # asked every ten updates


@pytest.mark.parametrize("until", [9, 5])  # found at the next checkpoint, and at the end
def test_a_state_that_cannot_be_written_ends_the_training(checkpoints, monkeypatch, until):
    monkeypatch.setattr(checkpoints, "save", Mock(side_effect=UserError("no disk space left")))
    run = saving(checkpoints=checkpoints)
    with pytest.raises(UserError, match="no disk space left"):
        replace(run, plan=replace(run.plan, steps=until)).train()


def test_all_workers_continue_from_the_state_that_the_first_names(checkpoints, monkeypatch):
    """One whose copy of the newest state is damaged would otherwise take the one before, and never meet the others."""
    assert saving(checkpoints=checkpoints).train().resumed_at == 0
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(loop, "broadcast_from_rank0", lambda value, device: 4.0)
    assert saving(checkpoints=checkpoints).train().resumed_at == 4


# -- states on disk --------------------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
TENSORS = st.builds(
    lambda dtype, shape, seed: torch.rand(shape, generator=torch.Generator().manual_seed(seed)).mul(9).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 99),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | TENSORS
KEYS = st.text(alphabet="ab/", max_size=3)
STATES = st.recursive(
    LEAVES,
    lambda s: st.one_of(st.lists(s, max_size=3), *(st.dictionaries(k, s, max_size=3) for k in (KEYS, st.integers()))),
)


def assert_equal_state(found, state) -> None:
    """Lists for tuples and text for keys; all else as it was, types included."""
    if isinstance(state, torch.Tensor):
        assert found.dtype == state.dtype and torch.equal(found, state)
    elif isinstance(state, dict):
        assert list(found) == [str(key) for key in state]
        for key, value in state.items():
            assert_equal_state(found[str(key)], value)
    elif isinstance(state, list | tuple):
        assert len(found) == len(state)
        for a, b in zip(found, state):
            assert_equal_state(a, b)
    else:
        assert type(found) is type(state) and found == state


@given(st.dictionaries(KEYS, STATES, max_size=4))
def test_a_state_comes_back_from_disk(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("state")
    write_state(*snapshot(state), path)
    assert_equal_state(load_state(path), state)


def test_a_state_may_share_and_view_memory(tmp_path):
    """Tied weights, slices and transposes are separate tensors on disk."""
    base = torch.arange(12.0).reshape(3, 4)
    state = {"a": base, "tied": [base, (base.T, base[:, 1])], 7: {"parameter": nn.Parameter(base[0])}}
    state |= {"b/c": base + 1, "b": {"c": base + 2}}
    write_state(*snapshot(state), tmp_path)
    assert_equal_state(load_state(tmp_path), state)


def test_nothing_is_pickled(checkpoints, tmp_path):
    """A saved state is tensors and text: reading one runs no code."""
    saving(checkpoints=checkpoints).train()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    with pytest.raises(TypeError):
        snapshot({"object": SimpleNamespace()})


def test_only_the_writer_writes(monkeypatch, checkpoints):
    """Every worker takes part in gathering a state, one writes it."""
    gathered, state_dict = [], TorchEngine.state_dict
    monkeypatch.setattr(TorchEngine, "state_dict", lambda self: gathered.append(1) or state_dict(self))
    for is_writer in (False, True):
        saving(checkpoints=checkpoints, is_writer=is_writer).train()
        assert (checkpoints.newest() is not None) == is_writer
    assert len(gathered) == 4  # two each, none after the last update: the result itself is published then


# -- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("avx512f amx_bf16", "large"), ("avx512f avx512_bf16", "large"), ("fp bf16", "large"), ("avx512f", "")],
)
def test_a_cpu_takes_bf16_unasked_by_its_flags_and_the_size(monkeypatch, make_encoder, flags, expected):
    monkeypatch.setattr("raysed.model.precision.cpu_flags", lambda: frozenset(flags.split()))
    models = {"small": make_encoder("bert"), "large": make_encoder("bert")}
    models["static"] = Encoder(StaticVectors.from_rows(torch.zeros(2, 3_000_000)))
    models["large"].transformer.more = nn.Parameter(torch.zeros(3_000_000))
    assert [name for name, model in models.items() if uses_bf16("auto", model)] == expected.split()
    assert all(uses_bf16("bf16", model) and not uses_bf16("fp32", model) for model in models.values())
    assert views_dtype("cpu") is torch.float32  # the same views on every kind of CPU


def test_a_training_goes_on_in_the_precision_in_which_it_began(checkpoints):
    """Also on a machine whose default is another one."""
    first, second = (saving(checkpoints=checkpoints) for _ in range(2))
    first.engine.bf16, second.engine.bf16 = True, False
    stop_after(first, 3)
    assert second.train().resumed_at == 3 and second.engine.bf16


# -- memory ----------------------------------------------------------------------------------------------------------


def train_ten(make_encoder, make_table, most: int = 99, error: type = torch.OutOfMemoryError) -> tuple:
    """Ten updates with in-batch negatives, which see the whole batch or another loss.

    The transformer cannot take more than `most` rows at once. Returns the losses, the encoder and all passes' rows.
    """
    encoder, rows = make_encoder("bert", layers=2), []
    forward = encoder.transformer.forward

    def limited(*arguments, input_ids, **named):
        rows.append(len(input_ids))
        if len(input_ids) > most:
            raise error("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return forward(*arguments, input_ids=input_ids, **named)

    encoder.transformer.forward = limited
    objective, batches = Contrastive(encoder, dropout=False), EpochBatches(make_table(160, longest=30), 16, seed=5)
    # Not Adam: of gradients that are zero but for rounding it makes whole steps.
    engine = TorchEngine(objective, torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad]))
    result = loop.TrainingLoop(
        objective, batches, TrainingPlan(10, lambda step: 0.01, 3, log_every=1, keep="encoder"), engine
    ).train()
    return [entry["loss"] for entry in result.history], encoder, rows


@pytest.mark.parametrize(("most", "error"), [(1, torch.OutOfMemoryError), (2, RuntimeError), (3, MemoryError)])
def test_with_little_memory_parts_are_smaller_and_the_batch_is_the_same(make_encoder, make_table, most, error, caplog):
    expected, plain, _ = train_ten(make_encoder, make_table)
    losses, encoder, rows = train_ten(make_encoder, make_table, most, error)
    assert losses == pytest.approx(expected, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(encoder.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-5)
    refused = [count for count in rows if count > most]
    assert 1 <= len(refused) <= 3 and rows[0] == refused[0]  # found out once, in the first update
    assert caplog.text.count("not enough memory for a whole batch; encoding batches in") == len(refused)


class OnGpu(nn.Module):
    """An objective whose parameters say that they are on the second GPU; it has room after one try."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def parameters(self, recurse=True):
        return iter([SimpleNamespace(device=torch.device("cuda", 1))])


def holds(monkeypatch, others: float) -> None:
    """A GPU of 16 GB, of which this process holds 3, its context included."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (13e9 - others, 16e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3e9 - CUDA_CONTEXT)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)


def test_with_little_memory_the_random_numbers_of_the_gpu_are_put_back(make_encoder, monkeypatch):
    holds(monkeypatch, others=0.0)
    numbers = {torch.device("cuda", 0): 10, torch.device("cuda", 1): 20}  # how many each GPU has drawn
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: numbers[device])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: numbers.update({device: state}))
    tries = []

    def draw():
        tries.append((*numbers.values(), torch.rand(()).item(), np.random.random(), random.random()))  # noqa: NPY002
        numbers[torch.device("cuda", 1)] += 1
        if len(tries) < 3:
            raise torch.OutOfMemoryError("planted")

    retry_in_parts(OnGpu(make_encoder("bert")), draw)
    assert len(tries) == 3 and len(set(tries)) == 1


@pytest.mark.parametrize(
    ("said", "is_memory"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.7 GiB", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("CUDA error: device-side assert triggered", False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", False),
    ],
)
def test_what_cuda_says_of_memory_is_understood(make_encoder, said, is_memory):
    """Other errors are passed on, and not tried again."""
    action = Mock(side_effect=[RuntimeError(said), "done"])
    if is_memory:
        assert retry_in_parts(make_encoder("bert"), action) == "done"
    else:
        with pytest.raises(RuntimeError, match=r"^CUDA error"):
            retry_in_parts(make_encoder("bert"), action)


@pytest.mark.parametrize("others", [0.4e9, 9e9])
def test_those_who_share_a_gpu_are_blamed_for_its_memory(make_encoder, monkeypatch, caplog, others):
    holds(monkeypatch, others)
    said = (
        "even when it is processed in small parts; lower the stage's batch_size (ct: groups, negatives) or encoder.max_"
    )
    if others > 1e9:
        said = "because other processes hold 9.0 GB of the GPU's 16.0 GB; raise resources.gpus_per_member to let"
    with pytest.raises(UserError, match=re.escape(said)):
        retry_in_parts(OnGpu(make_encoder("bert")), Mock(side_effect=torch.OutOfMemoryError("planted")))
    assert ("hold 9.0 GB of the GPU's 16.0 GB; encoding batches in 2 parts" in caplog.text) is (others > 1e9)


def test_an_update_that_does_not_fit_is_a_sentence(make_encoder, make_table, monkeypatch):
    """It cannot be repeated, because some weights may have changed."""
    step = Mock(side_effect=[torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: bad")])
    monkeypatch.setattr(torch.optim.SGD, "step", step)
    with pytest.raises(UserError, match=r"^there is not enough memory to update the weights; use a smaller encoder"):
        train_ten(make_encoder, make_table)
    with pytest.raises(RuntimeError, match="bad"):
        train_ten(make_encoder, make_table)
