r"""Is raysed right on this GPU, and how fast: one table, the questions that decide most first.

    make gpu-check                                    (or: python benchmarks/gpu_check.py)
    make gpu-check GPU_CHECK="--parts 0 1"            these parts alone
    make gpu-check GPU_CHECK="--device cpu"           small shapes on the CPU, which keeps this script alive

It needs no network and no Ray. Encoders have the shapes of BERT-base and -large, random weights and the bundled
tokenizer's vocabulary; sentences are those of the package. Each part writes its lines when it ends. Parts 0 to 5 should
take less than nine minutes, which no card has shown yet.

0. the card, its driver, and the cores
1. recorded updates against launched ones, with dropout, in fp32 and bf16: losses of every objective that is recorded
2. ms and GB per update, launched and recorded
3. attention with and without cuDNN: passes of new shapes, and gradients of very small logits
4. DeepSpeed in bf16: losses of recorded updates against launched ones
5. a small run on the local engine: members, targets, learners, flow, scores, export
6. an update that cannot be recorded, in a process of its own, which it may break
7. CT in several processes that share the GPU, without and with MPS

Without a package registry, the machine needs Python with PyTorch, transformers, NumPy, PyArrow, SciPy, psutil, PyYAML,
safetensors, rich, Jinja2 and Matplotlib. Collect the rest as wheels (17 MB) in a checkout where `make quickstart` ran,
for the other machine's Python, here 3.12. Leave out what it has: packages in build/site take precedence.

    to="--dest build/wheels --only-binary :all: --python-version 3.12 --platform manylinux_2_28_x86_64"
    to="$to --platform manylinux2014_x86_64"
    .venv/bin/python -m pip download -c constraints.txt $to pydantic
    .venv/bin/python -m pip download -c constraints.txt $to --no-deps sentence-transformers bm25s tensorboardX \
        protobuf scikit-learn joblib cloudpickle narwhals threadpoolctl hjson einops msgpack
    DS_BUILD_OPS=0 .venv/bin/python -m pip wheel -c constraints.txt --wheel-dir build/wheels --no-deps \
        --no-build-isolation deepspeed

Copy the checkout with build/wheels to that machine, and run there:

    python -m pip install --no-index --no-deps --target build/site build/wheels/*.whl
    PYTHONPATH=build/site:. python benchmarks/gpu_check.py --output page.md
"""

import argparse
import copy
import datetime
import logging
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import chain
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F
from transformers import AutoTokenizer, BertModel

from raysed.bundled import ENCODER
from raysed.config import make_config
from raysed.data.pairs import PairRows, write_pairs
from raysed.data.parquet import ROWS_PER_GROUP, with_column
from raysed.data.targets import TARGET_FILE
from raysed.data.tokens import FlatTokens, Tokenizer, TokenTable, pack, tokenize
from raysed.model.encoder import Encoder
from raysed.model.shape import shape_of_model
from raysed.registry import stages
from raysed.store.text import Table
from raysed.train.deepspeed import DeepSpeedEngine, prepare_deepspeed
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.memory import training_need
from raysed.train.out_of_memory import CUDA_CONTEXT
from raysed.train.recorded import OLDEST_TORCH, Record, cuda_graphs, tensors_in
from raysed.train.setup import set_up
from raysed.train.stage import Start
from raysed.train.stages.mlm import MaskedLM
from raysed.train.state import seed_everything

import shapes

ROOT = Path(__file__).resolve().parents[1]
_RECORDABLE = ("ct", "nli", "sts", "contrastive", "bsl", "sed")
_RATE = 2.0**-13
"""Of which float32, in which recorded updates have it, holds small multiples exactly."""
_TIMES = 3
"""Recorded losses may differ from launched ones by so many times what launched ones differ by when repeated."""
_ROUNDING = 1e-6
"""Relative difference of losses that is always allowed."""
_LEFT = 1e8
"""Bytes that libraries may keep on the GPU when trainings have ended."""
_PATIENCE = 240
"""Seconds after which another process is given up."""


@dataclass
class Row:
    """A line of the table: what was asked, what was found, and whether it is right; None: a figure without a bound."""

    part: int
    what: str
    found: str
    right: bool | None = None


