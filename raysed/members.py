"""Ray Tune: all members of one depth in one experiment; a trial is one call of training.py.

The truth about a member is the run directory, not Tune's own state: a trial looks for its newest checkpoint there, and
publishes its artefact there. Tune places the trials, restarts failed ones and never stops the experiment for one.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from ray import tune

from raysed import training
from raysed.config import Config, derive_seed
from raysed.encoder import Encoder, load_checkpoint, load_encoder, write_checkpoint
from raysed.errors import UserError
from raysed.evaluation.dev import dev_score
from raysed.objectives.contrastive_tension import ContrastiveTension, PairSampler, ct_optimizer, ct_schedule
from raysed.resources import Share
from raysed.storage import Entry, Storage
from raysed.tokens import TokenTable, read_tokens
from raysed.tracking import MetricsLog, Progress, quiet_libraries

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """One model to train.

    Attributes:
        name: of its artefact, e.g. `ct/members/00`.
        stage: what it is trained to do.
        seed: of its batches and of everything random in its updates.
        start: artefact of the member that it continues, None for the pre-trained encoder.
        depends: everything that its weights depend on.
    """

    name: str
    stage: str
    seed: int
    start: str | None
    depends: dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """What training.py needs for one member."""

    objective: torch.nn.Module
    batch_at: Callable[[int], Any]
    plan: training.Plan
    engine: training.Engine


@dataclass
class Outcome:
    """How the members of an experiment ended: artefacts by name, and the reasons of those that failed."""

    finished: dict[str, Entry] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    user_mistake: bool = False
    """Whether a failure is one that the user can mend, such as a loss that is not finite."""


def plan_node(node: str, config: Config, inputs: dict[str, Any], parents: Sequence[Entry] | None) -> list[Member]:
    """Returns the members of one node of the recipe tree.

    Args:
        node: e.g. `ct` or `nli-ct`.
        config: the run's settings.
        inputs: identities of encoder, corpus and dev task.
        parents: the finished members that the node continues, one each; None at depth 1.
    """
    stage = node.split("-")[-1]
    starts = parents if parents is not None else [None] * config.members.count
    return [_member(node, stage, index, config, inputs, start) for index, start in enumerate(starts)]


def train_members(members: Sequence[Member], config: Config, storage: Storage, share: Share, gpu: bool) -> Outcome:
    """Trains what is not finished yet, as many at a time as the plan says.

    Returns:
        The finished members and, by name, why others failed; whether enough are left is the caller's question.
    """
    outcome = Outcome()
    for member in members:
        if entry := storage.finished(member.name, member.depends):
            outcome.finished[member.name] = entry
    todo = [member for member in members if member.name not in outcome.finished]
    if todo:
        log.info("training %d of %d members: %s", len(todo), len(members), share)
        failed = _run_trials(todo, config, storage, share, gpu)
        for member in todo:
            entry = storage.finished(member.name, member.depends)
            if entry is None:
                outcome.failed[member.name], mistake = failed.get(member.name, ("it ended without a result", False))
                outcome.user_mistake |= mistake
            else:
                outcome.finished[member.name] = entry
    return outcome


# -- the driver's side -----------------------------------------------------------------------------------------------


def _member(node: str, stage: str, index: int, config: Config, inputs: dict, start: Entry | None) -> Member:
    seed = derive_seed(config.seed, node, index)
    settings = config.model_dump(mode="json")[stage]
    depends = {"encoder": inputs["encoder"], "corpus": inputs["corpus"], stage: settings, "seed": seed}
    if start is not None:
        depends["start"] = start.fingerprint
    if settings.get("keep") == "best_on_dev":
        depends["selection"] = {
            "dev": inputs["dev"],
            "layers": config.encoder.layers,
            "evaluate_every": config.members.evaluate_every,
        }
    return Member(f"{node}/members/{index:02d}", stage, seed, start and start.name, depends)


def _run_trials(
    todo: Sequence[Member], config: Config, storage: Storage, share: Share, gpu: bool
) -> dict[str, tuple[str, bool]]:
    """Runs one Tune experiment; returns why trials failed, by member, and whether the user can mend it."""
    name = "+".join(sorted({member.name.split("/")[0] for member in todo}))
    progress = _ProgressCallback(name, len(todo))
    shared = ray.put(_Shared(config, storage, share.threads, gpu))
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(_train_member, shared=shared), {"cpu": share.cpus, "gpu": share.gpus}),
        param_space={"member": tune.grid_search([vars(member) for member in todo])},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=share.workers,
            reuse_actors=True,  # importing torch and transformers costs seconds: pay it once per worker
            trial_name_creator=lambda trial: trial.config["member"]["name"].replace("/", "-"),
            trial_dirname_creator=lambda trial: trial.config["member"]["name"].replace("/", "-"),
        ),
        run_config=tune.RunConfig(
            name=f"{name}-{int(time.time())}",  # a new one each time: Tune must not continue from its own state
            storage_path=storage.uri("tune"),
            failure_config=tune.FailureConfig(max_failures=config.members.max_retries),
            callbacks=[progress],
            verbose=0,
        ),
    )
    results = tuner.fit()
    progress.finish()
    storage.remove("tune")  # Tune's own state; ours is in the manifest
    return {
        result.config["member"]["name"]: _reason(result)
        for result in results
        if result.error or (result.metrics or {}).get("failed")
    }


def _reason(result: Any) -> tuple[str, bool]:
    if result.error is None:
        return result.metrics["failed"], True
    cause = getattr(result.error, "cause", None) or result.error
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(cause).__name__, False


class _ProgressCallback(tune.Callback):
    """One line for the whole experiment."""

    def __init__(self, title: str, count: int):
        self._title, self._count = title, count
        self._steps: dict[str, int] = {}
        self._latest: dict[str, dict] = {}
        self._done: set[str] = set()
        self._progress: Progress | None = None

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        if "total" not in result:
            return
        if self._progress is None:
            self._progress = Progress(f"train {self._title}", self._count * result["total"])
        self._steps[trial.trial_id] = result["step"]
        self._latest[trial.trial_id] = result
        if result["step"] == result["total"]:
            self._done.add(trial.trial_id)
        self._progress.update(sum(self._steps.values()), self._note(result))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        log.warning("%s failed for good", trial)

    def finish(self) -> None:
        if self._progress:
            self._progress.close(f"{len(self._done)} of {self._count} members")

    def _note(self, result: dict) -> str:
        dev = [r["dev"] for r in self._latest.values() if r.get("dev") is not None]
        score = f" · dev {min(dev):.1f}..{max(dev):.1f}" if dev else ""
        return f"{len(self._done)}/{self._count} members · loss {result['loss']:.4f}{score}"


# -- the trial's side ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shared:
    config: Config
    storage: Storage
    threads: int
    gpu: bool


def _train_member(trial: dict[str, Any], shared: Any) -> None:
    """One trial; a user's mistake is reported, not raised, because trying again would not help."""
    quiet_libraries()
    shared = ray.get(shared) if isinstance(shared, ray.ObjectRef) else shared
    torch.set_num_threads(shared.threads)
    member = Member(**trial["member"])
    try:
        with MetricsLog(shared.storage, member.name) as metrics:
            _train_and_commit(member, shared, metrics)
    except UserError as error:
        tune.report({"failed": str(error)})


