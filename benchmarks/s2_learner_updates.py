"""S2: updates of the learner a second, raysed against sentence-transformers' EmbedDistillLoss and plain PyTorch.

    python benchmarks/s2_learner_updates.py [--pairs 5] [--updates 20] [--quality-updates 200] [--dropout]
    python benchmarks/s2_learner_updates.py --equal-minutes 3

M3 learns the mean-pooled embeddings of all six layers of MiniLM, 32 sentences per update, learning rate 2e-5. raysed
updates as the one worker of a run does, but in this process: its engine, and batches of the target table that a run
would have written. The peer tokenises while it trains, and what that takes is printed. Dropout is off on all sides, or
on with `--dropout`. Each turn starts from fresh weights, and two updates come before the clock starts.

The dev scores are those of one more training of each side: after `--quality-updates`, or after as many updates as the
side makes in `--equal-minutes`, by the rate just measured.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import torch
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
from torch.nn import functional as F
from transformers import AutoTokenizer

from raysed.data.targets import ROWS_PER_GROUP, TARGET_FILE, TargetBatches
from raysed.data.tokens import tokenize
from raysed.model.encoding import encode
from raysed.model.pretrained import load_encoder
from raysed.train.deepspeed import DeepSpeedEngine, prepare_deepspeed
from raysed.train.loop import TrainingLoop
from raysed.train.stage import TrainingPlan
from raysed.train.stages.sed import Distillation, SedConfig

import harness
import peers

SED = SedConfig(warmup=0.0)
TEACHER = harness.ENCODER.model_copy(update={"model_kwargs": {}})
"""All six layers of MiniLM."""
Embed = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class Work:
    """What all sides read.

    Attributes:
        options: the script's.
        sentences: the corpus, N of them.
        targets_ND: their targets.
        table: directory of the target table.
        encoder: directory of what learns.
    """

    options: argparse.Namespace
    sentences: list[str]
    targets_ND: np.ndarray
    table: Path
    encoder: Path


def main() -> None:
    """Times all sides in turn, then trains each once for its dev score."""
    parser = peers.training_parser(__doc__)
    parser.add_argument("--equal-minutes", type=float, default=0, help="minutes of updates before the dev score")
    options = parser.parse_args()
    peers.prepare(options)
    become_the_only_worker(options.device)
    with tempfile.TemporaryDirectory() as directory:
        work = prepare(options, Path(directory))
        sides = sides_of(work)
        samples, notes = peers.in_turns(sides, options)
        counts = dict.fromkeys(sides, options.quality_updates)
        if minutes := options.equal_minutes:
            rates = {name: statistics.median(sample.rate for sample in found) for name, found in samples.items()}
            counts = {name: int(60 * minutes * rate) for name, rate in rates.items()}
        if any(counts.values()):
            devs, base = _dev_scores(work, sides, counts)
            samples = harness.scored(samples, devs)
            listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            after = f"{minutes:g} minutes of updates: {listed}" if minutes else f"{options.quality_updates} updates"
            notes.append(f"Dev after {after}; untrained {base}.")
    harness.publish(_figure(options, samples, notes), options)
    torch.distributed.destroy_process_group()


def become_the_only_worker(device: str) -> None:
    """Sets up the process group that Ray Train sets up in its workers."""
    prepare_deepspeed(gpu=device != "cpu")
    torch.distributed.init_process_group(
        "gloo" if device == "cpu" else "nccl", store=torch.distributed.HashStore(), rank=0, world_size=1
    )


def prepare(options: argparse.Namespace, directory: Path) -> Work:
    """Makes the targets and the table that a run would have written.

    Args:
        options: the script's.
        directory: empty.
    """
    sentences = harness.sentences(options)
    encoder = harness.encoder_directory(directory / "encoder", options.encoder)
    learner, tokenizer = harness.encoder(path=encoder)
    tokens = tokenize(tokenizer, sentences, harness.MAX_LENGTH)
    if options.encoder == harness.M3:
        targets_ND = encode(load_encoder(TEACHER)[0].to(options.device), tokens)[0]
    else:  # what is to be learnt makes no difference to the time that it takes
        targets_ND = np.random.default_rng(0).standard_normal((len(sentences), learner.width), np.float32)
    table = directory / "targets"
    table.mkdir()
    column = pa.FixedSizeListArray.from_arrays(pa.array(targets_ND.reshape(-1)), targets_ND.shape[1])
    harness.write_tokens(table / TARGET_FILE, tokens, ROWS_PER_GROUP, target=column)
    return Work(options, sentences, targets_ND, table, encoder)


def sides_of(work: Work) -> dict[str, peers.Side]:
    """Returns the sides: functions of updates and seed."""
    labelled = datasets.Dataset.from_dict({"sentence": work.sentences}).add_column("label", list(work.targets_ND))
    labelled = labelled.with_format("torch")  # a quarter of the time that lists of numbers take to become a batch
    return {
        "raysed": partial(train_raysed, work, False),
        "sentence-transformers": partial(_train_peer, work, labelled, False),
        "raysed bf16": partial(train_raysed, work, True),
        "sentence-transformers bf16": partial(_train_peer, work, labelled, True),
        "plain PyTorch": partial(_train_plain, work),
    }


def batches_of(work: Work, seed: int) -> TargetBatches:
    """Returns the learner's batches."""
    batches = TargetBatches(work.table, SED.batch_size, seed)
    batches.few_shapes = batches.reads_ahead = work.options.device != "cpu"
    return batches


