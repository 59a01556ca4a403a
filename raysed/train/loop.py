"""The one training loop: update, evaluate, save, continue exactly.

The same lines run in a unit test, in a Ray Tune trial and in a Ray Train worker, because everything that differs is
handed in. Batches are a function of the step, and every source of randomness is seeded from (seed, step) before each
update; so the state to save is weights, optimizer and step, and a continued run is the undisturbed run.
"""

import json
import logging
import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from raysed.errors import UserError
from raysed.model.encoder import Encoder
from raysed.model.encoding import is_out_of_memory
from raysed.store.checkpoints import Checkpoints
from raysed.store.text import size

log = logging.getLogger(__name__)

Metrics = dict[str, Any]
_Result = TypeVar("_Result")
_NAMED_ROWS = 40
_MOST_PARTS = 64
CUDA_CONTEXT = 6e8
"""What a process takes of a GPU before its first tensor: context, kernels and workspaces, in bytes."""
_MUCH_BYTES = 1e9
"""Of other processes on a GPU, so much that they are to blame when memory runs out."""
_ASKED_EVERY = 10
"""Updates between two checks for a preemption notice: each costs a message between workers."""


class Objective(Protocol):
    """A module that turns a batch into a loss, and names what may be kept of it in the end.

    It may also have `after_update()`, called after each update of the weights, and `measures()`, numbers about the last
    batch for the history; see `objectives.base`.
    """

    def loss(self, batch: Any) -> torch.Tensor:
        """Returns the mean loss of one batch."""

    def candidates(self) -> dict[str, nn.Module]:
        """Returns the encoders of which one becomes the result, by name."""


class Engine(Protocol):
    """What makes updates: plain torch here, DeepSpeed in training/deepspeed.py."""

    def update(self, batch: Any, learning_rate: float) -> float | torch.Tensor:
        """Makes one update and returns the loss over all workers, not a number where its gradient is not finite.

        Such an update changes no weights. A loss that is still on its way on a GPU is returned as a tensor, so that
        nobody waits for it before it is asked for.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns weights and optimizer state, full and in fp32, whatever the number of workers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts a state back."""


@dataclass(frozen=True)
class Plan:
    """What one training does.

    Attributes:
        steps: updates in all.
        learning_rate: rate of an update, by step (0-based).
        seed: of everything random in an update.
        evaluate_every: updates between evaluations; the last update is always evaluated.
        checkpoint_every: updates between saved states.
        log_every: updates between entries of the loss in the history.
        keep: name of the candidate that is the result, or `best`: the best one at its best evaluation.
        patience: with `best`, the training ends after so many evaluations without a better score; None: never.
        held_out: batches that nothing is learnt from; where there are some, the loss on them, not the dev score, says
            which evaluation is the best.
    """

    steps: int
    learning_rate: Callable[[int], float]
    seed: int = 0
    evaluate_every: int = 500
    checkpoint_every: int = 500
    log_every: int = 10
    keep: str = "best"
    patience: int | None = None
    held_out: Sequence[Any] = ()


@dataclass
class Result:
    """How a training ended.

    Attributes:
        history: one entry per logged step: step, loss, learning_rate, what the objective measures and, where evaluated,
            scores by candidate and the loss on held-out batches. With measures the first update is logged, too: it saw
            the untouched weights.
        kept: name of the candidate that was kept; its module holds the kept weights.
        kept_step: after how many updates.
        score: its dev score, None without a dev task.
        resumed_at: the step at which a saved state was picked up, 0 for a fresh start.
        steps: updates made so far.
        held_out: the lowest loss on held-out batches, where there are some.
    """

    history: list[Metrics] = field(default_factory=list)
    kept: str = ""
    kept_step: int = 0
    score: float | None = None
    resumed_at: int = 0
    steps: int = 0
    held_out: float | None = None

    def score_by(self, step: int) -> float | None:
        """Returns the best dev score of any candidate after one to `step` updates."""
        scores = [max(entry["dev"].values()) for entry in self.history if "dev" in entry and 0 < entry["step"] <= step]
        return max(scores, default=None)


