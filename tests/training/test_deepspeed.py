"""Distillation and its engine: the updates are the plain ones, whatever the workers, the ZeRO stage and the memory."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learners import tiny_learner, write_targets

from raysed.config import SedConfig
from raysed.data.targets import TargetBatches
from raysed.training import loop
from raysed.training.deepspeed import DeepSpeedEngine
from raysed.training.objectives.distillation import Distillation

RATE = 1e-3
"""High, so that a lost moment shows within a few updates."""
WIDTH = 24
"""Of the targets: wider than the learner's states, so that it has a head."""


@pytest.mark.parametrize("world", (5, 11))
def test_losses_of_unequal_parts_average_to_that_of_the_batch(tmp_path, world):
    """Of workers that share eight sentences, be they more than those or fewer; and so do their gradients."""
    write_targets(tmp_path, 96, 40, WIDTH)
    objective = Distillation(tiny_learner(WIDTH)).train()
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
    rate = loop.warmup_schedule(sed.learning_rate, steps, sed.warmup, sed.decay)
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


_WORKER = """
import json, os, sys
from pathlib import Path
rank, world, port, stages, stop, scarce, directory = sys.argv[1:]
rank, world, stop = map(int, (rank, world, stop))
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
sys.path[:0] = {tests!r}
import torch
torch.set_num_threads(1)
from raysed.data.targets import TargetBatches
from raysed.training.deepspeed import DeepSpeedEngine, prepare_deepspeed
from raysed.training.objectives.distillation import Distillation
prepare_deepspeed(gpu=False)
torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
from learners import tiny_learner
from test_deepspeed import RATE, WIDTH
from raysed.training import loop
from raysed.config import SedConfig
from raysed.store.storage import Storage
directory = Path(directory)

def limited(forward):
    def only_one_row(*arguments, input_ids, **named):
        if len(input_ids) > 1:
            raise torch.OutOfMemoryError("planted")
        return forward(*arguments, input_ids=input_ids, **named)
    return only_one_row

class Stop(Exception):
    pass

def on_metrics(entry):
    if stop and entry["step"] == stop:
        raise Stop

def train(stage, later=False, **options):
    sed = SedConfig(batch_size=8, zero_stage=stage, learning_rate=RATE)
    objective = Distillation(tiny_learner(WIDTH))
    if scarce == "True":
        objective.learner.transformer.forward = limited(objective.learner.transformer.forward)
    engine = DeepSpeedEngine(objective, sed, world, bf16=False)
    engine.asks_later = later
    rate = loop.warmup_schedule(sed.learning_rate, 12, sed.warmup, sed.decay)
    plan = loop.Plan(12, rate, seed=1 + rank, checkpoint_every=4, log_every=1, keep="learner")
    batches = TargetBatches(directory, 8, 5, rank, world)
    try:
        return loop.train(objective, batches, plan, engine, is_writer=rank == 0, **options)
    except Stop:
        return None
    finally:
        engine.close()

def spoiled(stage, later=False):
    # Losses of three updates, at the third of which one worker's gradient is infinite; do weights stay?
    objective = Distillation(tiny_learner(WIDTH))
    engine = DeepSpeedEngine(objective, SedConfig(batch_size=8, zero_stage=stage), world, bf16=False)
    engine.asks_later = later
    batches, factor = TargetBatches(directory, 8, 5, rank, world), 1.0
    engine._initialise(batches(0))
    inner = getattr(engine._engine.optimizer, "optimizer", engine._engine.optimizer)
    made = sum(state["exp_avg"].numel() + state["exp_avg_sq"].numel() for state in inner.state.values())
    objective.learner.transformer.encoder.layer[1].output.dense.weight.register_hook(lambda grad: grad * factor)
    losses = [engine.update(batches(step), RATE) for step in range(2)]
    before = {{name: weight.clone() for name, weight in engine._weights().items()}}
    factor = float("inf") if rank == 0 else 1.0
    losses.append(engine.update(batches(2), RATE))
    after = engine._weights()
    engine.close()
    return list(map(float, losses)), all(torch.equal(before[name], after[name]) for name in before), made

found = {{}}
for stage in map(int, stages):
    states = Storage(str(directory), "states-" + str(stage)).checkpoints("learner", {{}})
    result = train(stage, checkpoints=states, on_metrics=on_metrics)
    if result:
        losses = [[entry["loss"] for entry in done.history] for done in (result, train(stage, later=stage == 0))]
        found[stage] = [*losses, result.resumed_at, spoiled(stage), spoiled(stage, later=stage == 0)]
if rank == 0:
    print("RESULT", json.dumps(found))
"""