@dataclass
class Check:
    """The device, the data and what was found so far.

    Attributes:
        device: `cuda` or `cpu`.
        directory: of the tables that trainings learn from.
        rows: of the table.
    """

    device: str
    directory: Path
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(ENCODER, trust_remote_code=False)
        text = (ENCODER.parent / "corpus.txt").read_text(encoding="utf-8")
        self.sentences = text.splitlines()[: 2000 if self.on_gpu else 512]
        self.data = self._tables()

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU that is checked."""
        return self.device == "cuda"

    def add_row(self, part: int, what: str, found: str, right: bool | None = None) -> None:
        """Adds a line, and shows it."""
        self.rows.append(Row(part, what, found, right))
        print(f"{part}  {what}: {found}{'' if right is None else ' (right)' if right else ' (WRONG)'}", flush=True)

    def encoder(self, shape: str, dropout: float = 0.0) -> Encoder:
        """Returns an encoder with random weights, on the CPU."""
        torch.manual_seed(0)
        config = shapes.config_of(shape, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        return Encoder(BertModel(config))

    def training(
        self, stage: str, encoder: Encoder, precision: str, *, records: bool, dropout: bool = False
    ) -> TrainingLoop:
        """Returns the training of a member or learner, as a run sets it up.

        Args:
            stage: name of the objective.
            encoder: of which a copy is trained.
            precision: `fp32` or `bf16`.
            records: whether updates are recorded, in every release of torch; on a CPU, a stand-in of the tests does it.
            dropout: whether the objective uses the encoder's.
        """
        views = {"views": ["files"]} if stage in ("contrastive", "bsl") else {}
        options = {"precision": precision, "recorded": records}
        blocks = {stage: {"dropout": dropout, **views}, "members": options}
        if stage == "sed":
            blocks = {stage: {"dropout": dropout, **options}}
        config = make_config({"evaluation": {"dev": None}, **blocks})
        data = {**self.data, "targets": self._targets(encoder.width)}
        start = Start(copy.deepcopy(encoder).to(self.device), self.tokenizer, data, seed=1)
        record = (cuda_graphs() if self.on_gpu else _tape(lambda: run)) if records else None
        engines = {engine.__name__: partial(engine, record=record) for engine in (TorchEngine, DeepSpeedEngine)}
        with (
            mock.patch.multiple("raysed.train.setup", **engines),
            mock.patch.object(Encoder, "use_sparse_gradients", lambda encoder: None),  # nor does a GPU
        ):
            settings = config.sed if stage == "sed" else config.members
            run = set_up(stages()[stage], getattr(config, stage), settings, start)
        run.batch_at.few_shapes = run.objective.is_recordable  # on a CPU, too
        run.objective.train()
        return run

    def _targets(self, width: int) -> Path:
        """Random targets, once for each width."""
        directory = self.directory / f"targets-{width}"
        if directory.exists():
            return directory
        directory.mkdir()
        tokens = tokenize(self.tokenizer, self.sentences, 75)
        targets = np.random.default_rng(0).standard_normal((len(tokens), width), np.float32)
        lists = pa.LargeListArray.from_arrays(tokens.offsets, tokens.input_ids)
        rows = pa.table({"id": tokens.ids, "input_ids": lists.cast(pa.list_(pa.int32()))})
        pq.write_table(with_column(rows, "target", targets), directory / TARGET_FILE, row_group_size=ROWS_PER_GROUP)
        return directory

    def _tables(self) -> dict[str, Path]:
        names = {"corpus": "corpus", "pairs/nli": "nli", "pairs/sts": "sts", "views/files": "views"}
        found = {name: self.directory / folder for name, folder in names.items()}
        for path in found.values():
            path.mkdir()
        with closing(FlatTokens(found["corpus"])) as flat:
            flat.add(tokenize(self.tokenizer, self.sentences, 75))
        first, second = self.sentences[0:512:2], self.sentences[1:512:2]
        for name, labels in (("pairs/nli", np.arange(256) % 3), ("pairs/sts", np.linspace(0, 1, 256))):
            write_pairs(PairRows(first, second, labels), Tokenizer(self.tokenizer, 75), found[name])
        write_pairs(PairRows(first, second), Tokenizer(self.tokenizer, 75), found["views/files"])
        return found


def _tape(run: Callable[[], TrainingLoop]) -> Record:
    """Returns the tests' stand-in for CUDA graphs, for a training that is not yet set up."""
    sys.path.append(str(ROOT / "tests"))
    from tape import Recorder

    def known() -> Iterator[torch.Tensor]:
        engine, objective = run().engine, run().objective
        optimizer = engine.optimizer if isinstance(engine, TorchEngine) else engine._torch_optimizer()
        moments = (state.values() for state in optimizer.state.values())
        return chain(objective.parameters(), objective.buffers(), *moments)

    return Recorder(known)