def _train_and_commit(member: Member, shared: _Shared, metrics: MetricsLog) -> None:
    config, storage = shared.config, shared.storage
    started = time.monotonic()
    device = "cuda" if shared.gpu else "cpu"
    encoder, tokenizer = load_encoder(config.encoder)
    if member.start:
        encoder = load_checkpoint(storage.fetch(member.start))
    setup = _SETUPS[member.stage](config, encoder.to(device), read_tokens(storage.fetch("corpus")), member.seed)
    checkpoints = storage.checkpoints(member.name, member.depends)
    report = _Reporter(setup.plan.steps, member.name, config.run, metrics)
    result = training.train(
        setup.objective,
        setup.batch_at,
        setup.plan,
        setup.engine,
        evaluate=dev_score(config, tokenizer),
        checkpoints=checkpoints,
        on_metrics=report,
    )
    kept = setup.objective.candidates()[result.kept]
    outcome = {"kept": result.kept, "kept_step": result.kept_step, "dev": result.score}
    description = {"member": member.name, "stage": member.stage, **outcome, **member.depends}
    meta = {**outcome, "seconds": round(time.monotonic() - started, 1), "resumed_at": result.resumed_at}
    storage.commit(
        member.name,
        lambda path: write_checkpoint(kept, tokenizer, path, description, result.history),
        member.depends,
        meta,
    )
    checkpoints.clear()


class _Reporter:
    """Sends each history entry to the log, to Tune and to the dashboard's metrics."""

    def __init__(self, total: int, member: str, run: str, metrics: MetricsLog):
        from ray.util.metrics import Gauge

        self._total, self._metrics = total, metrics
        tags = {"run": run, "member": member}
        self._loss = Gauge("raysed_loss", "training loss", tag_keys=("run", "member"))
        self._dev = Gauge("raysed_dev", "dev score x100", tag_keys=("run", "member"))
        self._loss.set_default_tags(tags)
        self._dev.set_default_tags(tags)
        self._best: float | None = None

    def __call__(self, entry: dict[str, Any]) -> None:
        self._metrics.write(entry)
        self._loss.set(entry["loss"])
        if "dev" in entry:
            self._best = max(entry["dev"].values())
            self._dev.set(self._best)
        tune.report({"step": entry["step"], "total": self._total, "loss": entry["loss"], "dev": self._best})


def _ct_setup(config: Config, encoder: Encoder, table: TokenTable, seed: int) -> Setup:
    ct = config.ct
    objective = ContrastiveTension(encoder)
    plan = training.Plan(
        steps=ct.steps,
        learning_rate=ct_schedule(ct),
        seed=seed,
        evaluate_every=config.members.evaluate_every,
        checkpoint_every=config.members.checkpoint_every,
        log_every=max(1, min(100, ct.steps // 50)),
        keep={"second": "second", "best_on_dev": "best"}[ct.keep],
    )
    bf16 = encoder.transformer.device.type == "cuda" and torch.cuda.is_bf16_supported()
    engine = training.TorchEngine(objective, ct_optimizer(objective), bf16=bf16)
    return Setup(objective, PairSampler(table, ct, seed), plan, engine)


_SETUPS: dict[str, Callable[[Config, Encoder, TokenTable, int], Setup]] = {"ct": _ct_setup}
