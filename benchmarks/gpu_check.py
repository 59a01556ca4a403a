"""Is raysed right on this GPU, and how fast: one table, in under nine minutes.

    make gpu-check                                    (or: python benchmarks/gpu_check.py)
    make gpu-check GPU_CHECK="--device cpu"           small shapes on the CPU, which keeps this script alive

It needs torch, transformers, numpy, pyarrow, pydantic, pyyaml, psutil, scipy and, for part 6, deepspeed; no network,
and no Ray but for part 8. Encoders have the shapes of BERT-base and -large, random weights and the bundled tokenizer's
vocabulary; sentences are those of the package.

1. every objective, three updates: this device against the CPU; a state that is saved, loaded and continued
2. a batch in two parts with dropout: what is computed again is what was computed first
3. synchronisations and kernels per update, the attention kernel, a new shape of batch against a repeated one
4. CT: updates per second with one process and with several; peak memory beside the plan's
5. embedding: sentences per second and error, by precision and tokens per pass
6. DeepSpeed at ZeRO 0 to 2 against the torch engine
7. the device's ceiling: the products of an update alone, and the share that the update reaches
8. the quickstart on the GPU with a worker that is killed
"""

import argparse
import copy
import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
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
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

import raysed.model.encoder
from raysed.bundled import ENCODER
from raysed.config import Config, make_config
from raysed.data.pairs import PairRows, write_pairs
from raysed.data.tokens import FlatTokens, pack, tokenize
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.shape import shape_of_model
from raysed.recipe import member_stages
from raysed.registry import stages
from raysed.store.text import Table
from raysed.train.engine import TorchEngine
from raysed.train.loop import Run
from raysed.train.memory import training_need
from raysed.train.stage import Start
from raysed.train.stages.sed import SedConfig
from raysed.train.state import copied, load_state, seed_everything, write_state

import shapes

ROOT = Path(__file__).resolve().parents[1]
_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
_MEMORY = 0.15
"""By how much the peak may differ from the plan's."""
_SHARE = 0.6
"""Of the device's ceiling that an update is to reach."""


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

    def say(self, part: int, what: str, found: str, right: bool | None = None) -> None:
        """Adds a line, and shows it."""
        right = None if right is None else bool(right)  # a comparison of losses on the GPU is a tensor
        self.rows.append(Row(part, what, found, right))
        print(f"{part}  {what}: {found}{'' if right is None else ' (right)' if right else ' (WRONG)'}", flush=True)

    def encoder(self, shape: str, seed: int = 0, dropout: float = 0.0) -> Encoder:
        """Returns an encoder with random weights, on the CPU."""
        torch.manual_seed(seed)
        config = shapes.config_of(shape, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        return Encoder(BertModel(config))

    def setup(self, stage: str, settings: dict[str, Any], encoder: Encoder, device: str) -> Run:
        """Returns the training of one member, as a run sets it up."""
        config, start = self.config(settings), Start(encoder.to(device), self.tokenizer, self.data, seed=1)
        return stages()[stage].set_up(getattr(config, stage), config.members, start)

    def config(self, settings: dict[str, Any]) -> Config:
        """Returns settings without a dev task."""
        return make_config({"evaluation": {"dev": None}, **settings})

    def _tables(self) -> dict[str, Path]:
        names = {"corpus": "corpus", "pairs/nli": "nli", "pairs/sts": "sts", "views/mlm": "views"}
        found = {name: self.directory / folder for name, folder in names.items()}
        for path in found.values():
            path.mkdir()
        with closing(FlatTokens(found["corpus"])) as flat:
            flat.add(tokenize(self.tokenizer, self.sentences, 75))
        first, second = self.sentences[0:512:2], self.sentences[1:512:2]
        for name, labels in (("pairs/nli", np.arange(256) % 3), ("pairs/sts", np.linspace(0, 1, 256))):
            write_pairs(PairRows(first, second, labels), self.tokenizer, 75, found[name])
        write_pairs(PairRows(first, second), self.tokenizer, 75, found["views/mlm"])
        return found


# -- 1: the same numbers ---------------------------------------------------------------------------------------------


def objectives(check: Check) -> None:
    """Three updates of every objective against the CPU in fp32, and a state that is continued."""
    for stage in member_stages():
        there = _three_updates(check, stage, "fp32", "cpu")
        for precision in _TOLERANCE:
            here = _three_updates(check, stage, precision, check.device)
            worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(here, there, strict=True))
            check.say(1, f"{stage} in {precision}, losses", f"{worst:.1e}", worst < _TOLERANCE[precision])
    with tempfile.TemporaryDirectory() as directory:
        difference = _continued(check, Path(directory))
    check.say(1, "ct saved, loaded, continued", f"{difference:.1e}", difference < (1e-5 if check.on_gpu else 1e-12))


def _settings(stage: str, precision: str) -> dict[str, Any]:
    """Without dropout, whose random numbers are other ones on every device."""
    views = {"views": ["mlm"]} if stage == "contrastive" else {}
    return {stage: {} if stage == "ct" else {"dropout": False, **views}, "members": {"precision": precision}}


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
                write_state(*copied(setup.engine.state_dict()), directory)
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
    check.say(2, "gradient of two parts with dropout", f"{difference:.1e}", difference < 1e-5)