def _update(run: TrainingLoop, step: int, batch: Any = None) -> float:
    """Makes an update, whose rate is not that of the one before, and returns the loss."""
    seed_everything(1, step)
    return float(run.engine.update(run.batch_at(step) if batch is None else batch, _RATE * (1 + step % 3)))


def _counts(run: TrainingLoop) -> tuple[str, bool]:
    """Says how many recordings and replays were made, and whether there were replays to the end."""
    made = run.engine._recorded
    return f"{made.recorded} recorded, {made.replayed} replayed", made.replayed > 0 and not made.is_off


# -- 0: the machine ----------------------------------------------------------------------------------------------------


def machine(check: Check) -> None:
    """What figures depend on."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    card = subprocess.run(command, capture_output=True, text=True).stdout.strip() if check.on_gpu else "none"
    check.add_row(0, "card, driver, memory", card)
    check.add_row(0, "cores, torch, CUDA", f"{os.cpu_count()}, {torch.__version__}, {torch.version.cuda}")
    names = [name for name in ("pydantic", "deepspeed") if find_spec(name)]
    check.add_row(0, "packages", ", ".join(f"{name} of {Path(find_spec(name).origin).parents[1]}" for name in names))


# -- 1: the same losses ------------------------------------------------------------------------------------------------


def equality(check: Check) -> None:
    """Losses of recorded updates with dropout against launched ones, and a replay that is not finite."""
    encoder = check.encoder("small", dropout=0.1)
    for stage in _RECORDABLE:
        for precision in ("fp32", "bf16"):
            _compare(check, 1, stage, encoder, precision)
    _not_finite(check, encoder)


def _compare(check: Check, part: int, stage: str, encoder: Encoder, precision: str) -> None:
    """Launched updates are made three times: attention's backward pass on a GPU adds up in no fixed order."""
    losses = {}
    for turn in ("launched", "again", "a third time", "recorded"):
        run = check.training(stage, encoder, precision, records=turn == "recorded", dropout=True)
        with closing(run.engine):
            losses[turn] = np.array([_update(run, step) for step in range(24 if check.on_gpu else 12)])
            made, replays = _counts(run)
    launched = losses.pop("launched")
    recorded = np.abs(losses.pop("recorded") / launched - 1).max()
    again = np.abs(np.array(list(losses.values())) / launched - 1).max()
    right = replays and recorded <= np.maximum(_TIMES * again, _ROUNDING)
    engine = "DeepSpeed" if isinstance(run.engine, DeepSpeedEngine) else "torch"
    found = f"{recorded:.1e} apart, launched again {again:.1e}; {made}"
    check.add_row(part, f"{stage} in {precision} by {engine}, losses", found, bool(right))


def _not_finite(check: Check, encoder: Encoder) -> None:
    """A target that is not a number, once updates are replayed."""
    run = check.training("sed", encoder, "fp32", records=True)
    batch = run.batch_at(0)
    with closing(run.engine):
        for step in range(6):
            _update(run, step, batch)
        before = [p.detach().clone() for p in run.objective.parameters()]
        batch.targets[0, 0] = float("nan")
        loss = _update(run, 6, batch)
        made, replays = _counts(run)
    same = all(torch.equal(a, b) for a, b in zip(before, run.objective.parameters(), strict=True))
    found = f"loss {loss}, weights {'unchanged' if same else 'CHANGED'}; {made}"
    check.add_row(1, "a target that is not finite", found, replays and same and math.isnan(loss))


# -- 2: time and memory ------------------------------------------------------------------------------------------------


def speed(check: Check) -> None:
    """Median ms per update and peak memory, launched and recorded; then what finished trainings leave on the GPU."""
    stages_of = {"base": _RECORDABLE, "small": _RECORDABLE, "large": ("ct",)} if check.on_gpu else {"small": ("sed",)}
    for shape, names in stages_of.items():
        encoder = check.encoder(shape)
        for stage in names:
            _measure(check, stage, shape, encoder)
    if check.on_gpu:
        left = torch.cuda.memory_allocated()
        check.add_row(2, "memory that finished trainings leave", f"{left / 1e9:.2f} GB", left < _LEFT)


