"""What all tests share: no network, one thread, repeatable random examples, one Ray, and tiny random encoders."""

import faulthandler
import fcntl
import functools
import ipaddress
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raysed.cluster.session import VARIABLES

# Set before anything imports the libraries that read them; Ray's workers inherit them.
os.environ.update(
    {
        **VARIABLES,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",  # also of the processes that tests start
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait for a busy core would spin, and so would those they wait for
        "RAY_worker_niceness": "0",  # beside other tests, too, workers get their share of the cores
    }
)

import hypothesis
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from raysed import interrupts
from raysed.data.tokens import TokenTable
from raysed.model.encoder import Encoder

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")
transformers.utils.logging.disable_progress_bar()

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "the a cat dog bird sat ran sang on under near old red big small house car tree river and of it he she they we was "
    "is to in not for with that this at by from or an have had do up out one two three ##s ##ing ##ed ##er , ."
).split()
MORE = (
    "tests/papers/",
    "tests/tools/",
    "tests/test_examples.py",
    "tests/test_wheel.py",
    "papers/",
    "tools/",
)
"""What `make test` leaves to `make test-more`, besides tests that are marked so."""
LONGEST_START = 300  # seconds that Ray may take to start
SELDOM = {
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # look for new files at intervals, not always
    "LOG_NAME_UPDATE_INTERVAL_S": "30",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}
"""Ray looks less often at logs and loads that no test asks it for."""
VOCABULARY = len(SPECIALS) + len(WORDS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `MORE`."""
    for item in items:
        if item.nodeid.startswith(MORE):
            item.add_marker("more")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes (`-n`) each file is one piece of work, but for those that share a Ray.

    The tests of faults take minutes each, so they are dealt out one by one; every process has its own cluster for those
    that it gets.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file == "tests/test_faults.py":
                return nodeid
            return "ray" if _shares_ray(config.rootpath / file) else file

    return Scheduling(config, log)


@functools.cache
def _shares_ray(file: Path) -> bool:
    return "ray_cluster" in file.read_text()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what tests have measured, see `figure` in test_faults.py."""
    figures = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "figure"
    ]
    if figures:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(figures))


class NetworkBlocked(RuntimeError):
    """A test tried to reach another machine."""


@pytest.fixture
def undone(monkeypatch) -> Iterator[None]:
    """Undoes what a command does to its process: handlers of signals and of the log, warnings, what ends with it."""
    logger = logging.getLogger("raysed")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    signals = {number: signal.getsignal(number) for number in interrupts.NUMBERS}
    monkeypatch.setattr("raysed.cli.atexit", SimpleNamespace(register=lambda *call: None))
    with warnings.catch_warnings():
        yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
    interrupts.listen()  # forgets a signal that has come: errors of later tests are no stops
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Sockets reach this machine only, which Ray needs; names of other machines are not even looked up."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _guarded_connection(getattr(socket.socket, name)))
        for name in ("getaddrinfo", "gethostbyname"):
            patch.setattr(socket, name, _guarded_lookup(getattr(socket, name)))
        yield


def _guarded_connection(original: Callable) -> Callable:
    def connect(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple):  # others are paths of Unix sockets
            _refuse_elsewhere(address[0])
        return original(self, address)

    return connect


def _guarded_lookup(original: Callable) -> Callable:
    def lookup(host: Any, *arguments: Any, **named: Any) -> Any:
        _refuse_elsewhere(host)
        return original(host, *arguments, **named)

    return lookup


def _refuse_elsewhere(host: str | bytes | None) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if name not in (None, "", "localhost", socket.gethostname()) and not _is_own_address(name):
        raise NetworkBlocked(f"a test tried to reach {name}")


def _is_own_address(host: str) -> bool:
    try:
        family = socket.AF_INET if ipaddress.ip_address(host).version == 4 else socket.AF_INET6
        with socket.socket(family) as probe:
            probe.bind((host, 0))  # only an address of this machine can be bound
    except (ValueError, OSError):
        return False
    return True


