"""Is raysed right on this GPU, and how fast: one table, in two halves of four and five minutes.

    make gpu-check                                    (or: python benchmarks/gpu_check.py)
    make gpu-check GPU_CHECK="--half A"               whether updates are right and recorded, and what they take
    make gpu-check GPU_CHECK="--half B"               sharing, memory, peers, embedding, the quickstart
    make gpu-check GPU_CHECK="--device cpu"           small shapes on the CPU, which keeps this script alive

It needs torch, transformers, numpy, pyarrow, pydantic, pyyaml, psutil, scipy and, for part 6, deepspeed; no network,
and Ray for part 8 alone. Encoders have the shapes of BERT-base and -large, random weights and the bundled tokenizer's
vocabulary; sentences are those of the package.

A  0. the card, its driver, the cores, and whether MPS can be started
   1. every objective, three updates: this device against the CPU; a state that is saved, loaded and continued
   2. a batch in two parts with dropout: what is computed again is what was computed first
   3. recorded updates against launched ones: losses with dropout, ms per update, memory; what cannot be recorded
   6. DeepSpeed at ZeRO 0 to 2 against the torch engine
   7. how long the kernels of an update of CT run, beside the update
B  4. CT: updates per second of several processes, without and with MPS; peak memory beside the plan's; peers
   5. embedding: sentences per second and error, by precision and tokens per pass
   8. the quickstart on the GPU with a worker that is killed
"""

import argparse
import copy
import datetime
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoTokenizer, BertModel

import raysed.model.encoder
from raysed.bundled import ENCODER
from raysed.config import Config, make_config
from raysed.data.pairs import PairRows, write_pairs
from raysed.data.targets import with_column, write_targets
from raysed.data.tokens import FlatTokens, Tokenizer, pack, tokenize
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.shape import shape_of_model
from raysed.recipe import member_stages
from raysed.registry import stages
from raysed.store.text import Table
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.memory import training_need
from raysed.train.setup import set_up
from raysed.train.stage import Start
from raysed.train.stages.sed import SedConfig
from raysed.train.state import load_state, seed_everything, snapshot, write_state

import shapes

