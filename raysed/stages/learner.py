"""Ray Train + DeepSpeed: tokens and their targets -> learner; the same loop.py in every worker."""

import importlib
import logging
import math
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.nn import functional as F

from raysed.cluster.heartbeat import beating, beside_driver, watched
from raysed.cluster.resources import MOST_RESTARTS, Share, prepare_worker
from raysed.config import Config, SedConfig
from raysed.data.tokens import PackedTokens, TokenTable, pack
from raysed.errors import RunFailed, UserError, last_line
from raysed.evaluation.dev import dev_score
from raysed.model.encoder import Encoder, load_start, write_checkpoint
from raysed.plan.artefacts import Learner
from raysed.stages.teacher_mean import TARGET_FILE
from raysed.store.metrics import MetricsLog, metrics_log
from raysed.store.progress import Progress, ProgressBoard, tell
from raysed.store.storage import Storage
from raysed.training import loop
from raysed.training.objectives.base import EncoderObjective

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TargetBatch:
    """Sentences of one worker with their targets, [B, D].

    Attributes:
        tokens: of the sentences.
        targets: their targets.
        weight: its sentences over the mean of all workers, so that the mean of their losses is that of the batch.
    """

    tokens: PackedTokens
    targets: torch.Tensor
    weight: float = 1.0

    @property
    def ids(self) -> np.ndarray:
        """The sentences' ids."""
        return self.tokens.ids


class Distillation(EncoderObjective):
    """Mean squared error between the learner's last-layer embedding and the target (SED section 4).

    Args:
        learner: the encoder that learns.
        dropout: whether its dropout is on while it trains.
    """

    def __init__(self, learner: Encoder, dropout: bool = False):
        super().__init__(dropout)
        self.learner = learner

    def forward(self, batch: TargetBatch) -> torch.Tensor:
        """Returns the loss, a mean over sentences and dimensions, whose mean over workers is that of the batch."""
        device = next(self.parameters()).device
        emb_BD = self.learner(batch.tokens.to(device))
        return batch.weight * F.mse_loss(emb_BD.float(), batch.targets.to(device))

    def loss(self, batch: TargetBatch) -> torch.Tensor:
        """See `training.Objective`."""
        return self(batch)

    def candidates(self) -> dict[str, nn.Module]:
        """See `training.Objective`."""
        return {"learner": self.learner}


class TargetBatches:
    """Batches of a target table in an order that depends on (seed, step) only, not on the number of workers.

    Row groups are shuffled over the epoch, and rows within a window of row groups; so memory is that of a window, and
    any step can be reached at once.

    Args:
        directory: the target table.
        batch_size: sentences per update over all workers; the last, partial batch of an epoch is dropped.
        seed: of the order.
        rank: this worker.
        world: number of workers; each takes its part of every batch, as equal as can be.
        offset: subtracted from every target [D] (`sed.target: centred_mean`), or None.
        window: row groups in memory.
    """

    def __init__(
        self,
        directory: Path,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        offset: np.ndarray | None = None,
        window: int = 16,
    ):
        self._file = pq.ParquetFile(directory / TARGET_FILE)
        meta = self._file.metadata
        self._group_rows = np.array([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
        self.batch_size = min(batch_size, meta.num_rows)
        self.per_epoch = meta.num_rows // self.batch_size
        self._seed, self._window = seed, window
        start, stop = rank * self.batch_size // world, (rank + 1) * self.batch_size // world
        self._weight = (stop - start) * world / self.batch_size
        # Where there are more workers than sentences, some take a sentence of others with weight 0.
        self._part = slice(start, max(stop, start + 1))
        self._offset = 0 if offset is None else offset.astype(np.float32)
        self._loaded: tuple[int, int] = (-1, -1)

    def __call__(self, step: int) -> TargetBatch:
        """Returns this worker's part of the batch of a step."""
        epoch, index = divmod(step, self.per_epoch)
        first = index * self.batch_size
        pieces, wanted = [], np.arange(first, first + self.batch_size)[self._part]
        for window, start, stop in self._windows(epoch):
            inside = wanted[(wanted >= start) & (wanted < stop)] - start
            if len(inside):
                pieces.append(self._rows(epoch, window, inside))
        tokens = pieces[0][0] if len(pieces) == 1 else TokenTable.concatenate([piece[0] for piece in pieces])
        targets_BD = torch.from_numpy(np.concatenate([piece[1] for piece in pieces]))
        return TargetBatch(pack(tokens), targets_BD, self._weight)

    def _windows(self, epoch: int) -> list[tuple[int, int, int]]:
        """Number, first and last place in the epoch's order of every window."""
        sizes = self._group_rows[self._group_order(epoch)]
        edges = np.concatenate([[0], np.cumsum(sizes)])[:: self._window].tolist()
        edges = edges if edges[-1] == sizes.sum() else [*edges, int(sizes.sum())]
        return [(i, edges[i], edges[i + 1]) for i in range(len(edges) - 1)]

    def _group_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._group_rows))

    def _rows(self, epoch: int, window: int, places: np.ndarray) -> tuple[TokenTable, np.ndarray]:
        if self._loaded != (epoch, window):
            groups = self._group_order(epoch)[window * self._window : (window + 1) * self._window]
            table = self._file.read_row_groups(groups.tolist(), columns=["id", "input_ids", "target"])
            self._tokens = TokenTable.from_arrow(table)
            self._targets = table.column("target").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
            self._order = np.random.default_rng([self._seed, epoch, window + 1]).permutation(len(table))
            self._loaded = (epoch, window)
        rows = self._order[places]
        return self._tokens.take(rows), self._targets[rows] - self._offset


