"""Distillation and its engine: the updates are the plain ones, whatever the workers, the ZeRO stage and the memory."""

import itertools
import multiprocessing
import os
import socket
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from deepspeed_worker import RATE, WIDTH, Work, run
from learners import tiny_learner, write_targets

from raysed.data.targets import TargetBatches
from raysed.train.deepspeed import DeepSpeedEngine
from raysed.train.stage import warmup_schedule
from raysed.train.stages.sed import Distillation, SedConfig

_OPTIMIZERS = "deepspeed.runtime.zero.muon.muon_optimizer"
"""Where every worker with ZeRO looks whether its optimizer is one of these; the import takes as long as its updates."""


@pytest.mark.parametrize("loss", ("mse", "unit_mse"))
@pytest.mark.parametrize("world", (5, 11))
def test_losses_of_unequal_parts_average_to_that_of_the_batch(tmp_path, world, loss):
    """Of workers that share eight sentences, be they more than those or fewer; and so do their gradients."""
    write_targets(tmp_path, 96, 40, WIDTH)
    objective = Distillation(tiny_learner(WIDTH), loss=loss).train()
    whole = objective.loss(TargetBatches(tmp_path, 8, 3)(2))
    (expected,) = torch.autograd.grad(whole, next(objective.parameters()))
    losses = [objective.loss(TargetBatches(tmp_path, 8, 3, rank, world)(2)) for rank in range(world)]
    mean = torch.stack(losses).mean()
    torch.testing.assert_close(mean, whole)
    torch.testing.assert_close(torch.autograd.grad(mean, next(objective.parameters()))[0], expected)


def plain_losses(directory: Path, sed: SedConfig, steps: int) -> list[float]:
    """The reference: torch's Adam in one process, the mean squared error written out."""
    learner = tiny_learner(WIDTH).eval()
    parameters = [p for p in learner.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=0.0)
    batches = TargetBatches(directory, sed.batch_size, seed=5)
    rate = warmup_schedule(sed.learning_rate, steps, sed.warmup, sed.decay)
    losses = []
    for step in range(steps):
        batch = batches(step)
        optimizer.param_groups[0]["lr"] = rate(step)
        loss = ((learner(batch.tokens) - batch.targets) ** 2).sum() / batch.targets.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_workers(directory: Path, world: int, stages: str, **options) -> dict[int, dict]:
    """Runs a training and another from the start in `world` processes, one ZeRO stage after the other.

    The processes are forks of one that has imported DeepSpeed, which takes longer than the trainings.

    Returns:
        What the first worker found, by stage; nothing of trainings that were stopped.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work = Work(directory, world, port, [int(stage) for stage in stages], **options)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_OPTIMIZERS, "raysed.model.encoder"])
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    with mock.patch.dict(os.environ, DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1"):
        workers = [context.Process(target=run, args=(work, rank, told)) for rank, (_, told) in enumerate(pipes)]
        for worker in workers:
            worker.start()
    found = [heard.recv() if heard.poll(240) else "silent" for heard, _ in pipes]
    for worker in workers:
        worker.join(30)
        worker.kill()
    failed = [words[-1500:] for words in found if isinstance(words, str)]
    assert not failed, "\n\n".join(failed)
    assert [worker.exitcode for worker in workers] == [0] * world
    return found[0]


@pytest.fixture(scope="module")
def continued(tmp_path_factory) -> tuple[dict[int, dict], np.ndarray]:
    """Three workers until update 6, one until 10, two to the end, with every ZeRO stage; and the plain losses."""
    directory = tmp_path_factory.mktemp("continued")
    write_targets(directory, 96, 40, WIDTH)
    assert not run_workers(directory, 3, "012", stop=6)
    assert not run_workers(directory, 1, "012", stop=10)
    expected = plain_losses(directory, SedConfig(batch_size=8, learning_rate=RATE), 12)
    return run_workers(directory, 2, "012"), np.array(expected)


@pytest.mark.slow
@pytest.mark.parametrize("stage", range(3))
def test_deepspeed_makes_the_plain_updates(continued, stage):
    """Stopped twice and continued with another number of workers each time: the plain loss curve.

    Three share eight sentences unequally. Another training that follows in the same process has that curve, too;
    without ZeRO, nobody asks for its losses before they are logged, as on a GPU. With dropout, two workers resume to
    the last bit. If the gradient of one of them is not finite, both are told by the loss, and no weight changes. They
    have their moments before the first update, so memory that suffices for the gradient suffices for the update.
    """
    (of_stage, expected), parameters = continued, Distillation(tiny_learner(WIDTH)).parameters()
    found, spoiled = of_stage[stage], of_stage[stage]["spoiled"]
    assert found["resumed_at"] == 10
    assert np.abs(found["losses"] - expected).max() < 1e-4
    assert np.abs(found["following"] - expected).max() < 1e-4
    assert found["resumes_exactly"]
    assert np.isfinite(spoiled["losses"][:2]).all() and np.isnan(spoiled["losses"][2]) and spoiled["unchanged"]
    numbers = sum(p.numel() for p in parameters if p.requires_grad)
    assert spoiled["moments"] >= 2 * numbers / (1 if stage == 0 else 2)


def test_a_learner_that_ended_early_can_be_finished():
    """Its state is asked for without an update in between, which would make DeepSpeed's engine."""
    objective = Distillation(tiny_learner(WIDTH))
    engine = DeepSpeedEngine(objective, SedConfig(), world=1, bf16=False)
    moments = {name: {"exp_avg": torch.ones_like(p)} for name, p in objective.named_parameters() if p.requires_grad}
    state = {"objective": objective.state_dict(), "moments": moments, "updates": 7, "bf16": True}
    engine.load_state_dict(state)
    found = engine.state_dict()
    assert (found["moments"], found["updates"], found["bf16"]) == (moments, 7, True)


