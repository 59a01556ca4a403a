"""Which weights a training keeps and when it may stop: evaluations on a dev task or held-out batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from raysed.model.encoding import encode
from raysed.score.metrics import unit
from raysed.train.stage import CLOSEST, TrainingPlan
from raysed.train.state import broadcast_from_rank0

Metrics = dict[str, Any]


@dataclass
class TrainingResult:
    """How a training ended.

    Attributes:
        history: one entry per logged step: step, loss, learning_rate and the objective's measures, if any (also of the
            first update). Evaluations add dev scores by candidate and the loss on held-out batches.
        kept: name of the candidate whose weights after `kept_step` updates are kept.
        score: its dev score; None without a dev task.
        resumed_at: step of the saved state it continued from; 0 for a fresh start.
        held_out: lowest loss on held-out batches.
    """

    history: list[Metrics] = field(default_factory=list)
    kept: str = ""
    kept_step: int = 0
    score: float | None = None
    resumed_at: int = 0
    steps: int = 0
    held_out: float | None = None


class Selection:
    """Evaluates the candidates of an objective and keeps the best weights so far on the CPU."""

    def __init__(self, objective: nn.Module, plan: TrainingPlan, evaluate: Callable[[nn.Module], float] | None):
        names = list(objective.candidates())
        if plan.keep not in ("best", CLOSEST, *names):
            raise ValueError(f"plan.keep is {plan.keep!r}, but the candidates are {', '.join(names)}")
        self._objective, self._plan, self._evaluate = objective, plan, evaluate
        self.best: dict[str, torch.Tensor] = {}

    def is_due(self, step: int) -> bool:
        """Whether something is evaluated after this many updates."""
        is_time = step % self._plan.evaluate_every == 0 or step == self._plan.steps
        return is_time and bool(self._evaluate or self._plan.held_out)

    def evaluate(self, result: TrainingResult, step: int) -> Metrics:
        """Evaluate all candidates, note the best one in `result`, and return fields for the history's entry.

        Ties go to the later one, as in the released CT code.
        """
        loss = self._held_out_loss() if self._plan.held_out else None
        scores = {}
        for name, module in _kept_candidates(self._objective, self._plan).items():
            if self._evaluate:
                scores[name] = self._evaluate(module)
            if loss is None:
                is_best = result.score is None or scores[name] >= result.score
            else:
                is_best = result.held_out is None or loss <= result.held_out
            if self._plan.keep == name or (self._plan.keep == "best" and is_best):
                result.kept, result.kept_step, result.score, result.held_out = name, step, scores.get(name), loss
            if self._plan.keep == "best" and is_best:
                self.best = {key: value.detach().cpu().clone() for key, value in module.state_dict().items()}
        self._objective.train()
        return {**({"dev": scores} if scores else {}), **({} if loss is None else {"held_out": loss})}

    def out_of_patience(self, result: TrainingResult) -> bool:
        """Whether the last `patience` evaluations brought no improvement."""
        if self._plan.patience is None or self._plan.keep != "best":
            return False
        evaluated = [entry for entry in result.history if "dev" in entry or "held_out" in entry]
        return sum(entry["step"] > result.kept_step for entry in evaluated) >= self._plan.patience

    def restore_best(self, result: TrainingResult, step: int) -> None:
        """Load the kept weights into their candidate."""
        candidates = self._objective.candidates()
        if self._plan.keep == CLOSEST:
            result.kept, result.kept_step = max(candidates, key=lambda name: self._likeness(candidates[name])), step
            result.score = next((e["dev"][result.kept] for e in reversed(result.history) if "dev" in e), None)
        elif self.best:
            candidates[result.kept].load_state_dict(self.best)
        elif not result.kept:
            result.kept, result.kept_step = next(iter(_kept_candidates(self._objective, self._plan))), step

    def _likeness(self, encoder: nn.Module) -> float:
        """Return the correlation of the cosines between sentences with those before training."""
        a_P, b_P = (_deviations(x_ND) for x_ND in (encode(encoder, self._plan.sample)[0], self._plan.untrained))
        return float(a_P @ b_P / max(np.linalg.norm(a_P) * np.linalg.norm(b_P), 1e-12))

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        self._objective.eval()
        losses = [self._objective.loss(batch).item() for batch in self._plan.held_out]
        loss = float(np.average(losses, weights=[len(batch.ids) for batch in self._plan.held_out]))
        return broadcast_from_rank0(loss, next(self._objective.parameters()).device)


def _deviations(x_ND: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of centred rows, minus their mean."""
    x_ND = unit(x_ND - x_ND.mean(0))
    cosines_P = (x_ND @ x_ND.T)[np.triu_indices(len(x_ND), 1)]
    return cosines_P - cosines_P.mean() if len(cosines_P) else cosines_P


def untrained_entry(objective: nn.Module, plan: TrainingPlan, score: float) -> Metrics:
    """Return the history's entry for the untrained weights, step 0; it affects neither selection nor early stopping."""
    return {"step": 0, "dev": dict.fromkeys(_kept_candidates(objective, plan), score)}


def _kept_candidates(objective: nn.Module, plan: TrainingPlan) -> dict[str, nn.Module]:
    candidates = objective.candidates()
    return candidates if plan.keep in ("best", CLOSEST) else {plan.keep: candidates[plan.keep]}