ROOT = Path(__file__).resolve().parents[1]
_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
_MEMORY = 0.15
"""By how much the peak may differ from the plan's."""
_SHARE = 0.85
"""Of an update's time in which kernels are to run."""
_RECORDED = 1e-5
"""By how much losses of recorded updates may differ in fp32: torch's attention adds up gradients in no fixed order."""
_RECORDABLE = ("ct", "nli", "sts", "contrastive", "bsl", "sed")


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
        right = None if right is None else bool(right)  # a comparison of losses on the GPU is a tensor
        self.rows.append(Row(part, what, found, right))
        print(f"{part}  {what}: {found}{'' if right is None else ' (right)' if right else ' (WRONG)'}", flush=True)

    def encoder(self, shape: str, seed: int = 0, dropout: float = 0.0) -> Encoder:
        """Returns an encoder with random weights, on the CPU."""
        torch.manual_seed(seed)
        config = shapes.config_of(shape, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        return Encoder(BertModel(config))

    def setup(self, stage: str, settings: dict[str, Any], encoder: Encoder, device: str) -> TrainingLoop:
        """Returns the training of one member or learner, as a run sets it up."""
        config, data = self.config(settings), {**self.data, "targets": self._targets(encoder.width)}
        start = Start(encoder.to(device), self.tokenizer, data, seed=1)
        options = config.sed if stage == "sed" else config.members
        return set_up(stages()[stage], getattr(config, stage), options, start)

    def config(self, settings: dict[str, Any]) -> Config:
        """Returns settings without a dev task."""
        return make_config({"evaluation": {"dev": None}, **settings})

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
        write_targets(directory, [with_column(rows, "target", targets)])
        return directory

    def _tables(self) -> dict[str, Path]:
        names = {"corpus": "corpus", "pairs/nli": "nli", "pairs/sts": "sts", "views/mlm": "views"}
        found = {name: self.directory / folder for name, folder in names.items()}
        for path in found.values():
            path.mkdir()
        with closing(FlatTokens(found["corpus"])) as flat:
            flat.add(tokenize(self.tokenizer, self.sentences, 75))
        first, second = self.sentences[0:512:2], self.sentences[1:512:2]
        for name, labels in (("pairs/nli", np.arange(256) % 3), ("pairs/sts", np.linspace(0, 1, 256))):
            write_pairs(PairRows(first, second, labels), Tokenizer(self.tokenizer, 75), found[name])
        write_pairs(PairRows(first, second), Tokenizer(self.tokenizer, 75), found["views/mlm"])
        return found


# -- 0: the machine ----------------------------------------------------------------------------------------------------


def machine(check: Check) -> None:
    """What figures depend on."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    card = subprocess.run(command, capture_output=True, text=True).stdout.strip() if check.on_gpu else "none"
    check.add_row(0, "card, driver, memory", card)
    check.add_row(0, "cores, torch, CUDA", f"{os.cpu_count()}, {torch.__version__}, {torch.version.cuda}")
    check.add_row(0, "MPS", "can be started" if shutil.which(_MPS) else f"{_MPS} is not there")


# -- 1: the same numbers ---------------------------------------------------------------------------------------------


def objectives(check: Check) -> None:
    """Three updates of every objective against the CPU in fp32, and a state that is continued."""
    for stage in member_stages():
        there = _three_updates(check, stage, "fp32", "cpu")
        for precision in _TOLERANCE:
            here = _three_updates(check, stage, precision, check.device)
            worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(here, there, strict=True))
            check.add_row(1, f"{stage} in {precision}, losses", f"{worst:.1e}", worst < _TOLERANCE[precision])
    with tempfile.TemporaryDirectory() as directory:
        difference = _continued(check, Path(directory))
    check.add_row(1, "ct saved, loaded, continued", f"{difference:.1e}", difference < (1e-5 if check.on_gpu else 1e-12))


def _settings(stage: str, precision: str, dropout: bool = False) -> dict[str, Any]:
    """By default without dropout, whose random numbers are other ones on every device."""
    views = {"views": ["mlm"]} if stage in ("contrastive", "bsl") else {}
    block = {"dropout": dropout, **views, **({"precision": precision} if stage == "sed" else {})}
    return {stage: block, "members": {"precision": precision}}


def _three_updates(check: Check, stage: str, precision: str, device: str) -> list[float]:
    setup = check.setup(stage, _settings(stage, precision), check.encoder("small"), device)
    setup.objective.eval()
    torch.manual_seed(0)
    losses = []
    for step in range(3):
        seed_everything(1, step)
        losses.append(float(setup.engine.update(setup.batch_at(step), 1e-4)))
    return losses


def _continued(check: Check, directory: Path) -> float:
    """The largest difference of weights after five updates, and after three, a copy on the disk, and two more."""
    ends = []
    for stops in (False, True):
        setup = check.setup("ct", _settings("ct", "fp32"), check.encoder("small"), check.device)
        for step in range(5):
            if stops and step == 3:
                write_state(*snapshot(setup.engine.state_dict()), directory)
                setup = check.setup("ct", _settings("ct", "fp32"), check.encoder("small", seed=9), check.device)
                setup.engine.load_state_dict(load_state(directory))
            seed_everything(1, step)
            setup.engine.update(setup.batch_at(step), 1e-4)
        ends.append([p.detach().cpu() for p in setup.objective.parameters()])
    return max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))


# -- 2: dropout --------------------------------------------------------------------------------------------------------


def recomputation(check: Check) -> None:
    """Gradients of a batch in two parts, once computed again and once kept, from the same random numbers."""

    def kept(function: Callable, *arguments: Any, **named: Any) -> Any:
        return function(*arguments)

    tokens = pack(tokenize(check.tokenizer, check.sentences[:32], 75)).to(check.device)
    gradients = []
    for replaced in (nullcontext(), mock.patch.object(raysed.model.encoder, "checkpoint", kept)):
        encoder = check.encoder("small", dropout=0.3).to(check.device).train()
        encoder.parts = 2
        torch.manual_seed(5)
        with replaced:
            encoder(tokens).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]))
    difference = float((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max())
    check.add_row(2, "gradient of two parts with dropout", f"{difference:.1e}", difference < 1e-5)


# -- 3: recorded updates -----------------------------------------------------------------------------------------------


def recorded(check: Check) -> None:
    """Losses of recorded updates with dropout against launched ones, then what both take. A CPU only runs the code."""
    for stage in _RECORDABLE:
        launched, _ = _twelve_losses(check, stage, records=False)
        found, count = _twelve_losses(check, stage, records=True)
        worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(found, launched, strict=True))
        right = worst < _RECORDED and count > 0 if check.on_gpu else None
        check.add_row(3, f"{stage}, recorded against launched, losses", f"{worst:.1e}, {count} recordings", right)
    _not_finite(check)
    _cannot_be_recorded(check)
    _updates_by_engine(check)


def _twelve_losses(check: Check, stage: str, records: bool) -> tuple[list[float], int]:
    run = check.setup(stage, _settings(stage, "fp32", dropout=True), check.encoder("small", dropout=0.1), check.device)
    _choose_engine(run, records)
    return [_update(run, step, 1e-4) for step in range(12)], _recordings(run)


def _choose_engine(run: TrainingLoop, records: bool) -> None:
    run.objective.train()
    if not records:
        run.engine._recorded.is_off = True


def _recordings(run: TrainingLoop) -> int:
    return run.engine._recorded.recorded


def _update(run: TrainingLoop, step: int, rate: float = 1e-5) -> float:
    seed_everything(1, step)
    return float(run.engine.update(run.batch_at(step), rate))


def _not_finite(check: Check) -> None:
    """A target that is not a number, once updates are replayed."""
    run = check.setup("sed", _settings("sed", "fp32"), check.encoder("small"), check.device)
    _choose_engine(run, records=True)
    for step in range(8):
        _update(run, step)
    before = [p.detach().clone() for p in run.objective.parameters()]
    batch = run.batch_at(7)
    batch.targets[0, 0] = float("nan")
    loss = run.engine.update(batch, 1e-4)
    same = all(torch.equal(a, b) for a, b in zip(before, run.objective.parameters(), strict=True))
    check.add_row(3, "a target that is not finite", f"loss {loss}, weights {'unchanged' if same else 'CHANGED'}", same)


def _cannot_be_recorded(check: Check) -> None:
    """An objective that claims it can be recorded but waits: it goes on with launched updates and their dropout."""
    losses = []
    for claims in (False, True):
        run = check.setup("mlm", _settings("mlm", "fp32", dropout=True), check.encoder("small", 0, 0.1), check.device)
        run.objective.is_recordable = claims
        batch = run.batch_at(0)
        run.batch_at = lambda step, batch=batch: batch  # one shape
        run.engine = TorchEngine(run.objective, run.engine.optimizer, run.engine.clip)
        run.objective.train()
        losses.append([_update(run, step, 1e-4) for step in range(8)])
    worst = max(abs(a - b) / abs(b) for a, b in zip(*losses, strict=True))
    is_off = check.on_gpu and run.engine._recorded.is_off and torch.cuda.current_stream() == torch.cuda.default_stream()
    found = f"{worst:.1e}{', recordings are off' if is_off else ''}"
    right = worst < _RECORDED and is_off if check.on_gpu else None
    check.add_row(3, "what cannot be recorded is launched, losses", found, right)


def _updates_by_engine(check: Check) -> None:
    for shape in ("base", "small") if check.on_gpu else ("small",):
        for stage in _RECORDABLE:
            found = {}
            for records, updates in ((False, 30), (True, 200)) if check.on_gpu else ((False, 3), (True, 3)):
                run = check.setup(stage, _settings(stage, "bf16"), check.encoder(shape), check.device)
                _choose_engine(run, records)
                if check.on_gpu:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                for step in range(20 if check.on_gpu else 1):
                    _update(run, step)
                with _seconds(check) as took:
                    for step in range(20, 20 + updates):
                        _update(run, step)
                peak = torch.cuda.max_memory_reserved() / 1e9 if check.on_gpu else 0.0
                found[records] = 1000 * took[0] / updates, peak
                del run
            (before, held), (after, holds) = found[False], found[True]
            ratio = f"{before:.1f} launched, {after:.1f} recorded, {before / after:.1f} times as fast"
            check.add_row(3, f"{stage} {shape}, ms per update", f"{ratio}; {held:.2f} and {holds:.2f} GB")


# -- 4: CT -------------------------------------------------------------------------------------------------------------


_MPS = "nvidia-cuda-mps-control"


def throughput(check: Check) -> None:
    """Updates per second of CT by processes that share the device, and its memory beside the plan's."""
    shape, updates = ("base", 200) if check.on_gpu else ("small", 5)
    alone, peak = _in_processes(check, shape, 1, updates)[0]
    _memory(check, shape, alone, peak)
    if check.on_gpu:
        _memory(check, "large", *_in_processes(check, "large", 1, 40)[0])
    for figure in ("s1_ct_updates.py", "s2_learner_updates.py"):
        _against_peer(check, figure, shape)
    several = (4, 8) if check.on_gpu else (2,)
    for mps in (False, True) if shutil.which(_MPS) and check.on_gpu else (False,):
        with _mps() if mps else nullcontext():
            for count in several:
                together = sum(rate for rate, _ in _in_processes(check, shape, count, updates))
                what = f"CT {shape}, {count} processes{' with MPS' if mps else ''}"
                check.add_row(4, what, f"{together:.1f} updates/s in all, {together / alone:.2f} times one")


def _memory(check: Check, shape: str, rate: float, peak: float) -> None:
    check.add_row(4, f"CT {shape}, one process", f"{rate:.1f} updates/s")
    if check.on_gpu:
        size, config = shape_of_model(shapes.config_of(shape)), check.config({})
        plan = training_need(stages()["ct"], config.ct, size, 32 * 13, gpu=True, bf16=True)
        off = peak / plan.device - 1
        found = f"{peak / 1e9:.2f} GB, planned {plan.device / 1e9:.2f} GB ({off:+.0%})"
        check.add_row(4, f"CT {shape}, peak memory", found, abs(off) <= _MEMORY)


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


def _against_peer(check: Check, figure: str, shape: str) -> None:
    """CT or the learner beside that of sentence-transformers at equal precision, by the figure's own script."""
    missing = [name for name in ("sentence_transformers", "datasets", "accelerate") if find_spec(name) is None]
    if missing:
        return check.add_row(4, f"{figure}, beside sentence-transformers", f"skipped: {missing[0]} is not installed")
    corpus, page = check.directory / "sentences.txt", check.directory / f"{figure}.json"
    corpus.write_text("\n".join(check.sentences), encoding="utf-8")
    counts = ["--updates", "100", "--warm-up", "30"] if check.on_gpu else ["--updates", "3", "--warm-up", "1"]
    command = [sys.executable, str(ROOT / "benchmarks" / figure), "--device", check.device, "--encoder", shape]
    command += [*counts, "--pairs", "1", "--quality-updates", "0", "--corpus", str(corpus), "--json", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        return check.add_row(4, figure, f"failed: {done.stderr.splitlines()[-1:]}", False)
    rates = {name: samples[0] for name, samples in json.loads(page.read_text())["samples"].items()}
    rates = {name: sample["amount"] / sample["seconds"] for name, sample in rates.items()}
    for precision in ("", " bf16"):
        times = rates[f"raysed{precision}"] / rates[f"sentence-transformers{precision}"]
        what = f"{'CT' if figure.startswith('s1') else 'learner'} {shape}{precision or ' fp32'}"
        check.add_row(4, f"{what} beside sentence-transformers", f"{times:.2f} times as fast")


def _in_processes(check: Check, shape: str, count: int, updates: int) -> list[tuple[float, float]]:
    """Rate and peak memory of each of so many processes that train at the same time.

    They are forks of a process that has imported everything and never touched the GPU.
    """
    with ProcessPoolExecutor(count, mp_context=get_context("forkserver")) as pool:
        return list(pool.map(train_alone, *zip(*[(check.device, shape, updates)] * count, strict=True)))


def train_alone(device: str, shape: str, updates: int) -> tuple[float, float]:
    """Returns updates per second of CT, and the largest memory, as one of the processes of part 4."""
    with tempfile.TemporaryDirectory() as directory:
        check = Check(device, Path(directory))
        setup = check.setup("ct", _settings("ct", "bf16" if check.on_gpu else "fp32"), check.encoder(shape), device)
        for step in range(updates // 4):
            setup.engine.update(setup.batch_at(step), 1e-5)
        with _seconds(check) as took:
            for step in range(updates):
                setup.engine.update(setup.batch_at(step), 1e-5)
    peak = 0.0
    if check.on_gpu:
        free, total = torch.cuda.mem_get_info()
        context = total - free - torch.cuda.memory_reserved()
        peak = torch.cuda.max_memory_reserved() + min(max(context, 0), 1e9)
    return updates / took[0], peak


# -- 5: embedding ------------------------------------------------------------------------------------------------------


def embedding(check: Check) -> None:
    """Sentences per second, and how far the vectors are from those in fp32."""
    shape, budgets = ("base", (8192, 65536)) if check.on_gpu else ("small", (2048, 8192))
    encoder = check.encoder(shape).to(check.device)
    table = tokenize(check.tokenizer, check.sentences, 75)
    reference_ND: np.ndarray | None = None
    for precision in _TOLERANCE:
        if precision == "bf16":
            encoder.round_weights()  # as teachers do
        for budget in budgets:
            encode(encoder, table, (1,), budget)
            with _seconds(check) as took:
                (x_ND,) = encode(encoder, table, (1,), budget)
            reference_ND = x_ND if reference_ND is None else reference_ND
            error = float(np.abs(x_ND - reference_ND).max() / np.abs(reference_ND).max())
            found = f"{len(table) / took[0]:,.0f} sentences/s, error {error:.1e}"
            check.add_row(
                5, f"embedding, {shape}, {precision}, {budget:,} tokens", found, error < _TOLERANCE[precision]
            )


# -- 6: DeepSpeed ------------------------------------------------------------------------------------------------------


def deepspeed(check: Check) -> None:
    """Three updates of a learner at every ZeRO stage in one process, against torch."""
    try:
        from raysed.train.deepspeed import DeepSpeedEngine, prepare_deepspeed

        prepare_deepspeed(gpu=check.on_gpu)
    except ImportError as error:
        check.add_row(6, "DeepSpeed", f"skipped: {error}")
        return
    from raysed.data.targets import TargetBatch
    from raysed.train.stages.sed import Distillation

    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29512",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    torch.distributed.init_process_group("nccl" if check.on_gpu else "gloo")
    tokens = pack(tokenize(check.tokenizer, check.sentences[:16], 75))
    batch = TargetBatch(tokens, torch.randn(16, 64, generator=torch.Generator().manual_seed(0)))
    start = check.encoder("small").to(check.device)

    def losses(make: Callable[[Distillation], Any]) -> list[float]:
        engine = make(Distillation(copy.deepcopy(start)))
        return [engine.update(batch, 1e-4) for _ in range(3)]

    def torch_engine(objective: Distillation) -> TorchEngine:
        trained = [p for p in objective.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=SedConfig().weight_decay, fused=True)
        return TorchEngine(objective, optimizer)

    plain = losses(torch_engine)
    for stage in range(3):
        sed = SedConfig(zero_stage=stage, batch_size=16)
        found = losses(lambda objective, sed=sed: DeepSpeedEngine(objective, sed, world=1, bf16=False))
        worst = max(abs(a - b) / abs(b) for a, b in zip(found, plain, strict=True))
        check.add_row(6, f"DeepSpeed at ZeRO {stage} against torch, losses", f"{worst:.1e}", worst < 1e-4)
    torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# -- 7: how much of an update is work ----------------------------------------------------------------------------------


def work_share(check: Check) -> None:
    """The time in which kernels of CT's updates run, beside the time of the updates."""
    shape, updates = ("base", 50) if check.on_gpu else ("small", 3)
    run = check.setup("ct", _settings("ct", "bf16"), check.encoder(shape), check.device)
    for step in range(20 if check.on_gpu else 1):
        _update(run, step)
    with _seconds(check) as took:
        for step in range(20, 20 + updates):
            _update(run, step)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if check.on_gpu else []
    with torch.profiler.profile(activities=kinds) as profile:
        for step in range(20, 20 + updates):
            _update(run, step)
    events = [event for event in profile.events() if not check.on_gpu or event.device_type.name == "CUDA"]
    what, each = "kernels" if check.on_gpu else "operations", 1000 * took[0] / updates
    check.add_row(7, f"{what} per update of CT {shape}", f"{len(events) / updates:,.0f}")
    if check.on_gpu:
        for name, words in (("products", ("gemm", "cutlass", "cublas", "nvjet")), ("optimizer", ("adam", "lerp"))):
            part = sum(e.self_device_time_total for e in events if any(word in e.name.lower() for word in words))
            check.add_row(7, f"of which {name}", f"{part / updates / 1000:.2f} ms")
        working = sum(event.self_device_time_total for event in events) / updates / 1000
        share = working / each
        check.add_row(7, "time in which kernels run", f"{working:.2f} of {each:.2f} ms, {share:.2f}", share >= _SHARE)


# -- 8: the quickstart -------------------------------------------------------------------------------------------------


def quickstart(check: Check) -> None:
    """The whole run on the GPU, with a worker that is killed while members train; without Ray, in one process."""
    if not check.on_gpu:
        check.add_row(8, "quickstart", "skipped: it is checked by the tests where there is no GPU")
        return
    import psutil

    words = ["--set", "resources.gpu=true", "--storage", str(check.directory / "runs")]
    job = subprocess.Popen(
        [sys.executable, str(ROOT / "jobs/ensemble_then_distill.py"), *words], stdout=subprocess.PIPE, text=True
    )
    killed = False
    while find_spec("ray") and job.poll() is None and not killed:
        time.sleep(0.5)
        for process in psutil.Process(job.pid).children(recursive=True):
            with suppress(psutil.Error):  # one that has ended meanwhile
                if "ct" in (name := " ".join(process.cmdline()[:1])) and name.startswith("ray::"):
                    process.kill()
                    killed = True
                    break
    output = job.communicate()[0]
    check.add_row(
        8, "quickstart, a worker killed" if killed else "quickstart", f"exit code {job.returncode}", job.returncode == 0
    )
    if job.returncode:
        print(output[-2000:])


# -- all of it ---------------------------------------------------------------------------------------------------------

PARTS = (machine, objectives, recomputation, recorded, throughput, embedding, deepspeed, work_share, quickstart)
HALVES = {"A": (0, 1, 2, 3, 6, 7), "B": (4, 5, 8)}


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
    parser.add_argument("--half", choices=tuple(HALVES), help="one half alone")
    parser.add_argument("--parts", type=int, nargs="+", choices=range(len(PARTS)), help="these alone")
    parser.add_argument("--output", type=Path, help="the page; by default one in benchmarks/ for a GPU, none for a CPU")
    options = parser.parse_args(words)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use; --device cpu checks this script alone")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        check = Check(options.device, Path(directory))
        for number in options.parts or HALVES.get(options.half) or range(len(PARTS)):
            try:
                PARTS[number](check)
            except Exception as error:  # the other parts are worth having all the same
                traceback.print_exc()
                check.add_row(number, PARTS[number].__name__, f"failed: {type(error).__name__}: {error}"[:200], False)
    page = report(check, time.monotonic() - began)
    print(f"\n{page}")
    output = options.output
    if output is None and check.on_gpu:
        name = torch.cuda.get_device_name().replace(" ", "-").lower()
        output = ROOT / f"benchmarks/{datetime.date.today()}-gpu-{name}.md"
    if output:
        output.write_text(page, encoding="utf-8")
    return int(any(row.right is False for row in check.rows))


if __name__ == "__main__":
    sys.exit(main())