def run_workers(directory: Path, world: int, stages: str, stop: int = 0, scarce: bool = False) -> dict[str, list]:
    """Runs a training and another from the start in `world` processes, one ZeRO stage after the other.

    Returns:
        The losses of both, where the first resumed, and what became of a third with an infinite gradient, by stage;
        nothing of trainings that were stopped.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = _WORKER.format(tests=[str(place) for place in Path(__file__).parents[:2]])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, (rank, world, port, stages, stop, scarce, directory))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    failed = [said[-1500:] for process, (_, said) in zip(processes, outputs) if process.returncode]
    assert not failed, "\n\n".join(failed)
    (line,) = [line for line in outputs[0][0].splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


@pytest.fixture(scope="module")
def continued(tmp_path_factory) -> tuple[dict[str, list], np.ndarray]:
    """Three workers until update 6, one until 10, two to the end, with every ZeRO stage; and the plain losses."""
    directory = tmp_path_factory.mktemp("continued")
    write_targets(directory, 96, 40, WIDTH)
    assert not run_workers(directory, 3, "0123", stop=6)
    assert not run_workers(directory, 1, "0123", stop=10)
    expected = plain_losses(directory, SedConfig(batch_size=8, learning_rate=RATE), 12)
    return run_workers(directory, 2, "0123"), np.array(expected)


@pytest.mark.slow
@pytest.mark.parametrize("stage", "0123")
def test_deepspeed_makes_the_plain_updates(continued, stage):
    """Stopped twice and continued with another number of workers each time: the plain loss curve.

    Three share eight sentences unequally. Another training that follows in the same process has that curve, too;
    without ZeRO, nobody asks for its losses before they are logged, as on a GPU.
    """
    found, expected = continued
    losses, following, resumed_at, *_ = found[stage]
    assert resumed_at == 8
    assert np.abs(losses - expected).max() < 1e-4
    assert np.abs(following - expected).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("stage", "0123")
def test_deepspeed_leaves_weights_alone_where_a_gradient_is_not_finite(continued, stage):
    """The gradient of one of two workers: both are told by the loss, at once or, without ZeRO, when they ask."""
    found, _ = continued
    for losses, unchanged, _ in found[stage][-2:]:
        assert np.isfinite(losses[:2]).all() and np.isnan(losses[2]) and unchanged


@pytest.mark.slow
@pytest.mark.parametrize("stage", "0123")
def test_deepspeed_has_its_moments_before_the_first_update(continued, stage):
    """Of two workers; so memory that suffices for the gradient suffices for the update."""
    found, _ = continued
    numbers = sum(p.numel() for p in Distillation(tiny_learner(WIDTH)).parameters() if p.requires_grad)
    assert found[stage][-1][-1] >= 2 * numbers / (1 if stage == "0" else 2)


@pytest.mark.slow
def test_deepspeed_with_little_memory_makes_the_plain_updates(tmp_path):
    """Two workers that cannot encode a batch at once: the global batch stays what it is."""
    write_targets(tmp_path, 96, 40, WIDTH)
    losses, *_ = run_workers(tmp_path, 2, "0", scarce=True)["0"]
    expected = plain_losses(tmp_path, SedConfig(batch_size=8, learning_rate=RATE), 12)
    assert np.abs(np.array(losses) - expected).max() < 1e-4


def test_one_process_equals_the_plain_loop(tmp_path):
    """The loop with torch's engine makes exactly the reference's updates."""
    write_targets(tmp_path, 96, 40, WIDTH)
    sed = SedConfig(batch_size=8)
    objective = Distillation(tiny_learner(WIDTH))
    optimizer = torch.optim.AdamW([p for p in objective.parameters() if p.requires_grad], lr=0.0, weight_decay=0.0)
    plan = loop.Plan(12, loop.warmup_schedule(2e-5, 12, 0.1, "constant"), log_every=1, keep="learner")
    engine = loop.TorchEngine(objective, optimizer)
    result = loop.train(objective, TargetBatches(tmp_path, 8, 5), plan, engine)
    assert [e["loss"] for e in result.history] == pytest.approx(plain_losses(tmp_path, sed, 12), abs=1e-6)


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
    loss = inner(batch)
    if stage:  # the others would wait for this worker
        with pytest.raises(torch.OutOfMemoryError):
            engine._backward(batch, loss)
        return
    engine._backward(batch, loss)
    assert inner.calls == ["forward", "backward", "zero_grad", "forward", "backward"]
    for (name, one), two in zip(plain.named_parameters(), objective.parameters(), strict=True):
        assert one.grad is two.grad is None or torch.allclose(one.grad, two.grad, atol=1e-7), name
