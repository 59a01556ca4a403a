"""The other sides: sentence-transformers as its documentation says, and plain PyTorch with padded batches.

Of the peer's trainer the updates are timed, without its start-up. It tokenises while it trains, because it works so.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)

from raysed.process import PROGRAM_LIMITS

import harness
from harness import MAX_LENGTH, Sample, alternate, arguments


@dataclass(frozen=True)
class Trained:
    """One training by one side.

    Attributes:
        seconds: of its updates without the warm-up.
        models: what was trained, as functions from sentences to embeddings.
        loading: seconds that the peer's drawing, tokenising and padding would take alone.
    """

    seconds: float
    models: tuple[Callable[[list[str]], np.ndarray], ...]
    loading: float = 0.0


Side = Callable[[int, int], Trained]
"""Trains so many updates with a seed."""


def training_parser(doc: str) -> argparse.ArgumentParser:
    """Returns the options of a figure that counts updates."""
    found = arguments(doc)
    on_gpu = torch.cuda.is_available()
    found.add_argument("--updates", type=int, default=500 if on_gpu else 20, help="per turn")
    found.add_argument("--warm-up", type=int, default=200 if on_gpu else 2, help="updates before the clock starts")
    found.add_argument("--quality-updates", type=int, default=200, help="before the dev score, 0 for none")
    found.add_argument("--dropout", action="store_true", help="on all sides, instead of on none")
    return found


def prepare(options: argparse.Namespace) -> None:
    """As `harness.prepare`, where raysed and the peer share a process; before the first product.

    oneDNN keeps as many programs as it does where the peer is alone, not the fewer that raysed would have it keep.
    """
    os.environ |= dict.fromkeys(PROGRAM_LIMITS, "1024")
    harness.prepare(options)


def in_turns(sides: Mapping[str, Side], options: argparse.Namespace) -> tuple[dict[str, list[Sample]], list[str]]:
    """Times the updates of all sides in turn; the notes say what the peer's tokenising takes."""
    loading: list[float] = []
    turns = {name: partial(_turn, side, options.updates, loading) for name, side in sides.items()}
    samples = alternate(turns, options.pairs)
    share = 100 * statistics.median(loading)
    return samples, [f"Drawing, tokenising and padding take the peer {share:.1f} % of its time."]


def _turn(side: Side, updates: int, loading: list[float], number: int) -> Sample:
    trained = side(updates, number)
    if trained.loading:
        loading.append(trained.loading / trained.seconds)
    return Sample(trained.seconds, updates)


@dataclass(frozen=True)
class Updates:
    """What its trainer is told.

    Attributes:
        count: updates whose time is taken.
        batch_size: rows per update.
        rate: the learning rate, constant.
        seed: of the order of the rows and of dropout.
        bf16: mixed precision, as the trainer offers it.
        device: `cpu` or `cuda`.
        warm_up: updates before the clock starts.
    """

    count: int
    batch_size: int
    rate: float
    seed: int
    bf16: bool
    device: str
    warm_up: int = 2


@dataclass(frozen=True)
class Timing:
    """Seconds of one training.

    Attributes:
        updates: of the counted updates.
        loading: of drawing, tokenising and padding as many batches again, alone.
    """

    updates: float
    loading: float


def load(path: Path, device: str, dropout: bool = False) -> SentenceTransformer:
    """Loads a Hugging Face directory; mean pooling is the peer's own choice for one.

    Args:
        path: the directory.
        device: where to.
        dropout: whether the model has the dropout that its configuration names, or none.
    """
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = SentenceTransformer(str(path), trust_remote_code=False, device=device, config_kwargs={} if dropout else off)
    model.max_seq_length = MAX_LENGTH
    return model


def train(model: SentenceTransformer, loss: nn.Module, dataset: Dataset, plan: Updates) -> Timing:
    """Trains in place by its trainer: optimizer, clipping and all else are its defaults; logs and files are off.

    Raises:
        RuntimeError: the trainer does not use the precision asked for, or takes itself for one of several processes.
    """
    clock = _Clock(plan.warm_up)
    with tempfile.TemporaryDirectory() as directory:
        trainer = SentenceTransformerTrainer(
            model=model,
            args=_arguments(directory, plan),
            train_dataset=dataset,
            loss=loss,
            callbacks=[clock],
        )
        _check(trainer, plan)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return Timing(clock.seconds(), _loading_seconds(trainer, plan.count))