# -- 3: what an update does --------------------------------------------------------------------------------------------


def activity(check: Check) -> None:
    """Counts what one update starts, and how often it waits."""
    shape = "base" if check.on_gpu else "small"
    setup = check.setup("ct", _settings("ct", "bf16"), check.encoder(shape), check.device)
    for step in range(3):
        setup.engine.update(setup.batch_at(step), 1e-5)
    started = "kernels" if check.on_gpu else "operations"
    if check.on_gpu:
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            setup.engine.update(setup.batch_at(3), 1e-5)
        torch.cuda.set_sync_debug_mode("default")
        check.say(3, "synchronisations per update", str(sum("synchroniz" in str(w.message) for w in caught)))
    alone, attention = _started(check, lambda: setup.engine.update(setup.batch_at(4), 1e-5))
    check.say(3, f"{started} per update", f"{alone:,}")
    check.say(3, "attention", ", ".join(attention) or "by matrix products")
    encoder = check.encoder(shape).to(check.device)
    table = tokenize(check.tokenizer, check.sentences[:64], 75)
    for name in ("new", "repeated"):
        packed = pack(table).to(check.device)
        with _seconds(check) as took:
            encoder(packed).sum().backward()
        check.say(3, f"forward and backward of a {name} shape", f"{1000 * took[0]:.1f} ms")


def _started(check: Check, update: Callable[[], Any]) -> tuple[int, list[str]]:
    """How many kernels an update starts, on the CPU operations; and the kinds of attention among them."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if check.on_gpu else []
    with torch.profiler.profile(activities=kinds) as profile:
        update()
    events = [event for event in profile.events() if not check.on_gpu or event.device_type.name == "CUDA"]
    return len(events), sorted({e.name for e in profile.events() if "attention" in e.name and "aten::_" in e.name})


# -- 4: CT -------------------------------------------------------------------------------------------------------------


def throughput(check: Check) -> None:
    """Updates per second of CT, and its memory beside the plan's."""
    names, updates = (["base", "large"], 40) if check.on_gpu else (["small"], 5)
    for shape in names:
        alone, peak = _in_processes(check, shape, 1, updates)[0]
        check.say(4, f"CT {shape}, one process", f"{alone:.1f} updates/s")
        if check.on_gpu:
            size, config = shape_of_model(shapes.config_of(shape)), check.config({})
            plan = training_need(stages()["ct"], config.ct, size, 32 * 13, gpu=True, bf16=True)
            off = peak / plan.device - 1
            found = f"{peak / 1e9:.2f} GB, planned {plan.device / 1e9:.2f} GB ({off:+.0%})"
            check.say(4, f"CT {shape}, peak memory", found, abs(off) <= _MEMORY)
        many = 4 if check.on_gpu and shape == "base" else 2
        together = sum(rate for rate, _ in _in_processes(check, shape, many, updates))
        check.say(
            4, f"CT {shape}, {many} processes", f"{together:.1f} updates/s in all, {together / alone:.2f} times one"
        )
    _against_peer(check, names[0])


