"""The training loop: update, evaluate, save, continue exactly.

Batches are a function of the step, and all randomness is seeded from (seed, step) before each update. So weights,
optimizer and step suffice as state, and a continued run equals an uninterrupted one.
"""

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import nn

from raysed.errors import UserError
from raysed.store.checkpoints import Checkpoints
from raysed.train.deepspeed import DeepSpeedEngine
from raysed.train.engine import TorchEngine
from raysed.train.recorded import map_tensors
from raysed.train.selection import Metrics, Selection, TrainingResult
from raysed.train.stage import TrainingPlan
from raysed.train.state import broadcast_from_rank0, load_state, seed_everything, snapshot, write_state

_NAMED_ROWS = 40
_WARNING_EVERY = 10
"""Updates between two checks for a preemption notice or a late checkpoint: they cost messages between workers."""
_LONGEST_S = 120.0
"""Seconds of updates that a crash may cost, however many steps `checkpoint_every` allows."""
_REST = 10
"""Pause between checkpoints on GPUs, in durations of the last one: updates may outpace the disk."""


@dataclass
class TrainingLoop:
    """One training; `train` makes its updates.

    Attributes:
        objective: holds the kept weights afterwards.
        batch_at: returns the batch of a step; must depend on the step only.
        evaluate: returns a candidate's dev score, x100.
        is_writer: whether this process writes states (rank 0); all ranks help to gather them.
        warned: returns whether this machine will soon be preempted. All ranks ask every ten updates, and then save.
    """

    objective: nn.Module
    batch_at: Callable[[int], Any]
    plan: TrainingPlan
    engine: TorchEngine | DeepSpeedEngine
    _: KW_ONLY
    evaluate: Callable[[nn.Module], float] | None = None
    checkpoints: Checkpoints | None = None
    is_writer: bool = True
    on_metrics: Callable[[Metrics], None] = lambda metrics: None
    warned: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._selection = Selection(self.objective, self.plan, self.evaluate)
        self._measures = getattr(self.objective, "measures", dict)
        self._step, self._result = 0, TrainingResult()
        self._writing: Future | None = None
        self._next_batch: Future | None = None
        self._on_gpu = next(self.objective.parameters()).device.type == "cuda"
        self._rests_until = 0.0
        self._saved_at = time.monotonic()

    def train(self) -> TrainingResult:
        """Continue from the newest saved state, and return the result."""
        self._restore()
        self.objective.train()
        for entry in self._result.history:
            self.on_metrics(entry)
        # On any exit, the executors finish a state that is being written.
        with ThreadPoolExecutor(1, "batches") as self._reader, ThreadPoolExecutor(1, "checkpoint") as self._writer:
            while self._step < self.plan.steps and not self._selection.out_of_patience(self._result):
                self._update()
            self._selection.restore_best(self._result, self._step)
            self._result.steps = self._step
            self.objective.eval()
        self._wait_for_writer()
        return self._result

    def _update(self) -> None:
        seed_everything(self.plan.seed, self._step)
        batch, rate = self._batch(), self.plan.learning_rate(self._step)
        loss = self.engine.update(batch, rate)
        if not math.isfinite(loss):
            raise UserError(_not_finite(self._step, getattr(batch, "ids", ())))
        self._step = self._result.steps = self._step + 1
        if entry := self._logged(loss, rate):
            self.on_metrics(entry)
        asks = self._step % _WARNING_EVERY == 0
        is_warned = asks and self.warned()
        is_due = (self._step % self.plan.checkpoint_every == 0 or (asks and self._is_late())) and self._may_save()
        if (is_due or is_warned) and self._step < self.plan.steps:
            self._save()

    def _batch(self) -> Any:
        """Return the batch of the next update; for a GPU, a thread prepares the one after it."""
        if not self._on_gpu:
            return self.batch_at(self._step)
        batch = (self._next_batch or self._reader.submit(self._pinned, self._step)).result()
        is_last = self._step + 1 >= self.plan.steps
        self._next_batch = None if is_last else self._reader.submit(self._pinned, self._step + 1)
        return batch

    def _pinned(self, step: int) -> Any:
        """Return a batch in memory that a GPU copies from without waiting."""
        return map_tensors(_pin, self.batch_at(step))

    def _logged(self, loss: float, rate: float) -> Metrics | None:
        evaluates = self._selection.is_due(self._step)
        is_logged = evaluates or self._step % self.plan.log_every == 0 or self._step == self.plan.steps
        measured = self._measures() if is_logged or self._step == 1 else {}
        if not is_logged and not measured:
            return None
        entry = {"step": self._step, "loss": loss, "learning_rate": rate, **measured}
        if evaluates:
            entry |= self._selection.evaluate(self._result, self._step)
        self._result.history.append(entry)
        return entry

    def _save(self) -> None:
        """Copy the state and write it while training continues."""
        self._saved_at = time.monotonic()
        if self.checkpoints is None:
            return
        state = {"engine": self.engine.state_dict(), "best": self._selection.best}
        state |= {"step": self._step, "result": vars(self._result)}
        if not self.is_writer:
            return
        self._wait_for_writer()  # at most one copy in memory
        began = time.monotonic()
        self._writing = self._writer.submit(self._write, self._step, *snapshot(state), began)

    def _write(self, step: int, text: str, tensors: dict[str, torch.Tensor], began: float) -> None:
        self.checkpoints.save(step, lambda path: write_state(text, tensors, path))
        ended = time.monotonic()
        self._rests_until = ended + _REST * (ended - began)

    def _may_save(self) -> bool:
        """Return whether to write the checkpoint that is due; rank 0 decides. Always true on CPUs."""
        if not self._on_gpu:
            return True
        is_free = (not self._writing or self._writing.done()) and time.monotonic() >= self._rests_until
        return self._rank0_says(is_free)

    def _is_late(self) -> bool:
        return self._rank0_says(time.monotonic() - self._saved_at > _LONGEST_S)

    def _rank0_says(self, value: bool) -> bool:
        return bool(broadcast_from_rank0(float(value), next(self.objective.parameters()).device))

    def _wait_for_writer(self) -> None:
        if self._writing:
            self._writing.result()

    def _restore(self) -> None:
        """Load the newest state that rank 0 sees."""
        if self.checkpoints is None:
            return
        is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        newest = self.checkpoints.newest() if is_first else None
        device = next(self.objective.parameters()).device
        step = int(broadcast_from_rank0(newest[0] if newest else -1, device))
        if step < 0:
            return
        state = load_state(newest[1] if newest else self.checkpoints.at(step))
        self.engine.load_state_dict(state["engine"])
        self._step, self._selection.best = state["step"], state["best"]
        self._result = TrainingResult(**{**state["result"], "resumed_at": self._step})


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" and tensor.layout == torch.strided else tensor


def _not_finite(step: int, ids: Iterable[int]) -> str:
    rows = [str(int(row)) for row in dict.fromkeys(ids)]
    named = ", ".join(rows[:_NAMED_ROWS]) + ", …" * (len(rows) > _NAMED_ROWS)
    problem = f"not finite at step {step}{f' (sentence ids {named})' if rows else ''}"
    return f"the loss or its gradient is {problem}; lower the learning rate or look at these rows"