def before_training(
    objective: Objective,
    plan: Plan,
    start: nn.Module,
    evaluate: Callable[[nn.Module], float] | None,
    known: float | None = None,
) -> list[Metrics]:
    """Returns the history's entry of the untouched weights, step 0, or nothing without a dev task.

    The entry is for people who look at the curve. It counts neither for the choice of the weights that are kept, nor
    for early stopping.

    Args:
        objective: its candidates all have the weights of `start`.
        start: the encoder as it is before the first update.
        evaluate: dev score of an encoder, x100.
        known: the score of `start`, if it has been computed already.
    """
    if evaluate is None:
        return []
    score = evaluate(start) if known is None else known
    return [{"step": 0, "dev": {name: score for name in objective.candidates() if plan.keep in ("best", name)}}]


class TorchEngine:
    """Updates by a torch optimizer in this process.

    Args:
        objective: module whose trainable parameters the optimizer has.
        clip: largest global gradient norm, None for no clipping.

    Attributes:
        asks_later: whether an update ends before the device has made it, which needs one of torch's fused Adams. On
            CUDA nothing then waits for the GPU, and whether loss and gradient are finite is decided there.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip: float | None = None,
        bf16: bool = False,
    ):
        self.objective, self.optimizer, self.clip, self.bf16 = objective, optimizer, clip, bf16
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._after_update = getattr(objective, "after_update", lambda: None)
        self.asks_later = self._parameters[0].is_cuda and bool(optimizer.defaults.get("fused"))

    def update(self, batch: Any, learning_rate: float) -> float | torch.Tensor:
        """See `Engine.update`."""
        self.prepare(learning_rate)
        loss = in_memory(self.objective, lambda: self._gradient(batch))
        with shortage_said(self.objective):
            return self.finish(loss)

    def prepare(self, learning_rate: float) -> None:
        """Begins an update."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def finish(self, loss: torch.Tensor) -> float | torch.Tensor:
        """Ends an update, now that there is a gradient; returns what `update` does."""
        loss = self._step(loss)
        return loss if self.asks_later else loss.item()

    def _gradient(self, batch: Any) -> torch.Tensor:
        """Returns the loss; computes its gradient, unless the loss is known not to be finite."""
        self.optimizer.zero_grad(set_to_none=True)
        device = self._parameters[0].device.type
        with torch.autocast(device, torch.bfloat16) if self.bf16 else nullcontext():
            loss = self.objective.loss(batch)
        if self.asks_later or torch.isfinite(loss):
            loss.backward()
        return loss.detach()

    def _step(self, loss: torch.Tensor) -> torch.Tensor:
        def step(norm: torch.Tensor) -> None:
            if self.clip is not None:
                nn.utils.clip_grads_with_norm_(self._parameters, self.clip, norm)
            self.optimizer.step()
            self._after_update()

        return step_if_finite(loss, self._parameters, self.optimizer, self.asks_later, step)

    def state_dict(self) -> dict[str, Any]:
        """See `Engine.state_dict`."""
        return {"objective": self.objective.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Engine.load_state_dict`."""
        self.objective.load_state_dict(state["objective"])
        optimizer = state["optimizer"]
        optimizer["state"] = {int(index): value for index, value in optimizer["state"].items()}
        self.optimizer.load_state_dict(optimizer)


def in_memory(objective: nn.Module, action: Callable[[], _Result]) -> _Result:
    """Does something with a batch; if memory runs out, halves what encoders process at once and tries again.

    The batch and its loss stay the same, in-batch negatives included: only the encoders' inner states are held for one
    part of the batch at a time, and computed twice.

    Args:
        action: what to do; without effects that a second try would have to undo.

    Raises:
        UserError: the smallest part is too large.
    """
    # The failed try has used up random numbers. Putting the states back, that of the model's GPU included, gives every
    # try the same negatives and hidden words, so that an update does not depend on how much memory there is. With
    # dropout, parts draw other masks than the whole batch would. Check: the tests of test_loop.py with `little_memory`
    # in their names, which plant an error and compare with the undisturbed updates.
    restore = _random_state(next(objective.parameters()).device)
    while True:
        try:
            return action()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the except block, whose traceback keeps the tensors of the failed try alive.
        _make_room(objective)
        restore()


def _random_state(device: torch.device) -> Callable[[], None]:
    """Returns what puts random numbers back to where they are now: those of Python, numpy, the CPU and the device."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)

    return restore


def _make_room(objective: nn.Module) -> None:
    encoders = [module for module in objective.modules() if isinstance(module, Encoder)]
    others = _held_by_others(next(objective.parameters()).device)
    if not encoders or not all(encoder.padding_free and encoder.parts < _MOST_PARTS for encoder in encoders):
        mended_by = _SHARED if others else "lower the batch_size of this stage or encoder.max_length"
        raise UserError(
            f"there is not enough memory for a batch, even when it is processed in small parts{others}; {mended_by}"
        )
    for encoder in encoders:
        encoder.parts *= 2
    parts = encoders[0].parts
    log.warning("not enough memory for a whole batch%s: from now on it is encoded in %d parts", others, parts)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def shortage_said(objective: nn.Module) -> Iterator[None]:
    """Says in a sentence that memory has run out where nothing can be done in parts, and no try can be repeated.

    Raises:
        UserError: memory has run out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        others = _held_by_others(next(objective.parameters()).device)
        mended_by = _SHARED if others else "use a smaller encoder, or a machine or GPU with more memory"
        raise UserError(f"there is not enough memory to update the weights{others}; {mended_by}") from error


_SHARED = "raise resources.gpus_per_member, so that fewer members share a GPU, or end what else runs on it"


def _held_by_others(device: torch.device) -> str:
    """Says how much of a GPU's memory other processes hold; nothing where that is little."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device) - CUDA_CONTEXT
    return f", because other processes hold {size(others)} of the GPU's {size(total)}" if others > _MUCH_BYTES else ""


def step_if_finite(
    loss: torch.Tensor,
    parameters: Iterable[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    asks_later: bool,
    step: Callable[[torch.Tensor], None],
) -> torch.Tensor:
    """Returns the loss, or not a number: a broken gradient must not reach the weights, nor the saved states.

    Args:
        optimizer: what `step` uses; with `asks_later` one of torch's fused Adams.
        asks_later: whether the device decides, so that nobody waits for it.
        step: makes the update, given the norm of the gradient.
    """
    norm = gradient_norm(parameters)
    is_broken = ~torch.isfinite(loss + norm)
    if asks_later:
        optimizer.found_inf = is_broken.float()  # for torch's fused kernels, which then do nothing
    elif is_broken:
        return torch.full_like(loss, math.nan)
    step(norm)
    return torch.where(is_broken, math.nan, loss)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Returns the norm of all gradients together; not finite where one of their numbers is not."""
    return nn.utils.get_total_norm([dense_part(p) for p in parameters if p.grad is not None])


def dense_part(parameter: nn.Parameter) -> torch.Tensor:
    """Returns the numbers of a parameter's gradient; of a sparse one its rows, each once."""
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad.values()


def train(objective: nn.Module, batch_at: Callable[[int], Any], plan: Plan, engine: Engine, **options: Any) -> Result:
    """Trains to the last step, from the newest saved state if there is one.

    Args:
        objective: see `Run`, as for all others.
        plan: see `Plan`.
        options: what else `Run` takes.

    Raises:
        UserError: see `Run`.
        ValueError: likewise.
    """
    return Run(objective, batch_at, plan, engine, **options).train()


class _Background:
    """Saves in a thread while training goes on, one state at a time; whatever happens, none is left half saved."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> "_Background":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.wait()
        elif self._thread:  # what has happened is worse than a state that cannot be written
            self._thread.join()

    def start(self, action: Callable[[], None]) -> None:
        """Does something, after what was started before; raises what went wrong with that."""
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(action,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is being saved any more; raises what went wrong."""
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._error:
            error, self._error = self._error, None
            raise error

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:  # handed to the training
            self._error = error


class Run:
    """One training, update by update: `train` makes them all, and whoever else makes them does what is done there.

    When its `with` is left, no state is half saved.

    Args:
        objective: see `Objective`; left holding the kept weights.
        batch_at: the batch of a step; must not depend on anything else.
        plan: see `Plan`.
        evaluate: dev score of a candidate, x100; without it the last weights are kept.
        checkpoints: where states are saved and looked for.
        is_writer: whether this process writes them (rank 0); every rank takes part in gathering.
        on_metrics: called with each new entry of the history.
        until: stop here and save the state, so that another training goes on; None: go to the end.
        warned: whether this machine is about to be taken away. Every rank asks every ten updates, and as long as the
            answer is yes, the state is saved as often.

    Raises:
        UserError: the loss or its gradient is not finite; names the step and the sentences.
        ValueError: the plan keeps a candidate that is not there.
    """

    def __init__(
        self,
        objective: nn.Module,
        batch_at: Callable[[int], Any],
        plan: Plan,
        engine: Engine,
        *,
        evaluate: Callable[[nn.Module], float] | None = None,
        checkpoints: Checkpoints | None = None,
        is_writer: bool = True,
        on_metrics: Callable[[Metrics], None] = lambda metrics: None,
        until: int | None = None,
        warned: Callable[[], bool] = lambda: False,
    ):
        names = list(objective.candidates())
        if plan.keep not in ("best", *names):
            raise ValueError(f"plan.keep is {plan.keep!r}, but the candidates are {', '.join(names)}")
        self.engine = engine
        self._objective, self._batch_at, self._plan, self._evaluate = objective, batch_at, plan, evaluate
        self._checkpoints, self._is_writer, self._on_metrics = checkpoints, is_writer, on_metrics
        self._until, self._warned = plan.steps if until is None else min(until, plan.steps), warned
        self._measures = getattr(objective, "measures", dict)
        self._step = 0
        self._result = Result()
        self._best: dict[str, torch.Tensor] = {}
        self._saving = _Background()
        self._unasked: list[tuple[int, Iterable[int], float | torch.Tensor]] = []

    def __enter__(self) -> "Run":
        """Goes to the newest saved state."""
        self._restore()
        self._objective.train()
        for entry in self._result.history:
            self._on_metrics(entry)
        return self

    def __exit__(self, *error: Any) -> None:
        self._saving.__exit__(*error)

    def train(self) -> Result:
        """Makes all updates that are left; returns how the training ended."""
        with self:
            while self.goes_on():
                batch = self.next_batch()
                self.count(batch, self.engine.update(batch, self.learning_rate()))
            return self.end()

    def goes_on(self) -> bool:
        """Whether there is another update to make."""
        return self._step < self._until and not self._is_hopeless()

    def next_batch(self) -> Any:
        """Returns the batch of the next update; everything random after this depends on seed and step."""
        seed_everything(self._plan.seed, self._step)
        return self._batch_at(self._step)

    def learning_rate(self) -> float:
        """Returns that of the next update."""
        return self._plan.learning_rate(self._step)

    def count(self, batch: Any, loss: float | torch.Tensor) -> None:
        """Counts an update that was made: logs, evaluates and saves where that is due.

        Raises:
            UserError: a loss that was asked for is not finite.
        """
        if entry := self._counted(batch, loss):
            self._on_metrics(entry)
        is_warned = self._step % _ASKED_EVERY == 0 and self._warned()
        if (self._step % self._plan.checkpoint_every == 0 or is_warned) and self._step < self._plan.steps:
            self._save()

    def end(self) -> Result:
        """Ends the training, or what `until` asks for of it, and returns how that went."""
        self._ask()
        if self._until == self._plan.steps or self._is_hopeless():
            return self._finish()
        if self._step % self._plan.checkpoint_every:
            self._save()
        return self._result

    def _counted(self, batch: Any, loss: float | torch.Tensor) -> Metrics | None:
        """The history's new entry if there is one."""
        rate = self.learning_rate()
        self._unasked.append((self._step, getattr(batch, "ids", ()), loss))
        self._step = self._result.steps = self._step + 1
        is_due = self._step % self._plan.evaluate_every == 0 or self._step == self._plan.steps
        evaluates = is_due and (self._evaluate or self._plan.held_out)
        is_logged = evaluates or self._step % self._plan.log_every == 0 or self._step == self._plan.steps
        is_looked_at = is_logged or self._step == 1
        if is_looked_at or not isinstance(loss, torch.Tensor):
            loss = self._ask()
        measured = self._measures() if is_looked_at else {}
        if not is_logged and not measured:
            return None
        entry = {"step": self._step, "loss": loss, "learning_rate": rate, **measured}
        if evaluates:
            entry |= self._evaluated()
        self._result.history.append(entry)
        return entry

    def _ask(self) -> float:
        """Waits for the updates so far; returns the last loss that nobody has asked for.

        Raises:
            UserError: one of these losses is not finite; names the step and the sentences.
        """
        losses = [loss for _, _, loss in self._unasked]
        if losses and isinstance(losses[0], torch.Tensor):
            losses = torch.stack(losses).tolist()
        for (step, ids, _), loss in zip(self._unasked, losses):
            if not math.isfinite(loss):
                problem = f"the loss or its gradient is not finite at step {step}{_row_names(ids)}"
                raise UserError(f"{problem}; lower the learning rate or look at these rows")
        self._unasked.clear()
        return losses[-1] if losses else math.nan

    def _is_hopeless(self) -> bool:
        """Whether the last `patience` evaluations brought nothing better."""
        if self._plan.patience is None or self._plan.keep != "best":
            return False
        evaluated = [entry for entry in self._result.history if "dev" in entry or "held_out" in entry]
        later = [entry for entry in evaluated if entry["step"] > self._result.kept_step]
        return len(later) >= self._plan.patience

    def _evaluated(self) -> Metrics:
        """What an evaluation adds to the history; considers all candidates."""
        loss = self._held_out_loss() if self._plan.held_out else None
        scores = {}
        for name, module in self._objective.candidates().items():
            if self._plan.keep in ("best", name):
                if self._evaluate:
                    scores[name] = self._evaluate(module)
                self._consider(name, module, scores.get(name), loss)
        self._objective.train()
        return {**({"dev": scores} if scores else {}), **({} if loss is None else {"held_out": loss})}

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        """The mean over the sentences of all held-out batches."""
        self._objective.eval()
        losses = [self._objective.loss(batch).item() for batch in self._plan.held_out]
        loss = float(np.average(losses, weights=[len(batch.ids) for batch in self._plan.held_out]))
        return said_by_the_first(loss, next(self._objective.parameters()).device)

    def _consider(self, name: str, module: nn.Module, score: float | None, loss: float | None) -> None:
        """Keeps the weights of the best candidate so far; of equal ones the later, as the released CT code does."""
        result = self._result
        if loss is None:
            is_best = result.score is None or score >= result.score
        else:
            is_best = result.held_out is None or loss <= result.held_out
        if self._plan.keep != "best" or is_best:
            result.kept, result.kept_step, result.score, result.held_out = name, self._step, score, loss
        if self._plan.keep == "best" and is_best:
            self._best = {key: value.detach().cpu().clone() for key, value in module.state_dict().items()}

    def _save(self) -> None:
        """Copies the state, and has it written while training goes on."""
        if self._checkpoints is None:
            return
        self._ask()
        state = {
            "engine": self.engine.state_dict(),
            "best": self._best,
            "step": self._step,
            "result": vars(self._result),
        }
        if not self._is_writer:
            return
        self._saving.wait()  # before there are two copies in memory
        text, tensors = _copied(state)
        step = self._step
        self._saving.start(lambda: self._checkpoints.save(step, lambda path: _write_state(text, tensors, path)))

    def _restore(self) -> None:
        """Takes the newest state; the first worker says which that is."""
        if self._checkpoints is None:
            return
        newest = self._checkpoints.newest() if _is_first() else None
        step = int(said_by_the_first(newest[0] if newest else -1, next(self._objective.parameters()).device))
        if step < 0:
            return
        state = load_state(newest[1] if newest else self._checkpoints.at(step))
        self.engine.load_state_dict(state["engine"])
        self._step, self._best = state["step"], state["best"]
        self._result = Result(**{**state["result"], "resumed_at": self._step})

    def _finish(self) -> Result:
        """Puts the kept weights into their candidate."""
        candidates = self._objective.candidates()
        self._result.steps = self._step
        if self._best:
            candidates[self._result.kept].load_state_dict(self._best)
        elif not self._result.kept:
            self._result.kept = self._plan.keep if self._plan.keep in candidates else next(iter(candidates))
            self._result.kept_step = self._step
        self._objective.eval()
        return self._result


def _is_first() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def said_by_the_first(value: float, device: torch.device) -> float:
    """Returns the first worker's value to all workers of a training, so that all stop early or none does."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.broadcast(shared, 0)
    return shared.item()


def seed_everything(seed: int, step: int) -> None:
    """Seeds python, numpy and torch from (seed, step)."""
    words = np.random.SeedSequence([seed, step]).generate_state(2, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(int(words[0]) % 2**32)  # noqa: NPY002  (objectives of others may use the global state)
    torch.manual_seed(int(words[1]) % 2**63)


def warmup_schedule(rate: float, steps: int, warmup: float, decay: str) -> Callable[[int], float]:
    """Linear rise over the first share of the steps, then constant or a linear fall to zero.

    Args:
        warmup: share of the updates, 0 to 1.
        decay: `constant` or `linear`.

    >>> [round(warmup_schedule(1.0, 10, 0.2, "linear")(step), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """
    rising = max(int(steps * warmup), 1) if warmup else 0

    def at(step: int) -> float:
        if step < rising:
            return rate * (step + 1) / rising
        return rate * (steps - step) / max(steps - rising, 1) if decay == "linear" else rate

    return at


def save_state(state: Mapping[str, Any], path: Path) -> None:
    """Writes a nested state: tensors as safetensors, all else as JSON.

    Args:
        state: mappings, lists, tensors and what JSON takes.
    """
    _write_state(*_copied(state), path)


def _copied(state: Mapping[str, Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """A state as it is at the moment: JSON, and tensors on the CPU that share no memory."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_take_tensors(state, "", tensors))
    return text, {key: value.detach().to("cpu", copy=True).contiguous() for key, value in tensors.items()}


def _write_state(text: str, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path / "state.safetensors")
    (path / "state.json").write_text(text)


def load_state(path: Path) -> dict[str, Any]:
    """Reads what `save_state` wrote; keys of mappings come back as text."""
    tensors = load_file(path / "state.safetensors")
    return _put_tensors(json.loads((path / "state.json").read_text()), tensors)


def _take_tensors(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name = f"{len(tensors)}{name}"  # a key may hold a slash, so the path alone is not unique
        tensors[name] = value
        return {"__tensor__": name}
    if isinstance(value, Mapping):
        return {str(key): _take_tensors(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{name}/{index}", tensors) for index, item in enumerate(value)]
    return value


def _put_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if "__tensor__" in value:
            return tensors[value["__tensor__"]]
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    return [_put_tensors(item, tensors) for item in value] if isinstance(value, list) else value


def _row_names(ids: Iterable[int]) -> str:
    """The sentence ids of a batch, if it has any."""
    ids = list(dict.fromkeys(map(int, ids)))
    return f" (sentence ids {', '.join(map(str, ids[:_NAMED_ROWS]))}{', …' * (len(ids) > _NAMED_ROWS)})" if ids else ""
