"""START HERE: the stages of a run in order, skipping what the manifest says is done.

    corpus -> tokens -> members -> teacher mean -> learner -> calibration -> evaluation -> export

Everything that can be checked is checked before the first second of training. Each stage reads and writes the run
directory only, so that the same command continues a run that was stopped at any point.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed import interrupts, results
from raysed.check import FIT_ON, Job, check, check_tokenizer
from raysed.config import Config, derive_seed, dump_config, stable_hash
from raysed.corpus import CorpusReport, sentence_chunks
from raysed.encoder import Encoder, load_encoder, load_start
from raysed.errors import RunFailed, UserError
from raysed.grid import choose_bound
from raysed.labelled import tokenize_pairs, write_pairs
from raysed.recipe import BASE, Recipe, member_nodes, parse_recipe
from raysed.results import ScoredModel
from raysed.scratch import write_scratch
from raysed.storage import Entry, Storage
from raysed.tokens import SENTENCE_SCHEMA, LengthReport, TokenTable, tokenize
from raysed.tracking import Progress, native_output_to, quiet_libraries

if TYPE_CHECKING:  # Ray is imported when a run starts, not with the package
    from raysed import members
    from raysed.distill import Learner
    from raysed.frozen import Calibration, Embedding
    from raysed.members import Member
    from raysed.resources import Share

log = logging.getLogger(__name__)

ENCODER_START = "encoder/start"
"""The tokenizer and random weights of an encoder that is made from scratch."""
GRID_CHOICE = {"lower_bounds", "models", "criterion", "statistic", "scheduler", "asha_reduction", "asha_rungs"}
"""Settings of `sts` that decide which lower bound wins."""
_SED_WITHOUT_EFFECT = {
    "learners",
    "workers",
    "zero_stage",
    "checkpoint_every",
    "evaluate_every",
    "max_retries",
    "start",
}
"""Settings of `sed` that do not change a learner's weights (beyond the order of sums)."""


def run(config: Config, say: Callable[[str], None] = print) -> None:
    """Runs all stages of a configuration, or as many as are not done.

    Args:
        config: the settings.
        say: shows a line to the user.

    Raises:
        UserError: a wrong setting or input; nothing was trained, unless the error shows in training only.
        RunFailed: too few members could be trained.
    """
    quiet_libraries()
    job = check(config)
    config = job.config
    storage = Storage(config.storage, config.run)
    with storage.lock():
        if results.is_complete(job, storage):
            say(f"nothing to do: {storage} is complete, and no setting or input has changed")
            return
        storage.write_text("config.yaml", dump_config(config))
        native = Path(storage.uri("logs") if storage.is_local else tempfile.gettempdir()) / "native.log"
        try:
            with native_output_to(native), _ray_session(say):
                _run_stages(job, storage, say)
        except Exception as error:
            failed = {
                "run": config.run,
                "status": "failed",
                "error": str(error),
                "config": config.model_dump(mode="json"),
            }
            storage.write_text("report.json", json.dumps(failed, indent=1))
            raise


# -- the stages ------------------------------------------------------------------------------------------------------


def _run_stages(job: Job, storage: Storage, say: Callable[[str], None]) -> None:
    """Corpus -> members -> mean -> learner -> calibration -> evaluation -> export."""
    stages = _Stages(job, storage, say)
    stages.make_encoder()
    stages.write_corpus()
    stages.write_pairs()
    stages.train_encoder()
    stages.embed_base()
    for depth in member_nodes(job.recipes):
        stages.train_members(depth)
    for recipe in job.recipes:
        if recipe.distils:
            stages.average_teachers(recipe)
            stages.distil(recipe)
        stages.calibrate(recipe)
    stages.probe()
    results.publish(job, storage, stages.models(), stages.facts(), say)


