"""The one training loop: update, evaluate, save, continue exactly.

Batches are a function of the step, and all randomness is seeded from (seed, step) before each update; so the state to
save is weights, optimizer and step, and a continued run is the undisturbed run.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from raysed.errors import UserError
from raysed.store.checkpoints import Checkpoints
from raysed.train.engine import TorchEngine
from raysed.train.selection import Metrics, Result, Selection
from raysed.train.stage import Plan
from raysed.train.state import BackgroundWriter, broadcast_from_rank0, copied, load_state, seed_everything, write_state

if TYPE_CHECKING:
    from raysed.train.deepspeed import DeepSpeedEngine

    Engine = TorchEngine | DeepSpeedEngine

_NAMED_ROWS = 40
_WARNING_EVERY = 10
"""Updates between two checks for a preemption notice: each costs a message between workers."""


def train(objective: nn.Module, batch_at: Callable[[int], Any], plan: Plan, engine: "Engine", **options: Any) -> Result:
    """Train to the last step, from the newest saved state if there is one; takes what `Run` takes."""
    return Run(objective, batch_at, plan, engine, **options).train()


class Run:
    """One training; `train` makes its updates.

    Args:
        objective: left holding the kept weights.
        batch_at: the batch of a step; must not depend on anything else.
        evaluate: dev score of a candidate, x100; without it the last weights are kept.
        is_writer: whether this process writes states (rank 0); every rank takes part in gathering.
        until: stop here and save the state, so that another training goes on; None: go to the end.
        warned: whether this machine is about to be taken away. Every rank asks every ten updates, and saves on a yes.
    """

    def __init__(
        self,
        objective: nn.Module,
        batch_at: Callable[[int], Any],
        plan: Plan,
        engine: "Engine",
        *,
        evaluate: Callable[[nn.Module], float] | None = None,
        checkpoints: Checkpoints | None = None,
        is_writer: bool = True,
        on_metrics: Callable[[Metrics], None] = lambda metrics: None,
        until: int | None = None,
        warned: Callable[[], bool] = lambda: False,
    ):
        self._engine = engine
        self._objective, self._batch_at, self._plan = objective, batch_at, plan
        self._selection = Selection(objective, plan, evaluate)
        self._checkpoints, self._is_writer, self._on_metrics = checkpoints, is_writer, on_metrics
        self._until, self._warned = plan.steps if until is None else min(until, plan.steps), warned
        self._measures = getattr(objective, "measures", dict)
        self._step = 0
        self._result = Result()
        self._writer = BackgroundWriter()
        self._pending: list[tuple[int, Iterable[int], float | torch.Tensor]] = []

    def train(self) -> Result:
        """Make all updates that are left, from the newest saved state on; return how the training ended."""
        try:
            self._restore()
            self._objective.train()
            for entry in self._result.history:
                self._on_metrics(entry)
            while self._step < self._until and not self._selection.out_of_patience(self._result):
                self._update()
            self._synchronize()
            if self._until == self._plan.steps or self._selection.out_of_patience(self._result):
                self._selection.put_back(self._result, self._step)
                self._result.steps = self._step
                self._objective.eval()
            elif self._step % self._plan.checkpoint_every:
                self._save()
        except BaseException:
            self._writer.wait(raises=False)  # an error is worse than a state that cannot be written
            raise
        self._writer.wait()
        return self._result

    def _update(self) -> None:
        """Make one update; log, evaluate and save where that is due."""
        seed_everything(self._plan.seed, self._step)
        batch, rate = self._batch_at(self._step), self._plan.learning_rate(self._step)
        loss = self._engine.update(batch, rate)
        self._pending.append((self._step, getattr(batch, "ids", ()), loss))
        self._step = self._result.steps = self._step + 1
        if entry := self._logged(loss, rate):
            self._on_metrics(entry)
        is_warned = self._step % _WARNING_EVERY == 0 and self._warned()
        if (self._step % self._plan.checkpoint_every == 0 or is_warned) and self._step < self._plan.steps:
            self._save()

    def _logged(self, loss: float | torch.Tensor, rate: float) -> Metrics | None:
        evaluates = self._selection.is_due(self._step)
        is_logged = evaluates or self._step % self._plan.log_every == 0 or self._step == self._plan.steps
        is_looked_at = is_logged or self._step == 1
        if is_looked_at or not isinstance(loss, torch.Tensor):
            loss = self._synchronize()
        measured = self._measures() if is_looked_at else {}
        if not is_logged and not measured:
            return None
        entry = {"step": self._step, "loss": loss, "learning_rate": rate, **measured}
        if evaluates:
            entry |= self._selection.evaluate(self._result, self._step)
        self._result.history.append(entry)
        return entry

    def _synchronize(self) -> float:
        """Wait for the updates so far; return the newest loss, if all are finite."""
        losses = [loss for _, _, loss in self._pending]
        if losses and isinstance(losses[0], torch.Tensor):
            losses = torch.stack(losses).tolist()
        for (step, ids, _), loss in zip(self._pending, losses):
            if not math.isfinite(loss):
                rows = [str(int(row)) for row in dict.fromkeys(ids)]
                named = ", ".join(rows[:_NAMED_ROWS]) + ", …" * (len(rows) > _NAMED_ROWS)
                problem = f"not finite at step {step}{f' (sentence ids {named})' if rows else ''}"
                raise UserError(f"the loss or its gradient is {problem}; lower the learning rate or look at these rows")
        self._pending.clear()
        return losses[-1] if losses else math.nan

    def _save(self) -> None:
        """Copy the state, and have it written while training goes on."""
        if self._checkpoints is None:
            return
        self._synchronize()
        state = {"engine": self._engine.state_dict(), "best": self._selection.best}
        state |= {"step": self._step, "result": vars(self._result)}
        if not self._is_writer:
            return
        self._writer.wait()  # before there are two copies in memory
        text, tensors = copied(state)
        step = self._step
        self._writer.start(lambda: self._checkpoints.save(step, lambda path: write_state(text, tensors, path)))

    def _restore(self) -> None:
        """Take the newest state; the first worker says which that is."""
        if self._checkpoints is None:
            return
        is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        newest = self._checkpoints.newest() if is_first else None
        device = next(self._objective.parameters()).device
        step = int(broadcast_from_rank0(newest[0] if newest else -1, device))
        if step < 0:
            return
        state = load_state(newest[1] if newest else self._checkpoints.at(step))
        self._engine.load_state_dict(state["engine"])
        self._step, self._selection.best = state["step"], state["best"]
        self._result = Result(**{**state["result"], "resumed_at": self._step})