def _arguments(directory: str, plan: Updates) -> SentenceTransformerTrainingArguments:
    return SentenceTransformerTrainingArguments(
        output_dir=directory,
        max_steps=plan.warm_up + plan.count,
        per_device_train_batch_size=plan.batch_size,
        learning_rate=plan.rate,
        lr_scheduler_type="constant",
        bf16=plan.bf16,
        seed=plan.seed,
        use_cpu=plan.device == "cpu",
        # Next to a GPU, processes of their own tokenise ahead; without one they would take the cores.
        dataloader_num_workers=0 if plan.device == "cpu" else 4,
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _check(trainer: SentenceTransformerTrainer, plan: Updates) -> None:
    """Its state is shared by all trainers of a process, and the environment changes it, too."""
    found = trainer.accelerator
    if found.mixed_precision != ("bf16" if plan.bf16 else "no"):
        raise RuntimeError(f"the peer's precision is {found.mixed_precision}")
    if found.use_distributed:
        raise RuntimeError("the peer takes itself for one of several processes")


class _Clock(TrainerCallback):
    """Notes the time after the warm-up and after every later update."""

    def __init__(self, warm_up: int):
        self._warm_up = warm_up
        self._times: list[float] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step in (self._warm_up, state.max_steps):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._times.append(time.perf_counter())

    def seconds(self) -> float:
        """From the end of the warm-up to the end of the last update."""
        return self._times[-1] - self._times[0]


def _loading_seconds(trainer: SentenceTransformerTrainer, count: int) -> float:
    """Of `count` batches; those of one epoch stand for them where it has fewer."""
    started = time.perf_counter()
    drawn = sum(1 for _ in zip(range(count), trainer.get_train_dataloader()))
    return (time.perf_counter() - started) / drawn * count


def plain_model(path: Path, device: str, dropout: bool = False) -> PreTrainedModel:
    """Loads the transformer alone, in fp32."""
    model = AutoModel.from_pretrained(path, trust_remote_code=False, dtype=torch.float32, add_pooling_layer=False).to(
        device
    )
    return model.train(dropout)


def plain_embed(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]) -> torch.Tensor:
    """Tokenises, pads to the longest of B sentences, and returns the means of the last layer, [B, D]."""
    batch = tokenizer(list(sentences), padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    batch = batch.to(model.device)
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None].to(states)
    return (states * mask).sum(1) / mask.sum(1)


def fastembed(path: Path, file: str, threads: int) -> Callable[[list[str]], np.ndarray]:
    """Returns what embeds N sentences, sorted by length, with fastembed: float32 [N, D].

    Args:
        path: a directory with `file`, which is ONNX, and its tokenizer.
        file: relative to `path`.
        threads: of ONNX Runtime.
    """
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    width = AutoConfig.from_pretrained(path, trust_remote_code=False).hidden_size
    about = {"pooling": PoolingType.MEAN, "normalization": True, "dim": width, "model_file": file}
    TextEmbedding.add_custom_model(model=str(path), sources=ModelSource(url="https://localhost"), **about)
    model = TextEmbedding(str(path), specific_model_path=str(path), threads=threads)

    def embed(sentences: list[str]) -> np.ndarray:
        order = np.argsort([len(sentence) for sentence in sentences])
        result = np.empty((len(order), width), np.float32)
        result[order] = list(model.embed([sentences[row] for row in order], batch_size=8))  # the fastest here
        return result

    return embed


@torch.no_grad()
def plain_encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], batch_size: int = 32
) -> np.ndarray:
    """Embeds N sentences, the longest first, and returns them in their order, [N, D]."""
    model.eval()
    order = np.argsort([-len(sentence) for sentence in sentences], kind="stable")
    result = np.empty((len(order), model.config.hidden_size), np.float32)
    for rows in np.split(order, range(batch_size, len(order), batch_size)):
        result[rows] = plain_embed(model, tokenizer, [sentences[row] for row in rows]).cpu().numpy()
    return result