def _measure(check: Check, stage: str, shape: str, encoder: Encoder) -> None:
    ms, peaks = {}, {}
    for records, warm, updates in ((False, 10, 30), (True, 30, 150)) if check.on_gpu else ((False, 1, 5), (True, 6, 5)):
        if check.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        run = check.training(stage, encoder, "bf16", records=records)
        with closing(run.engine):
            for step in range(warm):
                _update(run, step)
            times = []
            for step in range(warm, warm + updates):
                with _seconds(check) as took:
                    _update(run, step)
                times += took
            made, replays = _counts(run)
        slots = max(_slots(run.batch_at(step)) for step in range(warm + updates))
        ms[records] = 1000 * float(np.median(times))
        peaks[records] = torch.cuda.max_memory_reserved() if check.on_gpu else 0
        del run
    planned = _planned(stage, shape, slots)
    found = f"{ms[False]:.1f} launched, {ms[True]:.1f} recorded, {ms[False] / ms[True]:.1f} times as fast"
    memory = f"{peaks[False] / 1e9:.2f} and {peaks[True] / 1e9:.2f} GB, planned {planned / 1e9:.2f}"
    fits = shape == "small" or peaks[True] <= planned  # torch takes memory by at least 20 MB
    check.add_row(2, f"{stage} {shape}, ms per update", f"{found}; {memory}; {made}", replays and fits)


def _slots(batch: Any) -> int:
    """Tokens of a batch, with those that are empty: packed tokens have three tensors of them."""
    return sum(x.numel() for x in tensors_in(batch) if x.ndim == 2 and not x.is_floating_point()) // 3


def _planned(stage: str, shape: str, tokens: int) -> float:
    """The plan's bytes for a training, without those of CUDA."""
    settings = getattr(make_config({"evaluation": {"dev": None}}), stage)
    size = shape_of_model(shapes.config_of(shape))
    with mock.patch("raysed.train.memory.OLDEST_TORCH", torch.__version__):  # any release records here
        need = training_need(stages()[stage], settings, size, tokens, gpu=True, bf16=True, records=True)
    return need.device - CUDA_CONTEXT


@contextmanager
def _seconds(check: Check) -> Iterator[list[float]]:
    """The time of what is done within, to the end of what the device does."""
    found: list[float] = []
    wait = torch.cuda.synchronize if check.on_gpu else lambda: None
    wait()
    began = time.perf_counter()
    yield found
    wait()
    found.append(time.perf_counter() - began)


# -- 3: attention ------------------------------------------------------------------------------------------------------


def attention(check: Check) -> None:
    """Passes of five shapes, first without cuDNN's attention, so that all else is loaded; then one backward pass."""
    encoder = check.encoder("base" if check.on_gpu else "small").to(check.device).eval()
    encoder.round_weights()  # as teachers do
    _passes(encoder, (20,), check)  # the first one on a GPU ends the use of cuDNN
    used = torch.backends.cuda.cudnn_sdp_enabled()
    check.add_row(3, "attention may be cuDNN's", "yes" if used else "no", not used if check.on_gpu else None)
    for cudnn in (False, True):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        try:
            new, again = (_passes(encoder, (24, 40, 56, 72, 88), check) for _ in range(2))
            finite = _gradient_is_finite(check.device)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(used)
        words = "with cuDNN" if cudnn else "without cuDNN"
        check.add_row(3, f"five passes of five new shapes {words}", f"{new:.2f} s, again {again:.2f} s")
        found = "finite" if finite else "not finite"
        check.add_row(3, f"gradient of logits of -120 {words}", found, None if cudnn else finite)


@torch.no_grad()
def _passes(encoder: Encoder, lengths: Sequence[int], check: Check) -> float:
    """Seconds of passes of 64 sentences of each length."""
    tables = [TokenTable.from_lists(np.full((64, length), 1000).tolist()) for length in lengths]
    batches = [pack(table, row_tokens=1).to(check.device) for table in tables]
    with _seconds(check) as took, torch.autocast(check.device, torch.bfloat16):
        for batch in batches:
            encoder(batch)
    return took[0]


def _gradient_is_finite(device: str) -> bool:
    """Attention in bf16 over 64 tokens with a mask; the gradient of its queries was NaN in some releases of cuDNN."""
    torch.manual_seed(0)
    query, key, value = (x.to(device, torch.bfloat16) for x in (*_opposite(), torch.randn(4, 12, 64, 64)))
    inputs = [x.requires_grad_() for x in (query, key, value)]
    mask = torch.zeros(4, 1, 64, 64, dtype=torch.bfloat16, device=device)
    F.scaled_dot_product_attention(*inputs, attn_mask=mask).square().sum().backward()
    return all(bool(x.grad.isfinite().all()) for x in inputs)