@dataclass
class _Stages:
    """The stages of one run; what they hand on lies in the run directory."""

    job: Job
    storage: Storage
    say: Callable[[str], None]
    left_out: dict[str, str] = field(default_factory=dict)
    ensembles: dict[str, list[Entry]] = field(default_factory=dict)
    grids: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    encoder: Entry | None = None
    """The encoder that was made from scratch, where there is one."""
    transfer: list[dict[str, Any]] = field(default_factory=list)
    qnli: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from raysed.resources import plan_members, uses_gpu, wait_for, what_is_missing

        config = self.job.config
        self.config = config
        self.cluster = wait_for(what_is_missing(config), config.resources.wait_minutes, self.say)
        self.gpu = uses_gpu(config, self.cluster)
        self.share = plan_members(self.cluster, config, config.members.count)
        self.say(f"cluster: {self.cluster}; members: {self.share}")
        if self.storage.is_local and len(self.cluster.nodes) > 1:
            log.warning("storage %s must be a directory that all nodes share, or use a URI", self.storage)
        # One machine without GPU: this process is as good as any, and has imported everything.
        self.frozen_share = self.share if self.gpu or len(self.cluster.nodes) > 1 else None

    # encoder, corpus and tokens

    def make_encoder(self) -> None:
        """Loads the encoder; one without weights gets a tokenizer, trained on the corpus, and random weights."""
        from raysed.frozen import Sentences

        config = self.config
        if config.encoder.scratch:
            depends = {"encoder": self.job.inputs["encoder"]}
            if not self.storage.finished(ENCODER_START, depends):
                with self._timed("encoder"):
                    self.storage.commit(ENCODER_START, lambda path: write_scratch(config, path), depends)
            encoder, self.tokenizer = load_start(config.encoder, self.storage.fetch(ENCODER_START))
        else:
            encoder, self.tokenizer = load_encoder(config.encoder)
        check_tokenizer(self.job.recipes, self.tokenizer, config.encoder)
        tokens = tokenize(self.tokenizer, self.job.evaluation.sentences, config.encoder.max_length)
        self.sentences = Sentences(tokens, self.job.evaluation)
        self._check_disk(encoder)

    def train_encoder(self) -> None:
        """Trains an encoder from scratch by masked language modelling."""
        from raysed import members

        if self.config.encoder.scratch:
            depends = {"encoder": self.job.inputs["encoder"], **self._selection()}
            seed = derive_seed(self.config.seed, "encoder")
            encoder = members.Member("encoder/trained", "mlm", 0, seed, ENCODER_START, depends)
            with self._timed("encoder"):
                outcome = members.train_members(
                    {"encoder": [encoder]}, self.config, self.storage, self._share(1), self.gpu, self.rows
                )
            self._accept("encoder", 1, outcome.failed, outcome.user_mistake)
            self.encoder = outcome.finished[encoder.name]

    def write_corpus(self) -> None:
        """Cleans, draws and tokenises the corpus into the sentence table."""
        if not self.job.needs_corpus:
            return
        depends = self._corpus_depends()
        entry = self.storage.finished("corpus", depends)
        if entry is None:
            with self._timed("corpus"):
                meta: dict[str, Any] = {}
                entry = self.storage.commit("corpus", lambda path: self._write_corpus(path, meta), depends, meta)
        self.rows["corpus"] = entry.meta["lengths"]["sentences"]
        self.say(f"corpus: {entry.meta['summary']}")
        self.say(f"tokens: {entry.meta['length_summary']}")

    def _write_corpus(self, path: Path, meta: dict[str, Any]) -> None:
        config = self.config
        report, lengths = CorpusReport(), LengthReport(config.encoder.max_length)
        progress = Progress("read corpus", config.corpus.sentences or 0)
        with pq.ParquetWriter(path / "part-00000.parquet", SENTENCE_SCHEMA) as writer:
            for ids, sentences in sentence_chunks(config.corpus, config.seed, report):
                table = tokenize(self.tokenizer, sentences, config.encoder.max_length, ids, lengths)
                writer.write_table(_sentence_rows(table, sentences))
                progress.update(int(ids[-1]) + 1)
        meta |= {
            "report": asdict(report),
            "lengths": asdict(lengths),
            "summary": report.summary(),
            "length_summary": str(lengths),
        }

    def write_pairs(self) -> None:
        """Tokenises the labelled sentence pairs into one table per kind of label."""
        for kind, pairs in self.job.pairs.items():
            depends = {"encoder": self.job.inputs["encoder"], kind: self.job.inputs[kind]}
            name = f"pairs/{kind}"
            entry = self.storage.finished(name, depends)
            if entry is None:
                with self._timed("pairs"):
                    table = tokenize_pairs(self.tokenizer, *pairs.columns, self.config.encoder.max_length)
                    meta = {"summary": pairs.summary(), "pairs": len(table)}
                    entry = self.storage.commit(name, partial(write_pairs, table), depends, meta)
            self.rows[name] = entry.meta["pairs"]
            self.say(f"{kind} pairs: {entry.meta['summary']}")

    # members and grid

    def train_members(self, nodes: list[str]) -> None:
        """Trains all nodes of one depth in one Tune experiment."""
        from raysed import members

        planned = {
            node: self._without_losers(node, members.plan_node(node, self.config, self.job.inputs, self._parents(node)))
            for node in nodes
        }
        count = sum(len(group) for group in planned.values())
        with self._timed("+".join(nodes)):
            outcome = members.train_members(planned, self.config, self.storage, self._share(count), self.gpu, self.rows)
        for node, group in planned.items():
            failures = {m.name: outcome.failed[m.name] for m in group if m.name in outcome.failed}
            if node in outcome.ladders and node not in self.grids:
                self._choose_bound(node, group, outcome)
            else:
                self._accept(node, len(group), failures, outcome.user_mistake)
                self.ensembles[node] = [outcome.finished[m.name] for m in group if m.name in outcome.finished]
        used = {recipe.ensemble for recipe in self.job.recipes}
        with self._timed("evaluation"):
            self._embed([embedding for node in nodes if node in used for embedding in self._embeddings(node)])

    def _without_losers(self, node: str, group: list[Member]) -> list[Member]:
        """Where a grid was decided before, its losers need no training, be they there or not."""
        choice = self.storage.finished(f"{node}/grid/choice", self._choice_depends(group))
        if choice is None or group[0].lower_bound is None:
            return group
        self.grids[node] = choice.meta["grid"]
        return [member for member in group if member.lower_bound == choice.meta["grid"]["winner"]]

    def _choice_depends(self, group: list[Member]) -> dict[str, Any]:
        sts = self.config.sts.model_dump(mode="json", include=GRID_CHOICE)
        return {
            "models": stable_hash([m.depends for m in group]),
            **sts,
            "min_members": self.config.members.min_members,
        }

    def _choose_bound(self, node: str, group: list[Member], outcome: members.Outcome) -> None:
        """Makes the models of the best lower bound the ensemble, and keeps the decision."""
        sts, failed = self.config.sts, outcome.failed
        finished = {
            bound: [m for m in group if m.lower_bound == bound and m.name in outcome.finished]
            for bound in dict.fromkeys(m.lower_bound for m in group)
        }
        models = len({m.index for m in group})
        needed = min(self.config.members.min_members or models, models)
        complete = {bound: of_bound for bound, of_bound in finished.items() if len(of_bound) >= needed}
        if not complete:
            bound = max(finished, key=lambda bound: len(finished[bound]))
            failures = {m.name: failed[m.name] for m in group if m.lower_bound == bound and m.name in failed}
            self._accept(f"{node} at lower bound {bound:g}", models, failures, outcome.user_mistake)
        for name, reason in failed.items():
            if name.startswith(f"{node}/"):
                self.left_out[name] = reason
                self.say(f"left out: {name}: {reason}")
        scores = {bound: [outcome.finished[m.name].meta["dev"] for m in ms] for bound, ms in complete.items()}
        choice = choose_bound(scores, sts.statistic)
        ladder = outcome.ladders[node]
        grid = {
            "recipe": node,
            "criterion": sts.criterion,
            "statistic": sts.statistic,
            "task": self.config.evaluation.dev,
            "scheduler": sts.scheduler,
            "updates": ladder.updates(),
            "updates_full": len(group) * ladder.rungs[-1],
            "winner": choice.lower_bound,
            "score": choice.score,
            "runner_up": choice.runner_up,
            "margin": choice.margin,
            "bounds": [
                _of_bound(bound, of_bound, updates if updates < ladder.rungs[-1] else None)
                for bound, (updates, of_bound) in sorted(ladder.reached().items())
                if of_bound
            ],
        }
        self.storage.commit(
            f"{node}/grid/choice",
            lambda path: (path / "choice.json").write_text(json.dumps(grid, indent=1)),
            self._choice_depends(group),
            {"grid": grid},
        )
        self.grids[node] = grid
        for member in group:
            if member.name not in outcome.finished:  # stopped on its way
                self.storage.checkpoints(member.name, member.depends).clear()
        self.ensembles[node] = [outcome.finished[m.name] for m in complete[choice.lower_bound]]
        self.say(f"{node}: lower bound {choice.lower_bound:g} wins with {choice.score:.2f} on {grid['task']}")

    def _accept(self, node: str, count: int, failures: dict[str, str], user_mistake: bool) -> None:
        needed = self.config.members.min_members or count
        self.left_out |= failures
        for name, reason in failures.items():
            self.say(f"left out: {name}: {reason}")
        if count - len(failures) < needed:
            name, reason = next(iter(failures.items()))
            message = (
                f"{count - len(failures)} of {count} members of {node} could be trained, {needed} are needed "
                f"(members.min_members); {name}: {reason}"
            )
            raise UserError(message) if user_mistake else RunFailed(message)

    # mean and learner

    def average_teachers(self, recipe: Recipe) -> None:
        """Streams the mean of the ensemble's embeddings into the target table."""
        from raysed.resources import plan_teachers
        from raysed.targets import TeacherPlan, write_targets

        teachers = self.ensembles[recipe.ensemble]
        name, depends = self._targets(recipe)
        learners = self._learners(recipe)
        if self.storage.finished(name, depends) or all(self.storage.finished(x.name, x.depends) for x in learners):
            return
        names = [entry.name for entry in teachers]
        size = sum(p.stat().st_size for p in self.storage.fetch(names[0]).iterdir())
        share, groups = plan_teachers(self.cluster, self.config, len(names), size)
        plan = TeacherPlan(share, groups, self.config.resources.encode_token_budget, self.gpu)
        meta: dict[str, Any] = {}
        with self._timed(name):
            self.storage.commit(
                name, lambda path: meta.update(write_targets(names, self.storage, plan, path)), depends, meta
            )

    def distil(self, recipe: Recipe) -> None:
        """Trains the learners on the target table, one after the other, each with all workers."""
        from raysed.distill import distill
        from raysed.resources import plan_learner

        share = plan_learner(self.cluster, self.config)
        for learner in self._learners(recipe):
            if not self.storage.finished(learner.name, learner.depends):
                with self._timed(recipe.uncalibrated):
                    distill(learner, self.config, self.storage, share)
                if not self.storage.finished(learner.name, learner.depends):
                    raise RunFailed(f"{learner.name} ended without a result; its log is {self.storage.uri('train')}")
        with self._timed("evaluation"):
            self._embed(self._embeddings(recipe.uncalibrated))

    # calibration

    def calibrate(self, recipe: Recipe) -> None:
        """Fits the recipe's calibration on its models and on the base; each on its own frozen embeddings."""
        from raysed.frozen import calibrate_all

        if recipe.calibration:
            jobs = [*self._calibrations(recipe), *self._calibrations(parse_recipe(_on_base(recipe)))]
            with self._timed("calibration"):
                calibrate_all(jobs, self.sentences, self.config, self.storage, self.frozen_share)

    # further tasks

    def probe(self) -> None:
        """Scores the first model of every recipe on transfer tasks and QNLI, where there are some."""
        from raysed import probing

        if self.job.further:
            with self._timed("transfer"):
                self.transfer, self.qnli = probing.probe(
                    self.job.further, self.models(), self.config, self.storage, self.frozen_share
                )

    # what there is to score

    def models(self) -> list[ScoredModel]:
        """Returns all models of the run in reading order: the base, then every recipe's, calibrated ones after."""
        texts = [BASE, *(_on_base(r) for r in self.job.recipes if r.calibration)]
        for recipe in self.job.recipes:
            texts += [recipe.ensemble, *([recipe.uncalibrated] if recipe.distils else []), recipe.text]
        return [model for text in dict.fromkeys(texts) for model in self._models(parse_recipe(text))]

    def _models(self, recipe: Recipe) -> list[ScoredModel]:
        kind = "base" if recipe.ensemble == BASE else "learner" if recipe.distils else "member"
        embeddings = self._embeddings(recipe.uncalibrated)
        names = [c.name for c in self._calibrations(recipe)] if recipe.calibration else [e.name for e in embeddings]
        return [
            ScoredModel(recipe.text, kind, index, name, embedding.poolings, embedding.model)
            for index, (name, embedding) in enumerate(zip(names, embeddings))
        ]

    # dependencies: who is made from what

    def _corpus_depends(self) -> dict[str, Any]:
        return {"corpus": self.job.inputs["corpus"], "encoder": self.job.inputs["encoder"]}

    def _parents(self, node: str) -> list[Entry | None]:
        before, _, stage = node.rpartition("-")
        if before:
            return list(self.ensembles[before])
        return [self.encoder] * (self.config.sts.models if stage == "sts" else self.config.members.count)

    def _selection(self) -> dict[str, Any]:
        return {"corpus": self.job.inputs["corpus"], "mlm": self.config.mlm.model_dump(mode="json")}

    def _share(self, count: int) -> Share:
        from raysed.resources import plan_members

        return plan_members(self.cluster, self.config, count)

    def _targets(self, recipe: Recipe) -> tuple[str, dict[str, Any]]:
        teachers = {entry.name: entry.fingerprint for entry in self.ensembles[recipe.ensemble]}
        return f"{recipe.uncalibrated}/targets", {"teachers": teachers, **self._corpus_depends()}

    def _learners(self, recipe: Recipe) -> list[Learner]:
        from raysed.distill import Learner

        targets, target_depends = self._targets(recipe)
        settings = self.config.sed.model_dump(mode="json", exclude=_SED_WITHOUT_EFFECT)
        keep = "best_on_dev" if "sts" in recipe.members else self.config.sed.keep
        start = self._start_of_learners(recipe)
        depends = {"targets": stable_hash(target_depends), "sed": {**settings, "keep": keep}, **self._corpus_depends()}
        if start:
            depends["start"] = start.fingerprint
        if keep == "best_on_dev":
            depends["selection"] = {
                "dev": self.job.inputs["dev"],
                "layers": self.config.encoder.layers,
                "evaluate_every": self.config.sed.evaluate_every,
            }
        learners = []
        for index in range(self.config.sed.learners):
            seed = derive_seed(self.config.seed, recipe.uncalibrated, "learner", index)
            name = f"{recipe.uncalibrated}/learners/{index:02d}"
            learners.append(Learner(name, seed, targets, {**depends, "seed": seed}, start and start.name, keep))
        return learners

    def _start_of_learners(self, recipe: Recipe) -> Entry | None:
        """The pre-trained encoder (None, unless it was made here), or the first member after `mlm`."""
        return self.ensembles["mlm"][0] if self.config.sed.start == "mlm" else self.encoder

    def _embeddings(self, uncalibrated: str) -> list[Embedding]:
        """Returns what is to be embedded for the models of a recipe without calibration."""
        recipe = parse_recipe(uncalibrated)
        main = self.config.encoder.layers
        poolings = tuple(dict.fromkeys([*self.config.evaluation.learner_layers, main]))
        if recipe.ensemble == BASE:
            made = self.encoder and self.encoder.name
            return [self._embedding(BASE, 0, made, self.job.inputs["encoder"], poolings)]
        if recipe.distils:
            finished = [(learner.name, stable_hash(learner.depends)) for learner in self._learners(recipe)]
        else:
            poolings = (main,)
            finished = [(entry.name, entry.fingerprint) for entry in self.ensembles[recipe.ensemble]]
        return [
            self._embedding(uncalibrated, index, name, print_, poolings)
            for index, (name, print_) in enumerate(finished)
        ]

    def _embedding(self, node: str, index: int, model: str | None, identity: Any, poolings: tuple) -> Embedding:
        from raysed.frozen import Embedding

        depends = {
            "model": identity,
            "encoder": self.job.inputs["encoder"],
            "tasks": self.job.inputs["tasks"],
            "layers": list(poolings),
        }
        return Embedding(f"{node}/embeddings/{index:02d}", model, poolings, depends)

    def _calibrations(self, recipe: Recipe) -> list[Calibration]:
        from raysed.frozen import Calibration

        settings = {
            "stages": list(recipe.calibration),
            "flow": self.config.flow.model_dump(mode="json"),
            "calibration": self.config.calibration.model_dump(mode="json"),
        }
        fit_on = self.config.flow.fit_on
        if fit_on != "tasks":
            settings["text"] = self.job.inputs[fit_on if fit_on in FIT_ON else "fit_on"]
        if "natsv" in recipe.calibration and self.config.calibration.natsv_k == "dev":
            settings["selection"] = {"dev": self.job.inputs["dev"], "aggregation": self._dev_aggregation()}
        calibrations = []
        for index, embedding in enumerate(self._embeddings(recipe.uncalibrated)):
            seed = derive_seed(self.config.seed, recipe.text, index)
            depends = {**settings, "embedding": stable_hash(embedding.depends), "seed": seed}
            name = f"{recipe.text}/calibrations/{index:02d}"
            calibrations.append(Calibration(name, recipe.calibration, embedding, seed, depends))
        return calibrations

    def _dev_aggregation(self) -> str:
        evaluation = self.config.evaluation
        return evaluation.tasks[evaluation.dev].aggregation or evaluation.aggregation

    # helpers

    def embed_base(self) -> None:
        """Embeds the evaluation's sentences by the untouched encoder: every run shows what it started from."""
        with self._timed("evaluation"):
            self._embed(self._embeddings(BASE))

    def _embed(self, jobs: list[Embedding]) -> None:
        from raysed.frozen import embed_all

        embed_all(jobs, self.sentences, self.config, self.storage, self.frozen_share)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Adds the stage's seconds to those of earlier attempts."""
        started = time.monotonic()
        try:
            yield
        finally:
            timings = json.loads(self.storage.read_text("timings.json") or "{}")
            seconds = timings.get(stage, {}).get("seconds", 0.0) + time.monotonic() - started
            timings[stage] = {"seconds": round(seconds, 1)}
            self.storage.write_text("timings.json", json.dumps(timings, indent=1))

    def facts(self) -> results.Facts:
        """Returns what the report and the model card say beside scores."""
        corpus = self.storage.entry("corpus")
        return results.Facts(
            cluster=str(self.cluster),
            corpus=corpus.meta if corpus else {},
            left_out=self.left_out,
            members={node: [entry.name for entry in entries] for node, entries in self.ensembles.items()},
            grids=list(self.grids.values()),
            transfer=self.transfer,
            qnli=self.qnli,
            pairs={kind: pairs.summary() for kind, pairs in self.job.pairs.items()},
        )

    def _check_disk(self, encoder: Encoder) -> None:
        """Two checkpoints of both models with their optimizer state, and the result, for every member in flight."""
        config, free = self.config, self.storage.free_bytes()
        size = sum(p.numel() for p in encoder.parameters()) * 4
        nodes = [node for depth in member_nodes(self.job.recipes) for node in depth]
        grid = len(config.sts.lower_bounds) * config.sts.models
        models = sum(grid if node.endswith("sts") else config.members.count for node in nodes)
        needed = size * (models + 8 * self.share.workers + 4 * config.sed.learners)
        if free is not None and free < needed:
            raise UserError(
                f"storage: {self.storage} has {free / 1e9:.1f} GB free, this run needs about {needed / 1e9:.1f} GB; "
                "free some, or choose another --storage"
            )