@pytest.mark.slow
def test_deepspeed_without_zero_is_recorded_with_one_worker(tmp_path):
    """To the last bit, in both precisions, and clipped as by torch; with ZeRO every update is launched.

    Nothing of these trainings is alive when they are over.
    """
    write_targets(tmp_path, 96, 40, WIDTH)
    found = run_workers(tmp_path, 1, "01", records=True)
    for stage, bf16 in itertools.product((0, 1), (False, True)):
        assert found[stage][bf16]["is_equal"] and (stage or not found[stage][bf16]["by_torch"])
        launched, recorded = found[stage][bf16]["replays"]
        assert not launched and (recorded >= 4) == (stage == 0)
        assert not found[stage][bf16]["alive"]


class Engine:
    """What `deepspeed.initialize` gives, on a machine where a gradient of more than one part does not fit."""

    def __init__(self, objective: Distillation):
        self.objective, self.calls = objective, []

    def __call__(self, batch) -> torch.Tensor:
        self.calls.append("forward")
        return self.objective(batch)

    def backward(self, loss: torch.Tensor) -> None:
        self.calls.append("backward")
        loss.backward()
        if self.objective.learner.parts == 1:
            raise torch.OutOfMemoryError("half of the gradient is there")

    def zero_grad(self) -> None:
        self.calls.append("zero_grad")
        self.objective.zero_grad()


@pytest.mark.parametrize("stage", [0, 1])
def test_a_gradient_that_does_not_fit_is_made_in_parts(tmp_path, stage):
    write_targets(tmp_path, 32, 32, WIDTH)
    batch = TargetBatches(tmp_path, 8, seed=5)(0)
    plain, objective = (Distillation(tiny_learner(WIDTH)).train() for _ in range(2))  # without dropout, the default
    plain(batch).backward()
    inner = Engine(objective)
    engine = DeepSpeedEngine(objective, SedConfig(batch_size=8, zero_stage=stage), world=1, bf16=False)
    engine._engine = inner
    if stage:  # the others would wait for this worker
        with pytest.raises(torch.OutOfMemoryError):
            engine._whole_gradient(batch)
        return
    engine._whole_gradient(batch)
    assert inner.calls == ["zero_grad", "forward", "backward"] * 2
    for (name, one), two in zip(plain.named_parameters(), objective.parameters(), strict=True):
        assert one.grad is two.grad is None or torch.allclose(one.grad, two.grad, atol=1e-7), name