@pytest.fixture(autouse=True)
def threads_of_ray() -> None:
    """Tests share few cores, and one thread gives the same sums each time."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def ray_cluster() -> None:
    """One Ray of two CPUs for all files that need it, until a test of another file comes.

    Where it does not start, this process ends: no signal ends that wait.
    """
    import ray

    if ray.is_initialized():
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SELDOM.items():
            patch.setenv(name, value)
        faulthandler.dump_traceback_later(LONGEST_START, exit=True)
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        ray.init("local", num_cpus=2, object_store_memory=300 * 2**20, include_dashboard=False, **quiet)
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Ends Ray before a file that does not share it: `engine: auto` would take it for a cluster of the user's."""
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized() and not (nextitem and _shares_ray(nextitem.path)):
        ray.shutdown()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an undisturbed run in one process; tests copy it and change nothing in it.

    Of several test processes one runs it, and the others wait for it.
    """
    from started_jobs import ALONE, threads_of_ray, tiny_settings

    import raysed.pipeline
    from raysed.config import make_config

    own = tmp_path_factory.getbasetemp()
    storage = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "finished"
    storage.mkdir(exist_ok=True)
    settings = tiny_settings(storage=str(storage))
    settings["resources"] |= ALONE
    with (storage / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (storage / "tiny/report.json").exists():
            with threads_of_ray():
                raysed.pipeline.run(make_config(settings), lambda line: None)
    return storage / "tiny"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory of few letters: the names of Ray's sockets below it may have 107."""
    path = Path(os.path.realpath(tempfile.mkdtemp(prefix="r")))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def blank_pictures() -> Iterator[None]:
    """Charts of runs are empty, for a module whose tests look at none: painting takes two seconds a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raysed.report.charts.Chart.svg", lambda chart: "<svg></svg>")
        patch.setattr("raysed.report.charts.Chart.save", lambda chart, path: path.touch())
        yield


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list]:
    """Puts a dataset, or an exception, in the place of the dataset hub; returns the calls that are made to it."""

    def stand_in(table: Any) -> list:
        calls: list = []

        def load_dataset(*arguments: Any, **named: Any) -> Any:
            calls.append((arguments, named))
            if isinstance(table, Exception):
                raise table
            return table

        monkeypatch.setattr("datasets.load_dataset", load_dataset)
        return calls

    return stand_in


@pytest.fixture(scope="session")
def make_transformer() -> Callable[..., PreTrainedModel]:
    """Builds a tiny random transformer: bert, roberta, distilbert or mpnet."""
    return _transformer


@pytest.fixture(scope="session")
def make_encoder() -> Callable[..., Encoder]:
    """Builds an encoder around a tiny random transformer; arguments as for `make_transformer`."""
    return lambda *arguments, **settings: Encoder(_transformer(*arguments, **settings))


@pytest.fixture
def most_alive(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the encoders that this process holds; says how many there were at most since the test began."""
    alive: weakref.WeakSet = weakref.WeakSet()
    counts, make = [0], Encoder.__init__

    def counted(self: Encoder, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        alive.add(self)
        counts.append(len(alive))

    monkeypatch.setattr(Encoder, "__init__", counted)
    return lambda: max(counts)


@pytest.fixture(scope="session")
def make_table() -> Callable[..., TokenTable]:
    """Draws random sentences as token ids, closed by their special tokens."""
    return _table


@pytest.fixture(scope="session")
def make_sentences() -> Callable[[int, int], list[str]]:
    """Draws random sentences of the tiny tokenizer's words."""
    return _sentences


@pytest.fixture
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer of `VOCABULARY` tokens that adds [CLS] and [SEP]."""
    return _tokenizer()


@pytest.fixture(scope="session")
def tiny_encoder_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that `encoder.path` can name: a tiny BERT of three layers with its tokenizer."""
    path = tmp_path_factory.mktemp("tiny-encoder")
    _transformer("bert").save_pretrained(path)
    _tokenizer().save_pretrained(path)
    return path


def _transformer(kind: str, layers: int = 3, width: int = 16, seed: int = 0, positions: int = 40) -> PreTrainedModel:
    """Weights are larger than a fresh model's usually are, so that every part of it matters to the result."""
    pad = 1 if kind in ("roberta", "mpnet") else 0
    common = {"vocab_size": VOCABULARY, "pad_token_id": pad, "initializer_range": 0.3}
    common["max_position_embeddings"] = positions + (pad + 1 if pad else 0)
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 2 * width,
    }
    if kind == "distilbert":
        sizes = {"dim": width, "n_layers": layers, "n_heads": 2, "hidden_dim": 2 * width}
    name = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "mpnet": "MPNet"}[kind]
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes, **common))
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at zero, where some mistakes do not show
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *WORDS))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{token[1:-1].lower()}_token": token for token in SPECIALS}
    )


def _table(count: int, seed: int = 0, longest: int = 20) -> TokenTable:
    """Sentences of 2 to `longest` tokens; ids differ from positions."""
    rng = np.random.default_rng(seed)
    cls, sep = SPECIALS.index("[CLS]"), SPECIALS.index("[SEP]")
    inner = [rng.integers(len(SPECIALS), VOCABULARY, rng.integers(0, longest - 1)).tolist() for _ in range(count)]
    return TokenTable.from_lists([[cls, *tokens, sep] for tokens in inner], 1000 + 7 * np.arange(count))


def _sentences(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    words = [word for word in WORDS if not word.startswith("##")]
    return [" ".join(rng.choice(words, rng.integers(1, 15))) for _ in range(count)]


@pytest.fixture(scope="session")
def sentences(make_sentences: Callable[[int], list[str]]) -> list[str]:
    """Some longer than twelve tokens, and one empty."""
    return [*dict.fromkeys(make_sentences(80)), ""]


@pytest.fixture(scope="session")
def exports(
    tmp_path_factory: pytest.TempPathFactory,
    make_transformer: Callable[..., PreTrainedModel],
    tiny_encoder_dir: Path,
    sentences: list[str],
) -> dict[str, Path]:
    """Exports of a tiny model for twelve tokens: its poolings, and two calibrations of the second one."""
    from raysed.config import FlowConfig
    from raysed.data.tokens import tokenize
    from raysed.model.encoding import encode
    from raysed.model.library import export_model
    from raysed.train.calibrations.whiten import CALIBRATION as WHITEN
    from raysed.train.flow_fit import fit_flow

    encoder = Encoder(make_transformer("bert"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_encoder_dir)
    x_ND = encode(encoder, tokenize(tokenizer, sentences, 12), (2,))[0]
    calibrations = {"whiten": WHITEN.fit(x_ND), "flow": fit_flow(x_ND, FlowConfig(batch_size=4, epochs=3), seed=0)}
    paths = {name: tmp_path_factory.mktemp("exports") / name for name in ("1", "2", "whiten", "flow")}
    for name, path in paths.items():
        options = {"layers": 1 if name == "1" else 2, "max_length": 12, "calibration": calibrations.get(name)}
        export_model(encoder, tokenizer, path, **options)
    return paths