def _of_bound(bound: float, scores: list[float], stopped_at: int | None) -> dict[str, Any]:
    return {
        "lower_bound": bound,
        "scores": scores,
        "mean": statistics.fmean(scores),
        "std": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "max": max(scores),
        "stopped_at": stopped_at,
    }


def _on_base(recipe: Recipe) -> str:
    return "-".join([BASE, *recipe.calibration])


def _sentence_rows(table: TokenTable, sentences: list[str]) -> pa.Table:
    tokens = pa.ListArray.from_arrays(pa.array(table.offsets, pa.int32()), pa.array(table.input_ids))
    return pa.Table.from_arrays([pa.array(table.ids), pa.array(sentences, pa.string()), tokens], schema=SENTENCE_SCHEMA)


# -- around the stages -----------------------------------------------------------------------------------------------


@contextmanager
def _ray_session(say: Callable[[str], None]) -> Iterator[None]:
    """Connects to the cluster of RAY_ADDRESS (`ray job submit` sets it) or starts Ray on this machine."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C ends the job, not only the experiment
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the run directory has the logs already
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no host is asked that the user did not name
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    own = not ray.is_initialized()
    if own:
        options = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": None, "dashboard_host": "127.0.0.1"}
        listening = interrupts.listening()
        context = ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
        if listening:  # Ray has put its own handler of SIGTERM, which ends the process with exit code 1
            interrupts.listen()
        if context.dashboard_url:
            say(f"Ray dashboard: http://{context.dashboard_url}")
    try:
        yield
    except KeyboardInterrupt:
        interrupts.notice()
        raise
    finally:
        if own:
            ray.shutdown()