def _opposite() -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys whose products over 64 numbers, divided by their root, are -120."""
    query = torch.full((4, 12, 64, 64), 15.0**0.5)
    return query, -query


# -- 4: DeepSpeed ------------------------------------------------------------------------------------------------------


def deepspeed(check: Check) -> None:
    """Losses of recorded updates of a learner with DeepSpeed, against launched ones."""
    if not find_spec("deepspeed"):
        return check.add_row(4, "DeepSpeed", "skipped: it is not installed")
    prepare_deepspeed(gpu=check.on_gpu)
    group = f"file://{check.directory / 'group'}"
    os.environ["LOCAL_RANK"] = "0"
    torch.distributed.init_process_group("nccl" if check.on_gpu else "gloo", init_method=group, rank=0, world_size=1)
    try:
        _compare(check, 4, "sed", check.encoder("small", dropout=0.1), "bf16")
    finally:
        torch.distributed.destroy_process_group()


# -- 5: a small run ----------------------------------------------------------------------------------------------------


def small_run(check: Check) -> None:
    """A shortened quickstart without Ray, from the corpus to the report; a CPU trains a smaller encoder."""
    settings = ["resources.engine=local", f"resources.gpu={str(check.on_gpu).lower()}", "corpus.sentences=2000"]
    settings += ["members.count=4", "sts.lower_bounds=[0.0]", "sts.models=2", "sed.learners=1"]
    if not check.on_gpu:
        shapes.write("small", check.directory / "encoder")
        settings += [f"encoder.path={check.directory / 'encoder'}", "recipes=[ct-sed-flow]", "corpus.sentences=200"]
        settings += ["members.count=2", "ct.steps=4"]
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, str(ROOT / "jobs/ensemble_then_distill.py"), "--storage", str(check.directory / "runs")]
    with _seconds(check) as took:
        code = subprocess.run([*command, "--allow-worse", *words], timeout=_PATIENCE).returncode
    found = f"exit code {code}, {took[0]:.0f} s"
    check.add_row(5, "members, targets, learner, flow, scores, export", found, code == 0)


# -- 6: what cannot be recorded ----------------------------------------------------------------------------------------


def broken_recording(check: Check) -> None:
    """Whether a training goes on after its recording broke; where torch is too old to record, it need not."""
    what, must = "losses after a recording that breaks", torch.__version__ >= OLDEST_TORCH or not check.on_gpu
    try:
        ((losses, is_off, same_stream),) = _in_processes(losses_of_broken_recording, [(check.device,)])
    except Exception as error:
        found = f"the training ends: {type(error).__name__}: {error}"[:200]
        return check.add_row(6, what, found, False if must else None)
    worst = max(abs(a / b - 1) for a, b in zip(*losses, strict=True))
    found = f"{worst:.1e}, recordings are {'off' if is_off else 'ON'}{'' if same_stream else ', ANOTHER STREAM'}"
    right = is_off and same_stream and worst <= _ROUNDING
    check.add_row(6, what, found, right if must else None)


def losses_of_broken_recording(device: str) -> tuple[list[list[float]], bool, bool]:
    """Returns launched losses, those around a broken recording, whether recording is off, and the stream the same."""
    with tempfile.TemporaryDirectory() as directory:
        check, losses = Check(device, Path(directory)), []
        encoder = check.encoder("small", dropout=0.1)
        for records in (False, True):
            with mock.patch.object(MaskedLM, "is_recordable", True):
                run = check.training("mlm", encoder, "fp32", records=records, dropout=True)
            batch = run.batch_at(0)
            losses.append([_update(run, step, batch) for step in range(8)])
    same_stream = device == "cpu" or torch.cuda.current_stream() == torch.cuda.default_stream()
    return losses, run.engine._recorded.is_off, same_stream


# -- 7: several processes ----------------------------------------------------------------------------------------------

_MPS = "nvidia-cuda-mps-control"


def throughput(check: Check) -> None:
    """Recorded updates per second of CT by processes that share the device."""
    shape, updates = ("base", 200) if check.on_gpu else ("small", 5)
    alone = 0.0

    def measure(count: int, words: str = "") -> float:
        together = sum(_in_processes(train_together, [(check.device, shape, updates)] * count))
        times = f", {together / alone:.2f} times one" if alone else ""
        check.add_row(7, f"CT {shape}, processes: {count}{words}", f"{together:.1f} updates/s in all{times}")
        return together

    several = (4, 8) if check.on_gpu else (2,)
    alone = measure(1)
    for count in several:
        measure(count)
    try:
        with _mps():
            for count in several:
                measure(count, " with MPS")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        check.add_row(7, "MPS", f"did not start: {error}"[:200])


@contextmanager
def _mps() -> Iterator[None]:
    """Starts the server through which processes use the GPU at the same time instead of in turns."""
    with tempfile.TemporaryDirectory() as pipes:
        names = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes}
        with mock.patch.dict(os.environ, names):
            subprocess.run([_MPS, "-d"], check=True, timeout=30)
            try:
                yield
            finally:
                subprocess.run([_MPS], input="quit\n", text=True, check=False, timeout=60)


def train_together(device: str, shape: str, updates: int) -> float:
    """Returns updates per second of CT, in one of several processes that begin to count at the same time."""
    with tempfile.TemporaryDirectory() as directory:
        check = Check(device, Path(directory))
        precision = "bf16" if check.on_gpu else "fp32"
        run = check.training("ct", check.encoder(shape), precision, records=True)
        for step in range(30 if check.on_gpu else 1):
            _update(run, step)
        _begin.wait(_PATIENCE)
        with _seconds(check) as took:
            for step in range(30, 30 + updates):
                _update(run, step)
    return updates / took[0]


def _in_processes(function: Callable, arguments: Sequence[tuple]) -> list[Any]:
    """Calls a function with each of some arguments, at the same time, in new processes with today's environment."""
    context = get_context("spawn")
    begin = context.Barrier(len(arguments))
    with context.Pool(len(arguments), _set_begin, (begin,)) as pool:
        return pool.starmap_async(function, arguments, chunksize=1).get(_PATIENCE)