class DeepSpeedEngine:
    """Updates by DeepSpeed, ZeRO stage 0 to 3; see `training.Engine`.

    Weights and optimizer moments are gathered whole and in fp32 for saving, so a state fits any number of workers and
    any ZeRO stage. DeepSpeed takes weights over when it is initialised and has moments only after a first step; so it
    is initialised late, and moments are put back after one step with learning rate 0.

    Args:
        objective: the module to train.
        sed: optimizer settings.
        world: number of workers.
        bf16: autocast the forward pass; weights and moments stay fp32.
    """

    def __init__(self, objective: Distillation, sed: SedConfig, world: int, bf16: bool):
        self._objective, self._sed, self._world = objective, sed, world
        self._config = _deepspeed_config(sed, world, bf16)
        self._parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self._engine: Any = None
        self._pending: dict[str, Any] | None = None
        self._updates = 0

    def update(self, batch: TargetBatch, learning_rate: float) -> float:
        """See `training.Engine`."""
        if self._engine is None:
            self._initialise(batch)
        self._set_rate(learning_rate)
        loss = loop.in_memory(self._objective, lambda: self._engine(batch))
        value = _mean_over_workers(loss.detach())
        if not math.isfinite(value):
            return value
        self._backward(batch, loss)
        if not self._step():
            return math.nan
        self._updates += 1
        return value

    def _step(self) -> bool:
        """Whether the gradient of all workers is finite; ZeRO looks at it itself, DeepSpeed without ZeRO does not."""
        if self._sed.zero_stage == 0 and not torch.isfinite(loop.gradient_norm(self._parameters.values())):
            return False
        self._engine.step()
        return self._engine.was_step_applied()

    def _backward(self, batch: TargetBatch, loss: torch.Tensor) -> None:
        """With ZeRO the workers exchange gradients meanwhile, so that one cannot start over alone."""
        if self._sed.zero_stage:
            self._engine.backward(loss)
            return
        losses = [loss]

        def backward() -> None:
            if losses:
                self._engine.backward(losses.pop())
            else:  # what there is of the gradient is of no use
                self._engine.zero_grad()
                self._engine.backward(self._engine(batch))

        loop.in_memory(self._objective, backward)

    def state_dict(self) -> dict[str, Any]:
        """See `training.Engine`; every worker has to call it."""
        moments = {name: self._moments(parameter) for name, parameter in self._parameters.items()}
        return {"objective": self._weights(), "moments": moments, "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `training.Engine`."""
        self._objective.load_state_dict(state["objective"])
        self._updates = state["updates"]
        self._pending = state["moments"]

    def close(self) -> None:
        """Takes DeepSpeed's hooks and buffers away, so that another engine can follow in this process."""
        if self._engine is not None:
            self._engine.destroy()

    def _initialise(self, batch: TargetBatch) -> None:
        import deepspeed

        sed = self._sed
        optimizer = torch.optim.AdamW(self._parameters.values(), lr=0.0, weight_decay=sed.weight_decay, fused=True)
        self._engine, *_ = deepspeed.initialize(
            model=self._objective,
            optimizer=optimizer,
            model_parameters=list(self._parameters.values()),
            config=self._config,
        )
        if self._world == 1 and sed.zero_stage == 0:
            self._engine.enable_backward_allreduce = False  # it would copy all gradients for nobody
        if self._pending is not None:
            self._set_rate(0.0)
            self._backward(batch, loop.in_memory(self._objective, lambda: self._engine(batch)))
            self._engine.step()
            self._put_moments(self._pending)
            self._pending = None

    def _set_rate(self, rate: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate

    def _weights(self) -> dict[str, torch.Tensor]:
        if self._sed.zero_stage < 3 or self._engine is None:
            return self._objective.state_dict()
        import deepspeed

        weights = {}
        for name, parameter in self._objective.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]):
                weights[name] = parameter.detach().cpu().clone()
        return weights

    def _moments(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        if self._sed.zero_stage == 0:
            state = self._engine.optimizer.state[parameter]
            return {key: state[key] for key in _MOMENTS}
        from deepspeed.utils import safe_get_full_optimizer_state

        return {key: safe_get_full_optimizer_state(parameter, key) for key in _MOMENTS}

    def _put_moments(self, moments: dict[str, dict[str, torch.Tensor]]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        optimizer = self._engine.optimizer
        for name, parameter in self._parameters.items():
            for key in _MOMENTS:
                value = moments[name][key].to(parameter.device)
                if self._sed.zero_stage == 0:
                    optimizer.state[parameter][key].copy_(value)
                elif self._sed.zero_stage == 3:
                    _put_own_part(parameter, value, key)
                else:
                    safe_set_full_optimizer_state(parameter, value, key)
        for state in getattr(optimizer, "optimizer", optimizer).state.values():
            state["step"] = torch.full_like(torch.as_tensor(state["step"]), float(self._updates))


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _put_own_part(parameter: nn.Parameter, value: torch.Tensor, key: str) -> None:
    """Sets this worker's part of a moment under ZeRO stage 3.

    DeepSpeed's own function for the whole moment fails where its size is no multiple of the number of workers.
    """
    from deepspeed.utils import safe_get_local_optimizer_state, safe_set_local_optimizer_state

    size, rank = safe_get_local_optimizer_state(parameter, key).numel(), torch.distributed.get_rank()
    padded = F.pad(value.flatten(), (0, max((rank + 1) * size - value.numel(), 0)))
    safe_set_local_optimizer_state(parameter, padded[rank * size : (rank + 1) * size], key)


def _deepspeed_config(sed: SedConfig, world: int, bf16: bool) -> dict[str, Any]:
    part = math.ceil(sed.batch_size / world)  # DeepSpeed wants equal parts, and does not look at them
    config: dict[str, Any] = {
        "train_batch_size": part * world,
        "train_micro_batch_size_per_gpu": part,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": sed.zero_stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": sed.clip or 0.0,  # DeepSpeed clips at 1 where it is not told otherwise
        "steps_per_print": 10**9,
    }
    if bf16:
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return config


def _mean_over_workers(loss: torch.Tensor) -> float:
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        loss = loss.clone()
        torch.distributed.all_reduce(loss)
        loss /= torch.distributed.get_world_size()
    return loss.item()


def _names(learners: Sequence[Learner]) -> str:
    """What a line of progress calls learners, of which there may be many."""
    counts = Counter(learner.name.split("/")[0] for learner in learners)
    return ", ".join(f"{count} learner{'s' * (count > 1)} of {recipe}" for recipe, count in counts.items())


def distill(learners: Sequence[Learner], config: Config, storage: Storage, share: Share) -> None:
    """Trains and publishes learners with Ray Train.

    Each start of workers trains one learner after the other. A learner continues from its newest checkpoint, and one
    that is published is not trained again when workers are started anew.

    Args:
        learners: what to train.
        config: the run's settings.
        storage: the run directory.
        share: workers, CPUs, GPUs and threads.

    Raises:
        UserError: a loss is not finite.
        RunFailed: workers failed more often than `sed.max_retries` without a new checkpoint in between.
    """
    names = _names(learners)
    log.info("distilling %s: starting %s worker%s", names, share.workers, "s" * (share.workers > 1))
    board = beside_driver(ProgressBoard)
    with watched(config.resources.silence_seconds, share) as watch:
        loop = {"learners": list(learners), "config": config, "storage": storage, "share": share, "board": board}
        _fit(_trainer({**loop, "watch": watch, "job": uuid.uuid4().hex}), learners, board)
    storage.remove("train")  # Ray Train's own state; ours is in the manifest
    done = [entry.meta for learner in learners if (entry := storage.finished(learner.name, learner.depends))]
    tell(sentences=sum(meta["steps"] - meta["resumed_at"] for meta in done) * config.sed.batch_size)
    for name, said in ray.get(board.latest.remote()).items():
        if failure := said.get("failed"):
            raise UserError(f"{name}: {failure}")
        if said.get("gave_up"):
            raise RunFailed(f"{name}: {said.get('error', 'its workers were lost')}; tried {said['gave_up']} times")


def _trainer(loop: dict[str, Any]) -> TorchTrainer:
    learners, storage, share = loop["learners"], loop["storage"], loop["share"]
    return TorchTrainer(
        _light(_worker),
        train_loop_config={"loop": ray.put(loop)},
        scaling_config=ScalingConfig(
            # With fewer than planned where nodes are lost, and with all again when others come.
            num_workers=(1, share.workers) if share.workers > 1 else 1,
            use_gpu=share.gpus > 0,
            resources_per_worker={"CPU": share.cpus, **({"GPU": share.gpus} if share.gpus else {})},
        ),
        torch_config=TorchConfig(backend="nccl" if share.gpus else "gloo"),
        run_config=RunConfig(
            name=f"{learners[0].name.replace('/', '-')}-{int(time.time())}",
            storage_path=storage.uri("train"),
            failure_config=FailureConfig(max_failures=MOST_RESTARTS),
        ),
    )


def _light(worker: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """The same function as one that Ray Train's controller can hold without importing what only workers need.

    A function within a function travels by value; one of a module would be imported, which takes seconds.
    """
    module, name = worker.__module__, worker.__name__

    def work(config: dict[str, Any]) -> None:
        getattr(importlib.import_module(module), name)(ray.get(config["loop"]))

    return work


def _fit(trainer: TorchTrainer, learners: Sequence[Learner], board: Any) -> None:
    """Waits for the training and shows what its workers say.

    The training is awaited in a thread of its own: in the main one Ray Train would take Ctrl-C for itself and end the
    process with exit code 0.
    """
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            trainer.fit()
        except BaseException as error:  # handed to the main thread
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    title = f"distil {_names(learners)}"
    progress: Progress | None = None
    while waiting.is_alive():
        waiting.join(1.0)
        said = [words for words in ray.get(board.latest.remote()).values() if "step" in words]
        if said:
            progress = progress or Progress(title, said[0]["total"] * len(learners))
            progress.start_from(sum(words["first"] for words in said))
            progress.update(sum(words["step"] for words in said), _note(said, len(learners)))
    if errors:
        raise RunFailed(f"{title} failed: {last_line(errors[0])}") from errors[0]
    if progress:
        progress.close()


def _note(said: Sequence[dict[str, Any]], count: int) -> str:
    """What there is to say of the newest learner; all have as many updates."""
    newest = said[-1]
    parts = [f"{len(said)}/{count} learners"] if count > 1 else []
    parts.append(f"loss {newest['loss']:.5f}")
    if newest.get("dev") is not None:
        parts.append(f"dev {newest['dev']:.1f}")
    return " · ".join(parts)


# -- the worker's side -----------------------------------------------------------------------------------------------


def _worker(loop: dict[str, Any]) -> None:
    """One Ray Train worker; a user's mistake is said to the board, because trying again would not help."""
    share = loop["share"]
    prepare_worker(share.threads)
    _prepare_deepspeed(gpu=share.gpus > 0)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    with beating(loop["watch"], ", ".join(learner.name for learner in loop["learners"])):
        _train_all(loop, rank, world)


def _train_all(loop: dict[str, Any], rank: int, world: int) -> None:
    config, storage, share = loop["config"], loop["storage"], loop["share"]
    for learner in loop["learners"]:
        if storage.finished(learner.name, learner.depends):  # by workers that have failed since
            continue
        starts = broadcast_from_rank_zero(None if rank else _begin(learner, storage, loop))
        if starts is None:
            return
        if starts > config.sed.max_retries:
            ray.get(loop["board"].say.remote(learner.name, {"gave_up": starts}))
            return
        try:
            own_log = nullcontext() if rank else metrics_log(storage, config, learner.name, learner.depends)
            with own_log as metrics:
                _train_and_commit(learner, config, storage, share, rank, world, metrics, loop["board"])
        except UserError as error:
            ray.get(loop["board"].say.remote(learner.name, {"failed": str(error)}))
            if rank:
                raise  # the first may wait for this one; started anew by Ray Train, it finds what was said
        except Exception as error:
            ray.get(loop["board"].say.remote(learner.name, {"error": last_line(error)}))
            raise


def _begin(learner: Learner, storage: Storage, loop: dict[str, Any]) -> int | None:
    """How often this learner was started in vain; None after a user's mistake, which no start mends."""
    if any("failed" in said for said in ray.get(loop["board"].latest.remote()).values()):
        return None
    return storage.checkpoints(learner.name, learner.depends).begin(loop["job"])


def _train_and_commit(
    learner: Learner,
    config: Config,
    storage: Storage,
    share: Share,
    rank: int,
    world: int,
    metrics: MetricsLog | None,
    board: Any,
) -> None:
    started, sed = time.monotonic(), config.sed
    encoder, tokenizer = load_start(config.encoder, storage, learner.start)
    objective = Distillation(encoder.to("cuda" if share.gpus else "cpu"), sed.dropout)
    targets = storage.fetch(learner.targets)
    offset = np.load(targets / "mean.npy") if sed.target == "centred_mean" else None
    batches = TargetBatches(targets, sed.batch_size, learner.seed, rank, world, offset)
    bf16 = loop.uses_bf16(sed.precision, "cuda" if share.gpus else "cpu")
    engine = DeepSpeedEngine(objective, sed.model_copy(update={"batch_size": batches.batch_size}), world, bf16)
    plan = _plan(config, batches.per_epoch, learner.seed + rank, learner.keep)
    checkpoints = storage.checkpoints(learner.name, learner.depends)
    evaluate = dev_score(config, tokenizer)
    first = [] if rank else loop.before_training(objective, plan, encoder, evaluate, learner.start_dev)
    for entry in first:
        metrics.write(entry)

    def on_metrics(entry: dict[str, Any]) -> None:
        if metrics is not None:
            metrics.write(entry)
            dev = entry.get("dev", {}).get("learner")
            said = {"step": entry["step"], "total": plan.steps, "loss": entry["loss"], "dev": dev}
            board.say.remote(learner.name, said)

    result = loop.train(
        objective,
        batches,
        plan,
        engine,
        evaluate=_said_by_the_first(evaluate),
        checkpoints=checkpoints,
        is_writer=rank == 0,
        on_metrics=on_metrics,
        warned=lambda: ray.train.get_preemption_info() is not None,
    )
    weights = engine.state_dict()["objective"]  # gathered by all workers, whatever the ZeRO stage
    engine.close()
    if rank:
        return
    finished = Distillation(load_start(config.encoder, storage, learner.start)[0])
    finished.load_state_dict(weights)
    meta = {"dev": result.score, "steps": result.steps, "kept_step": result.kept_step, "resumed_at": result.resumed_at}
    meta["seconds"] = round(time.monotonic() - started, 1)
    description = {"learner": learner.name, "seed": learner.seed, "steps": result.steps, **learner.depends}
    storage.commit(
        learner.name,
        lambda path: write_checkpoint(finished.learner, tokenizer, path, description, [*first, *result.history]),
        learner.depends,
        meta,
    )
    checkpoints.clear()


def _said_by_the_first(evaluate: Callable[[nn.Module], float] | None) -> Callable[[nn.Module], float] | None:
    """All workers take the first one's score, so that all stop early or none does."""
    if evaluate is None or not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return evaluate

    def score(module: nn.Module) -> float:
        device = next(module.parameters()).device
        value = torch.tensor(evaluate(module), dtype=torch.float64, device=device)
        torch.distributed.broadcast(value, 0)
        return value.item()

    return score


def _plan(config: Config, per_epoch: int, seed: int, keep: str) -> loop.Plan:
    sed = config.sed
    steps = max(1, int(per_epoch * sed.epochs))
    return loop.Plan(
        steps=steps,
        learning_rate=loop.warmup_schedule(sed.learning_rate, steps, sed.warmup, sed.decay),
        seed=seed,  # workers see different sentences: their dropout must differ too, so must their seeds
        evaluate_every=sed.evaluate_every,
        checkpoint_every=sed.checkpoint_every,
        log_every=max(1, min(100, steps // 50)),
        keep={"last": "learner", "best_on_dev": "best"}[keep],
        patience=sed.patience if keep == "best_on_dev" else None,
    )


def _prepare_deepspeed(gpu: bool) -> None:
    """Without a GPU, DeepSpeed would compile a shared-memory operation; gloo does the same without a compiler."""
    if not gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not gpu:
        deepspeed.ops.__compatible_ops__[ShareMemCommBuilder.NAME] = False