def train_raysed(work: Work, bf16: bool, updates: int, seed: int) -> peers.Trained:
    """Trains from fresh weights with the loop, the engine and the batches of a run."""
    learner, tokenizer = harness.encoder(work.options.device, work.encoder)
    objective = Distillation(learner, work.options.dropout)
    batches = batches_of(work, seed)
    engine = DeepSpeedEngine(objective, SED, world=1, bf16=bf16)
    plan = TrainingPlan(updates, lambda step: SED.learning_rate, seed, log_every=100, keep="learner")
    with _local_rank():
        TrainingLoop(objective, batches, replace(plan, steps=work.options.warm_up), engine).train()
    with harness.timed() as seconds:
        TrainingLoop(objective, batches, plan, engine).train()
    return peers.Trained(seconds[0], (harness.embedder(learner, tokenizer),))


@contextmanager
def _local_rank() -> Iterator[None]:
    """Says in the environment which worker of its machine this is; out of it, for the peer would join in as well."""
    os.environ["LOCAL_RANK"] = "0"
    try:
        yield
    finally:
        del os.environ["LOCAL_RANK"]


def _train_peer(work: Work, labelled: datasets.Dataset, bf16: bool, updates: int, seed: int) -> peers.Trained:
    model = peers.load(work.encoder, work.options.device, work.options.dropout)
    plan = peers.Updates(
        updates, SED.batch_size, SED.learning_rate, seed, bf16, work.options.device, work.options.warm_up
    )
    timing = peers.train(model, EmbedDistillLoss(model, "mse"), labelled, plan)
    return peers.Trained(timing.updates, (partial(model.encode, show_progress_bar=False),), timing.loading)


def _train_plain(work: Work, updates: int, seed: int) -> peers.Trained:
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(work.encoder, trust_remote_code=False)
    model = peers.plain_model(work.encoder, work.options.device, work.options.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SED.learning_rate, weight_decay=0.0, fused=True)
    size = min(SED.batch_size, len(work.sentences))
    draw = np.random.default_rng(seed)

    def update() -> None:
        rows = draw.choice(len(work.sentences), size, replace=False)
        emb_BD = peers.plain_embed(model, tokenizer, [work.sentences[row] for row in rows])
        loss = F.mse_loss(emb_BD, torch.from_numpy(work.targets_ND[rows]).to(emb_BD))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(work.options.warm_up):
        update()
    with harness.timed() as seconds:
        for _ in range(updates):
            update()
    return peers.Trained(seconds[0], (partial(peers.plain_encode, model, tokenizer),))


def _dev_scores(
    work: Work, sides: Mapping[str, peers.Side], updates: Mapping[str, int]
) -> tuple[dict[str, float | None], str]:
    """Returns the scores by side, and the untrained learner's beside the teacher's."""
    base = harness.dev_score(harness.embedder(*harness.encoder(path=work.encoder)), work.options)
    teacher = harness.dev_score(harness.embedder(*load_encoder(TEACHER)), work.options)
    if base is None:
        return {}, "unknown"
    devs = {}
    for name, side in sides.items():
        (embed,) = side(updates[name], 0).models
        devs[name] = harness.dev_score(embed, work.options)
        print(f"  dev of {name}: {devs[name]:.2f}", flush=True)
    return devs, f"{base:.2f}, teacher {teacher:.2f}"


def _figure(options: argparse.Namespace, samples: dict[str, list[harness.Sample]], notes: list[str]) -> harness.Figure:
    targets = {
        ("raysed", "sentence-transformers"): 2.5,
        ("raysed bf16", "sentence-transformers bf16"): 2.5,
        ("raysed", "plain PyTorch"): None,
        ("sentence-transformers", "plain PyTorch"): None,
    }
    title = f"learner updates: {options.encoder}, {SED.batch_size} sentences, length {harness.MAX_LENGTH}"
    return harness.Figure(
        "S2", f"{title}, dropout {'on' if options.dropout else 'off'}", "updates", samples, targets, notes=notes
    )


if __name__ == "__main__":
    main()