def _against_peer(check: Check, shape: str) -> None:
    """CT beside that of sentence-transformers at equal precision, by the script of figure S1."""
    missing = [name for name in ("sentence_transformers", "datasets", "accelerate") if find_spec(name) is None]
    if missing:
        return check.say(4, "CT against sentence-transformers", f"skipped: {missing[0]} is not installed")
    corpus, page = check.directory / "sentences.txt", check.directory / "s1.json"
    corpus.write_text("\n".join(check.sentences), encoding="utf-8")
    counts = ["--updates", "100", "--warm-up", "20"] if check.on_gpu else ["--updates", "3", "--warm-up", "1"]
    command = [sys.executable, str(ROOT / "benchmarks/s1_ct_updates.py"), "--device", check.device, "--encoder", shape]
    command += [*counts, "--pairs", "1", "--quality-updates", "0", "--corpus", str(corpus), "--json", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        return check.say(4, "CT against sentence-transformers", f"failed: {done.stderr.splitlines()[-1:]}", False)
    rates = {name: samples[0] for name, samples in json.loads(page.read_text())["samples"].items()}
    rates = {name: sample["amount"] / sample["seconds"] for name, sample in rates.items()}
    times = rates["raysed"] / rates["sentence-transformers"]
    check.say(4, f"CT {shape} in fp32", f"{times:.2f} times the peer")


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
            check.say(5, f"embedding, {shape}, {precision}, {budget:,} tokens", found, error < _TOLERANCE[precision])


# -- 6: DeepSpeed ------------------------------------------------------------------------------------------------------


def deepspeed(check: Check) -> None:
    """Three updates of a learner at every ZeRO stage in one process, against torch."""
    try:
        from raysed.train.deepspeed import DeepSpeedEngine, prepare_deepspeed

        prepare_deepspeed(gpu=check.on_gpu)
    except ImportError as error:
        check.say(6, "DeepSpeed", f"skipped: {error}")
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
        return TorchEngine(objective, torch.optim.AdamW(trained, lr=0.0, weight_decay=SedConfig().weight_decay))

    plain = losses(torch_engine)
    for stage in range(3):
        sed = SedConfig(zero_stage=stage, batch_size=16)
        found = losses(lambda objective, sed=sed: DeepSpeedEngine(objective, sed, world=1, bf16=False))
        worst = max(abs(a - b) / abs(b) for a, b in zip(found, plain, strict=True))
        check.say(6, f"DeepSpeed at ZeRO {stage} against torch, losses", f"{worst:.1e}", worst < 1e-4)
    torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# -- 7: the ceiling ----------------------------------------------------------------------------------------------------


def ceiling(check: Check) -> None:
    """The products of an update of CT alone, one after the other."""
    shape, precision = ("base", torch.bfloat16) if check.on_gpu else ("small", torch.float32)
    config, updates = shapes.config_of(shape), 20 if check.on_gpu else 3
    setup = check.setup("ct", _settings("ct", "bf16" if check.on_gpu else "fp32"), check.encoder(shape), check.device)
    for step in range(5):
        setup.engine.update(setup.batch_at(step), 1e-5)
    with _seconds(check) as training:
        for step in range(updates):
            setup.engine.update(setup.batch_at(step), 1e-5)
    tokens = int(np.mean([_tokens_of(setup.batch_at(step)) for step in range(updates)]))
    run = _products(config, tokens, precision, check.device)
    run()
    with _seconds(check) as products:
        for _ in range(updates):
            run()
    share = products[0] / training[0]
    found = f"{1000 * products[0] / updates:.2f} of {1000 * training[0] / updates:.2f} ms, {share:.2f}"
    check.say(7, f"share of the products in an update of CT {shape}", found, share >= _SHARE if check.on_gpu else None)


def _tokens_of(batch: Any) -> int:
    """Places of all packed rows of a batch, which has them somewhere within."""
    if isinstance(batch, torch.Tensor):
        return 0
    if hasattr(batch, "input_ids"):
        return batch.input_ids.numel()
    parts = batch if isinstance(batch, tuple | list) else vars(batch).values() if hasattr(batch, "__dict__") else ()
    return sum(_tokens_of(part) for part in parts)


def _products(config: BertConfig, tokens: int, precision: torch.dtype, device: str) -> Callable[[], None]:
    """The linear layers' products of one forward and two backward passes, as one graph where there are graphs."""
    width, inner = config.hidden_size, config.intermediate_size
    sizes = [(width, width)] * 4 + [(width, inner), (inner, width)]
    made = {"device": device, "dtype": precision}
    pairs = [(torch.randn(tokens, a, **made), torch.randn(a, b, **made)) for a, b in sizes]

    def products() -> None:
        for _ in range(3 * config.num_hidden_layers):
            for x, weight in pairs:
                x @ weight

    if device != "cuda":
        return products
    products()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    return graph.replay


# -- 8: the quickstart -------------------------------------------------------------------------------------------------


def quickstart(check: Check) -> None:
    """The whole run on the GPU, with a worker that is killed while members train."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        check.say(8, "quickstart", f"skipped: {error}")
        return
    if not check.on_gpu:
        check.say(8, "quickstart", "skipped: it is checked by the tests where there is no GPU")
        return
    import psutil

    words = ["--set", "resources.gpu=true", "--storage", str(check.directory / "runs")]
    job = subprocess.Popen(
        [sys.executable, str(ROOT / "jobs/ensemble_then_distill.py"), *words], stdout=subprocess.PIPE, text=True
    )
    killed = False
    while job.poll() is None and not killed:
        time.sleep(0.5)
        for process in psutil.Process(job.pid).children(recursive=True):
            with suppress(psutil.Error):  # one that has ended meanwhile
                if "ct" in (name := " ".join(process.cmdline()[:1])) and name.startswith("ray::"):
                    process.kill()
                    killed = True
                    break
    output = job.communicate()[0]
    check.say(
        8, "quickstart, a worker killed" if killed else "quickstart", f"exit code {job.returncode}", job.returncode == 0
    )
    if job.returncode:
        print(output[-2000:])


# -- all of it ---------------------------------------------------------------------------------------------------------

PARTS = (objectives, recomputation, activity, throughput, embedding, deepspeed, ceiling, quickstart)


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
    parser.add_argument("--parts", type=int, nargs="+", default=list(range(1, len(PARTS) + 1)), help="these alone")
    parser.add_argument("--output", type=Path, help="the page; by default one in benchmarks/ for a GPU, none for a CPU")
    options = parser.parse_args(words)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use; --device cpu checks this script alone")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        check = Check(options.device, Path(directory))
        for number in options.parts:
            try:
                PARTS[number - 1](check)
            except Exception as error:  # the other parts are worth having all the same
                traceback.print_exc()
                check.say(number, PARTS[number - 1].__name__, f"failed: {type(error).__name__}: {error}"[:200], False)
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