def _set_begin(begin: Barrier) -> None:
    global _begin
    _begin = begin


# -- all of it ---------------------------------------------------------------------------------------------------------

PARTS = (machine, equality, speed, attention, deepspeed, small_run, broken_recording, throughput)


def report(check: Check, seconds: float) -> str:
    """Returns the table as a page.

    Args:
        check: with what was found.
        seconds: that it took.
    """
    name = torch.cuda.get_device_name() if check.on_gpu else f"CPU ({platform.machine()})"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    words = {None: "", True: "yes", False: "no"}
    lines = [[str(row.part), row.what, row.found, words[row.right]] for row in check.rows]
    wrong = sum(row.right is False for row in check.rows)
    command = f"`python benchmarks/gpu_check.py --device {check.device}`"
    made = f"{command}, torch {torch.__version__}, commit {commit.strip() or 'unknown'}, {seconds:.0f} s."
    judged = f"{wrong} of {len(check.rows)} lines are not as they should be."
    table = Table(["part", "what", "found", "right"], lines, text=4).markdown()
    return f"# GPU check: {name}\n\n{made} {judged}\n\n{table}\n"


def main(words: Sequence[str] | None = None) -> int:
    """Checks all parts; returns 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", type=int, nargs="+", choices=range(len(PARTS)), help="these alone")
    parser.add_argument("--output", type=Path, help="the page; by default one in benchmarks/ for a GPU, none for a CPU")
    options = parser.parse_args(words)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use; --device cpu checks this script alone")
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("raysed.train.recorded").setLevel(logging.DEBUG)  # each comparison of a replay
    output = options.output
    if output is None and options.device == "cuda":
        name = torch.cuda.get_device_name().replace(" ", "-").lower()
        output = ROOT / f"benchmarks/{datetime.date.today()}-gpu-{name}.md"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        check = Check(options.device, Path(directory))
        for number in options.parts or range(len(PARTS)):
            part, started = PARTS[number], time.monotonic()
            try:
                part(check)
            except Exception as error:  # the other parts are worth having all the same
                traceback.print_exc()
                check.add_row(number, part.__name__, f"failed: {type(error).__name__}: {error}"[:200], False)
            check.add_row(number, f"{part.__name__}, seconds", f"{time.monotonic() - started:.0f}")
            if output:  # what was found is kept, whatever the next part does
                output.write_text(report(check, time.monotonic() - began), encoding="utf-8")
    print(f"\n{report(check, time.monotonic() - began)}")
    return int(any(row.right is False for row in check.rows))


if __name__ == "__main__":
    sys.exit(main())
